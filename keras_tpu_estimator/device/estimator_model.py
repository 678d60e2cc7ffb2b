"""A program as a Keras model, whose steps are those of the device loop."""

import contextlib
import sys
import types
from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any
from typing import Protocol
from typing import TypeAlias

import jax
import jax.numpy as jnp
import keras
import numpy as np

from keras_tpu_estimator.base.modes import ModeKeys
from keras_tpu_estimator.base.types import Features
from keras_tpu_estimator.base.types import Labels
from keras_tpu_estimator.base.types import Nest
from keras_tpu_estimator.cpu.tuning import tuned
from keras_tpu_estimator.device.model_optimizer import ModelOptimizer
from keras_tpu_estimator.front_ends import make_program
from keras_tpu_estimator.inputs.shared import batch_size
from keras_tpu_estimator.keras_program.bound_model_fn import ModelFn
from keras_tpu_estimator.mesh.cores import ONE_CORE
from keras_tpu_estimator.mesh.cores import Cores
from keras_tpu_estimator.model_fn.spec import Spec
from keras_tpu_estimator.program.options import TraceOptions
from keras_tpu_estimator.program.program import Program
from keras_tpu_estimator.program.steps import BatchLayout
from keras_tpu_estimator.program.steps import Outputs
from keras_tpu_estimator.program.steps import Step
from keras_tpu_estimator.program.steps import StepFunction
from keras_tpu_estimator.program.store import GLOBAL_STEP
from keras_tpu_estimator.tracing.variables import AnyValues
from keras_tpu_estimator.tracing.variables import Values

MetricsState: TypeAlias = Sequence[jax.Array | np.ndarray]
KerasState: TypeAlias = tuple[list[jax.Array], ...]
_WHOLE = sys.maxsize


class Lender(Protocol):
    """Who has the values of a model's variables while a loop runs."""

    def show(self) -> None:
        """Gives the variables the loop's current values."""

    def apart(self, keeps: bool) -> contextlib.AbstractContextManager[None]:
        """Lets the variables have arrays of their own in a `with` block.

        Args:
            keeps: Whether what becomes of them counts after the block.
        """


