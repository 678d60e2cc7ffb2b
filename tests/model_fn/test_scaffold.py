"""Tests of `Scaffold`, which runs before the first step of training."""

import functools

import keras
import numpy as np
import pytest
from helpers import batches_of, estimator_of, linear, model_fn_of, regression_data
from keras import ops

import keras_tpu_estimator as kte

X, Y = regression_data(examples=16)
KERNEL = np.array([[1.0], [2.0], [3.0]], "float32")


def estimator_with(scaffold_fn, model_dir, **settings):
    """A linear model whose specs have a scaffold_fn."""

    def model_fn(features, labels, mode, params):
        spec = model_fn_of(linear)(features, labels, mode, params)
        return kte.TPUEstimatorSpec(
            mode,
            predictions=spec.predictions,
            loss=spec.loss,
            train_op=spec.train_op,
            scaffold_fn=lambda: scaffold_fn(mode),
        )

    return estimator_of(model_fn, model_dir, **settings)


def set_kernel(scaffold, session):
    session.assign({"dense/kernel": KERNEL})


@pytest.mark.parametrize("use_tpu", [False, True])
def test_init_fn_sets_initial_values(tmp_path, use_tpu):
    calls = []

    def init_fn(scaffold, session):
        calls.append(session.run("dense/kernel").shape)
        set_kernel(scaffold, session)
        np.testing.assert_array_equal(
            session.run({"k": ["dense/kernel"]})["k"][0], KERNEL
        )

    scaffold = kte.Scaffold(init_fn=init_fn)
    estimator = estimator_with(lambda mode: scaffold, tmp_path, use_tpu=use_tpu)
    rows = list(estimator.predict(batches_of(X)))
    np.testing.assert_allclose([row["y"] for row in rows], X @ KERNEL, rtol=1e-5)
    assert calls == [(3, 1)]
    estimator.train(batches_of(X, Y), steps=1)
    assert len(calls) == 2  # Another estimator.
    first = kte.checkpoints.read(f"{tmp_path}/model.ckpt-0")
    np.testing.assert_array_equal(first["dense/kernel"], KERNEL)


def test_init_fn_is_not_called_if_a_checkpoint_exists(tmp_path):
    plain = estimator_with(lambda mode: kte.Scaffold(), tmp_path)
    plain.train(batches_of(X, Y), steps=1)

    def init_fn(scaffold, session):
        raise AssertionError("called")

    again = estimator_with(lambda mode: kte.Scaffold(init_fn=init_fn), tmp_path)
    again.train(batches_of(X, Y), steps=1)
    assert again.get_variable_value("global_step") == 2


def test_scaffold_fn_is_called_once_in_each_mode(tmp_path):
    modes = []
    estimator = estimator_with(
        lambda mode: modes.append(mode) or kte.Scaffold(), tmp_path
    )
    for _ in range(2):
        estimator.train(batches_of(X, Y), steps=1)
        estimator.evaluate(batches_of(X, Y))
        list(estimator.predict(batches_of(X)))
    assert modes == ["train", "eval", "infer"]


@pytest.mark.parametrize("in_memory", [True, False])
def test_evaluation_restores_from_other_names(tmp_path, in_memory):
    class Halved(keras.layers.Layer):
        """Keeps half of another layer's kernel."""

        def build(self, shape):
            self.half = self.add_weight(shape=(3, 1), trainable=False, name="kernel")

    def model_fn(features, labels, mode, params):
        dense = keras.layers.Dense(1, use_bias=False, name="dense")
        outputs = dense(features)
        scaffold_fn = None
        if mode == kte.ModeKeys.TRAIN:
            halved = Halved(name="halved")
            halved.build(None)
            halved.half.assign(dense.kernel / 2)
        else:
            names = {"halved/kernel:0": dense.kernel}
            scaffold_fn = functools.partial(kte.Scaffold, variables_to_restore=names)
        loss = keras.ops.mean((outputs - 0.0) ** 2)
        optimizer = kte.CrossShardOptimizer(keras.optimizers.SGD(0.0))
        return kte.TPUEstimatorSpec(
            mode,
            predictions={"y": outputs},
            loss=loss,
            train_op=optimizer.minimize(loss) if mode == kte.ModeKeys.TRAIN else None,
            scaffold_fn=scaffold_fn,
        )

    estimator = estimator_of(model_fn, tmp_path)
    estimator.train(batches_of(X, Y), steps=1)
    if not in_memory:
        estimator = estimator_of(model_fn, tmp_path)
    kernel = estimator.get_variable_value("dense/kernel")
    rows = list(estimator.predict(batches_of(X)))
    np.testing.assert_allclose([row["y"] for row in rows], X @ kernel / 2, rtol=1e-5)
    expected = np.mean((X @ kernel / 2) ** 2)
    loss = estimator.evaluate(batches_of(X, Y))["loss"]
    np.testing.assert_allclose(loss, expected, rtol=1e-5)
    # Evaluation does not change the trained weights.
    estimator.train(batches_of(X, Y), steps=1)
    np.testing.assert_array_equal(estimator.get_variable_value("dense/kernel"), kernel)


def test_estimator_spec_may_have_a_scaffold(tmp_path):
    def model_fn(features, labels, mode, params):
        spec = model_fn_of(linear)(features, labels, mode, params)
        return kte.EstimatorSpec(
            mode,
            loss=spec.loss,
            train_op=spec.train_op,
            scaffold=kte.Scaffold(init_fn=set_kernel),
        )

    estimator_of(model_fn, tmp_path).train(batches_of(X, Y), steps=1)
    first = kte.checkpoints.read(f"{tmp_path}/model.ckpt-0")
    np.testing.assert_array_equal(first["dense/kernel"], KERNEL)


