"""Tests checkpoints whose dtypes differ from the model's variables."""

import keras
import ml_dtypes
import numpy as np
import pytest
from helpers import (
    batches_of,
    each_once,
    estimator_of,
    regression_data,
    repeated,
    squared_error,
)
from keras import ops

import keras_tpu_estimator as kte

X, Y = regression_data(size=8)
# The values of a variable by its saved dtype.
VALUES = {
    "bool": [True, False],
    "int8": [-3, 100],
    "uint8": [3, 200],
    "int32": [-3, 100_000],
    "int64": [-3, 2**40],
    "float16": [0.1, -3],
    "bfloat16": [0.1, -3],
    "float32": [0.1, 1e6],
    "float64": [0.1, 1e300],
}


def dtype_of(name):
    return np.dtype(getattr(ml_dtypes, name, name))


def model_fn_of(dtype, name="state", layer="dense"):
    """A linear model with an additional variable of a given dtype."""

    def model_fn(features, labels, mode, params):
        state = keras.Variable(
            np.zeros(2, dtype_of(dtype)),
            dtype=dtype,
            trainable=False,
            name=name,
        )
        if mode == kte.ModeKeys.PREDICT:
            features = features["x"]
        kind = dtype if "float" in dtype else "float32"
        outputs = keras.layers.Dense(8, dtype=kind, name=layer)(features)
        outputs = ops.cast(ops.sum(outputs, -1, keepdims=True), "float32")
        if "start" in params:
            kte.init_from_checkpoint(*params["start"])
        if mode == kte.ModeKeys.PREDICT:
            values = ops.zeros_like(outputs) + ops.cast(state, "float32")
            return kte.TPUEstimatorSpec(mode, {"state": values, "y": outputs})
        loss = squared_error(outputs, labels)
        optimizer = kte.CrossShardOptimizer(keras.optimizers.Adam(0.01))
        train_op = None
        if mode == kte.ModeKeys.TRAIN:
            train_op = optimizer.minimize(loss)
        return kte.TPUEstimatorSpec(mode, loss=loss, train_op=train_op)

    return model_fn


def estimator(dtype, model_dir, cores=None, warm=None, start=None, **names):
    config = kte.RunConfig(
        model_dir=str(model_dir),
        tpu_config=kte.TPUConfig(num_cores_per_replica=cores),
        layout_map={"dense/kernel": (None, "model")} if cores else None,
        tf_random_seed=1,
        log_step_count_steps=None,
        save_summary_steps=None,
    )
    return kte.TPUEstimator(
        model_fn_of(dtype, **names),
        config=config,
        params={} if start is None else {"start": start},
        use_tpu=cores is not None,
        warm_start_from=warm,
        train_batch_size=16,
        eval_batch_size=16,
        predict_batch_size=16,
    )


@pytest.fixture(scope="module", params=["hdf5", "tensorflow"])
def saved(request, tmp_path_factory):
    """Copies a checkpoint of step 3 whose variable has a given dtype."""
    of_float32 = tmp_path_factory.mktemp("of float32")
    made = estimator("float32", of_float32)
    made.train(repeated(X, Y), steps=3)
    values = kte.checkpoints.read(made.latest_checkpoint())

    def save(directory, dtype, state=None):
        state = np.array(VALUES[dtype] if state is None else state)
        others = {n: v for n, v in values.items() if n != "global_step"}
        own = {**others, "state": state.astype(dtype_of(dtype))}
        if request.param == "hdf5":
            return kte.checkpoints.save(str(directory), 3, own)
        return of_tensorflow(directory, {**own, "global_step": np.int64(3)})

    return save


def of_tensorflow(directory, values):
    import tensorflow as tf

    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        variables = [
            tf.compat.v1.Variable(value, name=name) for name, value in values.items()
        ]
        session.run([variable.initializer for variable in variables])
        saver = tf.compat.v1.train.Saver(variables)
        prefix = str(directory / "model.ckpt")
        return saver.save(session, prefix, 3, write_meta_graph=False)


def state_of(made, features=X[:1]):
    (row,) = made.predict(lambda params: {"x": features})
    return row["state"]


