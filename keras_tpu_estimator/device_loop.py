"""The device loop: many steps as one device program.

`jax.lax.scan` over stacked batches, with the state donated, replaces Keras's
Python loop over single steps. What is scanned are the steps of
`EstimatorModel`.
"""

from collections.abc import Callable
from typing import Any

import jax

from keras_tpu_estimator.model import OUTPUTS
from keras_tpu_estimator.model import EstimatorModel
from keras_tpu_estimator.model import State
from keras_tpu_estimator.modes import ModeKeys
from keras_tpu_estimator.newest import scan_with_newest
from keras_tpu_estimator.program.steps import SUMMARIES
from keras_tpu_estimator.program.steps import batch_size


class DeviceLoop:
    """Runs a model's steps on the devices, compiled once for each shape.

    Args:
        model: The model whose steps are run.
    """

    def __init__(self, model: EstimatorModel):
        self._model = model
        self._train = jax.jit(self._train_steps, donate_argnums=0)
        self._evaluate = jax.jit(self._evaluate_steps)
        self._predict = jax.jit(
            lambda state, data: model.predict_step(state, data)[0]
        )

    def put(self, mode: str, features: Any, labels: Any) -> Any:
        """Copies stacked steps to the devices, split over the cores.

        Args:
            mode: A value of `ModeKeys`.
            features: Nest of arrays of shape `[steps, batch, ...]`.
            labels: The same, or `None`.

        Returns:
            What `train` and `evaluate` take.
        """
        feed = self._model.feed(mode)
        if mode != ModeKeys.TRAIN and feed.cores.mesh is None:
            # Few steps: a compiled function copies them by itself, and faster.
            return features, labels
        size = jax.tree.leaves(features)[0].shape[1]
        return jax.device_put((features, labels), feed.sharding(size, axis=1))

    def put_one(self, features: Any, is_padding: Any) -> Any:
        """Copies one step of prediction to the devices.

        Args:
            features: Nest of arrays of shape `[batch, ...]`.
            is_padding: Booleans of shape `[batch]`.

        Returns:
            What `predict` takes.
        """
        feed = self._model.feed(ModeKeys.PREDICT)
        if feed.cores.mesh is None:
            return features, is_padding
        sharding = feed.sharding(batch_size(features))
        return jax.device_put((features, is_padding), sharding)

    def put_values(self, values: Any) -> Any:
        """Copies variables' values to the devices, whole to each core."""
        cores = self._model.feed(ModeKeys.TRAIN).cores
        return jax.device_put(values, cores.replicated)

    def train(self, state: State, metrics: list[Any], batches: Any) -> Any:
        """Trains one step for each of the stacked batches.

        Args:
            state: Values as `EstimatorModel.state` lists them; they may not be
                used again.
            metrics: The metrics' values so far.
            batches: What `put` returned.

        Returns:
            The new state; the metrics' values; the mean loss so far; and each
            step's other outputs, stacked, except that summaries are those of
            the last step.
        """
        return self._train(state, metrics, batches)

    def evaluate(self, state: State, metrics: list[Any], batches: Any) -> Any:
        """Evaluates the stacked batches.

        Args:
            state: Values as `EstimatorModel.state` lists them, without slots.
            metrics: The metrics' values so far.
            batches: What `put` returned.

        Returns:
            The new values of the variables that are not trainable; those of
            the metrics; the mean loss so far; and each step's other outputs,
            stacked, except that summaries are those of the last step.
        """
        return self._evaluate(state, metrics, batches)

    def predict(self, state: State, data: Any) -> Any:
        """Predicts for one batch.

        Args:
            state: Values as `EstimatorModel.state` lists them, without slots.
            data: What `put_one` returned.

        Returns:
            Nest of predictions, batch first.
        """
        return self._predict(state, data)

    def _train_steps(
        self, state: State, metrics: list[Any], batches: Any
    ) -> Any:
        (*new, metrics), logs, newest = scan_with_newest(
            _with_summaries_apart(self._model.train_step),
            (*state, metrics),
            batches,
        )
        outputs = logs[OUTPUTS] | {SUMMARIES: newest}
        return tuple(new), metrics, logs["loss"][-1], outputs

    def _evaluate_steps(
        self, state: State, metrics: list[Any], batches: Any
    ) -> Any:
        (_, others, metrics), logs, newest = scan_with_newest(
            _with_summaries_apart(self._model.test_step),
            (*state, metrics),
            batches,
        )
        outputs = logs[OUTPUTS] | {SUMMARIES: newest}
        return others, metrics, logs["loss"][-1], outputs


def _with_summaries_apart(
    model_step: Callable[[State, Any], tuple[Any, State]],
) -> Callable[[State, Any], tuple[State, Any, Any]]:
    def step(state: State, batch: Any) -> tuple[State, Any, Any]:
        logs, state = model_step(state, batch)
        return state, logs, logs[OUTPUTS].pop(SUMMARIES, [])

    return step
