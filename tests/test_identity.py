"""Tensors that hooks fetch by name."""

import keras
import numpy as np
import pytest
from helpers import batches_of
from helpers import estimator_of
from helpers import regression_data

import keras_tpu_estimator as kte

X, Y = regression_data(examples=64)


class Fetch(kte.hooks.SessionRunHook):
    """Asks for names in some of the runs."""

    def __init__(self, names, every=1):
        self.names, self.every = names, every
        self.runs, self.values = 0, []

    def before_run(self, run_context):
        self.runs += 1
        if self.runs % self.every == 0:
            return kte.hooks.SessionRunArgs(self.names)

    def after_run(self, run_context, run_values):
        if run_values.results is not None:
            self.values.append(run_values.results)


def model_fn(features, labels, mode, params):
    """Doubles its features; names what it sees."""
    weight = keras.Variable(2.0, name="weight")
    outputs = kte.identity(features * weight, name="outputs")
    kte.identity(keras.ops.max(features), name="largest:0")
    kte.identity(keras.ops.cast(keras.ops.shape(features)[0], "int32"), "rows")
    kte.identity(features)
    if mode == kte.ModeKeys.PREDICT:
        return kte.TPUEstimatorSpec(mode, predictions={"y": outputs})
    loss = keras.ops.mean(outputs)
    optimizer = kte.CrossShardOptimizer(keras.optimizers.SGD(0.0))
    return kte.TPUEstimatorSpec(
        mode,
        predictions={"y": outputs},
        loss=loss,
        train_op=optimizer.minimize(loss)
        if mode == kte.ModeKeys.TRAIN
        else None,
    )


NAMES = {"y": "y", "outputs": "outputs", "largest": "largest", "rows": "rows"}


@pytest.mark.parametrize("use_tpu", [False, True])
@pytest.mark.parametrize("call", ["train", "evaluate", "predict"])
def test_named_tensors_are_those_of_the_last_step(tmp_path, call, use_tpu):
    hook = Fetch(NAMES)
    estimator = estimator_of(model_fn, tmp_path, use_tpu, iterations=2)
    steps = {"steps": 4} if call == "train" else {}
    results = getattr(estimator, call)(batches_of(X, Y), hooks=[hook], **steps)
    if call == "predict":
        assert len(list(results)) == 64
    # 64 examples in batches of 16: two loops of two; one; or four batches.
    last = {"train": [2, 4], "evaluate": [4], "predict": [1, 2, 3, 4]}[call]
    assert len(hook.values) == len(last)
    for values, batch in zip(hook.values, last, strict=True):
        x = X[16 * (batch - 1) : 16 * batch]
        np.testing.assert_allclose(values["y"], 2 * x, rtol=1e-6)
        np.testing.assert_allclose(values["outputs"], 2 * x, rtol=1e-6)
        cores = np.split(x, 8 if use_tpu else 1)
        largest = np.mean([part.max() for part in cores])
        np.testing.assert_allclose(values["largest"], largest, rtol=1e-6)
        assert values["rows"] == len(cores[0])


@pytest.mark.parametrize("call", ["train", "predict"])
def test_names_may_be_asked_for_now_and_then(tmp_path, call):
    hook = Fetch(["largest", "global_step", "weight"], every=2)
    estimator = estimator_of(model_fn, tmp_path, iterations=1)
    results = getattr(estimator, call)(batches_of(X, Y), hooks=[hook])
    if call == "predict":
        list(results)
    expected = [X[16:32].max(), X[48:].max()]
    np.testing.assert_allclose([v[0] for v in hook.values], expected)


def test_what_nobody_asks_for_is_not_computed(tmp_path):
    estimator = estimator_of(model_fn, tmp_path, iterations=2)
    estimator.train(batches_of(X, Y))
    loop = estimator._runtime.loop
    plain = loop._train._cache_size()
    estimator.train(batches_of(X, Y), hooks=[Fetch("loss")])
    assert loop._train._cache_size() == plain
    estimator.train(batches_of(X, Y), hooks=[Fetch("outputs")])
    assert loop._train._cache_size() == plain + 1


def test_an_unknown_name_lists_what_there_is(tmp_path):
    estimator = estimator_of(model_fn, tmp_path)
    with pytest.raises(KeyError, match="'output'.*'weight'.*kte.identity"):
        estimator.train(batches_of(X, Y), hooks=[Fetch("output")])


def test_two_tensors_of_one_name_are_an_error(tmp_path):
    def twice(features, labels, mode, params):
        kte.identity(features, name="x")
        kte.identity(features, name="x:0")

    with pytest.raises(ValueError, match="Two tensors have the name 'x'"):
        estimator_of(twice, tmp_path).train(batches_of(X, Y))


def test_identity_is_one_everywhere():
    x = np.arange(3.0)
    np.testing.assert_array_equal(kte.identity(x, name="x"), x)
