"""Tests tensors that hooks fetch by name."""

import keras
import numpy as np
import pytest
from helpers import batches_of, estimator_of, regression_data

import keras_tpu_estimator as kte
from keras_tpu_estimator.files.summary.event_file import read_scalars

X, Y = regression_data(examples=64)


class Fetch(kte.hooks.SessionRunHook):
    """Fetches names in some of the runs."""

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
    """Doubles its features, and names its tensors."""
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
        train_op=optimizer.minimize(loss) if mode == kte.ModeKeys.TRAIN else None,
    )


NAMES = {"y": "y", "outputs": "outputs", "largest": "largest", "rows": "rows"}


@pytest.mark.parametrize("use_tpu", [False, True])
@pytest.mark.parametrize("call", ["train", "evaluate", "predict"])
def test_named_tensors_have_the_values_of_the_last_step(tmp_path, call, use_tpu):
    hook = Fetch(NAMES)
    estimator = estimator_of(model_fn, tmp_path, use_tpu, iterations=2)
    steps = {"steps": 4} if call == "train" else {}
    results = getattr(estimator, call)(batches_of(X, Y), hooks=[hook], **steps)
    if call == "predict":
        assert len(list(results)) == 64
    # 64 examples in batches of 16: two loops of two; one on a TPU; or four.
    every = [1, 2, 3, 4]
    evaluated = [4] if use_tpu else every
    last = {"train": [2, 4], "evaluate": evaluated, "predict": every}[call]
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
def test_names_may_be_fetched_in_some_runs(tmp_path, call):
    hook = Fetch(["largest", "global_step", "weight"], every=2)
    estimator = estimator_of(model_fn, tmp_path, iterations=1)
    results = getattr(estimator, call)(batches_of(X, Y), hooks=[hook])
    if call == "predict":
        list(results)
    expected = [X[16:32].max(), X[48:].max()]
    np.testing.assert_allclose([v[0] for v in hook.values], expected)


def test_unfetched_tensors_are_not_computed(tmp_path):
    estimator = estimator_of(model_fn, tmp_path, iterations=2)
    estimator.train(batches_of(X, Y))
    loop = estimator._context.runtime.loop
    plain = loop._train._function._cache_size()
    estimator.train(batches_of(X, Y), hooks=[Fetch("loss")])
    assert loop._train._function._cache_size() == plain
    estimator.train(batches_of(X, Y), hooks=[Fetch("outputs")])
    assert loop._train._function._cache_size() == plain + 1


def call_with(hook, call, directory):
    """Makes one call with a hook; 64 examples in batches of 16."""
    estimator = estimator_of(model_fn, directory, iterations=2)
    results = getattr(estimator, call)(batches_of(X, Y), hooks=[hook])
    if call == "predict":
        list(results)


CALLS = ["train", "evaluate", "predict"]


@pytest.mark.parametrize("call", CALLS)
def test_end_has_the_named_tensors_of_the_last_run(tmp_path, call):
    hook = kte.hooks.FinalOpsHook({"x": ["largest", "y"], "w": "weight"})
    call_with(hook, call, tmp_path)
    (largest, y), weight = hook.final_ops_values.values()
    assert largest == X[48:].max()
    np.testing.assert_array_equal(y, 2 * X[48:])
    assert weight == 2.0


@pytest.mark.parametrize("every", [None, 3])
@pytest.mark.parametrize("call", CALLS)
def test_named_tensors_are_logged_at_the_end(tmp_path, call, every):
    logged = []
    hook = kte.hooks.LoggingTensorHook(
        ["largest"],
        every_n_iter=every,
        at_end=True,
        formatter=lambda values: logged.append(values["largest"]) or "line",
    )
    call_with(hook, call, tmp_path)
    assert logged[-1] == X[48:].max()


@pytest.mark.parametrize("call", CALLS)
def test_named_tensors_are_written(tmp_path, call):
    hook = kte.hooks.SummarySaverHook(
        save_steps=100, output_dir=tmp_path / "new", summary_op="largest:0"
    )
    call_with(hook, call, tmp_path)
    step, batches = {
        "train": (2, X[16:32]),
        "evaluate": (0, X[:16]),
        "predict": (0, X[:16]),
    }[call]
    written = read_scalars((tmp_path / "new").iterdir())
    assert written == {step: {"largest:0": pytest.approx(batches.max())}}


def test_tensors_for_the_end_stay_on_the_devices(tmp_path):
    class Record(kte.hooks.SessionRunHook):
        def after_create_session(self, session, coord):
            self.fetched, fetch = [], session._fetch
            session._fetch = lambda name: self.fetched.append(name) or fetch(name)

        def end(self, session):
            self.before_end = list(self.fetched)

    record = Record()
    final = kte.hooks.FinalOpsHook(["weight", "largest"])
    estimator = estimator_of(model_fn, tmp_path, iterations=2)
    estimator.evaluate(batches_of(X, Y), hooks=[record, final])
    assert record.before_end == []
    assert record.fetched == ["weight", "largest"]


