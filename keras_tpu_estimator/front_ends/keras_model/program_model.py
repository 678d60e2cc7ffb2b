"""A program as a Keras model: variables, optimizers, and steps over their values."""

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import keras
import numpy as np

from keras_tpu_estimator.base.common.modes import ModeKeys
from keras_tpu_estimator.base.common.types import Features, Labels, PyTree
from keras_tpu_estimator.base.tracing.variables import ArraysByPath
from keras_tpu_estimator.base.upstream import keras_models
from keras_tpu_estimator.engine.device.distributed_program import (
    DistributedProgram,
)
from keras_tpu_estimator.engine.inputs.unbatched import batch_size
from keras_tpu_estimator.engine.program.steps import (
    EVAL_METRICS,
    LOSS,
    METRIC_VALUES,
    PREDICTIONS,
    TRAIN_METRICS,
    Outputs,
    Step,
)
from keras_tpu_estimator.engine.program.store import GLOBAL_STEP
from keras_tpu_estimator.front_ends.front_end import FrontEnd


class ModelOptimizer:
    """The value of `model.optimizer`: the current optimizers of `model_fn`.

    `model_fn` creates new optimizers in every trace; here they use the
    variables of the program, by path. With one optimizer, its attributes are
    available here and on `inner_optimizer`, as in Keras's `LossScaleOptimizer`.
    Several are in `optimizers`, as in Keras's `MultiOptimizer`. There is no
    optimizer before `model_fn` has run in mode TRAIN.

    Args:
        iterations: The variable that counts training steps.

    Example:

    >>> import keras
    >>> optimizer = ModelOptimizer(keras.Variable(0, dtype="int32"))
    >>> sgd = keras.optimizers.SGD(0.5)
    >>> optimizer.adopt({"sgd": sgd}, {v.path: v for v in sgd.variables})
    >>> optimizer.learning_rate = 0.25
    >>> float(sgd.learning_rate.value)
    0.25
    """

    built = True

    def __init__(self, iterations: keras.Variable):
        self.iterations = iterations
        self.variables: list[keras.Variable] = []
        self._twins: dict[str, keras.optimizers.Optimizer] = {}

    def adopt(
        self,
        optimizers: Mapping[str, keras.optimizers.Optimizer],
        variables: Mapping[str, keras.Variable],
    ) -> None:
        """Stores optimizers by name, which then use the program's variables by path;
        known names keep their optimizer.
        """
        for name, optimizer in optimizers.items():
            if name not in self._twins:
                self._twins[name] = _with_variables(optimizer, variables)

    @property
    def learning_rate(self) -> Any:
        """The only optimizer's learning rate: a variable, or the current value.

        Raises:
            AttributeError: The model has no optimizer yet, or several.
            ValueError: `model_fn` computes it.
        """
        rate = _readable_rate(self._only("learning_rate"))
        if rate is None:
            raise ValueError(
                "The learning rate cannot be read outside model_fn, which "
                "computes it. Expected a number or a "
                "keras.optimizers.schedules.LearningRateSchedule as the "
                "optimizer's `learning_rate`."
            )
        return rate

    @learning_rate.setter
    def learning_rate(self, value: Any) -> None:
        if callable(value):
            raise TypeError(
                "The learning rate must be set to a number, because a "
                "schedule would have no effect on compiled steps. Received: "
                f"{value!r}. Return the schedule from model_fn instead."
            )
        self._only("learning_rate").learning_rate = value

    def __getattr__(self, name: str) -> Any:
        # Python only calls this for attributes that are not found otherwise.
        twins = self.__dict__.get("_twins", {})
        if name == "optimizers" and len(twins) > 1:
            return list(twins.values())
        only = self._only(name)
        if name != "inner_optimizer":
            return getattr(only, name)
        if _readable_rate(only) is None:
            # Otherwise TensorBoard would read it.
            raise AttributeError("The optimizer has no readable learning rate.")
        return only

    def _only(self, attribute: str) -> keras.optimizers.Optimizer:
        twins = self.__dict__.get("_twins", {})
        if len(twins) == 1:
            return next(iter(twins.values()))
        reason = (
            f"several optimizers, {sorted(twins)}: use one of `optimizers`"
            if twins
            else "none: train first, because model_fn creates it in mode TRAIN"
        )
        raise AttributeError(
            f"`model.optimizer.{attribute}` needs a model with one optimizer. "
            f"Received one with {reason}."
        )


