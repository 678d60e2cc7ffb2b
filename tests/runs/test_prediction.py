"""Tests that `predict` is a lazy stream with one result for each example."""

import collections
import gc
import threading

import jax
import keras
import numpy as np
import pytest
import tensorflow as tf  # noqa: TID253
from helpers import (
    batches_of,
    each_once,
    estimator_of,
    linear,
    model_fn_of,
    regression_data,
    repeated,
)
from keras import ops

import keras_tpu_estimator as kte

X, Y = regression_data(examples=70)


def doubling(features, labels, mode, params):
    return kte.TPUEstimatorSpec(
        mode,
        predictions={"double": 2 * features, "sum": ops.sum(features, -1)},
    )


@pytest.mark.parametrize(
    ("examples", "batch", "use_tpu"),
    [
        *each_once([1, 8, 70], [8, 64, 72], [True]),
        *each_once([1, 8, 70], [64, 72, 8], [False]),
    ],
)
def test_n_results_for_n_examples(examples, batch, use_tpu, tmp_path):
    estimator = estimator_of(doubling, tmp_path, use_tpu, batch=batch)
    rows = list(estimator.predict(batches_of(X[:examples])))
    assert len(rows) == examples
    np.testing.assert_array_equal(
        np.stack([row["double"] for row in rows]), 2 * X[:examples]
    )
    np.testing.assert_allclose(
        [row["sum"] for row in rows], X[:examples].sum(-1), rtol=1e-5
    )


def test_full_batches_are_yielded(tmp_path):
    estimator = estimator_of(doubling, tmp_path, batch=32)
    batches = list(estimator.predict(batches_of(X), yield_single_examples=False))
    assert [len(batch["sum"]) for batch in batches] == [32, 32, 6]


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        (None, {"double", "sum"}),
        ([], {"double", "sum"}),
        (["sum"], {"sum"}),
        ("sum", {"sum"}),
        (["sum", "other"], {"sum"}),
    ],
)
def test_predict_keys(keys, expected, tmp_path):
    estimator = estimator_of(doubling, tmp_path)
    row = next(estimator.predict(batches_of(X), predict_keys=keys))
    assert set(row) == expected


@pytest.mark.parametrize("single", [True, False])
@pytest.mark.parametrize("keys", [None, ["a", "z"]])
def test_predictions_have_the_order_of_model_fn(single, keys, tmp_path):
    def model_fn(features, labels, mode, params):
        named = {"z": features, "m": features, "a": features}
        return kte.TPUEstimatorSpec(mode, named)

    predicted = next(
        estimator_of(model_fn, tmp_path).predict(
            batches_of(X), predict_keys=keys, yield_single_examples=single
        )
    )
    assert type(predicted) is dict
    assert list(predicted) == (["z", "a"] if keys else ["z", "m", "a"])


def test_predict_keys_match_complete_names(tmp_path):
    estimator = estimator_of(doubling, tmp_path)
    with pytest.raises(ValueError, match="`predict_keys` must be among"):
        next(estimator.predict(batches_of(X), predict_keys="summary"))


def test_single_tensor_on_one_core(tmp_path):
    def model_fn(features, labels, mode, params):
        return kte.EstimatorSpec(mode, predictions=2 * features)

    estimator = estimator_of(model_fn, tmp_path, batch=32)
    rows = list(estimator.predict(batches_of(X)))
    np.testing.assert_array_equal(np.stack(rows), 2 * X)
    with pytest.raises(ValueError, match="predictions must be a dict"):
        next(estimator.predict(batches_of(X), predict_keys="a"))


def test_labels_are_left_out(tmp_path):
    def model_fn(features, labels, mode, params):
        assert labels is None
        return doubling(features, labels, mode, params)

    estimator = estimator_of(model_fn, tmp_path)
    assert len(list(estimator.predict(batches_of(X, Y)))) == 70


def test_nothing_happens_before_the_first_next(tmp_path):
    def input_fn(params):
        called.append(params)
        return batches_of(X)(params)

    called = []
    estimator = estimator_of(doubling, tmp_path)
    generator = estimator.predict(input_fn, hooks=["no hook"])
    assert not called
    with pytest.raises(TypeError, match="SessionRunHook"):
        next(generator)
    next(estimator.predict(input_fn))
    assert len(called) == 1


