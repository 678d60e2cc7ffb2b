"""Programs of 2018 on eight cores learn what they learned on one."""

import tf1_golden  # isort: skip

import importlib

import numpy as np
import pytest
from helpers import slow
from running import losses_in, make_estimator


def losses_of(name, model_dir, use_tpu, **params):
    """The losses of a training."""
    program = importlib.import_module(name)
    made = make_estimator(program, str(model_dir), use_tpu, **params)
    made.train(program.train_input_fn, steps=program.STEPS)
    return losses_in(str(model_dir))


# Not BERT's, which clip the gradients of each core, and add up what they gave
# to Adam undivided. The moments that resnet_lars has are those of all cores.
@pytest.mark.rows(2)
@pytest.mark.parametrize(
    "name",
    [
        *("mnist_cnn", "resnet_lars", "wide_and_deep"),
        *(slow("gan"), slow("recurrent")),
    ],
)
def test_eight_cores_give_the_losses_of_one(tmp_path, name):
    eight = losses_of(name, tmp_path, use_tpu=True)
    expected = tf1_golden.golden(name)["losses"]
    np.testing.assert_allclose(eight, expected, rtol=1e-5)
