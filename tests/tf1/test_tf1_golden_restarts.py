"""Programs of 2018 with dropout go on after a restart as if there was none."""

import tf1_golden  # isort: skip

import importlib

import numpy as np
import pytest
from running import losses_in
from running import make_estimator
from running import values_of

pytestmark = tf1_golden.DEPRECATED


def trained(program, model_dir, use_tpu, *parts):
    """The losses and the values after trainings of so many steps each."""
    done = 0
    for steps in parts:
        made = make_estimator(
            program, str(model_dir), use_tpu, **program.WITH_DROPOUT
        )
        start = done * program.BATCH

        def input_fn(params, start=start):
            data = program.dataset(program.STEPS * program.BATCH, seed=1)
            data = data.skip(start)
            return data.batch(params["batch_size"], drop_remainder=True)

        made.train(input_fn, steps=steps)
        done += steps
    return losses_in(str(model_dir)), values_of(made)


@pytest.mark.parametrize(
    ("name", "use_tpu"),
    [
        ("mnist_cnn", True),
        # It draws inside of a loop.
        ("recurrent", False),
    ],
)
def test_a_restart_goes_on_bit_for_bit(tmp_path, name, use_tpu):
    program = importlib.import_module(name)
    losses, values = trained(program, tmp_path / "a", use_tpu, 8)
    again, same = trained(program, tmp_path / "b", use_tpu, 3, 5)
    assert losses == again
    assert values.keys() == same.keys()
    for path, value in values.items():
        np.testing.assert_array_equal(value, same[path], err_msg=path)
    # What is dropped changes the losses.
    expected = tf1_golden.golden(name)["losses"][:8]
    assert not np.allclose(losses, expected, rtol=1e-3)
