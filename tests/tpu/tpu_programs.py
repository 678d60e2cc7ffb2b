"""Programs whose calls are compiled, and their requirements."""

import dataclasses
import os
from collections.abc import Callable, Mapping
from typing import Any

from helpers import slow
from tpu_models import input_fn
from tpu_table import GPUS, TOPOLOGIES

from keras_tpu_estimator import ModeKeys
from keras_tpu_estimator.planning import topologies
from keras_tpu_estimator.planning.calls import Call
from keras_tpu_estimator.planning.gpus import is_installed
from keras_tpu_estimator.planning.plans import PlanOptions
from keras_tpu_estimator.typing import Plan

MODES = (ModeKeys.TRAIN, ModeKeys.EVAL, ModeKeys.PREDICT)
# `tests.tpu.make_table` sets it to use all topologies instead of a program's own.
_ON_ALL = "TPU_TOPOLOGIES"


@dataclasses.dataclass(frozen=True)
class Program:
    """An estimator, and what is to be seen in the programs of its calls.

    Attributes:
        make: Makes it, for a directory.
        input_fn_of: Its input, for a mode. Defaults to batches of 256 numbers.
        modes: Those that are compiled. Defaults to all.
        topologies: Where they are. Defaults to one host.
        seldom: Where they are in slow runs. Defaults to nowhere else.
        seldom_in: Modes that are compiled in slow runs. Defaults to none.
        others: Where they are for the table alone, beside those that it has
            for all. Defaults to nowhere.
        collectives: What cores send each other in a step, by mode: how many
            there are of each kind. Defaults to that of data parallelism; what
            XLA makes of a layout is its own business, and is `None` here.
        refusal: What the error says where there is one. Defaults to `None`, for
            a program that compiles.
        is_quick: Whether the compiler leaves out what makes programs fast, for
            those that it works on for long. Defaults to `False`.
    """

    make: Callable[[Any], Any]
    input_fn_of: Callable[[str], Any] = lambda mode: input_fn
    modes: tuple[str, ...] = MODES
    topologies: tuple[str, ...] = TOPOLOGIES[:1]
    seldom: tuple[str, ...] = ()
    seldom_in: tuple[str, ...] = ()
    others: tuple[str, ...] = ()
    collectives: Mapping[str, Mapping[str, float] | None] = dataclasses.field(
        default_factory=lambda: DATA_PARALLEL
    )
    refusal: str | None = None
    is_quick: bool = False

    @property
    def own(self):
        """The topologies for which some run of the tests compiles it."""
        return self.topologies + self.seldom

    def plan(self, folder, mode, topology):
        """Compiles a call of the program."""
        call = Call(self.make(folder)._context, self.input_fn_of(mode), mode)
        options = PlanOptions(quick=self.is_quick)
        return Plan.from_call(call, topologies.parse(topology), options)

    def check(self, plan):
        """Checks the requirements of every program and of this one."""
        check(plan, self.collectives.get(plan.mode))


# Gradients are summed at once with the loss. Evaluation sums only the loss, and
# prediction needs no communication.
DATA_PARALLEL = {
    ModeKeys.TRAIN: {"all-reduce": 1},
    ModeKeys.EVAL: {"all-reduce": 1},
    ModeKeys.PREDICT: {},
}
# Evaluation combines prediction with the training loss.
EVALUATED = (ModeKeys.EVAL,)
ALONE = dict.fromkeys(MODES, {})
# XLA determines the positions of the data that it sends.
LAID_OUT = dict.fromkeys(MODES)


def check(plan, collectives):
    """Checks the requirements of every program.

    Args:
        plan: The program.
        collectives: The number of each kind in a step, or `None` for any.
    """
    cost = plan.cost
    assert cost.aliases.are_complete, cost.aliases
    assert not cost.state_copies, cost.state_copies
    assert not cost.callbacks
    assert cost.memory.peak > 0
    if collectives is not None:
        found = {each.kind: each.count for each in cost.collectives}
        if plan.mode == ModeKeys.EVAL and plan.topology.num_hosts > 1:
            # The inputs of metrics come from all hosts.
            found.pop("all-gather", None)
        if plan.topology.name in GPUS:
            # XLA may keep two of them separate there.
            assert found.keys() == collectives.keys()
        else:
            assert found == collectives


def topologies_of(own, others=()):
    """The topologies for which a program is compiled.

    Args:
        own: The topologies in each run of the tests.
        others: The topologies only for the table. Defaults to none.
    """
    whole = os.environ.get(_ON_ALL) == "all"
    more = TOPOLOGIES + others if whole else ()
    gpus = GPUS if is_installed() else ()
    return tuple(dict.fromkeys(own + more + gpus))


def rows(programs):
    """The name, mode and topology of each test.

    Args:
        programs: The programs by name.
    """
    return [
        slow(name, mode, topology)
        if topology in program.seldom or mode in program.seldom_in
        else (name, mode, topology)
        for name, program in programs.items()
        for topology in topologies_of(program.own, program.others)
        # GPUs may support operations that a TPU refuses.
        if not (program.refusal and topology in GPUS)
        for mode in program.modes
    ]
