"""Tests that scripts of 2018 with dropout continue equally after a restart."""

import tf1_golden  # isort: skip

import importlib
import shutil

import numpy as np
import pytest
from helpers import slow
from running import losses_in, make_estimator, values_of

import keras_tpu_estimator as kte


def trained(program, model_dir, use_tpu, steps, start=0, hooks=()):
    """The losses and the values after a number of steps.

    Args:
        program: The module of the script.
        model_dir: The directory of its files.
        use_tpu: Whether it runs on all cores.
        steps: The number of steps to make.
        start: The number of earlier steps. Defaults to 0.
        hooks: Training hooks. Defaults to none.
    """
    made = make_estimator(program, str(model_dir), use_tpu, **program.WITH_DROPOUT)

    def input_fn(params):
        data = program.dataset(program.STEPS * program.BATCH, seed=1)
        data = data.skip(start * program.BATCH)
        return data.batch(params["batch_size"], drop_remainder=True)

    made.train(input_fn, hooks, steps=steps)
    return losses_in(str(model_dir)), values_of(made)


@pytest.mark.parametrize(
    ("name", "use_tpu"),
    [
        ("mnist_cnn", True),
        # This script draws random numbers inside a loop.
        slow("recurrent", False),
    ],
)
def test_restart_continues_bit_for_bit(tmp_path, name, use_tpu):
    program = importlib.import_module(name)
    whole, part = tmp_path / "whole", tmp_path / "part"
    saver = kte.hooks.CheckpointSaverHook(whole, save_steps=3)
    losses, values = trained(program, whole, use_tpu, 8, hooks=[saver])
    # Training is interrupted after three steps.
    others = shutil.ignore_patterns("events*", "*.input.*.zip")
    shutil.copytree(whole, part, ignore=others)
    (part / "checkpoint").write_text('model_checkpoint_path: "model.ckpt-3"')
    again, same = trained(program, part, use_tpu, 5, start=3)
    assert losses[3:] == again
    assert values.keys() == same.keys()
    for path, value in values.items():
        np.testing.assert_array_equal(value, same[path], err_msg=path)
    # Dropped units change the losses.
    expected = tf1_golden.golden(name)["losses"][:8]
    assert not np.allclose(losses, expected, rtol=1e-3)
