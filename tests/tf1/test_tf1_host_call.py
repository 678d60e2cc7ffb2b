"""Tests `host_call`s that build graphs, which run in sessions on the host."""

import keras_tpu_estimator as kte  # isort: skip

import time

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from tf1_programs import estimator, fed, summaries_in, variable

X = np.arange(32, dtype="float32").reshape(32, 1)


def program(host_call, tensors_of, as_estimator_spec=False):
    """A model_fn with a `host_call`, given the features and the step."""

    def model_fn(features, labels, mode, params):
        weight = variable("w", 1)
        if mode == kte.ModeKeys.PREDICT:
            return kte.tf1.TPUEstimatorSpec(
                mode,
                predictions={"y": features * weight},
                host_call=(host_call, tensors_of(features, None)),
            )
        loss = tf.reduce_mean(features * weight)
        step = tf.train.get_or_create_global_step()
        optimizer = tf.train.GradientDescentOptimizer(0.01)
        if params["use_tpu"]:
            optimizer = tf.tpu.CrossShardOptimizer(optimizer)
        train_op = optimizer.minimize(loss, step)
        spec = kte.tf1.TPUEstimatorSpec(
            mode,
            loss=loss,
            train_op=train_op if mode == kte.ModeKeys.TRAIN else None,
            host_call=(host_call, tensors_of(features, step)),
        )
        return spec.as_estimator_spec() if as_estimator_spec else spec

    return model_fn


def batches(*sizes):
    """Batches of rows of `X` with the given sizes."""
    ends = np.cumsum([0, *sizes])
    return fed([X[a:b] for a, b in zip(ends[:-1], ends[1:], strict=True)])


def writing(directory):
    """A host_call in the style of TF1 scripts."""

    def host_call(step, x):
        step = step[0]
        writer = tf.compat.v2.summary.create_file_writer(str(directory))
        with (
            writer.as_default(),
            tf.compat.v2.summary.record_if(tf.equal(step % 2, 0)),
        ):
            tf.compat.v2.summary.scalar("sum", tf.reduce_sum(x), step=step)
            return tf.summary.all_v2_summary_ops()

    return host_call


@pytest.mark.parametrize("use_tpu", [False, True])
def test_summaries_of_every_step(tmp_path, use_tpu):
    host_call = writing(tmp_path / "own")
    made = estimator(
        program(host_call, lambda x, step: [tf.reshape(step, [1]), x]),
        tmp_path / "model",
        use_tpu=use_tpu,
        iterations=2,
    )
    made.train(batches(16, 16), steps=2)
    # The read does not depend on the count, so it has the previous value. Files are
    # complete when `train` returns, with the batches of all cores.
    assert summaries_in(tmp_path / "own") == {("sum", 0): X[:16].sum()}
    made.train(batches(16, 16), steps=2)
    expected = {("sum", step): X[:16].sum() for step in (0, 2)}
    assert summaries_in(tmp_path / "own") == expected


def test_summaries_of_contrib(tmp_path):
    kte.tf1.install()
    from tensorflow.contrib import summary

    def host_call(step, x):
        step = step[0]
        directory = str(tmp_path / "own")
        with (
            summary.create_file_writer(directory, max_queue=2).as_default(),
            summary.always_record_summaries(),
        ):
            summary.scalar("largest", tf.reduce_max(x), step=step)
            with summary.record_summaries_every_n_global_steps(2):
                summary.histogram("rows", x, step=step)
            return summary.all_summary_ops()

    made = estimator(
        program(host_call, lambda x, step: [tf.reshape(step, [1]), x]),
        tmp_path / "model",
    )
    made.train(batches(16, 16), steps=2)
    written = summaries_in(tmp_path / "own")
    assert written.keys() == {("largest", 0), ("largest", 1), ("rows", 0)}
    assert written["largest", 1] == 31


def test_variables_are_used_in_the_order_of_creation(tmp_path):
    # TensorFlow 1.15.5 runs these operations in any order. Minigo, for example, resets
    # its metrics in each step by an operation that does not wait for their updates.
    seen = []

    def late(rows):
        time.sleep(0.05)
        return rows.sum()

    def host_call(x):
        total = tf.get_variable("total", [], initializer=tf.zeros_initializer)
        unused = total.assign(-1.0)
        rows = tf.py_func(late, [x], tf.float32)
        rows.set_shape([])
        added = tf.cond(
            x[0, 0] > 2,
            lambda: total.assign_add(rows) + 0,
            lambda: total.assign_add(tf.py_func(late, [x], tf.float32)) + 0,
        )
        shown = tf.py_func(seen.append, [total.read_value()], [])
        halved = total.assign(total * 0.5)
        del unused
        return [added, shown, halved]

    made = estimator(program(host_call, lambda x, step: [x]), tmp_path)
    made.train(batches(2, 2, 2), steps=3)
    assert seen == [1.0, 5.5, 11.75]