def _readable_rate(optimizer: keras.optimizers.Optimizer) -> Any:
    """Returns the learning rate; `None` if only `model_fn` can compute it."""
    try:
        rate = optimizer.learning_rate
    except (ValueError, jax.errors.JAXTypeError):
        # The rate is a function of traced tensors or of `get_global_step()`.
        return None
    return None if isinstance(rate, jax.core.Tracer) else rate


def _with_variables(
    optimizer: keras.optimizers.Optimizer,
    variables: Mapping[str, keras.Variable],
) -> keras.optimizers.Optimizer:
    """Returns a copy of an optimizer with other variables of the same paths."""

    def swapped(value: Any) -> Any:
        if isinstance(value, keras.Variable):
            return variables.get(value.path, value)
        if isinstance(value, keras.optimizers.Optimizer):
            return _with_variables(value, variables)
        # Optax transformations are named tuples of functions.
        if isinstance(value, list | tuple) and not hasattr(value, "_fields"):
            return type(value)(swapped(item) for item in value)
        return value

    # Keras copies objects by saving them, and tracks assignments.
    twin = object.__new__(type(optimizer))
    twin.__dict__.update({k: swapped(v) for k, v in vars(optimizer).items()})
    return twin


MetricsState: TypeAlias = Sequence[jax.Array | np.ndarray]
KerasState: TypeAlias = tuple[list[jax.Array], ...]

# The key of the tensors for `metric_fn` in a step's logs.
FOR_METRIC_FN = "tensors for metric_fn"


