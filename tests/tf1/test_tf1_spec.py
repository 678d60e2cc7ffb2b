"""Tests of the values in the spec of a TF1 model_fn."""

import keras_tpu_estimator as kte  # isort: skip

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from tf1_programs import estimator, fed


def tf_keras_mean():
    import tf_keras

    return tf_keras.metrics.Mean()


@pytest.fixture(autouse=True)
def graph():
    """A graph, as in a model_fn."""
    with tf.Graph().as_default():
        yield


def test_variables_and_numbers_become_tensors():
    spec = kte.tf1.TPUEstimatorSpec(
        "eval",
        predictions={"w": tf.get_variable("w", [2])},
        loss=tf.constant([1.0]),
    )
    assert tf.is_tensor(spec.predictions["w"])
    assert tf.is_tensor(spec.loss)
    assert spec.loss.shape == ()


@pytest.mark.parametrize("name", ["eval_metrics", "host_call"])
def test_arguments_of_host_functions_are_unchanged(name):
    w = tf.get_variable("w", [2])
    arguments = {"a": 1.0, "b": None, "c": [w, "text"]}
    spec = kte.tf1.TPUEstimatorSpec(
        "eval", loss=tf.constant(1.0), **{name: (lambda a, b, c: {}, arguments)}
    )
    tensors = getattr(spec, name).tensors
    assert (tensors["a"], tensors["b"], tensors["c"][1]) == (1.0, None, "text")
    assert tf.is_tensor(tensors["c"][0])


@pytest.mark.parametrize(
    ("fields", "error", "message"),
    [
        ({"mode": "train"}, ValueError, "`loss` must be set"),
        ({"mode": "train", "loss": 1.0}, ValueError, "`train_op` must be set"),
        ({"mode": "eval"}, ValueError, "`loss` must be set"),
        ({"mode": "infer"}, ValueError, "`predictions` must be set"),
        ({"loss": [1.0, 2.0]}, ValueError, "must be a scalar"),
        ({"loss": object()}, TypeError, "must be a tensor of the graph"),
        ({"predictions": {"y": object()}}, TypeError, r"predictions\['y'\]"),
        ({"train_op": []}, TypeError, "Put several into tf.group"),
        ({"host_call": (lambda a: 1, [])}, RuntimeError, "`host_call` takes 1"),
        ({"train_metrics": [print]}, ValueError, "two elements"),
        ({"eval_metrics": (lambda a: {}, [])}, RuntimeError, "1 arguments"),
        ({"eval_metrics": 1}, ValueError, "a tuple or list"),
        ({"training_hooks": [1]}, TypeError, "training_hooks"),
    ],
)
def test_invalid_fields_are_an_error(fields, error, message):
    with pytest.raises(error, match=message):
        kte.tf1.TPUEstimatorSpec(**{"mode": None, **fields})


@pytest.mark.parametrize("name", ["loss", "global_step"])
def test_names_of_metrics_are_checked_when_returned(name):
    fields = {
        "loss": 1.0,
        "train_op": tf.no_op(),
        "eval_metric_ops": {name: tf.metrics.mean(1.0)},
    }
    spec = kte.tf1.EstimatorSpec("train", **fields)
    assert list(spec.eval_metric_ops) == [name]
    with pytest.raises(ValueError, match=f"cannot be named '{name}'"):
        kte.tf1.EstimatorSpec("eval", **fields)


def test_defaults_match_tensorflow():
    fields = {"loss": 1.0, "train_op": tf.no_op()}
    spec = kte.tf1.EstimatorSpec("train", **fields)
    assert isinstance(spec.scaffold, tf.train.Scaffold)
    assert (spec.scaffold.saver, spec.export_outputs) == (None, None)
    for kind in (kte.tf1.EstimatorSpec, kte.tf1.TPUEstimatorSpec):
        y = tf.constant([1.0])
        outputs = kind("infer", predictions={"y": y}).export_outputs
        assert list(outputs) == ["serving_default"]
        assert list(outputs["serving_default"].outputs) == ["y"]
        given = {"own": kte.export.PredictOutput(y)}
        outputs = kind("infer", y, export_outputs=given).export_outputs
        assert outputs == given | {"serving_default": given["own"]}


@pytest.mark.parametrize(
    ("outputs", "error", "message"),
    [
        ([1], TypeError, "`export_outputs` must be a dict"),
        ({"a": 1}, TypeError, "must be a PredictOutput"),
        (
            lambda y: {name: kte.export.PredictOutput(y) for name in "ab"},
            ValueError,
            "must be 'serving_default'",
        ),
    ],
)
@pytest.mark.parametrize("kind", [kte.tf1.EstimatorSpec, kte.tf1.TPUEstimatorSpec])
def test_wrong_export_outputs(kind, outputs, error, message):
    y = tf.constant([1.0])
    given = outputs(y) if callable(outputs) else outputs
    with pytest.raises(error, match=message):
        kind("infer", predictions={"y": y}, export_outputs=given)


@pytest.mark.parametrize("name", ["loss", "predictions", "train_op", "metric"])
def test_tensors_of_another_graph_are_an_error(name):
    with tf.Graph().as_default():
        foreign = tf.constant(1.0)
        mean = tf_keras_mean()
        mean.update_state(foreign)
    own = tf.constant(1.0)
    fields = {"loss": own, "predictions": {"y": own}, "train_op": own}
    if name == "metric":
        fields["eval_metric_ops"] = {"mean": mean}
    else:
        fields[name] = {"y": foreign} if name == "predictions" else foreign
    with pytest.raises(ValueError, match="must be in the default graph"):
        kte.tf1.EstimatorSpec("eval", **fields)


def test_variables_of_metrics_are_in_their_collections():
    mean = tf_keras_mean()
    mean.update_state(tf.constant(1.0))
    for _ in range(2):
        kte.tf1.EstimatorSpec(
            "eval", loss=tf.constant(1.0), eval_metric_ops={"mean": mean}
        )
    names = [variable.name for variable in mean.variables]
    for key in (tf.GraphKeys.LOCAL_VARIABLES, tf.GraphKeys.METRIC_VARIABLES):
        assert [v.name for v in tf.get_collection(key)] == names


def test_native_spec_is_an_error(tmp_path):
    def model_fn(features, labels, mode, params):
        return kte.TPUEstimatorSpec(mode, loss=np.float32(1.0))

    with pytest.raises(TypeError, match=r"must return a tf1\.TPUEst"):
        estimator(model_fn, tmp_path).evaluate(fed([np.ones((16, 1))]))


def test_model_fn_must_be_a_function():
    with pytest.raises(TypeError, match="`model_fn` must be callable"):
        kte.tf1.model_fn(1)


def test_model_fn_keeps_its_name_and_arguments():
    def own(features, mode, config):
        """Its own."""

    made = kte.tf1.model_fn(own)
    assert (made.__name__, made.__doc__) == ("own", "Its own.")
    with pytest.raises(NotImplementedError, match="a call from other code"):
        made(1, 2, 3)