def test_converted_spec_makes_its_scaffold():
    spec = kte.TPUEstimatorSpec(
        "infer",
        predictions=np.ones(2),
        scaffold_fn=lambda: kte.Scaffold(init_fn=set_kernel),
    )
    assert spec.as_estimator_spec().scaffold.init_fn is set_kernel
    plain = kte.TPUEstimatorSpec("infer", predictions=np.ones(2))
    assert plain.as_estimator_spec().scaffold == kte.Scaffold()
    empty = kte.TPUEstimatorSpec(
        "infer", predictions=np.ones(2), scaffold_fn=lambda: None
    )
    assert empty.as_estimator_spec().scaffold == kte.Scaffold()


def test_missing_settings_are_copied():
    base = kte.Scaffold(init_fn=set_kernel, variables_to_restore={"a": "b"})
    own = {"c": "d"}
    copy = kte.Scaffold(copy_from_scaffold=base, variables_to_restore=own)
    assert copy.init_fn is set_kernel
    assert copy.sources == {"d": "c"}


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"init_fn": 3}, TypeError, "`init_fn` must be a function"),
        ({"saver": "s"}, ValueError, "`saver` must be None.*variables_to"),
        (
            {"variables_to_restore": ["a"]},
            TypeError,
            "`variables_to_restore` must be a dict.*list",
        ),
        (
            {"copy_from_scaffold": 1},
            TypeError,
            "`copy_from_scaffold` must be a Scaffold",
        ),
    ],
)
def test_invalid_arguments_are_refused(arguments, error, message):
    with pytest.raises(error, match=message):
        kte.Scaffold(**arguments)


def test_warning_names_arguments_for_graphs():
    with pytest.warns(UserWarning, match="no effect.*init_op, ready_op") as w:
        kte.Scaffold(init_op="op", ready_op="op")
    assert w[0].filename == __file__


@pytest.mark.parametrize(
    ("scaffold_fn", "message"),
    [
        (lambda mode: None, "`scaffold_fn` must return a Scaffold.*None"),
        (
            lambda mode: kte.Scaffold(variables_to_restore={"a": "b"}),
            "is for evaluation and prediction.*init_from_checkpoint",
        ),
        (
            lambda mode: kte.Scaffold(
                init_fn=lambda _, s: s.assign({"dense/bias": np.ones(2)})
            ),
            r"'dense/bias' must have.*shape \(1,\). Received shape \(2,\)",
        ),
    ],
)
def test_invalid_scaffolds_are_refused_in_training(scaffold_fn, message, tmp_path):
    estimator = estimator_with(scaffold_fn, tmp_path)
    with pytest.raises(ValueError, match=message):
        estimator.train(batches_of(X, Y), steps=1)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("where", ["scaffold_fn", "init_fn"])
@pytest.mark.parametrize("use", [float, np.asarray, lambda loss: loss + 1])
def test_tensors_of_model_fn_are_refused_outside(where, use, tmp_path):
    def model_fn(features, labels, mode, params):
        loss = ops.mean(keras.layers.Dense(1)(features) ** 2)

        def scaffold_fn():
            if where == "scaffold_fn":
                float(use(loss))
            return kte.Scaffold(init_fn=lambda scaffold, session: use(loss))

        optimizer = kte.CrossShardOptimizer(keras.optimizers.SGD(0.1))
        return kte.TPUEstimatorSpec(
            mode,
            loss=loss,
            train_op=optimizer.minimize(loss),
            scaffold_fn=scaffold_fn,
        )

    message = f"`{where}` runs once, on the host.*run"
    with pytest.raises(ValueError, match=message):
        estimator_of(model_fn, tmp_path).train(batches_of(X, Y), steps=1)


@pytest.mark.parametrize("method", ["run", "assign"])
def test_init_fn_refuses_unknown_variables(method, tmp_path):
    def init_fn(scaffold, session):
        getattr(session, method)({"kernel": "kernel"})

    estimator = estimator_with(lambda mode: kte.Scaffold(init_fn=init_fn), tmp_path)
    with pytest.raises(KeyError, match="Received: 'kernel'.*dense/kernel"):
        estimator.train(batches_of(X, Y), steps=1)


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ({"nothing": "dense/kernel"}, "does not fit.*nothing"),
        ({"dense/bias": "kernel"}, r"Received others: \['kernel'\]"),
        (
            {"dense/bias": "dense/kernel"},
            r"'dense/kernel' to values of shape \(3, 1\). Received 'dense/bias'",
        ),
    ],
)
def test_invalid_variables_to_restore_are_refused(names, message, tmp_path):
    def scaffold_fn(mode):
        if mode == kte.ModeKeys.TRAIN:
            return kte.Scaffold()
        return kte.Scaffold(variables_to_restore=names)

    estimator = estimator_with(scaffold_fn, tmp_path)
    estimator.train(batches_of(X, Y), steps=1)
    with pytest.raises(ValueError, match=message):
        estimator.evaluate(batches_of(X, Y))


@pytest.mark.parametrize(
    ("field", "spec"),
    [
        ("scaffold_fn", kte.TPUEstimatorSpec),
        ("scaffold", kte.EstimatorSpec),
    ],
)
def test_specs_validate_their_scaffold(field, spec):
    with pytest.raises(TypeError, match=f"`{field}` must be a"):
        spec("infer", predictions=np.ones(2), **{field: 3})