def test_is_padding_exists_if_requested(tmp_path):
    def model_fn(features, labels, mode, params):
        assert list(features) == ["x"] and len(features) == 1
        padding = features["is_padding"]
        assert "is_padding" in features and "other" not in features
        assert features.get("is_padding") is padding
        rows = ops.sum(ops.cast(~padding, "int32"))
        rows = kte.cross_replica_sum(rows)
        return kte.TPUEstimatorSpec(
            mode,
            predictions={
                "rows": ops.broadcast_to(rows, padding.shape),
                "x": features["x"],
            },
        )

    def input_fn(params):
        for x in batches_of(X)(params):
            yield {"x": x}

    estimator = estimator_of(model_fn, tmp_path, use_tpu=True, batch=32)
    rows = [row["rows"] for row in estimator.predict(input_fn)]
    assert rows == [32] * 64 + [6] * 6


def asking_for_padding(way):
    """A model_fn that requests the padding mask in one of several ways."""

    def model_fn(features, labels, mode, params):
        padding = way(features)
        assert padding is not None and list(features) == ["x"]
        rows = ops.where(padding, -1.0, 1.0) * ops.ones_like(features["x"][:, 0])
        return kte.TPUEstimatorSpec(mode, {"rows": rows})

    return model_fn


def dicts_of(x):
    """An input_fn of named features."""

    def input_fn(params):
        for rows in batches_of(x)(params):
            yield {"x": rows}

    return input_fn


WAYS_OF_ASKING = {
    "in": lambda f: f["is_padding"] if "is_padding" in f else None,
    "get": lambda f: f.get("is_padding"),
    "subscript": lambda f: f["is_padding"],
    "pop": lambda f: f.pop("is_padding", None),
}


@pytest.mark.parametrize("way", WAYS_OF_ASKING.values(), ids=WAYS_OF_ASKING.keys())
def test_padding_mask_is_available_at_once(tmp_path, way):
    calls = []

    def model_fn(features, labels, mode, params):
        calls.append(mode)
        return asking_for_padding(way)(features, labels, mode, params)

    estimator = estimator_of(model_fn, tmp_path, batch=32)
    (batch,) = estimator.predict(dicts_of(X[:5]), yield_single_examples=False)
    assert batch["rows"].tolist() == [1.0] * 5
    assert len(calls) == 1


def test_results_do_not_contain_padding(tmp_path):
    def check(features):
        assert list(features) == [*features.keys()] == ["x"]
        assert len(features) == len(features.values()) == 1
        for copied in (dict(features), {**features}, features | {}):
            assert type(copied) is dict and "is_padding" not in copied
        assert list(jax.tree.map(ops.shape, features)) == ["x"]
        ((path, _),) = jax.tree_util.tree_leaves_with_path(features)
        assert jax.tree_util.keystr(path) == "['x']"
        return features["x"]

    def model_fn(features, labels, mode, params):
        calls.append(mode)
        x = check(features)
        named = keras.Input((x.shape[1],), name="x")
        model = keras.Model({"x": named}, keras.layers.Dense(1)(named))
        return kte.TPUEstimatorSpec(mode, {"y": model(features)})

    calls = []
    estimator = estimator_of(model_fn, tmp_path, batch=32)
    assert len(list(estimator.predict(dicts_of(X)))) == len(X)
    assert len(calls) == 1


def test_features_are_mapped_with_plain_dicts(tmp_path):
    def model_fn(features, labels, mode, params):
        halves = jax.tree.map(lambda x, half: half * x, features, {"x": 0.5})
        return kte.TPUEstimatorSpec(mode, halves)

    estimator = estimator_of(model_fn, tmp_path, batch=32)
    rows = [row["x"] for row in estimator.predict(dicts_of(X))]
    np.testing.assert_array_equal(rows, X / 2)


def test_features_keep_their_order(tmp_path):
    def model_fn(features, labels, mode, params):
        (first, _), kind = jax.tree.leaves(features), type(features)
        assert isinstance(features, dict) and kind is not dict
        return kte.TPUEstimatorSpec(mode, {"first": first})

    def input_fn(params):
        yield collections.OrderedDict(z=X, a=2 * X)

    estimator = estimator_of(model_fn, tmp_path, batch=len(X))
    rows = [row["first"] for row in estimator.predict(input_fn)]
    np.testing.assert_array_equal(rows, X)


def test_missing_feature_raises_a_key_error(tmp_path):
    def model_fn(features, labels, mode, params):
        return doubling(features["is_missing"], labels, mode, params)

    def input_fn(params):
        yield {"x": X}

    estimator = estimator_of(model_fn, tmp_path)
    with pytest.raises(KeyError, match="is_missing"):
        next(estimator.predict(input_fn))


