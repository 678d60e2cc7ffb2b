"""Writes `checkpoint/` with the estimator of TensorFlow 2.15.1.

    python tests/tf1/golden/make_checkpoint.py tests/tf1/golden/checkpoint

TensorFlow 1.15.5 wrote `checkpoint_1_15/` in the same way. With `--continue DIRECTORY
STEPS` it continues from an existing checkpoint and prints the losses. This package
wrote `checkpoint_ours/`, with the losses of TensorFlow 1.15.5.
"""

import json
import os
import pathlib
import sys

import checkpoint_program as program
import tensorflow.compat.v1 as tf

BEFORE, AFTER = 5, 6


class _Losses(tf.train.SessionRunHook):
    """A hook that records the loss of each step."""

    def __init__(self, loss, losses):
        self._loss, self._losses = loss, losses

    def before_run(self, run_context):
        return tf.train.SessionRunArgs(self._loss)

    def after_run(self, run_context, run_values):
        self._losses.append(float(run_values.results))


def train(directory, first, steps):
    """Trains, and returns the losses."""
    losses = []
    estimator = tf.estimator.tpu.TPUEstimator(
        program.model_fn_of(
            tf.estimator.tpu.TPUEstimatorSpec,
            lambda loss: {"training_hooks": [_Losses(loss, losses)]},
        ),
        config=tf.estimator.tpu.RunConfig(model_dir=directory, save_summary_steps=None),
        use_tpu=False,
        train_batch_size=program.BATCH,
    )
    estimator.train(program.input_fn_from(first), steps=steps)
    return losses


def main():
    tf.disable_v2_behavior()
    # The reader follows its argument.
    tf.enable_resource_variables()
    if sys.argv[1] == "--continue":
        directory, steps = sys.argv[2], int(sys.argv[3])
        first = tf.train.load_variable(directory, "global_step")
        print(json.dumps(train(directory, int(first), steps)))
        return
    directory = sys.argv[1]
    before = train(directory, 0, BEFORE)
    prefix = tf.train.latest_checkpoint(directory)
    kept = [os.path.join(directory, "checkpoint")]
    kept += tf.io.gfile.glob(prefix + ".[di]*")
    content = {path: pathlib.Path(path).read_bytes() for path in kept}
    after = train(directory, BEFORE, AFTER)
    for path in pathlib.Path(directory).iterdir():
        path.unlink()
    for path, data in content.items():
        pathlib.Path(path).write_bytes(data)
    with open(os.path.join(directory, "losses.json"), "w") as file:
        json.dump({"before": before, "after": after}, file, indent=2)
        file.write("\n")


if __name__ == "__main__":
    main()
