"""A `model_fn` as a Keras model."""

import contextlib
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import keras
import numpy as np

from keras_tpu_estimator.api.model_fn.spec import Spec
from keras_tpu_estimator.base.common.modes import ModeKeys
from keras_tpu_estimator.base.mesh.cores import ONE_CORE, Cores
from keras_tpu_estimator.base.tracing.variable_classes import store_value, stored_value
from keras_tpu_estimator.base.tracing.variables import is_accumulator
from keras_tpu_estimator.base.upstream.keras_variables import has_value
from keras_tpu_estimator.engine.device.distributed_program import (
    DistributedProgram,
)
from keras_tpu_estimator.engine.device.host_metrics import HostMetrics
from keras_tpu_estimator.engine.inputs.checks import check_array
from keras_tpu_estimator.engine.inputs.unbatched import batch_size, named_leaves
from keras_tpu_estimator.engine.program.bound_model_fn import BoundModelFn, TraceOptions
from keras_tpu_estimator.engine.program.steps import BatchLayout
from keras_tpu_estimator.front_ends.front_end import (
    FrontEnd,
    OfKerasModel,
    front_end_of,
)
from keras_tpu_estimator.front_ends.keras_model.linked_copy import LinkedCopy
from keras_tpu_estimator.front_ends.keras_model.model_files import SavedByWeights
from keras_tpu_estimator.front_ends.keras_model.program_model import FOR_METRIC_FN

_WHOLE = sys.maxsize


