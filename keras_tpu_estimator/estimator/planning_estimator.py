"""The plans of an estimator."""

from collections.abc import Callable, Sequence
from typing import Any

from keras_tpu_estimator.api.config import validation as checks
from keras_tpu_estimator.base.common import registry
from keras_tpu_estimator.base.common.modes import ModeKeys
from keras_tpu_estimator.base.common.types import InputFn, PathLike
from keras_tpu_estimator.base.common.user_code import UserFrames
from keras_tpu_estimator.runs.estimator_context import EstimatorContext


class PlanningEstimator:
    """The part of `TPUEstimator` that plans."""

    _context: EstimatorContext

    @UserFrames()
    def plan(
        self,
        input_fn: InputFn,
        topology: str | Sequence[str],
        mode: str = ModeKeys.TRAIN,
        print_fn: Callable[[str], object] | None = print,
        save: PathLike | None = None,
        steps: int | None = None,
        quick: bool = False,
    ) -> Any:
        """Compiles the program of a call for a topology that need not exist.

        Reads one batch of the input, computes nothing and uses no device. Needs the
        compiler of the topology: `keras-tpu-estimator[tpu]`, or `[cuda]` for GPUs.

        Args:
            input_fn: As in `train`.
            topology: A kind of TPU with a shape or a size, such as "v5e:4x4",
                "v5litepod-16" or "v4-32", or GPUs, such as "h100:1x8". Pass several to
                compare them.
            mode: TRAIN, EVAL or PREDICT; PREDICT is planned for one host, because each
                host predicts separately. Defaults to TRAIN.
            print_fn: The function that prints the table, which has a column for each
                topology. Defaults to `print`; with `None`, nothing is printed.
            save: A local folder for the compiled programs. An estimator with
                `RunConfig(executables=...)` on such a topology loads them. Defaults to
                `None`: nothing is saved.
            steps: The number of steps of the call. A loop has at most
                `iterations_per_loop` steps, or 32 in EVAL; the table shows the time of
                all steps at best. Defaults to `None`: the steps of one loop.
            quick: Whether to optimize less, which takes a fraction of the time for a
                large model. Computation and communication are unchanged, memory nearly;
                bytes, cycles and times are omitted. Defaults to `False`.

        Returns:
            A `kte.typing.Plan`; for several topologies a tuple with a `Plan` or a
            `Refusal` for each.

        Raises:
            DoesNotFitError: The program needs more memory than a core has.
            CompileError: The compiler rejects the program for another reason.
            ValueError: The topology is unknown; or settings, model, input and cores do
                not match.
            TypeError: An argument has a wrong type.
            ModuleNotFoundError: The compiler is not installed.
            PermissionError: Other users may write to `save` or to a parent folder.
        """
        checks.check_mode(mode)
        checks.whole_steps("steps", steps, use_tpu=True)
        planner = registry.part("planner")
        call = planner.Call(self._context, input_fn, mode, steps)
        plans = planner.plans_of(call, topology, save, quick)
        if print_fn is not None:
            print_fn(planner.as_text(plans))
        return plans[0] if isinstance(topology, str) else plans