@pytest.mark.parametrize("call", CALLS)
def test_names_may_have_suffixes_of_tensors(tmp_path, call):
    names = {"a:0": "largest:0", "b": ["weight:0", "global_step:0"]}
    hook = Fetch(names)
    call_with(hook, call, tmp_path)
    values = hook.values[-1]
    assert values["a:0"] == X[48:].max()
    np.testing.assert_array_equal(values["b"], [2.0, 4 if call == "train" else 0])


def test_loss_may_be_fetched_like_a_tensor(tmp_path):
    hook = Fetch(["loss:0", "loss"])
    call_with(hook, "train", tmp_path)
    assert len({*map(float, hook.values[-1])}) == 1


def predicting(features, labels, mode, params):
    """Predicts a value with the name of a training tensor."""
    weight = keras.Variable(2.0, name="weight")
    x = features[:, 0]
    predictions = {"loss": x, "weight": 3 * x, "global_step": 4 * x}
    loss = keras.ops.mean(weight * x)
    return kte.TPUEstimatorSpec(mode, predictions=predictions, loss=loss)


def test_predictions_take_precedence_over_equal_names(tmp_path):
    hook = Fetch(["loss", "weight", "global_step"])
    estimator = estimator_of(predicting, tmp_path)
    list(estimator.predict(batches_of(X), hooks=[hook]))
    loss, weight, step = hook.values[0]
    np.testing.assert_array_equal(loss, X[:16, 0])
    np.testing.assert_array_equal(weight, 3 * X[:16, 0])
    assert step == 0
    estimator.evaluate(batches_of(X, Y), hooks=[hook])
    loss, weight, step = hook.values[-1]
    assert loss == pytest.approx(2 * X[:, 0].mean(), abs=1e-6)
    assert weight == 2.0
    assert step == 0


@pytest.mark.parametrize(
    "hook", [Fetch("loss"), kte.hooks.NanTensorHook()], ids=["any", "nan"]
)
def test_predict_has_no_loss(tmp_path, hook):
    with pytest.raises(
        KeyError,
        match="must be 'global_step' or one of .*'y'.* Received: 'loss'",
    ):
        call_with(hook, "predict", tmp_path)


def test_error_for_an_unknown_name_lists_all_names(tmp_path):
    estimator = estimator_of(model_fn, tmp_path)
    with pytest.raises(KeyError, match="'weight'.* Received: 'output'.*kte.identity"):
        estimator.train(batches_of(X, Y), hooks=[Fetch("output")])


def test_two_tensors_with_equal_names_are_an_error(tmp_path):
    def twice(features, labels, mode, params):
        kte.identity(features, name="x")
        kte.identity(features, name="x:0")

    with pytest.raises(ValueError, match="two tensors with the name 'x'"):
        estimator_of(twice, tmp_path).train(batches_of(X, Y))


def naming(name):
    """A model_fn with a named tensor and a variable `dense/bias`."""

    def model_fn(features, labels, mode, params):
        kte.identity(features, name=name)
        outputs = keras.layers.Dense(1)(features)
        loss = keras.ops.mean(outputs)
        optimizer = kte.CrossShardOptimizer(keras.optimizers.SGD(0.1))
        train_op = optimizer.minimize(loss) if mode == "train" else None
        return kte.TPUEstimatorSpec(
            mode, predictions={"y": outputs}, loss=loss, train_op=train_op
        )

    return model_fn


@pytest.mark.parametrize("name", ["loss", "loss:0", "global_step"])
@pytest.mark.parametrize("call", CALLS)
def test_reserved_names_are_refused(tmp_path, call, name):
    plain = name.removesuffix(":0")
    with pytest.raises(ValueError, match=f"`name` must not be '{plain}'.* Omit it, or"):
        results = getattr(estimator_of(naming(name), tmp_path), call)(batches_of(X, Y))
        list(results)


@pytest.mark.parametrize(
    ("call", "name"),
    [
        ("train", "dense/bias"),
        ("train", "sgd/learning_rate"),
        ("evaluate", "dense/bias:0"),
        ("predict", "dense/kernel"),
    ],
)
def test_paths_of_variables_are_refused_as_names(tmp_path, call, name):
    plain = name.removesuffix(":0")
    with pytest.raises(
        ValueError, match=f"not be the path of a variable.* Received: '{plain}'"
    ):
        list(getattr(estimator_of(naming(name), tmp_path), call)(batches_of(X, Y)))


def test_identity_works_outside_model_fn():
    x = np.arange(3.0)
    np.testing.assert_array_equal(kte.identity(x, name="x"), x)


def test_boolean_on_several_cores_stays_boolean(tmp_path):
    def model_fn(features, labels, mode, params):
        kte.identity(keras.ops.any(features > 0), name="any")
        w = keras.Variable(0.0, name="weight")
        loss = keras.ops.mean((features * w - labels) ** 2)
        optimizer = kte.CrossShardOptimizer(keras.optimizers.SGD(0.1))
        return kte.TPUEstimatorSpec(mode, loss=loss, train_op=optimizer.minimize(loss))

    hook = Fetch("any")
    estimator = estimator_of(model_fn, tmp_path, use_tpu=True)
    estimator.train(batches_of(X, Y), hooks=[hook], steps=1)
    assert hook.values[0].dtype == bool
    assert hook.values[0].shape == ()