class ProgramModel(keras.Model):
    """The variables and the steps of a program, in Keras's structure.

    Args:
        program: The variables and steps, and their devices.
        front_end: The front end of `model_fn`.
    """

    def __init__(self, program: DistributedProgram, front_end: FrontEnd):
        keras_models.check_synchronization()
        super().__init__(name="estimator_model")
        self.program = program
        self.front_end = front_end
        # Keras tracks elements that are appended to a list attribute.
        self._model_variables: list[keras.Variable] = []
        # Only Keras's `compile` makes Keras compile a model.
        super().compile(optimizer=None)
        self.optimizer = ModelOptimizer(self.global_step)
        self.built = True
        program.when_prepared.append(self._track_new_variables)
        self._track_new_variables()

    @property
    def global_step(self) -> keras.Variable:
        """The number of completed training steps, as a variable."""
        return self.program.store.variables[GLOBAL_STEP]

    @property
    def metrics(self) -> list[keras.metrics.Metric]:
        """The mean loss, and objects from which callbacks derive the direction
        of other metrics.

        Keras resets and reports the loss. The logs of a step contain the values
        of the other metrics.
        """
        directions = self.program.directions()
        directed = [keras_models.directed(directions)] if directions else []
        return [self.program.loss_mean, *directed]

    def prepare(self, mode: str, features: Features, labels: Labels = None) -> Step:
        """Traces `model_fn` for inputs of this shape, unless it has been
        traced.

        Args:
            mode: A value of `ModeKeys`.
            features: Pytree of arrays, with the batch as the first dimension.
            labels: The same, or `None`.

        Returns:
            The step. The model has its variables from now on.
        """
        return self.program.prepare(mode, features, labels)

    def initialize(self) -> None:
        """Initializes variables that have no value yet."""
        store = self.program.store
        missing = store.variables.keys() - store.valued
        if missing:
            store.assign(store.initial_values(missing))

    def train_step(self, state: KerasState, data: PyTree) -> tuple[Outputs, KerasState]:
        """Makes one step of training, as a pure function of the state.

        Args:
            state: Values of the trainable, non-trainable, optimizer and metric
                variables, as Keras passes them.
            data: A tuple of features and labels.

        Returns:
            The mean loss so far, with the tensors of host metrics, and the new
            state.
        """
        return self._keras_step(ModeKeys.TRAIN, state, data)

    def test_step(self, state: KerasState, data: PyTree) -> tuple[Outputs, KerasState]:
        """Makes one step of evaluation, as a pure function of the state.

        Args:
            state: Values of the trainable, non-trainable and metric variables,
                as Keras passes them.
            data: A tuple of features and labels.

        Returns:
            The mean loss so far, with the program's metrics and the tensors of
            host metrics, and the new state.
        """
        return self._keras_step(ModeKeys.EVAL, state, data)

    def predict_step(
        self, state: KerasState, data: PyTree
    ) -> tuple[PyTree, list[jax.Array]]:
        """Makes one step of prediction, as a pure function of the state.

        Args:
            state: Values of the trainable and non-trainable variables.
            data: A tuple of features and, in place of labels, the padding:
                booleans of shape `[batch]`. By default no rows are padding.

        Returns:
            Predictions and the values of the non-trainable variables.
        """
        features, is_padding = self.features_and_labels(data)
        if is_padding is None:
            is_padding = jnp.zeros((batch_size(features),), bool)
        step = self.program.step(ModeKeys.PREDICT, features, is_padding)
        values = self._by_path(state)
        changed, outputs = self.program.to_compile(step)(values, features, is_padding)
        _, next_state = self._as_state(values | changed, len(state))
        predictions = outputs[PREDICTIONS]
        if isinstance(predictions, Mapping):
            predictions = dict(predictions)
        return predictions, next_state

    def state_sync(self) -> None:
        """Updates the variables to their current values; called by callbacks.

        Keras calls it whenever a callback reads its attribute `model`.
        """
        holder = self.program.store.holder
        if holder is not None:
            holder.show()
        keras_models.synchronize(super())

    def jax_state_sync(self) -> None:
        """The same under the name that Keras had before 3.16."""
        self.state_sync()

    def features_and_labels(self, data: PyTree) -> tuple[Features, Labels]:
        """Returns the features and labels of `x` and `y` of a Keras batch.

        Raises:
            ValueError: Sample weights are given, and `model_fn` does not
                support them.
        """
        features, labels, weights = keras.utils.unpack_x_y_sample_weight(data)
        if weights is None:
            return features, labels
        return self.front_end.pair_of((features, labels, weights))

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
        self, mode: str, state: KerasState, data: PyTree
    ) -> tuple[Outputs, KerasState]:
        """Converts a step to Keras's lists of values."""
        *lists, metrics = state
        batch = self.features_and_labels(data)
        step = self.program.step(mode, *batch)
        values = self._by_path(lists)
        changed, metrics, outputs = self.program.run_step(step, values, metrics, batch)
        new = self._as_state(values | changed, len(lists))
        logs = {"loss": outputs[LOSS], **outputs.get(METRIC_VALUES, {})}
        for name in (EVAL_METRICS, TRAIN_METRICS):
            if name in outputs:
                logs[FOR_METRIC_FN] = outputs[name]
        return logs, (*new, metrics)

    def _by_path(self, state: Sequence[list[jax.Array]]) -> ArraysByPath:
        return {
            variable.path: value
            for variables, values in zip(self._lists, state, strict=False)
            for variable, value in zip(variables, values, strict=True)
        }

    def _as_state(self, values: ArraysByPath, lists: int) -> list[list[jax.Array]]:
        return [
            [values[v.path] for v in variables] for variables in self._lists[:lists]
        ]

    @property
    def _lists(self) -> list[list[keras.Variable]]:
        """Returns the variables in Keras's lists and order."""
        return [
            self.trainable_variables,
            self.non_trainable_variables,
            self.optimizer.variables,
        ]