def test_function_is_called_once_for_each_size(tmp_path):
    sizes, seen = [], []

    def host_call(x):
        sizes.append(x.shape.as_list())
        return tf.py_func(lambda a: seen.append(len(a)), [x], [])

    made = estimator(program(host_call, lambda x, step: {"x": x}), tmp_path)
    made.evaluate(batches(16, 8, 8))
    assert sizes == [[16, 1], [8, 1]]
    assert seen == [16, 8, 8]
    list(made.predict(batches(4)))
    assert seen[3:] == [16]  # The size includes the padding rows.


def test_every_nth_step(tmp_path):
    seen = []

    def host_call(x):
        return [tf.py_func(lambda a: seen.append(a[0, 0]), [x], [])]

    tpu_config = kte.TPUConfig(
        iterations_per_loop=2, experimental_host_call_every_n_steps=2
    )
    made = kte.TPUEstimator(
        kte.tf1.model_fn(program(host_call, lambda x, step: [x])),
        config=kte.RunConfig(tpu_config=tpu_config, model_dir=str(tmp_path)),
        train_batch_size=8,
        use_tpu=False,
    )
    made.train(batches(8, 8, 8, 8), steps=4)
    assert seen == [0, 16]


def test_host_call_without_tensors(tmp_path):
    seen = []

    def host_call():
        step = tf.train.get_global_step()
        return tf.py_func(lambda a: seen.append(int(a)), [step], [])

    made = estimator(program(host_call, lambda x, step: []), tmp_path)
    made.train(batches(16, 16), steps=2)
    assert seen == [0, 1]
    made.evaluate(batches(16, 16))
    assert seen[2:] == [2, 2]


def steps_read(tmp_path, read, use_tpu=False):
    """The global steps that a host_call receives in two `train` calls."""
    seen = []

    def host_call(step):
        return tf.py_func(lambda a: seen.append(int(a[0])), [step], [])

    def model_fn(features, labels, mode, params):
        loss = tf.reduce_mean(features * variable("w", 1))
        step = tf.train.get_global_step()
        before = tf.reshape(step, [1])
        optimizer = tf.train.AdamOptimizer(0.01)
        if params["use_tpu"]:
            optimizer = tf.tpu.CrossShardOptimizer(optimizer)
        train_op = optimizer.minimize(loss, step)
        return kte.tf1.TPUEstimatorSpec(
            mode,
            loss=loss,
            train_op=train_op,
            host_call=(host_call, [read(step, before, train_op)]),
        )

    made = estimator(model_fn, tmp_path, use_tpu=use_tpu, iterations=2)
    made.train(batches(16, 16), steps=2)
    made.train(batches(16, 16), steps=2)
    return seen


def after_the_step(step, before, train_op):
    with tf.control_dependencies([train_op]):
        return tf.reshape(step, [1])


def under_a_name(step, before, train_op):
    return tf.reshape(tf.identity(step.read_value()), [1])


@pytest.mark.rows(6)
@pytest.mark.parametrize("use_tpu", [False, True])
@pytest.mark.parametrize(
    ("read", "first"),
    [
        (lambda step, before, train_op: tf.reshape(step, [1]), 0),
        (lambda step, before, train_op: before, 0),
        (under_a_name, 0),
        (after_the_step, 1),
    ],
)
def test_global_step_before_the_run(tmp_path, read, first, use_tpu):
    seen = steps_read(tmp_path, read, use_tpu)
    assert seen == [first + step for step in range(4)]


def test_types_are_those_of_the_graph(tmp_path):
    types = []

    def host_call(wide, flag):
        types.append((wide.dtype, flag.dtype))

    made = estimator(
        program(
            host_call,
            lambda x, step: [tf.cast(x, tf.int64), tf.greater(x, 1.0)],
        ),
        tmp_path,
    )
    made.train(batches(16), steps=1)
    assert types == [(tf.int64, tf.bool)]


@pytest.mark.parametrize("mode", ["train", "evaluate"])
def test_spec_for_one_core_keeps_host_call(tmp_path, mode):
    seen = []

    def host_call(x):
        return tf.py_func(lambda a: seen.append(len(a)), [x], [])

    made = estimator(
        program(host_call, lambda x, step: [x], as_estimator_spec=True),
        tmp_path,
    )
    getattr(made, mode)(batches(16), steps=1)
    assert seen == [16]


@pytest.mark.parametrize(
    ("returned", "error", "message"),
    [
        (lambda x: tf.summary.scalar("a", x[0, 0]), ValueError, "v2.summary"),
        (lambda x: 1.0, TypeError, "Received: 1.0 of type float"),
    ],
)
def test_host_call_that_cannot_run_is_an_error(tmp_path, returned, error, message):
    made = estimator(program(returned, lambda x, step: [x]), tmp_path)
    with pytest.raises(error, match=message):
        made.train(batches(16), steps=1)
