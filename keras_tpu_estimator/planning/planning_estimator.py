"""The plans of an estimator."""

import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from keras_tpu_estimator.engine.device.executables import Executables
from keras_tpu_estimator.ground.base.modes import ModeKeys
from keras_tpu_estimator.ground.base.types import InputFn, PathLike
from keras_tpu_estimator.ground.storage import trusted
from keras_tpu_estimator.runs.estimator_context import EstimatorContext
from keras_tpu_estimator.spec.config import validation as checks

if TYPE_CHECKING:
    # What compiles for other machines is imported by those who want it.
    from keras_tpu_estimator.planning.plans import Plan, Refusal

_logger = logging.getLogger("keras_tpu_estimator")


class PlanningEstimator:
    """The part of `TPUEstimator` that asks the compilers of other machines."""

    _context: EstimatorContext

    def plan(
        self,
        input_fn: InputFn,
        topology: str | Sequence[str],
        mode: str = ModeKeys.TRAIN,
        print_fn: Callable[[str], object] | None = print,
        save: PathLike | None = None,
        steps: int | None = None,
        quick: bool = False,
    ) -> "Plan | tuple[Plan | Refusal, ...]":
        """Compiles what a call would run on a topology that need not be there.

        One batch of the input is read, nothing is computed, and no device is
        used. It takes the compiler of the topology: `keras-tpu-estimator[tpu]`,
        or `[cuda]` for GPUs.

        Args:
            input_fn: As in `train`.
            topology: A kind of TPU with a shape or a size, such as "v5e:4x4",
                "v5litepod-16" or "v4-32", or GPUs, such as "h100:1x8". Or
                several, to plan for each.
            mode: TRAIN, EVAL or PREDICT; hosts predict by themselves, so that
                it is planned for one. Defaults to TRAIN.
            print_fn: What the table is printed with, which has a column for
                each topology. Defaults to `print`; nothing is with `None`.
            save: A folder of this machine to store what is compiled in, which
                an estimator with `RunConfig(executables=...)` runs on such a
                topology. Defaults to `None`, for nowhere.
            steps: How many steps the call makes: a loop has no more of them
                than `iterations_per_loop`, or than 32 in EVAL, and the table
                shows how long they take at best. Defaults to `None`, for as
                many as that.
            quick: Whether the compiler takes little trouble, which is a
                fraction of the time for a large model. What is computed and
                sent stays the same, and the memory nearly. Bytes, cycles and
                times do not, so they are left out. Defaults to `False`.

        Returns:
            A `Plan`; for several topologies a tuple of them, with a `Refusal`
            where there is none.

        Raises:
            DoesNotFitError: The program needs more memory than a core has.
            CompileError: The compiler refuses it for another reason.
            ValueError: There is no such topology; or settings, model, input
                and cores do not fit each other.
            TypeError: An argument is of a wrong type.
            ModuleNotFoundError: The compiler is not installed.
            PermissionError: Others may write to `save`, or above it.
        """
        from keras_tpu_estimator.planning import (
            compiling,
            plan_table,
            plans,
            topologies,
        )

        checks.check_mode(mode)
        checks.check_eval_steps(steps)
        store = None
        if save is not None:
            store = Executables(trusted.folder_string("`save`", save))
        call = plans.Call(self._context, input_fn, mode, steps)
        options = plans.PlanOptions(store, quick)
        with compiling.progress(_logger.info, f"Compiling mode {mode!r}"):
            if isinstance(topology, str):
                plan = plans.Plan.of(call, topologies.parse(topology), options)
                found: tuple[Plan | Refusal, ...] = (plan,)
            else:
                each = topologies.parse_each(topology)
                found = plans.for_topologies(call, each, options)
        if print_fn is not None:
            print_fn(plan_table.as_text(found))
        return plan if isinstance(topology, str) else found