def test_functional_model_receives_the_features(tmp_path):
    inputs = {"x": keras.Input((3,), name="x")}
    network = keras.Model(inputs, keras.layers.Dense(1)(inputs["x"]))

    def model_fn(features, labels, mode, params):
        return kte.TPUEstimatorSpec(mode, predictions={"y": network(features)})

    def input_fn(params):
        yield {"x": X}

    estimator = estimator_of(model_fn, tmp_path, batch=70)
    rows = list(estimator.predict(input_fn))
    kernel = np.asarray(network.trainable_variables[0].value)
    np.testing.assert_allclose(
        np.stack([row["y"] for row in rows]), X @ kernel, rtol=1e-5
    )


def test_interleaved_generators(tmp_path):
    estimator = estimator_of(model_fn_of(linear), tmp_path, batch=8)
    estimator.train(repeated(X, Y), steps=2).train(repeated(X, Y), steps=2)

    def expected(step):
        values = kte.checkpoints.read(f"{tmp_path}/model.ckpt-{step}")
        return X @ values["dense/kernel"] + values["dense/bias"]

    generators = {
        step: estimator.predict(
            batches_of(X), checkpoint_path=f"{tmp_path}/model.ckpt-{step}"
        )
        for step in (2, 4)
    }
    rows = {2: [], 4: []}
    for index in range(70):
        for step, generator in generators.items():
            rows[step].append(next(generator)["y"])
        if index == 20:
            estimator.evaluate(batches_of(X, Y))
            estimator.train(repeated(X, Y), steps=2)
    for step in (2, 4):
        np.testing.assert_allclose(
            np.stack(rows[step]), expected(step), rtol=1e-4, atol=1e-5
        )


def test_abandoning_a_generator_leaks_nothing(tmp_path):
    def input_fn(params):
        try:
            while True:
                yield X[:8]
        finally:
            closed.append(True)

    closed = []
    estimator = estimator_of(doubling, tmp_path, batch=8)
    next(estimator.predict(input_fn))
    gc.collect()
    before = threading.active_count()
    for _ in range(3):
        generator = estimator.predict(input_fn)
        next(generator)
        generator.close()
    del generator
    gc.collect()
    assert threading.active_count() <= before
    assert len(closed) == 4


