"""Tests that scripts of 2018 learn the same on eight cores as on one."""

import tf1_golden  # isort: skip

import importlib

import numpy as np
import pytest
from helpers import slow
from running import losses_in, make_estimator


def losses_of(name, model_dir, use_tpu, **params):
    """The losses of training."""
    program = importlib.import_module(name)
    made = make_estimator(program, str(model_dir), use_tpu, **params)
    made.train(program.train_input_fn, steps=program.STEPS)
    return losses_in(str(model_dir))


# BERT's scripts are excluded, because they clip each core's gradients and add them
# undivided. The moments of resnet_lars are those of all cores.
@pytest.mark.rows(2)
@pytest.mark.parametrize(
    "name",
    [
        *("mnist_cnn", "resnet_lars", "wide_and_deep"),
        *(slow("gan"), slow("recurrent")),
    ],
)
def test_eight_cores_have_the_losses_of_one(tmp_path, name):
    eight = losses_of(name, tmp_path, use_tpu=True)
    expected = tf1_golden.golden(name)["losses"]
    np.testing.assert_allclose(eight, expected, rtol=1e-5)
