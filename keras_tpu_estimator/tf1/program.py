"""A TF1 `model_fn` as named variables and pure step functions."""

import secrets
from collections.abc import Callable
from typing import Any

from keras_tpu_estimator.engine.program.options import TraceOptions
from keras_tpu_estimator.engine.program.steps import Step, StepInput
from keras_tpu_estimator.engine.program.store import VariableStore
from keras_tpu_estimator.ground.base.waiting import tell
from keras_tpu_estimator.tf1.graph import build
from keras_tpu_estimator.tf1.graph_metrics import GraphMetrics
from keras_tpu_estimator.tf1.graph_step import GraphStep
from keras_tpu_estimator.tf1.variables import enter, enter_repeats, enter_seed


class TF1Program:
    """The program of a `model_fn` that builds TF1 graphs.

    Args:
        call_model_fn: A function of features, labels, mode and the additional `params`
            that returns a spec of `tf1`.
        seed: Makes initial values and random ops repeatable. Defaults to `None`.
        options: Tracing options, most of which graphs do not support. Defaults to
            `TraceOptions()`.

    Attributes:
        store: The variables.

    Raises:
        NotImplementedError: An option is set that graphs do not support.
    """

    def __init__(
        self,
        call_model_fn: Callable[..., Any],
        seed: int | None = None,
        options: TraceOptions | None = None,
    ):
        self._options = TraceOptions() if options is None else options
        _check_options(self._options)
        self.store = VariableStore(seed)
        self._call_model_fn = call_model_fn
        self._seed = seed
        enter_seed(self.store, secrets.randbits(32) if seed is None else seed)
        self._steps: dict[Any, Step] = {}
        self._metrics = GraphMetrics()

    def step(self, mode: str, example: StepInput) -> Step:
        """Returns the step for inputs of this shape, which is converted once."""
        key = (mode, example.key)
        if key not in self._steps:
            tell(f"Calling model_fn for mode {mode!r}")
            model = build(self._call_model_fn, mode, example, self._seed)
            step = GraphStep(
                model, mode, example, self._metrics, self._options.random_bits
            )
            enter(self.store, model, step.local)
            if not step.counts_once:
                enter_repeats(self.store)
            self._steps[key] = step.of_all_cores()
        return self._steps[key]


def _check_options(options: TraceOptions) -> None:
    received = {
        "dtype_policy": options.dtype_policy,
        "remat": options.remat,
        "micro_batches": None if options.micro_batches == 1 else True,
    }
    for name, value in received.items():
        if value is not None:
            raise NotImplementedError(
                f"RunConfig.{name} must not be set, because a TF1 model_fn builds "
                "its own graph, which does not support it. Leave it out."
            )
