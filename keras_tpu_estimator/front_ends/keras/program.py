"""Programs of a `model_fn` in Keras code: named variables and pure steps.

Only this room runs a user's model code. `model_fn` is traced once for each mode
and shape. The results are steps over values by path.
"""

from typing import Any

from keras_tpu_estimator.engine.program.bound_model_fn import SpecFunction
from keras_tpu_estimator.engine.program.explaining import inputs
from keras_tpu_estimator.engine.program.options import TraceOptions
from keras_tpu_estimator.engine.program.steps import Step
from keras_tpu_estimator.engine.program.steps import StepInput
from keras_tpu_estimator.engine.program.store import VariableStore
from keras_tpu_estimator.front_ends.keras import dtype_policies
from keras_tpu_estimator.front_ends.keras.forward_step import trace_forward_step
from keras_tpu_estimator.front_ends.keras.traced_model_fn import TracedModelFn
from keras_tpu_estimator.front_ends.keras.train_step import trace_train_step
from keras_tpu_estimator.ground.base.modes import ModeKeys
from keras_tpu_estimator.ground.base.waiting import tell
from keras_tpu_estimator.ground.tracing.identity import check_apart
from keras_tpu_estimator.spec.model_fn.initialization import initializing


class KerasProgram:
    """The program of a `model_fn` that JAX traces.

    Args:
        call_model_fn: Called with features, labels, mode and the additional
            `params`; returns a spec.
        seed: The seed of initial values and random layers. Defaults to `None`.
        options: The options of its trace. Defaults to `TraceOptions()`.

    Attributes:
        store: The variables.
    """

    def __init__(
        self,
        call_model_fn: SpecFunction,
        seed: int | None = None,
        options: TraceOptions | None = None,
    ):
        self.store = VariableStore(seed)
        self._options = TraceOptions() if options is None else options
        self._call_model_fn = call_model_fn
        self._unchecked_policy = self._options.dtype_policy
        self._steps: dict[Any, Step] = {}

    def step(self, mode: str, example: StepInput) -> Step:
        """Returns the step for inputs of this shape, traced if it is new.

        Args:
            mode: A value of `ModeKeys`.
            example: As in `Program`.

        Returns:
            A `Step`.

        Raises:
            ValueError: A tensor of `model_fn` has the name of a variable.
        """
        key = (mode, example.key)
        if key not in self._steps:
            tell(f"Calling model_fn for mode {mode!r}")
            self.store.inputs = inputs(
                example.features,
                None if mode == ModeKeys.PREDICT else example.labels,
            )
            call = TracedModelFn(
                self._call_model_fn, mode, example, self._options
            )
            trace = (
                trace_train_step
                if mode == ModeKeys.TRAIN
                else trace_forward_step
            )
            with initializing(self.store.target):
                step = trace(self.store, call)
            check_apart(call.named, self.store.variables)
            self._check_policy(call.policies)
            self._steps[key] = step
        return self._steps[key]

    def _check_policy(self, policies: set[str]) -> None:
        """Checks the dtype policy against those of layers; once."""
        policy, self._unchecked_policy = self._unchecked_policy, None
        if policy is not None:
            dtype_policies.warn_unless(policy, policies)