def first_cast(dtype):
    return "dense/bias" if dtype in ("float16", "bfloat16") else "state"


FITTING = [
    ("bool", "float32"),
    ("bool", "int32"),
    ("int8", "int32"),
    ("int32", "float32"),
    ("float16", "float32"),
    ("float32", "bfloat16"),
    ("bfloat16", "float16"),
]


@pytest.mark.rows(5)
@pytest.mark.parametrize("stored, dtype", FITTING)
def test_values_that_fit_are_cast(stored, dtype, saved, tmp_path, caplog):
    saved(tmp_path, stored)
    expected = np.array(VALUES[stored]).astype(dtype_of(dtype)).astype(float)
    made = estimator(dtype, tmp_path)
    np.testing.assert_allclose(state_of(made), expected, rtol=1e-2)
    assert f"such as '{first_cast(dtype)}' in {dtype} instead" in caplog.text
    assert np.isfinite(made.evaluate(batches_of(X, Y))["loss"])
    made.train(repeated(X, Y), steps=2)
    after = kte.checkpoints.read(made.latest_checkpoint())
    assert after["global_step"] == 5
    assert after["state"].dtype == dtype_of(dtype)
    np.testing.assert_allclose(after["state"].astype(float), expected, rtol=0.01)


@pytest.mark.parametrize("stored, dtype", [("float64", "float32"), ("int64", "int32")])
def test_narrowing_for_devices_is_not_logged(stored, dtype, saved, tmp_path, caplog):
    saved(tmp_path, stored, [1, 2])
    state = state_of(estimator(dtype, tmp_path))
    np.testing.assert_array_equal(state, [1, 2])
    assert "instead of" not in caplog.text


NOT_FITTING = [
    ("float32", "int32"),
    ("float32", "bool"),
    ("int32", "bool"),
    ("int32", "int8"),
    ("int64", "int32"),
    ("float32", "float16"),
    ("float64", "float32"),
]


def named(stored, dtype, checkpoint):
    return (
        f"variable 'state' must have a dtype that can hold the {stored} "
        f"values of 'state' in the checkpoint .*{checkpoint}.*: {dtype}"
    )


@pytest.mark.parametrize("stored, dtype", NOT_FITTING)
def test_errors_name_the_variable_and_the_file(stored, dtype, saved, tmp_path):
    saved(tmp_path, stored)
    made = estimator(dtype, tmp_path)
    for call in (
        lambda: made.train(repeated(X, Y), steps=1),
        lambda: made.evaluate(batches_of(X, Y)),
        lambda: state_of(made),
    ):
        with pytest.raises(ValueError, match=named(stored, dtype, "ckpt-3")):
            call()


@pytest.mark.rows(5)
@pytest.mark.parametrize(
    ("way", "dtypes"),
    each_once(["warm start", "init_from_checkpoint"], [*FITTING, *NOT_FITTING]),
)
def test_warm_start_casts_values(way, dtypes, saved, tmp_path):
    stored, dtype = dtypes
    (tmp_path / "old").mkdir()
    prefix = saved(tmp_path / "old", stored)
    settings = {"start": (prefix, {"state": "state"})}
    if way == "warm start":
        settings = {"warm": kte.WarmStartSettings(prefix, ["state"])}
    made = estimator(dtype, tmp_path / "new", **settings)
    if (stored, dtype) in NOT_FITTING:
        with pytest.raises(ValueError, match=named(stored, dtype, "ckpt-3")):
            made.train(repeated(X, Y), steps=1)
        return
    made.train(repeated(X, Y), steps=1)
    got = made.get_variable_value("state")
    expected = np.array(VALUES[stored]).astype(dtype_of(stored))
    expected = expected.astype(dtype_of(dtype))
    assert got.dtype == expected.dtype
    np.testing.assert_array_equal(got, expected)


