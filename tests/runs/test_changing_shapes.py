"""Tests batches that are padded to their longest row, in every mode."""

import logging

import keras
import numpy as np
import pytest
import tensorflow as tf  # noqa: TID253 - tf.data is the usual input of this kind
from helpers import estimator_of
from keras import ops

import keras_tpu_estimator as kte
from keras_tpu_estimator.engine.inputs import pipeline

rng = np.random.default_rng(0)
ROWS = [
    rng.integers(1, 9, size=length).astype("int32")
    for length in rng.integers(2, 7, size=44)
]
LABELS = np.array([row.sum() for row in ROWS], "float32") / 20
LONGEST = max(map(len, ROWS))


def padded(length=None, repeat=1):
    """An input_fn that pads to each batch's longest row, or to a given length."""

    def input_fn(params):
        data = tf.data.Dataset.from_generator(
            lambda: iter(zip(ROWS, LABELS, strict=True)),
            output_signature=(
                tf.TensorSpec([None], tf.int32),
                tf.TensorSpec([], tf.float32),
            ),
        ).repeat(repeat)
        return data.map(lambda ids, y: ({"ids": ids}, y)).padded_batch(
            params["batch_size"], padded_shapes=({"ids": [length]}, [])
        )

    return input_fn


def generated(params):
    size = params["batch_size"]
    for start in range(0, len(ROWS), size):
        rows = ROWS[start : start + size]
        longest = max(map(len, rows))
        ids = [np.pad(row, (0, longest - len(row))) for row in rows]
        yield {"ids": np.stack(ids)}, LABELS[start : start + size]


def masked(features, labels, mode, params):
    """The mean over ids that are not padding, and a value for each id."""
    ids = features["ids"]
    mask = ops.cast(ids > 0, "float32")[..., None]
    embedded = keras.layers.Embedding(9, 4)(ids) * mask
    y = keras.layers.Dense(1)(ops.sum(embedded, 1))[:, 0]
    if mode == kte.ModeKeys.PREDICT:
        tokens = ops.cast(ids, "float32") * y[:, None]
        return kte.TPUEstimatorSpec(mode, {"y": y, "tokens": tokens})
    loss = ops.mean((y - labels) ** 2)
    if mode == kte.ModeKeys.EVAL:
        metrics = (
            lambda labels, y, ids: {
                "mse": kte.metrics.mean_squared_error(labels, y),
                "ids": kte.metrics.mean(ops.cast(ids > 0, "float32"), ids > 0),
            },
            [labels, y, ids],
        )
        return kte.TPUEstimatorSpec(mode, loss=loss, eval_metrics=metrics)
    optimizer = kte.CrossShardOptimizer(keras.optimizers.Adam(0.01))
    return kte.TPUEstimatorSpec(
        mode,
        loss=loss,
        train_op=optimizer.minimize(loss),
        host_call=(lambda ids: None, [ids]),
    )


def values(estimator):
    return kte.checkpoints.read(estimator.model_dir)


def assert_same(estimator, other):
    own, others = values(estimator), values(other)
    assert own.keys() == others.keys()
    for path, value in own.items():
        np.testing.assert_allclose(value, others[path], rtol=1e-4, atol=1e-6)


@pytest.mark.rows(2)
@pytest.mark.parametrize("use_tpu", [False, True])
@pytest.mark.parametrize("changing", [padded(), generated])
def test_each_shape_matches_a_fixed_length(tmp_path, changing, use_tpu):
    one = estimator_of(masked, tmp_path / "one", use_tpu, batch=8)
    one.train(padded(LONGEST), steps=99)
    estimator = estimator_of(masked, tmp_path / "many", use_tpu, batch=8)
    estimator.train(changing, steps=99)
    assert_same(estimator, one)

    result, expected = one.evaluate(changing), one.evaluate(padded(LONGEST))
    assert result == pytest.approx(expected, rel=1e-5)
    rows = list(one.predict(changing))
    wanted = list(one.predict(padded(LONGEST)))
    for row, other, ids in zip(rows, wanted, ROWS, strict=True):
        np.testing.assert_allclose(row["y"], other["y"], rtol=1e-5)
        length = len(row["tokens"])
        assert len(ids) <= length <= LONGEST
        np.testing.assert_allclose(row["tokens"], other["tokens"][:length], rtol=1e-5)


class Steps(kte.hooks.SessionRunHook):
    """Notes the global step after each run."""

    def __init__(self):
        self.seen = []

    def after_run(self, run_context, run_values):
        self.seen.append(int(run_context.session.run("global_step")))


@pytest.mark.slow
def test_loops_keep_their_number_of_steps(tmp_path):
    hook = Steps()
    estimator = estimator_of(masked, tmp_path, batch=8, iterations=3)
    estimator.train(generated, hooks=[hook])
    assert hook.seen == [3, 6]


def test_hooks_of_evaluate_see_each_batch(tmp_path):
    class Batches(Steps):
        def due_steps(self, start):
            return range(start + 1, start + 100)

    estimator = estimator_of(masked, tmp_path, batch=8)
    estimator.train(generated, steps=1)
    hook = Batches()
    estimator.evaluate(generated, hooks=[hook])
    assert len(hook.seen) == 6


