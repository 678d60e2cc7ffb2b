"""The device loop: many steps as one device program.

`jax.lax.scan` over stacked batches, with the state donated, replaces Keras's
Python loop over single steps. What is scanned are the steps of
`EstimatorModel`.
"""

from collections.abc import Callable
from collections.abc import Mapping
from typing import Any

import jax

from keras_tpu_estimator.base.modes import ModeKeys
from keras_tpu_estimator.device.estimator_model import OUTPUTS
from keras_tpu_estimator.device.estimator_model import EstimatorModel
from keras_tpu_estimator.device.estimator_model import KerasState
from keras_tpu_estimator.device.nan_search import checking_nans
from keras_tpu_estimator.device.scan import scan_with_newest
from keras_tpu_estimator.program.steps import NAMED
from keras_tpu_estimator.program.steps import NEWEST
from keras_tpu_estimator.program.steps import batch_size


class DeviceLoop:
    """Runs a model's steps on the devices, compiled once for each shape.

    Args:
        model: The model whose steps are run.
        debug_nans: Whether training finds the operation that the first NaN
            comes from. Defaults to `False`.
    """

    def __init__(self, model: EstimatorModel, debug_nans: bool = False):
        self._model = model
        self._train = (
            checking_nans(self._train_steps)
            if debug_nans
            else jax.jit(
                self._train_steps, donate_argnums=0, static_argnames="fetch"
            )
        )
        self._evaluate = jax.jit(self._evaluate_steps, static_argnames="fetch")
        self._predict = jax.jit(self._predict_step, static_argnames="fetch")

    def put(self, mode: str, features: Any, labels: Any) -> Any:
        """Copies stacked steps to the devices, split over the cores.

        Args:
            mode: A value of `ModeKeys`.
            features: Nest of arrays of shape `[steps, batch, ...]`.
            labels: The same, or `None`.

        Returns:
            What `train` and `evaluate` take.
        """
        layout = self._model.layout(mode)
        if mode != ModeKeys.TRAIN and layout.cores.mesh is None:
            # Few steps: a compiled function copies them by itself, and faster.
            return features, labels
        size = batch_size((features, labels), axis=1)
        return jax.device_put((features, labels), layout.sharding(size, axis=1))

    def put_one(self, features: Any, is_padding: Any) -> Any:
        """Copies one step of prediction to the devices.

        Args:
            features: Nest of arrays of shape `[batch, ...]`.
            is_padding: Booleans of shape `[batch]`.

        Returns:
            What `predict` takes.
        """
        layout = self._model.layout(ModeKeys.PREDICT)
        if layout.cores.mesh is None:
            return features, is_padding
        sharding = layout.sharding(batch_size((features, is_padding)))
        return jax.device_put((features, is_padding), sharding)

    def put_values(self, values: Any) -> Any:
        """Copies variables' values to the devices, whole to each core."""
        cores = self._model.layout(ModeKeys.TRAIN).cores
        return jax.device_put(values, cores.replicated)

    def train(
        self,
        state: KerasState,
        metrics: list[Any],
        batches: Any,
        fetch: tuple[str, ...] = (),
    ) -> Any:
        """Trains one step for each of the stacked batches.

        Args:
            state: Values as `EstimatorModel.state` lists them; they may not be
                used again.
            metrics: The metrics' values so far.
            batches: What `put` returned.
            fetch: Names of the tensors that are wanted of the last step.

        Returns:
            The new state; the metrics' values; the mean loss after each step;
            and the other outputs: of every step, stacked, or of the last.
        """
        return self._train(state, metrics, batches, fetch=fetch)

    def evaluate(
        self,
        state: KerasState,
        metrics: list[Any],
        batches: Any,
        fetch: tuple[str, ...] = (),
    ) -> Any:
        """Evaluates the stacked batches.

        Args:
            state: Values as `EstimatorModel.state` lists them, without slots.
            metrics: The metrics' values so far.
            batches: What `put` returned.
            fetch: Names of the tensors that are wanted of the last step.

        Returns:
            The new values of the variables that are not trainable; those of
            the metrics; the mean loss after each step; and the other outputs:
            of every step, stacked, or of the last.
        """
        return self._evaluate(state, metrics, batches, fetch=fetch)

    def predict(
        self, state: KerasState, data: Any, fetch: tuple[str, ...] = ()
    ) -> tuple[Any, dict[str, Any], Any]:
        """Predicts for one batch.

        Args:
            state: Values as `EstimatorModel.state` lists them, without slots.
            data: What `put_one` returned.
            fetch: Names of other tensors that are wanted.

        Returns:
            Nest of predictions, batch first; the other tensors by name; and
            those of a `host_call`, or `None`.
        """
        return self._predict(state, data, fetch=fetch)

    def _train_steps(
        self,
        state: KerasState,
        metrics: list[Any],
        batches: Any,
        fetch: tuple[str, ...],
    ) -> Any:
        (*new, metrics), losses, outputs = _scan(
            self._model.train_step, (*state, metrics), batches, fetch
        )
        return tuple(new), metrics, losses, outputs

    def _evaluate_steps(
        self,
        state: KerasState,
        metrics: list[Any],
        batches: Any,
        fetch: tuple[str, ...],
    ) -> Any:
        (_, others, metrics), losses, outputs = _scan(
            self._model.test_step, (*state, metrics), batches, fetch
        )
        return others, metrics, losses, outputs

    def _predict_step(
        self, state: KerasState, data: Any, fetch: tuple[str, ...]
    ) -> tuple[Any, dict[str, Any], Any]:
        outputs = self._model.predict_outputs(state, data)
        return (
            outputs["predictions"],
            _only(outputs.get(NAMED, {}), fetch),
            outputs.get("host_call"),
        )


def _scan(
    model_step: Callable[[KerasState, Any], tuple[Any, KerasState]],
    state: KerasState,
    batches: Any,
    fetch: tuple[str, ...],
) -> tuple[KerasState, Any, dict[str, Any]]:
    """Makes the steps; returns the state, the losses and other outputs."""

    def step(state: KerasState, batch: Any) -> tuple[KerasState, Any, Any]:
        logs, state = model_step(state, batch)
        outputs = logs.pop(OUTPUTS)
        newest = {name: outputs.pop(name, {}) for name in NEWEST}
        newest[NAMED] = _only(newest[NAMED], fetch)
        return state, (logs["loss"], outputs), newest

    state, (losses, outputs), newest = scan_with_newest(step, state, batches)
    return state, losses, outputs | newest


def _only(named: Mapping[str, Any], fetch: tuple[str, ...]) -> dict[str, Any]:
    return {name: named[name] for name in fetch}