def test_shards_are_cast_and_named(tmp_path, caplog):
    made = estimator("float32", tmp_path / "saved", cores=2)
    made.train(repeated(X, Y), steps=1)
    before = kte.checkpoints.read(made.latest_checkpoint())
    narrow = estimator("bfloat16", tmp_path / "saved", cores=2)
    narrow.train(repeated(X, Y), steps=1)
    after = kte.checkpoints.read(narrow.latest_checkpoint())
    assert after["dense/kernel"].dtype == "bfloat16"
    assert after["adam/dense_kernel_momentum"].dtype == "bfloat16"
    np.testing.assert_allclose(
        after["dense/kernel"].astype(float), before["dense/kernel"], atol=0.05
    )
    assert "in bfloat16 instead of float32" in caplog.text
    assert np.isfinite(
        estimator("float32", tmp_path / "saved", cores=4).evaluate(batches_of(X, Y))[
            "loss"
        ]
    )
    large = {**before, "dense/kernel": before["dense/kernel"] + 1e6}
    large.pop("global_step")
    kte.checkpoints.save(str(tmp_path / "large"), 3, large)
    half = estimator("float16", tmp_path / "large", cores=2)
    with pytest.raises(
        ValueError,
        match="'dense/kernel' must have a dtype that can hold the "
        "float32 values of 'dense/kernel' in the checkpoint .*large/model",
    ):
        half.evaluate(batches_of(X, Y))


def averaging(dtype):
    """A model that predicts with the moving average of a variable."""

    def model_fn(features, labels, mode, params):
        state = keras.Variable(np.zeros(2), dtype=dtype, trainable=False, name="state")
        average = keras.Variable(
            np.zeros(2), dtype="float32", trainable=False, name="average"
        )
        if mode == kte.ModeKeys.PREDICT:
            features = features["x"]
        outputs = keras.layers.Dense(1)(features)
        loss = None if labels is None else squared_error(outputs, labels)
        train_op = None
        if mode == kte.ModeKeys.TRAIN:
            average.assign_add(ops.full((2,), 1.5))
            optimizer = kte.CrossShardOptimizer(keras.optimizers.SGD(0.01))
            train_op = optimizer.minimize(loss)
        rows = ops.zeros_like(outputs)
        scaffold = kte.Scaffold(variables_to_restore={"average": "state"})
        return kte.TPUEstimatorSpec(
            mode,
            predictions={"state": rows + ops.cast(state, "float32")},
            loss=loss,
            train_op=train_op,
            scaffold_fn=(None if mode == kte.ModeKeys.TRAIN else lambda: scaffold),
        )

    return model_fn


@pytest.mark.parametrize(
    ("dtype", "use_tpu", "is_in_memory"),
    each_once(["bfloat16", "float32", "int32"], [False, True], [False, True]),
)
def test_averages_are_cast(dtype, use_tpu, is_in_memory, tmp_path):
    def made():
        return estimator_of(averaging(dtype), tmp_path, use_tpu)

    trained = made()
    trained.train(repeated(X, Y), steps=2)
    own = trained if is_in_memory else made()
    if dtype == "int32":
        expected = "'state' to values that int32 .*'average' of dtype float32|'state' "
        expected += "must have .* hold the float32 .*'average'.*: int32"
        with pytest.raises(ValueError, match=expected):
            state_of(own)
        return
    np.testing.assert_array_equal(state_of(own), [3, 3])
    assert np.isfinite(own.evaluate(batches_of(X, Y))["loss"])


@pytest.mark.usefixtures("forked_trials")
def test_exports_have_the_dtypes_of_the_model(tmp_path):
    made = estimator("float32", tmp_path / "run")
    made.train(repeated(X, Y), steps=1)
    receiver_fn = kte.export.build_raw_serving_input_receiver_fn({"x": X})
    narrow = estimator("bfloat16", tmp_path / "run")
    path = narrow.export_saved_model(str(tmp_path / "export"), receiver_fn)
    reader = kte.load_checkpoint(path)
    dtypes = reader.get_variable_to_dtype_map().values()
    assert dtype_of("bfloat16") in dtypes
    none = estimator("bool", tmp_path / "run")
    with pytest.raises(ValueError, match=named("float32", "bool", "ckpt-1")):
        none.export_saved_model(str(tmp_path / "none"), receiver_fn)
