"""A script of 2018 that records the results of a training.

This package and TensorFlow 1.15 run it. `TRAININGS` has the calls, and `told` returns
the results of one of them: checkpoints, calls of hooks and listeners, and the steps in
event files.
"""

import glob
import json
import os

import numpy as np
import tensorflow.compat.v1 as tf

BATCH = 4


def of_estimator(model_fn, config):
    """Returns a `tf.estimator.Estimator`."""
    return tf.estimator.Estimator(
        lambda features, labels, mode: model_fn(
            features, labels, mode, tf.estimator.EstimatorSpec
        ),
        config=tf.estimator.RunConfig(**config),
    )


def of_tpu_estimator(model_fn, config, **tpu_config):
    """Returns a `TPUEstimator` without a TPU."""
    tpu = getattr(tf.estimator, "tpu", None) or tf.contrib.tpu
    return tpu.TPUEstimator(
        lambda features, labels, mode, params: model_fn(
            features, labels, mode, tpu.TPUEstimatorSpec
        ),
        config=tpu.RunConfig(tpu_config=tpu.TPUConfig(**tpu_config), **config),
        use_tpu=False,
        train_batch_size=BATCH,
        eval_batch_size=BATCH,
    )


def in_loops(model_fn, config):
    """Returns a `TPUEstimator` without a TPU, but with a loop length."""
    return of_tpu_estimator(model_fn, config, iterations_per_loop=100)


# By name: the function that makes the estimator, its settings, the hooks of `train`,
# and the arguments of its calls.
TRAININGS = {
    "a hook of its own": (
        of_estimator,
        {"save_checkpoints_steps": 5, "save_summary_steps": 3},
        ["told"],
        [{"steps": 11}],
    ),
    "a hook of its own, without a TPU": (
        of_tpu_estimator,
        {"save_checkpoints_steps": 5, "save_summary_steps": 3},
        ["told"],
        [{"steps": 11}],
    ),
    "a hook of its own, in loops of a TPU": (
        in_loops,
        {"save_checkpoints_steps": 5, "save_summary_steps": 3},
        ["told"],
        [{"max_steps": 11}],
    ),
    "no hook": (
        of_estimator,
        {
            "save_checkpoints_steps": 7,
            "save_summary_steps": 4,
            "log_step_count_steps": 6,
        },
        [],
        [{"steps": 16}, {"steps": 5}],
    ),
    "no hook, without a TPU": (
        of_tpu_estimator,
        {"save_checkpoints_steps": 7, "log_step_count_steps": 6},
        [],
        [{"steps": 16}, {"max_steps": 30}],
    ),
    "hooks of TensorFlow": (
        of_estimator,
        {"save_checkpoints_secs": 600, "save_summary_steps": None},
        ["summaries", "saver", "stop"],
        [{"max_steps": 40}],
    ),
    "a hook at the end": (
        in_loops,
        {"save_checkpoints_steps": 9, "save_summary_steps": 100},
        ["at end"],
        [{"max_steps": 20}],
    ),
}


class Told(tf.train.SessionRunHook):
    """A hook that records its calls and the losses."""

    def __init__(self, calls):
        self._calls = calls

    def begin(self):
        self._calls.append(["begin"])

    def after_create_session(self, session, coord):
        step = session.run(tf.train.get_global_step())
        self._calls.append(["after_create_session", int(step)])

    def before_run(self, run_context):
        return tf.train.SessionRunArgs(
            {"step": tf.train.get_global_step(), "loss": "the_loss:0"}
        )

    def after_run(self, run_context, run_values):
        # The step may be the one before the update.
        step = run_context.session.run(tf.train.get_global_step())
        loss = round(float(run_values.results["loss"]), 5)
        self._calls.append(["after_run", int(step), loss])

    def end(self, session):
        step = session.run(tf.train.get_global_step())
        self._calls.append(["end", int(step)])


class AtEnd(tf.train.SessionRunHook):
    """A hook that acts only at the end."""

    def __init__(self, calls):
        self._calls = calls

    def end(self, session):
        step = session.run(tf.train.get_global_step())
        self._calls.append(["end", int(step)])


class Listener(tf.train.CheckpointSaverListener):
    """A listener that records the saved steps."""

    def __init__(self, calls):
        self._calls = calls

    def before_save(self, session, global_step_value):
        self._calls.append(["before_save", int(global_step_value)])

    def after_save(self, session, global_step_value):
        self._calls.append(["after_save", int(global_step_value)])

    def end(self, session, global_step_value):
        self._calls.append(["listener end", int(global_step_value)])


def _input_fn(params=None):
    x = np.cos(np.arange(8 * BATCH, dtype="float32")).reshape(-1, 1)
    data = tf.data.Dataset.from_tensor_slices((x, 2 * x + 1))
    return data.repeat().batch(BATCH, drop_remainder=True)


def _model_fn(features, labels, mode, spec_class):
    w = tf.get_variable("w", [], initializer=tf.zeros_initializer())
    b = tf.get_variable("b", [], initializer=tf.zeros_initializer())
    loss = tf.reduce_mean((w * features + b - labels) ** 2)
    loss = tf.identity(loss, name="the_loss")
    optimizer = tf.train.GradientDescentOptimizer(0.1)
    train_op = optimizer.minimize(loss, tf.train.get_global_step())
    return spec_class(mode, loss=loss, train_op=train_op)


def _hooks(names, model_dir, calls):
    made = {
        "told": lambda: Told(calls),
        "at end": lambda: AtEnd(calls),
        "stop": lambda: tf.train.StopAtStepHook(last_step=13),
        "saver": lambda: tf.train.CheckpointSaverHook(
            model_dir, save_steps=6, listeners=[Listener(calls)]
        ),
        "summaries": lambda: tf.train.StepCounterHook(
            every_n_steps=5, output_dir=os.path.join(model_dir, "counted")
        ),
    }
    return [made[name]() for name in names]


def told(name, model_dir):
    """Returns the recorded calls and the files of one training.

    Args:
        name: The name of the training.
        model_dir: An empty directory.
    """
    make, config, hooks, trainings = TRAININGS[name]
    config = {"keep_checkpoint_max": 100, "model_dir": model_dir, **config}
    estimator = make(_model_fn, config)
    calls = []
    for arguments in trainings:
        listeners = None if "saver" in hooks else [Listener(calls)]
        estimator.train(
            _input_fn,
            hooks=_hooks(hooks, model_dir, calls),
            saving_listeners=listeners,
            **arguments,
        )
    return {
        "calls": calls,
        "checkpoints": _checkpoints(model_dir),
        "losses": _events(model_dir, "loss"),
        "counted": sorted(
            _events(os.path.join(model_dir, "counted"), "global_step/sec")
        ),
    }


def _checkpoints(model_dir):
    state = tf.train.get_checkpoint_state(model_dir)
    names = state.all_model_checkpoint_paths
    return [int(name.rsplit("-", 1)[1]) for name in names]


def _events(model_dir, tag):
    """Returns the values of a tag by step."""
    tf.summary.FileWriterCache.clear()
    found = {}
    for path in sorted(glob.glob(os.path.join(model_dir, "events.out.*"))):
        for event in tf.train.summary_iterator(path):
            for value in event.summary.value:
                if value.tag == tag:
                    number = value.simple_value or float(tf.make_ndarray(value.tensor))
                    found[event.step] = round(number, 5)
    return found


def as_json(result):
    """Returns the result as JSON."""
    return json.loads(json.dumps(result))
