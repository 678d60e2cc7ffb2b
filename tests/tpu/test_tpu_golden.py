"""Programs of 2018, compiled for TPUs."""

import pathlib
import sys

# Where the programs are.
sys.path.append(str(pathlib.Path(__file__).parents[1] / "tf1"))
import tf1_golden  # isort: skip

import importlib

import pytest
from running import PROGRAMS
from running import make_estimator
from tpu_facts import facts_of
from tpu_lowering import MODES
from tpu_lowering import job_on
from tpu_lowering import lowered

pytestmark = tf1_golden.DEPRECATED

# One of them for each kind.
TOPOLOGIES = {
    **dict.fromkeys(PROGRAMS, ("v5e:2x2",)),
    "mnist_cnn": ("v5e:2x2", "v5e:4x4", "v4:2x2x1", "v6e:2x2"),
}
# Their moments are those of all cores.
HAVE_SUMS_OF_THEIR_OWN = {"resnet_lars": 11}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    ("name", "topology"),
    [(name, each) for name in PROGRAMS for each in TOPOLOGIES[name]],
)
def test_a_golden_program(name, topology, mode, tmp_path):
    program = importlib.import_module(name)
    made = make_estimator(program, str(tmp_path), use_tpu=True)
    trains = mode == "train"
    input_fn = program.train_input_fn if trains else program.eval_input_fn
    facts = facts_of(lowered(job_on(made, topology), mode, input_fn))
    facts.check()
    own = HAVE_SUMS_OF_THEIR_OWN.get(name)
    if trains and own:
        assert facts.collectives == {"all-reduce": own}
    else:
        facts.check_data_parallel(mode)
