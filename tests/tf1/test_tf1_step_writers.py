"""Tests summaries that a `model_fn` writes with its own writer."""

import keras_tpu_estimator as kte  # isort: skip

import glob

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
import tensorflow.compat.v2 as tf2
from tf1_programs import batches, classes_data, estimator, fed, summaries_in, variable

from keras_tpu_estimator.tf1.names.catalogue import catalogue

DATA = batches(*classes_data(3), steps=5)


def program(directory, write, when=lambda step: True, loss_of=None):
    """A model_fn whose train op waits for what `write` records."""

    def model_fn(features, labels, mode, params):
        weight = variable("w", 3)
        with tf.name_scope("loss"):
            loss = tf.reduce_mean(features * weight)
        if mode == kte.ModeKeys.PREDICT:
            return kte.tf1.TPUEstimatorSpec(mode, predictions={"y": features})
        step = tf.train.get_or_create_global_step()
        writer = tf2.summary.create_file_writer(str(directory))
        with (
            tf.control_dependencies([writer.init()]),
            writer.as_default(),
            tf2.summary.record_if(when(step)),
        ):
            write(features, loss, weight, step)
        if loss_of is not None:
            loss = loss_of(loss)
        optimizer = tf.train.GradientDescentOptimizer(0.5)
        if params["use_tpu"]:
            optimizer = tf.tpu.CrossShardOptimizer(optimizer)
        waits = tf.summary.all_v2_summary_ops()
        with tf.control_dependencies(waits):
            train_op = optimizer.minimize(loss, step)
        if mode == kte.ModeKeys.EVAL:
            with tf.control_dependencies(waits):
                loss = tf.identity(loss)
        return kte.tf1.TPUEstimatorSpec(mode, loss=loss, train_op=train_op)

    return model_fn


def write_loss(features, loss, weight, step):
    tf2.summary.scalar("loss", loss, step=step)


def weights(steps):
    """The values of `w` before each step."""
    value = np.random.default_rng(0).normal(size=3) * 0.3
    found = []
    for x, _ in DATA[:steps]:
        found.append(value)
        value = value - 0.5 * x.mean(0) / 3
    return found


def losses():
    pairs = zip(weights(5), DATA, strict=True)
    return [(x * w).mean() for w, (x, _) in pairs]


@pytest.mark.parametrize("use_tpu", [False, True])
def test_scalars_have_their_own_step_and_condition(tmp_path, use_tpu):
    own = tmp_path / "own"
    made = estimator(
        program(own, write_loss, lambda step: tf.equal(step % 2, 0)),
        tmp_path / "model",
        use_tpu=use_tpu,
        iterations=3,
    )
    made.train(fed(DATA), steps=5)
    written = summaries_in(own)
    assert sorted(written) == [("loss", 0), ("loss", 2), ("loss", 4)]
    values = [written["loss", step] for step in (0, 2, 4)]
    np.testing.assert_allclose(values, losses()[::2], rtol=1e-5)
    # Another call continues, in a separate file.
    made.train(fed(DATA), steps=2)
    assert ("loss", 6) in summaries_in(own)
    assert len(glob.glob(f"{own}/*tfevents*")) == 2


def test_summaries_do_not_change_training(tmp_path):
    def noisy(loss):
        return loss + tf.reduce_sum(tf.random.normal([3]))

    def trained(write, name):
        made = estimator(
            program(tmp_path / name, write, loss_of=noisy), tmp_path / name
        )
        made.train(fed(DATA), steps=5)
        return made.get_variable_value("w"), made.evaluate(fed(DATA), steps=1)

    with_it = trained(write_loss, "with")
    without = trained(lambda *_: None, "without")
    np.testing.assert_array_equal(with_it[0], without[0])
    assert with_it[1] == without[1]


def test_summaries_see_variables_before_the_step(tmp_path):
    def write(features, loss, weight, step):
        tf2.summary.histogram("w", weight, step=step)
        tf2.summary.write("whole", weight, step=step)

    made = estimator(
        program(tmp_path, write, lambda step: step >= 0), tmp_path / "model"
    )
    made.train(fed(DATA), steps=3)
    written = summaries_in(tmp_path)
    assert written["w", 2].sum() == pytest.approx(written["w", 2][:, :2].sum() + 3)
    values = [written["whole", step] for step in range(3)]
    np.testing.assert_allclose(values, weights(3), rtol=1e-5)


