"""Tests requests in TensorFlow Serving's messages with its rules.

Its server is not written in Python. Its requirements for signatures are in its sources,
in `servables/tensorflow`: `predict_util.cc`, `classifier.cc`, `regressor.cc`,
`multi_inference.cc`.
"""

import numpy as np
import pytest
from export_helpers import CLASSES, data
from served_helpers import example

import keras_tpu_estimator as kte

pytest.importorskip(
    "tensorflow_serving",
    reason="tensorflow-serving-api, which comes with `.[test]`, is missing",
)
pytestmark = pytest.mark.usefixtures("untried")

(X, _) = data()


@pytest.fixture(scope="module")
def served(estimator, tmp_path_factory):
    """Sessions with their signatures by name, like those of a server."""
    import tensorflow.compat.v1 as tf
    from export_helpers import first_request_left_out
    from tensorflow_serving.apis import prediction_log_pb2

    folder = tmp_path_factory.mktemp("served")
    warm_up = folder / "requests"
    with tf.io.TFRecordWriter(str(warm_up)) as writer:
        log = prediction_log_pb2.PredictionLog()
        log.predict_log.request.CopyFrom(predict_request(X["x"]))
        writer.write(log.SerializeToString())
    parsing = kte.export.build_parsing_serving_input_receiver_fn(
        {"x": tf.io.FixedLenFeature([4], tf.float32)}
    )
    receivers = {
        "raw": kte.export.build_raw_serving_input_receiver_fn(
            {"x": tf.TensorSpec([None, 4], tf.float32)}
        ),
        "parsing": parsing,
    }
    models = {}
    with first_request_left_out():
        for name, receiver_fn in receivers.items():
            path = estimator.export_saved_model(
                folder / name,
                receiver_fn,
                assets_extra={"tf_serving_warmup_requests": str(warm_up)},
            )
            session = tf.Session(graph=tf.Graph())
            with session.graph.as_default():
                graph = tf.saved_model.load(session, ["serve"], path)
            models[name] = session, graph.signature_def, path
    yield models
    for session, *_ in models.values():
        session.close()


def predict_request(x, signature="", **names):
    """A request in the form that clients send."""
    import tensorflow as tf
    from tensorflow_serving.apis import predict_pb2

    request = predict_pb2.PredictRequest()
    request.model_spec.name = "classifier"
    request.model_spec.signature_name = signature
    for name, value in (names or {"x": x}).items():
        request.inputs[name].CopyFrom(tf.make_tensor_proto(value))
    return predict_pb2.PredictRequest.FromString(request.SerializeToString())


def predicted(model, request):
    """Answers a request by the rules of `predict_util.cc`."""
    import tensorflow as tf
    from tensorflow_serving.apis import predict_pb2

    session, signatures, _ = model
    signature = signatures[request.model_spec.signature_name or "serving_default"]
    assert signature.method_name in {
        f"tensorflow/serving/{each}" for each in ("predict", "classify", "regress")
    }
    assert request.inputs.keys() == signature.inputs.keys()
    feed = {}
    for name, info in signature.inputs.items():
        assert request.inputs[name].dtype == info.dtype
        shape = tf.TensorShape(request.inputs[name].tensor_shape)
        assert tf.TensorShape(info.tensor_shape).is_compatible_with(shape)
        feed[info.name] = tf.make_ndarray(request.inputs[name])
    response = predict_pb2.PredictResponse()
    values = session.run({n: info.name for n, info in signature.outputs.items()}, feed)
    for name, value in values.items():
        info = signature.outputs[name]
        response.outputs[name].CopyFrom(tf.make_tensor_proto(value))
        assert response.outputs[name].dtype == info.dtype
        shape = tf.TensorShape(info.tensor_shape)
        assert shape.is_compatible_with(value.shape)
    response = predict_pb2.PredictResponse.FromString(response.SerializeToString())
    return {n: tf.make_ndarray(t) for n, t in response.outputs.items()}


def inferred(model, name, method, outputs):
    """Answers a request with the checks of `classifier.cc` and `regressor.cc`."""
    from tensorflow_serving.apis import classification_pb2

    session, signatures, _ = model
    signature = signatures[name]
    assert signature.method_name == f"tensorflow/serving/{method}"
    assert list(signature.inputs) == ["inputs"]
    assert signature.inputs["inputs"].dtype == 7  # Strings.
    assert signature.outputs.keys() <= outputs
    request = classification_pb2.ClassificationRequest()
    for row in X["x"]:
        each = request.input.example_list.examples.add()
        each.ParseFromString(example(x=row.tolist()))
    texts = [each.SerializeToString() for each in request.input.example_list.examples]
    return session.run(
        {n: info.name for n, info in signature.outputs.items()},
        {signature.inputs["inputs"].name: texts},
    )


def test_predict(served, predictions):
    outputs = predicted(served["raw"], predict_request(X["x"]))
    np.testing.assert_allclose(outputs["logits"], predictions["logits"], 1e-5, 1e-6)
    np.testing.assert_array_equal(outputs["names"], predictions["names"])


def test_predict_of_examples(served, predictions):
    (name,) = served["parsing"][1]["serving_default"].inputs
    texts = [example(x=row.tolist()) for row in X["x"]]
    outputs = predicted(
        served["parsing"],
        predict_request(None, "serving_default", **{name: texts}),
    )
    np.testing.assert_allclose(outputs["logits"], predictions["logits"], 1e-5, 1e-6)


def test_classify(served, predictions):
    outputs = inferred(served["parsing"], "classes", "classify", {"classes", "scores"})
    assert outputs["scores"].dtype == np.float32
    assert outputs["scores"].shape == outputs["classes"].shape == (16, 2)
    np.testing.assert_array_equal(outputs["classes"], predictions["names"])
    assert {each.decode() for each in outputs["classes"].flat} <= set(CLASSES)


def test_regress(served):
    outputs = inferred(served["parsing"], "best", "regress", {"outputs"})
    assert outputs["outputs"].dtype == np.float32
    assert outputs["outputs"].shape in {(16,), (16, 1)}


def test_several_inferences_of_one_input(served):
    """Classification and regression in a `MultiInferenceRequest`."""
    signatures = served["parsing"][1]
    first, second = (
        signatures[name].inputs["inputs"].name for name in ("classes", "best")
    )
    assert first == second


def test_metadata_of_signatures(served):
    from tensorflow_serving.apis import get_model_metadata_pb2

    known = get_model_metadata_pb2.SignatureDefMap()
    for name, signature in served["raw"][1].items():
        known.signature_def[name].CopyFrom(signature)
    response = get_model_metadata_pb2.GetModelMetadataResponse()
    response.metadata["signature_def"].Pack(known)
    told = get_model_metadata_pb2.SignatureDefMap()
    assert response.metadata["signature_def"].Unpack(told)
    (shape,) = [
        [each.size for each in info.tensor_shape.dim]
        for info in told.signature_def["serving_default"].inputs.values()
    ]
    assert shape == [-1, 4]


def test_warmup_requests(served, predictions):
    """They are in the place where a server finds and answers them first."""
    import tensorflow as tf
    from tensorflow_serving.apis import prediction_log_pb2

    path = f"{served['raw'][2]}/assets.extra/tf_serving_warmup_requests"
    (record,) = tf.data.TFRecordDataset(path)
    log = prediction_log_pb2.PredictionLog.FromString(record.numpy())
    outputs = predicted(served["raw"], log.predict_log.request)
    np.testing.assert_allclose(outputs["logits"], predictions["logits"], 1e-5, 1e-6)