class EstimatorModel(SavedByWeights):
    """A `model_fn` as a `keras.Model`.

    `train_step`, `test_step` and `predict_step` run the steps of `model_fn`'s
    program, which the device loop of `TPUEstimator` also scans. `fit`,
    `evaluate`, `predict`, `summary`, `save_weights` and `load_weights` work as
    on any Keras model. The model needs no `compile`: optimizer, loss and
    metrics are those of `model_fn`. The results of `evaluate` and of
    `fit(validation_data=...)` include its `eval_metrics`.

    Args:
        program: The variables and steps, and their devices.
        front_end: The front end of `model_fn`.

    Example:

    >>> import keras_tpu_estimator as kte
    >>> import keras, numpy as np
    >>> def model_fn(features, labels, mode, params):
    ...     outputs = keras.layers.Dense(1)(features)
    ...     loss = keras.ops.mean((outputs - labels) ** 2)
    ...     optimizer = kte.CrossShardOptimizer(keras.optimizers.SGD(0.1))
    ...     return kte.TPUEstimatorSpec(
    ...         mode, {"y": outputs}, loss, optimizer.minimize(loss)
    ...         if mode == kte.ModeKeys.TRAIN else None)
    >>> model = kte.EstimatorModel.from_model_fn(model_fn)
    >>> x, y = np.ones((8, 2), "float32"), np.ones((8, 1), "float32")
    >>> history = model.fit(x, y, batch_size=4, verbose=0)
    >>> int(model.global_step.numpy())
    2
    """

    train_function: Callable[..., Any] | None
    test_function: Callable[..., Any] | None

    def __init__(self, program: DistributedProgram, front_end: FrontEnd):
        super().__init__(program, front_end)
        self._made_metrics: dict[str, HostMetrics] = {}
        self._copy: LinkedCopy | None = None

    @classmethod
    def from_model_fn(
        cls,
        model_fn: Callable[..., Spec],
        params: Mapping[str, Any] | None = None,
        config: Any = None,
        cores: Cores = ONE_CORE,
        seed: int | None = None,
    ) -> "EstimatorModel":
        """Makes a model from a `model_fn`, which is called as on one core.

        Args:
            model_fn: As in `TPUEstimator`.
            params: Hyperparameters for it. Defaults to none.
            config: Configuration for it. The fields `micro_batches`,
                `dtype_policy`, `remat`, `random_bits` and `reduce_dtype` of a
                `RunConfig` also have an effect. Defaults to `None`.
            cores: The devices that share each batch. Defaults to one device.
            seed: The seed of initial values and random layers. Defaults to
                `None`.
        """
        call = BoundModelFn(
            model_fn,
            dict(params or {}),
            config,
            checks_params=False,
        )
        layouts = {
            ModeKeys.TRAIN: BatchLayout(cores),
            ModeKeys.EVAL: BatchLayout(cores),
            ModeKeys.PREDICT: BatchLayout(cores),
        }
        front_end = front_end_of(model_fn)
        options = TraceOptions.of(config)
        program = front_end.make_program(call, seed, options)
        return cls(DistributedProgram(program, layouts), front_end)

    def fit(self, x: Any = None, y: Any = None, **kwargs: Any) -> Any:
        """Trains as `keras.Model.fit` does, with the same arguments."""
        self._prepare_from(ModeKeys.TRAIN, x, y, kwargs)
        with self._apart(keeps=True):
            return super().fit(x, y, **kwargs)

    def evaluate(self, x: Any = None, y: Any = None, **kwargs: Any) -> Any:
        """Evaluates as `keras.Model.evaluate` does."""
        self._prepare_from(ModeKeys.EVAL, x, y, kwargs)
        with self._apart():
            return super().evaluate(x, y, **kwargs)

    def predict(self, x: Any, **kwargs: Any) -> Any:
        """Predicts as `keras.Model.predict` does."""
        self._prepare_from(ModeKeys.PREDICT, x, None, kwargs)
        with self._apart():
            return self._as_outputs(super().predict(x, **kwargs))

    def train_on_batch(self, x: Any, y: Any = None, **kwargs: Any) -> Any:
        """Trains as `keras.Model.train_on_batch` does."""
        self._prepare_from(ModeKeys.TRAIN, x, y, {"batch_size": _WHOLE})
        with self._apart(keeps=True):
            return super().train_on_batch(x, y, **kwargs)

    def test_on_batch(self, x: Any, y: Any = None, **kwargs: Any) -> Any:
        """Evaluates as `keras.Model.test_on_batch` does."""
        self._prepare_from(ModeKeys.EVAL, x, y, {"batch_size": _WHOLE})
        with self._apart():
            return super().test_on_batch(x, y, **kwargs)

    def predict_on_batch(self, x: Any) -> Any:
        """Predicts as `keras.Model.predict_on_batch` does."""
        self._prepare_from(ModeKeys.PREDICT, x, None, {"batch_size": _WHOLE})
        with self._apart():
            return self._as_outputs(super().predict_on_batch(x))

    @property
    def layers(self) -> list[keras.layers.Layer]:
        """The layers of a copy of the model of `from_keras`, with the current
        values; no layers for a `model_fn`, which makes layers in its trace.
        """
        if self._of_keras is None:
            return []
        layers: list[keras.layers.Layer] = self._updated_copy("layers").layers
        return layers

    def get_layer(
        self, name: str | None = None, index: int | None = None
    ) -> keras.layers.Layer:
        """Returns one of `layers`."""
        return self._updated_copy("get_layer").get_layer(name, index)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Calls a copy of the model of `from_keras`, with the current values."""
        return self._updated_copy("__call__")(*args, **kwargs)

    @property
    def _of_keras(self) -> OfKerasModel | None:
        return self.front_end.keras_model

    def _as_outputs(self, predictions: Any) -> Any:
        if self._of_keras is None or not isinstance(predictions, Mapping):
            return predictions
        return self._of_keras.as_outputs(predictions)

    def _updated_copy(self, name: str) -> keras.Model:
        """Returns a copy of the model of `from_keras`, or raises an error that names
        an attribute.
        """
        if self._of_keras is None:
            raise NotImplementedError(
                f"`model.{name}` needs the Keras model of `from_keras`. Received a "
                "model of a model_fn, which makes its layers in each trace. Call "
                "`model.predict` or `predict_on_batch`, and read variables by their "
                "`path` among `model.variables`."
            )
        variables = self.program.store.variables
        values = {
            path: jnp.copy(variable.value)
            for path, variable in variables.items()
            if has_value(variable)
        }
        if self._copy is None:
            self._copy = LinkedCopy(self._of_keras.copy_with(values), variables)
        return self._copy.updated(values)

    def make_train_function(self, force: bool = False) -> None:
        """Makes the function that `fit` calls for each batch."""
        if self.train_function is None or force:
            super().make_train_function(force)
            self.train_function = self._counting(ModeKeys.TRAIN, self.train_function)

    def make_test_function(self, force: bool = False) -> None:
        """Makes the function that `evaluate` calls for each batch."""
        if self.test_function is None or force:
            super().make_test_function(force)
            self.test_function = self._counting(ModeKeys.EVAL, self.test_function)

    def reset_metrics(self) -> None:
        """Resets the metrics."""
        super().reset_metrics()
        for metrics in self._made_metrics.values():
            metrics.reset()
        store = self.program.store
        counts = {
            path for path in store.valued if is_accumulator(store.variables[path])
        }
        if counts:
            store.assign(store.initial_values(counts))

    def _host_metrics(self, mode: str) -> HostMetrics | None:
        """Returns the host metrics of a mode; none before its first step."""
        step = self.program.prepared.get(mode)
        if step is not None and mode not in self._made_metrics:
            metrics = self.program.host_metrics(step)
            if metrics is not None:
                self._made_metrics[mode] = metrics
        return self._made_metrics.get(mode)

    def _counting(self, mode: str, run: Any) -> Callable[..., Any]:
        """Wraps a function of Keras's loop, to also update host metrics."""

        def run_and_count(state: Any, iterator: Any) -> tuple[Any, Any]:
            logs, state = run(state, iterator)
            return self._with_metrics(mode, logs), state

        return run_and_count

    def _with_metrics(self, mode: str, logs: dict[str, Any]) -> dict[str, Any]:
        """Returns logs with the values of host metrics in place of tensors."""
        logs = dict(logs)
        tensors = logs.pop(FOR_METRIC_FN, None)
        metrics = self._host_metrics(mode)
        if tensors is None or metrics is None:
            return logs
        step = jax.tree.map(lambda tensor: np.asarray(tensor)[None], tensors)
        metrics.update(step)
        return logs | metrics.result()

    @contextlib.contextmanager
    def _apart(self, keeps: bool = False) -> Iterator[None]:
        """Separates Keras's arrays, which it donates, from a running loop's."""
        holder = self.program.store.holder
        apart = holder.separate_arrays(keeps) if holder else contextlib.nullcontext()
        with apart, self._given_back_on_error():
            yield

    @contextlib.contextmanager
    def _given_back_on_error(self) -> Iterator[None]:
        """Restores the values of variables if Keras's loop fails, because Keras removes
        them before its first step and restores them only after a successful one.
        """
        variables = [v for group in self._lists for v in group]
        variables += self.metrics_variables
        before = [stored_value(variable) for variable in variables]
        try:
            yield
        except BaseException:
            for variable, value in zip(variables, before, strict=True):
                if not (has_value(variable) or value.is_deleted()):
                    store_value(variable, value)
            raise

    def _prepare_from(
        self, mode: str, x: Any, y: Any, kwargs: Mapping[str, Any]
    ) -> None:
        """Creates the variables before Keras collects their values."""
        size = kwargs.get("batch_size") or 32
        if hasattr(x, "shape") or isinstance(x, dict):
            for name, leaf in named_leaves(x, y):
                if isinstance(leaf, np.ndarray):
                    check_array(name, leaf)
            data = jax.tree.map(lambda array: array[:size], (x, y))
        elif iter(x) is not x:
            data = next(iter(x))
        elif mode in self.program.prepared:
            return
        else:
            raise ValueError(
                f"The first data in mode {mode!r} must be arrays or a dataset, "
                "because the first batch of an iterator would be lost. Received: "
                f"{x!r}. Call `model.prepare(mode, features, labels)` with a "
                "batch and `model.initialize()` first."
            )
        features, labels = self.features_and_labels(data)
        if mode == ModeKeys.PREDICT:
            labels = jnp.zeros((batch_size(features),), bool)
        features, labels = jax.tree.map(jnp.asarray, (features, labels))
        self.prepare(mode, features, labels)
        self.initialize()