@pytest.mark.rows(3)
@pytest.mark.parametrize("stop", [2, 4, 5])
@pytest.mark.parametrize("input_fn", [padded(repeat=3), generated])
def test_training_resumes_between_shapes(tmp_path, monkeypatch, input_fn, stop):
    monkeypatch.setattr(pipeline, "_DELAY_SECS", 0.0)
    whole = estimator_of(masked, tmp_path / "whole", batch=8, iterations=2)
    whole.train(input_fn, max_steps=6)

    class Stop(kte.hooks.SessionRunHook):
        def after_run(self, run_context, run_values):
            if run_context.session.run("global_step") >= stop:
                raise InterruptedError

    def resumed():
        return estimator_of(
            masked,
            tmp_path / "parts",
            batch=8,
            iterations=1,
            config={"save_checkpoints_steps": 1},
        )

    with pytest.raises(InterruptedError):
        resumed().train(input_fn, max_steps=6, hooks=[Stop()])
    estimator = resumed()
    estimator.train(input_fn, max_steps=6)
    assert_same(estimator, whole)


def of_lengths(lengths, size=8):
    for length in lengths:
        yield {"ids": np.ones((size, length), "int32")}, LABELS[:size]


def warnings_in(caplog):
    return [
        each.getMessage()
        for each in caplog.records
        if "max_input_shapes" in each.getMessage()
    ]


def test_many_shapes_are_reported_once(tmp_path, caplog):
    caplog.set_level(logging.WARNING, "keras_tpu_estimator")
    estimator = estimator_of(masked, tmp_path, batch=8)
    estimator.train(lambda params: of_lengths(range(1, 9)))
    assert not warnings_in(caplog)
    estimator.train(lambda params: of_lengths(range(1, 12)))
    (message,) = warnings_in(caplog)
    assert "mode 'train' have come in 9 shapes: features['ids'] has" in message
    assert "(batch, 1), (batch, 2)" in message
    assert "bucket_by_sequence_length" in message


def test_a_limit_of_shapes_raises(tmp_path):
    estimator = estimator_of(masked, tmp_path, batch=8, config={"max_input_shapes": 2})
    with pytest.raises(
        ValueError, match=r"at most 2 shapes.*at step 3: features\['ids'\]"
    ):
        estimator.train(lambda params: of_lengths([3, 4, 3, 5]))
    # A smaller last batch is not a new shape, and each mode counts separately.
    assert estimator.evaluate(
        lambda params: (batch for size in (8, 5) for batch in of_lengths([6], size))
    )


def test_compiled_shapes_are_cached(tmp_path):
    calls = []

    def model_fn(features, labels, mode, params):
        calls.append(features["ids"].shape)
        return masked(features, labels, mode, params)

    estimator = estimator_of(model_fn, tmp_path, batch=8)
    estimator.train(lambda params: of_lengths([3, 4, 3, 4, 4]))
    known = len(calls)
    assert {*calls} == {(8, 3), (8, 4)}
    estimator.train(lambda params: of_lengths([4, 3, 4]))
    assert len(calls) == known


def flat(features, labels, mode, params):
    x = ops.cast(features["ids"], "float32")
    loss = ops.mean((keras.layers.Dense(1)(x)[:, 0] - labels) ** 2)
    optimizer = kte.CrossShardOptimizer(keras.optimizers.SGD(0.01))
    return kte.TPUEstimatorSpec(mode, loss=loss, train_op=optimizer.minimize(loss))


def test_variables_that_change_size_are_an_error(tmp_path):
    estimator = estimator_of(flat, tmp_path, batch=8)
    with pytest.raises(
        ValueError,
        match=r"'dense/kernel' must have (.|\n)*Received: \(4, 1\)(.|\n)*another "
        "shape than the first(.|\n)*must not depend on a dimension that changes",
    ):
        estimator.train(lambda params: of_lengths([3, 4]))


def test_new_variables_for_a_new_shape_are_an_error(tmp_path):
    def model_fn(features, labels, mode, params):
        if features["ids"].shape[1] == 3:
            return masked(features, labels, mode, params)
        extra = keras.layers.Dense(1, name="extra")(
            ops.cast(features["ids"], "float32")
        )
        return masked(features, labels + extra[:, 0], mode, params)

    estimator = estimator_of(model_fn, tmp_path, batch=8)
    with pytest.raises(
        ValueError, match="same variables.*2 more.*: extra/bias, extra/kernel"
    ):
        estimator.train(lambda params: of_lengths([3, 4]))


def test_per_core_batches_need_one_shape_in_each_step(tmp_path):
    way = kte.InputPipelineConfig.PER_HOST_V2
    config = kte.RunConfig(
        model_dir=str(tmp_path),
        tpu_config=kte.TPUConfig(per_host_input_for_training=way),
    )
    estimator = kte.TPUEstimator(masked, config=config, train_batch_size=16)
    estimator.train(
        lambda params: of_lengths([3] * 8 + [4] * 8, params["batch_size"]),
        steps=9,
    )
    assert estimator.get_variable_value("global_step") == 2
    with pytest.raises(
        ValueError, match=r"features\['ids'\] must have the same shape.*\(3,\)"
    ):
        estimator.train(
            lambda params: of_lengths([3] * 7 + [4], params["batch_size"]),
            steps=9,
        )


def test_micro_batches_support_each_shape(tmp_path):
    one = estimator_of(masked, tmp_path / "one", batch=8)
    one.train(generated, steps=5)
    config = {"micro_batches": 2}
    several = estimator_of(masked, tmp_path / "two", batch=8, config=config)
    several.train(generated, steps=5)
    assert_same(several, one)