class EstimatorModel(keras.Model):
    """A `model_fn` as a `keras.Model`.

    `train_step`, `test_step` and `predict_step` run the steps of `model_fn`'s
    program, which the device loop of `TPUEstimator` scans as well. `fit`,
    `evaluate`, `predict`, `summary` and `save_weights` work as on any Keras
    model. No `compile` is needed: the optimizer is the one in `model_fn`.

    Args:
        program: The variables and steps to run.
        layouts: How the cores share the batches of each mode. By default one
            core has them whole.

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

    def __init__(
        self,
        program: Program,
        layouts: Mapping[str, BatchLayout] | None = None,
    ):
        super().__init__(name="estimator_model")
        self.program = program
        self.layouts = types.MappingProxyType(dict(layouts or {}))
        self._loss_mean = keras.metrics.Mean(name="loss")
        # Keras tracks what is appended to a list attribute.
        self._model_variables: list[keras.Variable] = []
        self._valued: set[str] = set()
        # Who gives the variables their values while a loop runs.
        self.lender: Lender | None = None
        self._prepared: set[str] = set()
        self.compile(optimizer=None)
        self.optimizer = ModelOptimizer(self.global_step)
        self.built = True

    @classmethod
    def from_model_fn(
        cls,
        model_fn: Callable[..., Spec],
        params: Mapping[str, Any] | None = None,
        config: Any = None,
        cores: Cores = ONE_CORE,
        seed: int | None = None,
    ) -> "EstimatorModel":
        """Makes a model of a `model_fn` that is called as on one core.

        Args:
            model_fn: As `TPUEstimator` takes it.
            params: Hyperparameters for it. Defaults to none.
            config: Configuration for it. Of a `RunConfig`, `micro_batches`,
                `dtype_policy` and `remat` count, too. Defaults to `None`.
            cores: The cores that share each batch. Defaults to one core.
            seed: Makes initial values and random layers repeatable. Defaults
                to `None`.
        """
        call = ModelFn(
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
        return cls(make_program(call, seed, TraceOptions.of(config)), layouts)

    @property
    def global_step(self) -> keras.Variable:
        """The number of training steps made, as a variable."""
        return self.program.store.variables[GLOBAL_STEP]

    @property
    def metrics(self) -> list[keras.metrics.Metric]:
        """The mean loss, which Keras resets and reports."""
        return [self._loss_mean]

    def prepare(
        self, mode: str, features: Features, labels: Labels = None
    ) -> Step:
        """Traces `model_fn` for inputs like these, if it has not been.

        Args:
            mode: A value of `ModeKeys`.
            features: Nest of arrays, batch first.
            labels: The same, or `None`.

        Returns:
            The step. Its variables are the model's from now on.
        """
        step = self._step(mode, features, labels)
        self._prepared.add(mode)
        self._track_new_variables()
        return step

    def layout(self, mode: str) -> BatchLayout:
        """How the cores share the batches of a mode."""
        return self.layouts.get(mode, BatchLayout())

    def initialize(self) -> None:
        """Gives initial values to variables that have none yet."""
        missing = self.program.store.variables.keys() - self._valued
        if missing:
            self.assign(self.program.store.initial_values(missing))

    def to_compile(self, step: Step) -> StepFunction:
        """A step's function as it is compiled for the cores that run it."""
        if self.layout(step.mode).cores.platform == "cpu":
            return tuned(step.function)
        return step.function

    def run_step(
        self, step: Step, values: Values, metrics: list[jax.Array], batch: Nest
    ) -> tuple[Values, list[jax.Array], Outputs]:
        """One step of training or evaluation, as a pure function.

        Args:
            step: The step.
            values: The values that it reads, by path.
            metrics: The values of the metrics' variables.
            batch: A pair of features and labels.

        Returns:
            The values that changed, the metrics' new values, and the outputs;
            among them as `loss` the mean over examples so far.
        """
        changed, outputs = self.to_compile(step)(values, *batch)
        weight = 1 if step.mode == ModeKeys.TRAIN else batch_size(batch)
        metrics = self._loss_mean.stateless_update_state(
            metrics, outputs["loss"], sample_weight=weight
        )
        mean = self._loss_mean.stateless_result(metrics)
        return changed, metrics, outputs | {"loss": mean}

    def train_step(
        self, state: KerasState, data: Nest
    ) -> tuple[Outputs, KerasState]:
        """One step of training, as a pure function of the state.

        Args:
            state: Values of the trainable, the other, the optimizer's and the
                metrics' variables, as Keras passes them.
            data: A tuple of features and labels.

        Returns:
            The mean loss so far, and the new state.
        """
        return self._keras_step(ModeKeys.TRAIN, state, data)

    def test_step(
        self, state: KerasState, data: Nest
    ) -> tuple[Outputs, KerasState]:
        """One step of evaluation, as a pure function of the state.

        Args:
            state: Values of the trainable, the other and the metrics'
                variables, as Keras passes them.
            data: A tuple of features and labels.

        Returns:
            The mean loss so far, and the new state.
        """
        return self._keras_step(ModeKeys.EVAL, state, data)

    def predict_step(
        self, state: KerasState, data: Nest
    ) -> tuple[Nest, list[jax.Array]]:
        """One step of prediction, as a pure function of the state.

        Args:
            state: Values of the trainable and the other variables.
            data: A tuple of features and, in place of labels, which rows are
                padding: booleans of shape `[batch]`. By default none are.

        Returns:
            Predictions and the values of the other variables.
        """
        features, is_padding = _features_and_labels(data)
        if is_padding is None:
            is_padding = jnp.zeros((batch_size(features),), bool)
        step = self._step(ModeKeys.PREDICT, features, is_padding)
        values = self._by_path(state)
        changed, outputs = self.to_compile(step)(values, features, is_padding)
        _, others = self._as_state(values | changed, len(state))
        return outputs["predictions"], others

    def fit(self, x: Any = None, y: Any = None, **kwargs: Any) -> Any:
        """Trains as `keras.Model.fit` does; see there for the arguments."""
        self._prepare_from(ModeKeys.TRAIN, x, y, kwargs)
        with self._apart(keeps=True):
            return super().fit(x, y, **kwargs)

    def evaluate(self, x: Any = None, y: Any = None, **kwargs: Any) -> Any:
        """Evaluates as `keras.Model.evaluate` does; see there."""
        self._prepare_from(ModeKeys.EVAL, x, y, kwargs)
        with self._apart():
            return super().evaluate(x, y, **kwargs)

    def predict(self, x: Any, **kwargs: Any) -> Any:
        """Predicts as `keras.Model.predict` does; see there."""
        self._prepare_from(ModeKeys.PREDICT, x, None, kwargs)
        with self._apart():
            return super().predict(x, **kwargs)

    def train_on_batch(self, x: Any, y: Any = None, **kwargs: Any) -> Any:
        """Trains as `keras.Model.train_on_batch` does; see there."""
        self._prepare_from(ModeKeys.TRAIN, x, y, {"batch_size": _WHOLE})
        with self._apart(keeps=True):
            return super().train_on_batch(x, y, **kwargs)

    def test_on_batch(self, x: Any, y: Any = None, **kwargs: Any) -> Any:
        """Evaluates as `keras.Model.test_on_batch` does; see there."""
        self._prepare_from(ModeKeys.EVAL, x, y, {"batch_size": _WHOLE})
        with self._apart():
            return super().test_on_batch(x, y, **kwargs)

    def predict_on_batch(self, x: Any) -> Any:
        """Predicts as `keras.Model.predict_on_batch` does; see there."""
        self._prepare_from(ModeKeys.PREDICT, x, None, {"batch_size": _WHOLE})
        with self._apart():
            return super().predict_on_batch(x)

    def jax_state_sync(self) -> None:
        """Gives the variables their current values; callbacks call it.

        Keras calls it whenever a callback reads its attribute `model`.
        """
        if self.lender is not None:
            self.lender.show()
        super().jax_state_sync()

    def save(self, *args: Any, **kwargs: Any) -> None:
        """Raises an error before a file is made, as `get_config` does.

        Raises:
            NotImplementedError: Always.
        """
        del args, kwargs
        self.get_config()

    def get_config(self) -> dict[str, Any]:
        """Raises an error: a `model_fn` is code, which is not saved.

        Raises:
            NotImplementedError: Always.
        """
        raise NotImplementedError(
            "An EstimatorModel cannot be saved as a whole, since its model_fn "
            "is Python code. Expected `kte.export_keras(estimator, path, ...)`,"
            " `model.save_weights(path)`, or "
            "`ModelCheckpoint(path, save_weights_only=True)` with a path that "
            "ends in '.weights.h5'; make the model from model_fn again and "
            "load them there."
        )

    def paths(self) -> list[str]:
        """Paths of the variables that `state` lists without slots."""
        return [v.path for v in self._model_variables]

    def metrics_state(self) -> MetricsState:
        """The metrics' values before anything was counted."""
        return [np.zeros(v.shape, v.dtype) for v in self.metrics_variables]

    def assign(self, values: AnyValues) -> None:
        """Gives the model's variables these values by path."""
        for path, value in values.items():
            self.program.store.variables[path].assign(value)
        self._valued.update(values)

    def _step(self, mode: str, features: Features, labels: Labels) -> Step:
        return self.program.step(
            mode, self.layout(mode).step_input(features, labels)
        )

    def _apart(
        self, keeps: bool = False
    ) -> contextlib.AbstractContextManager[None]:
        """Keeps Keras, which uses up arrays, from those of a running loop."""
        if self.lender is None:
            return contextlib.nullcontext()
        return self.lender.apart(keeps)

    def _track_new_variables(self) -> None:
        store, slots = self.program.store, self.optimizer.variables
        if len(store.variables) == len(self._model_variables) + len(slots):
            return
        tracked = {v.path for v in (*self._model_variables, *slots)}
        for path, variable in store.variables.items():
            if path not in tracked:
                group = slots if path in store.slots else self._model_variables
                group.append(variable)
        self.optimizer.adopt(store.optimizers, store.variables)

    def _keras_step(
        self, mode: str, state: KerasState, data: Nest
    ) -> tuple[Outputs, KerasState]:
        """A step between the lists that Keras has and values by path."""
        *lists, metrics = state
        batch = _features_and_labels(data)
        step = self._step(mode, *batch)
        values = self._by_path(lists)
        changed, metrics, outputs = self.run_step(step, values, metrics, batch)
        new = self._as_state(values | changed, len(lists))
        return {"loss": outputs["loss"]}, (*new, metrics)

    def _by_path(self, state: Sequence[list[jax.Array]]) -> Values:
        return {
            variable.path: value
            for variables, values in zip(self._lists, state, strict=False)
            for variable, value in zip(variables, values, strict=True)
        }

    def _as_state(self, values: Values, lists: int) -> list[list[jax.Array]]:
        return [[values[v.path] for v in each] for each in self._lists[:lists]]

    @property
    def _lists(self) -> list[list[keras.Variable]]:
        """The variables in the lists and the order that Keras has."""
        return [
            self.trainable_variables,
            self.non_trainable_variables,
            self.optimizer.variables,
        ]

    def _prepare_from(
        self, mode: str, x: Any, y: Any, kwargs: Mapping[str, Any]
    ) -> None:
        """Makes the variables before Keras collects their values."""
        size = kwargs.get("batch_size") or 32
        if hasattr(x, "shape") or isinstance(x, dict):
            data = jax.tree.map(lambda array: array[:size], (x, y))
        elif iter(x) is not x:
            data = next(iter(x))
        elif mode in self._prepared:
            return
        else:
            raise ValueError(
                f"Expected arrays or a dataset to {mode!r} with. Received an "
                f"iterator, {x!r}, whose first batch would be lost. Call "
                "`model.prepare(mode, features, labels)` with a batch and "
                "`model.initialize()` first."
            )
        features, labels = _features_and_labels(data)
        if mode == ModeKeys.PREDICT:
            labels = jnp.zeros((batch_size(features),), bool)
        features, labels = jax.tree.map(jnp.asarray, (features, labels))
        self.prepare(mode, features, labels)
        self.initialize()


def _features_and_labels(data: Nest) -> tuple[Features, Labels]:
    features, labels, weights = keras.utils.unpack_x_y_sample_weight(data)
    if weights is not None:
        raise ValueError(
            "Expected features and labels. Received sample weights too: put "
            "them among the features, where model_fn can use them."
        )
    return features, labels