@pytest.mark.parametrize("is_known", [False, True])
def test_images_texts_and_histograms(tmp_path, is_known):
    def write(features, loss, weight, step):
        image = tf.reshape(features[:2, :1], [2, 1, 1, 1])
        tf2.summary.image("image", tf.sigmoid(image), step=step)
        tf2.summary.text("text", tf.as_string(step), step=step)
        tf2.summary.histogram("features", features, step=step, buckets=4)

    when = (lambda step: True) if is_known else (lambda step: step < 10)
    made = estimator(program(tmp_path, write, when), tmp_path / "model", use_tpu=True)
    made.train(fed(DATA), steps=2)
    written = summaries_in(tmp_path)
    assert written["text", 1] == b"1"
    assert written["image", 1][:2].tolist() == [b"1", b"1"]
    assert written["image", 1][2].startswith(b"\x89PNG")
    # The values of the first core, as on a TPU.
    assert written["features", 1][:, 2].sum() == 2 * 3
    assert written.keys() == {
        (tag, step) for tag in ("image", "text", "features") for step in range(2)
    }


def test_constants_and_narrow_numbers(tmp_path):
    def write(features, loss, weight, step):
        tf2.summary.scalar("constant", 0.5, step=7)
        tf2.summary.text("text", "about", step=7)

    made = estimator(program(tmp_path, write), tmp_path / "model")
    made.train(fed(DATA), steps=2)
    assert summaries_in(tmp_path) == {
        ("constant", 7): 0.5,
        ("text", 7): b"about",
    }

    def write_narrow(features, loss, weight, step):
        tf2.summary.scalar("half", tf.cast(loss, tf.bfloat16), step=step)
        tf2.summary.scalar("step", step + 1, step=step)

    other = tmp_path / "narrow"
    made = estimator(program(other, write_narrow), other, use_tpu=True)
    made.train(fed(DATA), steps=2)
    written = summaries_in(other)
    assert written["half", 1] == pytest.approx(losses()[1], rel=0.02)
    assert written["step", 1] == 2


def test_summaries_without_a_fixed_shape_are_skipped(tmp_path, caplog):
    def write(features, loss, weight, step):
        some = tf.boolean_mask(features, features > 0)
        tf2.summary.histogram("some", some, step=step)
        write_loss(features, loss, weight, step)

    made = estimator(
        program(tmp_path, write, lambda step: step >= 0), tmp_path / "model"
    )
    made.train(fed(DATA), steps=2)
    assert summaries_in(tmp_path).keys() == {("loss", 0), ("loss", 1)}
    (message,) = [m for m in caplog.messages if "not written" in m]
    assert "some/write_summary" in message
    assert __file__ in message


def test_updates_that_summaries_depend_on_are_made(tmp_path):
    def model_fn(features, labels, mode, params):
        weight, count = variable("w", 3), variable("count")
        loss = tf.reduce_mean(features * weight)
        step = tf.train.get_or_create_global_step()
        writer = tf2.summary.create_file_writer(str(tmp_path))
        update = count.assign(tf.cast(step, tf.float32) + 1)
        with tf.control_dependencies([update]), writer.as_default():
            with tf.control_dependencies([writer.init()]):
                tf2.summary.scalar("count", count, step=step)
        optimizer = tf.train.GradientDescentOptimizer(0.5)
        train = optimizer.minimize(loss, step)
        train_op = tf.group(train, *tf.summary.all_v2_summary_ops())
        return kte.tf1.TPUEstimatorSpec(mode, loss=loss, train_op=train_op)

    made = estimator(model_fn, tmp_path / "model", use_tpu=False)
    made.train(fed(DATA), steps=2)
    assert made.get_variable_value("count") == 2
    assert summaries_in(tmp_path) == {("count", 0): 1, ("count", 1): 2}


