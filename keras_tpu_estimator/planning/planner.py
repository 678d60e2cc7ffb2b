"""The plans of a call of an estimator, for its method `plan`."""

import logging
from collections.abc import Sequence

from keras_tpu_estimator.base.common.types import PathLike
from keras_tpu_estimator.base.storage import trusted
from keras_tpu_estimator.engine.device.executables import Executables
from keras_tpu_estimator.planning import compiling, plans, topologies
from keras_tpu_estimator.planning.calls import Call
from keras_tpu_estimator.planning.plan_table import as_text
from keras_tpu_estimator.planning.plans import Plan, PlanOptions, Refusal

__all__ = ["Call", "as_text", "plans_of"]

_logger = logging.getLogger("keras_tpu_estimator")


def plans_of(
    call: Call,
    topology: str | Sequence[str],
    save: PathLike | None,
    quick: bool,
) -> tuple[Plan | Refusal, ...]:
    """Returns the plan of a call for one topology, or one for each of several."""
    store = None
    if save is not None:
        store = Executables(trusted.folder_string("`save`", save))
    options = PlanOptions(store, quick)
    with compiling.progress(_logger.info, f"Compiling mode {call.mode!r}"):
        if isinstance(topology, str):
            return (plans.Plan.from_call(call, topologies.parse(topology), options),)
        return plans.for_topologies(call, topologies.parse_each(topology), options)
