"""Tests that scripts of 2018 compile for TPUs."""

import pathlib
import sys

# The folder of the scripts.
sys.path.append(str(pathlib.Path(__file__).parents[1] / "tf1"))
# It supplies the names that TensorFlow lacks.
import tf1_golden  # noqa: F401  # isort: skip

import functools
import importlib

import pytest
from running import PROGRAMS as NAMES
from running import make_estimator
from tpu_programs import DATA_PARALLEL, EVALUATED, Program, rows
from tpu_table import TOPOLOGIES

# Its moments cover all cores, and have separate sums.
HAS_SUMS = "resnet_lars"
TOPOLOGIES_OF = {
    "mnist_cnn": TOPOLOGIES[1:2],
    HAS_SUMS: TOPOLOGIES[:1],
}
# Each kind has one of them.
SELDOM = dict.fromkeys(NAMES, TOPOLOGIES[:1]) | {
    **dict.fromkeys(TOPOLOGIES_OF, ()),
    "mnist_cnn": TOPOLOGIES[:1] + TOPOLOGIES[2:],
}


def estimator_of(name, folder):
    program = importlib.import_module(name)
    return make_estimator(program, str(folder), use_tpu=True)


def input_fn_of(name, mode):
    program = importlib.import_module(name)
    is_training = mode == "train"
    return program.train_input_fn if is_training else program.eval_input_fn


PROGRAMS = {
    name: Program(
        functools.partial(estimator_of, name),
        functools.partial(input_fn_of, name),
        topologies=TOPOLOGIES_OF.get(name, ()),
        seldom=SELDOM[name],
        seldom_in=EVALUATED,
        collectives=DATA_PARALLEL | ({"train": None} if name == HAS_SUMS else {}),
        is_quick=True,
    )
    for name in NAMES
}


@pytest.mark.rows(1)
@pytest.mark.parametrize(("name", "mode", "topology"), rows(PROGRAMS))
def test_golden_script(name, mode, topology, compiles):
    plan = compiles(PROGRAMS, name, mode, topology)
    if (name, mode) == (HAS_SUMS, "train") and plan.topology.num_hosts == 1:
        (sums,) = plan.cost.collectives
        assert (sums.kind, sums.count) == ("all-reduce", 11)