def test_summaries_may_depend_on_training(tmp_path):
    def model_fn(features, labels, mode, params):
        weight = variable("w", 3)
        loss = tf.reduce_mean(features * weight)
        if mode == kte.ModeKeys.PREDICT:
            writer = tf2.summary.create_file_writer(str(tmp_path / "predict"))
            with tf.control_dependencies([writer.init()]):
                y = tf.identity(loss * tf.ones([features.shape[0]]))
            return kte.tf1.TPUEstimatorSpec(mode, predictions={"y": y})
        step = tf.train.get_or_create_global_step()
        optimizer = tf.train.GradientDescentOptimizer(0.5)
        train_op = optimizer.minimize(loss, step)
        writer = tf2.summary.create_file_writer(str(tmp_path))
        with tf.control_dependencies([train_op]), writer.as_default():
            with tf2.summary.record_if(step > 0):
                tf2.summary.write("w", weight, step=step)
        train_op = tf.group(*tf.summary.all_v2_summary_ops())
        return kte.tf1.TPUEstimatorSpec(mode, loss=loss, train_op=train_op)

    made = estimator(model_fn, tmp_path / "model", use_tpu=False)
    made.train(fed(DATA), steps=4)
    written = summaries_in(tmp_path)
    values = [written["w", step] for step in range(1, 5)]
    np.testing.assert_allclose(values, weights(5)[1:], rtol=1e-5)
    assert len(list(made.predict(fed(DATA)))) == 5 * 16


def test_writers_of_contrib(tmp_path):
    kte.tf1.install()
    from tensorflow.contrib import summary

    def model_fn(features, labels, mode, params):
        loss = tf.reduce_mean(features * variable("w", 3))
        step = tf.train.get_or_create_global_step()
        writer = summary.create_file_writer(str(tmp_path / "own"))
        with (
            writer.as_default(),
            summary.record_summaries_every_n_global_steps(2),
        ):
            summary.scalar("loss", loss)
        optimizer = tf.train.GradientDescentOptimizer(0.5)
        with tf.control_dependencies(summary.all_summary_ops()):
            train_op = optimizer.minimize(loss, step)
        return kte.tf1.TPUEstimatorSpec(mode, loss=loss, train_op=train_op)

    made = estimator(model_fn, tmp_path, use_tpu=False)
    made.train(fed(DATA), steps=4)
    assert summaries_in(tmp_path / "own").keys() == {("loss", 0), ("loss", 2)}


def test_checker_accepts_summary_writers():
    for name in ("compat.v2", "contrib"):
        assert not catalogue().refusal(f"{name}.summary.create_file_writer")


def test_summaries_with_a_host_call_and_in_evaluation(tmp_path):
    seen = []
    inner = program(tmp_path, write_loss, lambda step: step >= 0)

    def model_fn(features, labels, mode, params):
        def host_call(x):
            return [tf.py_func(lambda a: seen.append(a.size), [x], [])]

        spec = inner(features, labels, mode, params)
        return spec._replace(host_call=(host_call, [features]))

    made = estimator(model_fn, tmp_path / "model")
    made.train(fed(DATA), steps=2)
    assert seen == [48, 48]
    made.evaluate(fed(DATA), steps=1)
    assert sorted(summaries_in(tmp_path)) == [
        ("loss", 0),
        ("loss", 1),
        ("loss", 2),
    ]
    list(made.predict(fed(DATA)))


def test_summary_in_a_loop_is_refused(tmp_path):
    def write(features, loss, weight, step):
        loops.append(
            tf.while_loop(
                lambda i, _: i < 3,
                lambda i, total: (
                    i + tf.cast(tf2.summary.scalar("a", total, 0), tf.int32),
                    total + 1,
                ),
                (0, loss),
            )[1]
        )
        tf.get_collection_ref("_SUMMARY_V2").clear()

    loops = []
    made = estimator(
        program(tmp_path, write, loss_of=lambda loss: loops[-1]),
        tmp_path / "model",
    )
    with pytest.raises(ValueError, match="resource that is not a variable"):
        made.train(fed(DATA), steps=1)