def test_prediction_follows_an_endless_stream(tmp_path):
    def input_fn(params):
        for number in range(1000):
            asked.append(number)
            yield np.full((8, 3), number, "float32")

    asked = []
    estimator = estimator_of(doubling, tmp_path, batch=8)
    stream = estimator.predict(input_fn)
    rows = [next(stream)["double"][0] for _ in range(40)]
    assert rows == [2 * (i // 8) for i in range(40)]
    assert len(asked) <= 32  # The input is read a little ahead, but not completely.


def tokens(features, labels, mode, params):
    """Three rows for each example, one for each feature."""
    rows = ops.reshape(features, [-1])
    predictions = {"x": rows, "twice": 2 * rows}
    if "mixed" in params:
        predictions["whole"] = features
    return kte.TPUEstimatorSpec(mode, predictions=predictions)


@pytest.mark.parametrize("use_tpu", [False, True])
def test_several_rows_for_each_example(use_tpu, tmp_path):
    estimator = estimator_of(tokens, tmp_path, use_tpu, batch=32)
    rows = [*estimator.predict(batches_of(X))]
    # TensorFlow 1.15.5 also yields 70 examples of 3 rows without padding.
    assert [row["x"] for row in rows] == X.ravel().tolist()
    assert [row["twice"] for row in rows] == (2 * X.ravel()).tolist()
    batches = estimator.predict(batches_of(X), yield_single_examples=False)
    assert [len(batch["x"]) for batch in batches] == [96, 96, 18]


def test_several_rows_of_some_predictions_only(tmp_path):
    estimator = estimator_of(tokens, tmp_path, batch=32, params={"mixed": 1})
    with pytest.raises(ValueError, match="'x' must have one row"):
        next(estimator.predict(batches_of(X)))
    rows = estimator.predict(batches_of(X), predict_keys=["x", "twice"])
    assert [row["x"] for row in rows] == X.ravel().tolist()
    rows = estimator.predict(batches_of(X), predict_keys="whole")
    assert len([*rows]) == 70


def test_several_rows_of_batches_without_examples(tmp_path):
    estimator = estimator_of(tokens, tmp_path, batch=32)
    data = [X[:2], X[:0], X[2:3]]
    rows = estimator.predict(lambda params: iter(data))
    assert [row["x"] for row in rows] == X[:3].ravel().tolist()


def with_weights(features, labels, mode, params):
    weights = ops.convert_to_tensor([1.0, 2.0, 3.0])
    return kte.TPUEstimatorSpec(
        mode, predictions={"y": features @ weights, "w": weights}
    )


def test_single_examples_need_rows(tmp_path):
    estimator = estimator_of(with_weights, tmp_path)
    for keys in (None, "w"):
        with pytest.raises(ValueError, match=r"'w'.*one row.*shape \(3,\)"):
            next(estimator.predict(batches_of(X), predict_keys=keys))
    assert len(list(estimator.predict(batches_of(X), predict_keys="y"))) == 70


@pytest.mark.parametrize(("use_tpu", "cores"), [(False, 1), (True, 8)])
def test_full_batches_need_no_rows(use_tpu, cores, tmp_path):
    estimator = estimator_of(with_weights, tmp_path, use_tpu, batch=32)
    batches = estimator.predict(batches_of(X), yield_single_examples=False)
    sizes = []
    for batch in batches:
        sizes.append(len(batch["y"]))
        np.testing.assert_array_equal(batch["w"], cores * [1.0, 2.0, 3.0])
    assert sizes == [32, 32, 6]


def test_result_of_a_batch_may_be_one_number(tmp_path):
    def model_fn(features, labels, mode, params):
        return kte.EstimatorSpec(mode, predictions=ops.sum(features))

    estimator = estimator_of(model_fn, tmp_path, batch=70)
    (total,) = estimator.predict(batches_of(X), yield_single_examples=False)
    np.testing.assert_allclose(total, X.sum(), rtol=1e-5)
    with pytest.raises(ValueError, match="'predictions'.*one row"):
        next(estimator.predict(batches_of(X)))


def test_host_call_results_may_have_no_rows(tmp_path):
    def model_fn(features, labels, mode, params):
        total = kte.outside_compilation(tf.reduce_sum, features)
        predictions = {"x": features, "total": total}
        return kte.TPUEstimatorSpec(mode, predictions=predictions)

    estimator = estimator_of(model_fn, tmp_path, batch=40)
    batches = estimator.predict(batches_of(X), yield_single_examples=False)
    for batch, x in zip(batches, (X[:40], X[40:]), strict=True):
        np.testing.assert_allclose(batch["total"], x.sum(), rtol=1e-4)
    with pytest.raises(ValueError, match="'total'.*one row"):
        next(estimator.predict(batches_of(X)))


@pytest.mark.parametrize("use_tpu", [False, True])
def test_host_call_sees_every_batch(tmp_path, use_tpu):
    seen = []

    def note(y, step):
        seen.append((y.copy(), step))

    def model_fn(features, labels, mode, params):
        y = linear(features, False)
        step = ops.reshape(kte.get_global_step(), [1])
        return kte.TPUEstimatorSpec(
            mode, predictions={"y": y}, host_call=(note, [y, step])
        )

    estimator = estimator_of(model_fn, tmp_path, use_tpu, batch=16)
    found = list(estimator.predict(batches_of(X[:40])))
    assert [y.shape for y, _ in seen] == [(16, 1)] * 3
    rows = np.concatenate([y for y, _ in seen])[: len(found)]
    np.testing.assert_array_equal(rows, [each["y"] for each in found])
    assert {len(step) for _, step in seen} == {8 if use_tpu else 1}


def test_errors_of_a_host_call_are_raised_unchanged(tmp_path):
    def fail(y):
        raise LookupError("mine")

    def model_fn(features, labels, mode, params):
        y = linear(features, False)
        return kte.TPUEstimatorSpec(mode, predictions={"y": y}, host_call=(fail, [y]))

    with pytest.raises(LookupError, match="mine"):
        list(estimator_of(model_fn, tmp_path).predict(batches_of(X[:8])))


def test_predict_keys_may_be_an_iterator(tmp_path):
    estimator = estimator_of(model_fn_of(linear), tmp_path)
    keys = iter(["y"])
    assert len(list(estimator.predict(batches_of(X[:40]), keys))) == 40


def test_empty_input_yields_nothing(tmp_path):
    estimator = estimator_of(doubling, tmp_path)
    assert list(estimator.predict(lambda params: iter(()))) == []
