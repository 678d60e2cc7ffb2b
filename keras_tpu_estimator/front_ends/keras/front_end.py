"""The front end of a `model_fn` written with Keras or JAX."""

from collections.abc import Callable
from typing import Any

from keras_tpu_estimator.api.model_fn.initialization import initializing
from keras_tpu_estimator.base.common.modes import ModeKeys
from keras_tpu_estimator.base.common.waiting import announce
from keras_tpu_estimator.base.mesh.cores import ONE_CORE, Cores
from keras_tpu_estimator.base.tracing.identity import check_apart
from keras_tpu_estimator.engine.program.bound_model_fn import (
    SpecFunction,
    TraceOptions,
    inputs,
)
from keras_tpu_estimator.engine.program.steps import Program, Step, StepInput
from keras_tpu_estimator.engine.program.store import VariableStore
from keras_tpu_estimator.front_ends.front_end import FrontEnd
from keras_tpu_estimator.front_ends.keras import layer_checks
from keras_tpu_estimator.front_ends.keras.forward_step import trace_forward_step
from keras_tpu_estimator.front_ends.keras.traced_model_fn import TracedModelFn
from keras_tpu_estimator.front_ends.keras.train_step import trace_train_step
from keras_tpu_estimator.front_ends.tables.program import TablesProgram


class KerasFrontEnd(FrontEnd):
    """The front end of Keras code."""

    why_no_tables = None

    def make_program(
        self,
        call_model_fn: SpecFunction,
        seed: int | None = None,
        options: TraceOptions | None = None,
        cores: Cores = ONE_CORE,
    ) -> Program:
        """Returns the program of a `model_fn`, inside that of embedding tables."""
        program = KerasProgram(call_model_fn, seed, options)
        tables = getattr(call_model_fn, "embeddings", None)
        if tables is None:
            return program
        inside = getattr(call_model_fn, "features_inside", None)
        return TablesProgram(program, tables, cores, seed, inside)

    def like(
        self, model_fn: Callable[..., Any], function: Callable[..., Any]
    ) -> Callable[..., Any]:
        """Returns the function itself, because Keras code needs no mark."""
        del model_fn
        return function


KERAS = KerasFrontEnd()


class KerasProgram:
    """The program of a `model_fn` that JAX traces; `seed` determines initial values and
    random layers.
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
        """Returns the step for inputs of this shape, traced if it is new; a tensor of
        `model_fn` must not have the name of a variable.
        """
        key = (mode, example.key)
        if key not in self._steps:
            announce(f"Calling model_fn for mode {mode!r}")
            self.store.inputs = inputs(
                example.features,
                None if mode == ModeKeys.PREDICT else example.labels,
            )
            call = TracedModelFn(self._call_model_fn, mode, example, self._options)
            trace = trace_train_step if mode == ModeKeys.TRAIN else trace_forward_step
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
            layer_checks.warn_of_unused_policy(policy, policies)
