"""Tests that models that cannot be exported raise errors with a workaround."""

import dataclasses
import inspect
import os

import jax
import keras
import numpy as np
import pytest
from export_helpers import classifier, data
from helpers import estimator_of
from keras import ops

import keras_tpu_estimator as kte
from keras_tpu_estimator.export import checking, program_graphs
from keras_tpu_estimator.export.shapes import FeatureSpec, samples

pytestmark = pytest.mark.usefixtures("forked_trials")

X, Y = data()
RAW = kte.export.build_raw_serving_input_receiver_fn(X)


def receiver_of(make_features, dtype="float32", shape=(None, 4)):
    """A receiver function of a placeholder and a function of it."""

    def receiver_fn():
        import tensorflow as tf

        placeholder = tf.compat.v1.placeholder(dtype, shape)
        return kte.export.ServingInputReceiver(
            {"x": make_features(tf, placeholder)}, {"x": placeholder}
        )

    return receiver_fn


def forgets_a_placeholder():
    import tensorflow as tf

    x = tf.compat.v1.placeholder(tf.float32, [None, 4], name="x")
    y = tf.compat.v1.placeholder(tf.float32, [None, 4], name="y")
    return kte.export.ServingInputReceiver({"x": x + y}, {"x": x})


def called_too_early():
    import tensorflow as tf

    with tf.Graph().as_default():
        return RAW()


RECEIVERS = {
    "none": (None, ValueError, "receiver function must not be None"),
    "called": (
        called_too_early(),
        TypeError,
        "must be a function. Received: its.*Omit the parentheses",
    ),
    "no function": ({"x": 1}, TypeError, "a function without arguments"),
    "returns a function": (
        lambda: RAW,
        TypeError,
        "must return a ServingInputReceiver or a TensorServ.*call that function",
    ),
    "returns features": (
        lambda: X,
        TypeError,
        "Received: {'x'.* of type dict. Return one",
    ),
    "other names": (
        kte.export.build_raw_serving_input_receiver_fn({"z": X["x"]}),
        ValueError,
        r"must have the feature 'x', which `model_fn` reads. Received: \['z'\]",
    ),
    "other width": (
        receiver_of(lambda tf, x: x[:, :3]),
        ValueError,
        r"In mode 'infer': The variable 'dense/kernel' has shape \(3, 8\)",
    ),
    "text": (
        receiver_of(lambda tf, x: x, "string"),
        ValueError,
        r"\['x'\] must consist of numbers. Received: string. Convert it",
    ),
    "sparse": (
        receiver_of(lambda tf, x: tf.sparse.from_dense(x), "int32", (3, 4)),
        ValueError,
        r"\['x'\] must be a dense tensor. Received: SparseTensor.*to_dense",
    ),
    "unknown rank": (
        receiver_of(lambda tf, x: x, shape=None),
        ValueError,
        r"\['x'\] must have a known number of dim.*tf.ensure_shape",
    ),
    "scalar": (
        receiver_of(lambda tf, x: x, shape=()),
        ValueError,
        r"\['x'\] must have the batch as its first dimension",
    ),
    "forgotten placeholder": (
        forgets_a_placeholder,
        ValueError,
        r"all placeholders that the features depend on.*Add \['y'\]",
    ),
}


@pytest.mark.parametrize("name", RECEIVERS)
def test_receivers(name, estimator, tmp_path, untried):
    receiver_fn, exception, message = RECEIVERS[name]
    with pytest.raises(exception, match=f"(?s){message}"):
        estimator.export_saved_model(tmp_path / "new", receiver_fn)
    assert os.listdir(tmp_path) == []


def test_calling_a_receiver_function_outside_a_graph():
    with pytest.raises(RuntimeError, match="Pass the function itself"):
        RAW()


def predicting(**settings):
    """A model_fn like the classifier's, with other settings in PREDICT."""

    def model_fn(features, labels, mode, params):
        spec = classifier(features, labels, mode, params)
        if mode != kte.ModeKeys.PREDICT:
            return spec
        changes = {
            name: make(features["x"]) if callable(make) else make
            for name, make in settings.items()
        }
        return dataclasses.replace(spec, **({"export_outputs": None} | changes))

    return model_fn


def reads_batch_size(features, labels, mode, params):
    return kte.TPUEstimatorSpec(mode, {"y": features["x"] * params["batch_size"]})


def fixes_the_batch(features, labels, mode, params):
    x = features["x"]
    rows = [x[i] for i in range(int(x.shape[0]))]
    return kte.TPUEstimatorSpec(mode, {"y": ops.stack(rows)})


def new_layer(features, labels, mode, params):
    y = keras.layers.Dense(2, name="fresh")(features["x"])
    return kte.TPUEstimatorSpec(mode, {"y": y})


def solves(features, labels, mode, params):
    x = features["x"]
    matrix = ops.eye(4) + ops.transpose(x) @ x
    return kte.TPUEstimatorSpec(mode, {"y": x @ ops.cholesky(matrix)})


MODELS = {
    "no outputs": (
        predicting(export_outputs={}),
        ValueError,
        "An export must have a signature. Received: `export_outputs` {}",
    ),
    "none default": (
        predicting(
            export_outputs=lambda x: {
                name: kte.export.PredictOutput(x) for name in "ab"
            }
        ),
        ValueError,
        r"must be 'serving_default'. Received: \['a', 'b'\]",
    ),
    "no export output": (
        predicting(export_outputs=lambda x: {"a": x}),
        TypeError,
        r"`export_outputs\['a'\]` must be a PredictOutput.*Wrap it",
    ),
    "never called": (
        predicting(export_outputs=lambda x: {"a": kte.export.RegressionOutput(x)}),
        ValueError,
        r"At least one signature must be usable.*\['a', 'serving_default'\]",
    ),
    "batch size": (
        reads_batch_size,
        ValueError,
        r"must not read params\['batch_size'\] in an export",
    ),
    "a key of its own": (
        predicting(predictions=lambda x: {"y": x * {1: 2}[-1]}),
        KeyError,
        r"^-1\b",
    ),
    "fixed batch": (
        fixes_the_batch,
        ValueError,
        "must be able to lower an exported model.*Set the sizes in the receiver",
    ),
    "not in the checkpoint": (
        new_layer,
        ValueError,
        "In mode 'infer': The checkpoint .*fresh/",
    ),
    "linear algebra": (
        solves,
        kte.export.UnservableError,
        r"cholesky \(lapack_spotrf_ffi\).*outside_compilation",
    ),
}


@pytest.mark.parametrize("name", MODELS)
def test_models(name, model_dir, tmp_path, untried):
    model_fn, exception, message = MODELS[name]
    with pytest.raises(exception, match=f"(?s){message}"):
        estimator_of(model_fn, model_dir).export_saved_model(tmp_path, RAW)
    assert os.listdir(tmp_path) == []


def test_missing_checkpoint_is_an_error(tmp_path):
    with pytest.raises(ValueError, match="No checkpoint exists in .*`train`"):
        estimator_of(classifier, tmp_path).export_saved_model(tmp_path, RAW)


def test_warm_start_checkpoint_is_exported(model_dir, tmp_path, untried):
    warm = estimator_of(classifier, tmp_path / "new", warm_start_from=model_dir)
    warm.export_saved_model(tmp_path / "export", RAW)
    assert len(os.listdir(tmp_path / "export")) == 1


def test_no_metagraph(model_dir, tmp_path):
    neither = estimator_of(
        classifier, model_dir, export_to_cpu=False, export_to_tpu=False
    )
    with pytest.raises(ValueError, match="must be True, because.*False for both"):
        neither.export_saved_model(tmp_path, RAW)


def test_no_modes(estimator, tmp_path):
    with pytest.raises(ValueError, match="Received: an empty map"):
        estimator.experimental_export_all_saved_models(tmp_path, {})
    with pytest.raises(ValueError, match="Received: 'serve'. Use the values"):
        estimator.export_saved_model(tmp_path, RAW, experimental_mode="serve")


@pytest.mark.parametrize(
    ("assets", "exception", "message"),
    [
        ("words.txt", TypeError, "must be a dict from paths"),
        ({"../words.txt": __file__}, ValueError, "below 'assets.extra'"),
        ({"/words.txt": __file__}, ValueError, "Received: '/words.txt'"),
        ({"a": "/no/such"}, ValueError, "must exist. Received: '/no/such'"),
    ],
)
def test_assets(assets, exception, message, estimator, tmp_path):
    with pytest.raises(exception, match=message):
        estimator.export_saved_model(tmp_path, RAW, assets_extra=assets)


@pytest.mark.parametrize("number", [0, 1])
def test_results_that_differ_from_jax_are_an_error(
    estimator, tmp_path, monkeypatch, number
):
    build = program_graphs.build_graph

    def build_wrong(*args):
        graph = build(*args)
        wrong = [*graph.model.trial]
        outputs = [output + 1 for output in wrong[number].outputs]
        wrong[number] = dataclasses.replace(wrong[number], outputs=outputs)
        return dataclasses.replace(
            graph, model=dataclasses.replace(graph.model, trial=wrong)
        )

    monkeypatch.setattr(program_graphs, "build_graph", build_wrong)
    with pytest.raises(
        kte.export.UnservableError,
        match=r"the same as JAX.*, which \S*export_helpers.py:\d+ makes",
    ):
        estimator.export_saved_model(tmp_path, RAW)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(("dtype", "large"), [("int32", 100_000), ("float32", 10)])
def test_each_feature_is_tested_with_unusual_numbers(dtype, large):
    specs = [FeatureSpec(name, (None, 1), np.dtype(dtype)) for name in "abcd"]
    _, unusual = samples(specs)
    for feature in unusual:
        assert feature.min() < 0 and abs(feature).max() > large


def test_export_that_tensorflow_cannot_load_is_an_error(
    estimator, tmp_path, monkeypatch
):
    from keras_tpu_estimator.export import stablehlo

    monkeypatch.setattr(stablehlo, "for_tensorflow", lambda module: b"new")
    with pytest.raises(kte.export.UnservableError, match="cannot run there"):
        estimator.export_saved_model(tmp_path, RAW)
    assert os.listdir(tmp_path) == []


def of_composites(features, labels, mode, params):
    best, _ = ops.top_k(features["x"], 2)
    return kte.TPUEstimatorSpec(mode, {"y": best})


def test_error_has_the_line_of_the_failing_operation(model_dir, tmp_path, monkeypatch):
    from keras_tpu_estimator.export import stablehlo

    composites = []
    # TensorFlow cannot infer their shapes.
    monkeypatch.setattr(stablehlo, "_call_instead", composites.append)
    estimator = estimator_of(of_composites, model_dir)
    line = inspect.getsourcelines(of_composites)[1] + 1
    try:
        estimator.export_saved_model(tmp_path, RAW)
    except kte.export.UnservableError as error:
        assert f"{__file__}:{line}:" in str(error)
    else:
        assert not composites
        pytest.skip(f"JAX {jax.__version__} has no composites.")


def test_hanging_first_request_is_an_error(model_dir, tmp_path, monkeypatch):
    script = tmp_path / "hangs.py"
    script.write_text("import signal\nsignal.pause()\n")
    monkeypatch.setattr(checking, "_SCRIPT", script)
    hasty = estimator_of(classifier, model_dir, config={"export_timeout_secs": 0.1})
    with pytest.raises(
        TimeoutError, match=r"within 0.1 s. It is still.*export_timeout_secs=\.\.\."
    ):
        hasty.export_saved_model(tmp_path / "new", RAW)
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(
    ("failure", "op"),
    [
        ("No FFI handler registered for some_ffi on", "The op some_ffi"),
        ("unregistered operation 'vhlo.new_v1' in", "The op vhlo.new_v1"),
        ("something else", "An op of the model"),
    ],
)
def test_error_names_the_operation(failure, op):
    assert f"{op} cannot run there" in checking._explained(failure)


TENSORS = {
    "no scores": (
        lambda: kte.export.ClassificationOutput(),
        "must have `scores` or `classes`",
    ),
    "scores are integers": (
        lambda: kte.export.ClassificationOutput(np.ones(2, int)),
        "must be floats. Received: int64",
    ),
    "classes are numbers": (
        lambda: kte.export.ClassificationOutput(classes=np.ones(2)),
        "must be strings.*outside_compilation",
    ),
    "a value of integers": (
        lambda: kte.export.RegressionOutput(np.ones(2, int)),
        "`value` of RegressionOutput must be floats",
    ),
    "an output is a list": (
        lambda: kte.export.PredictOutput({"y": [1]}),
        r"'y' in PredictOutput must be a tensor. Received: \[1\]",
    ),
    "an output without name": (
        lambda: kte.export.PredictOutput({3: np.ones(2)}),
        "must be strings, or tuples of strings. Received: 3",
    ),
    "a feature without shape": (
        lambda: kte.export.build_raw_serving_input_receiver_fn({"x": 3}),
        "'x' must have a shape, batch first, and a dtype",
    ),
    "no features to parse": (
        lambda: kte.export.build_parsing_serving_input_receiver_fn({}),
        "`feature_spec` must be a dict",
    ),
    "labels called as features": (
        lambda: kte.export.build_raw_supervised_input_receiver_fn(X, X),
        r"different names. Received in both: \['x'\]",
    ),
    "an input_fn without labels": (
        lambda: kte.export.build_supervised_input_receiver_fn_from_input_fn(lambda: X),
        "must return features and labels",
    ),
    "sizes do not increase": (
        lambda: kte.export.BatchConfig(1, 8, 0, [8, 4]),
        "must increase and end with max_batch_size=8",
    ),
    "no thread": (
        lambda: kte.export.BatchConfig(0, 8, 0),
        "`num_batch_threads` must be an int of at least 1. Received: 0",
    ),
    "inputs are no list": (
        lambda: kte.export.inference_on_tpu(abs, X["x"], 1, 8, 0),
        "`inputs_to_tpu` must be a list",
    ),
}


@pytest.mark.parametrize("name", TENSORS)
def test_values(name):
    make, message = TENSORS[name]
    with pytest.raises(ValueError, match=message):
        make()


def test_names_of_outputs():
    one = kte.export.PredictOutput(np.ones(2))
    assert list(one.tensors) == ["output"]
    heads = kte.export.PredictOutput({("head", "y"): np.ones(2)})
    assert list(heads.tensors) == ["head/y"]


FIELDS = {
    "features are missing": (
        lambda tensor: kte.export.ServingInputReceiver(None, tensor),
        "`features` must be a tensor or a dict of tensors. Received: None",
    ),
    "a feature is an array": (
        lambda tensor: kte.export.ServingInputReceiver(X, tensor),
        "'x' in `features` must be a TensorFlow tensor",
    ),
    "a key is a float": (
        lambda tensor: kte.export.ServingInputReceiver({0.5: tensor}, tensor),
        "strings or integers. Received: 0.5",
    ),
    "receivers are missing": (
        lambda tensor: kte.export.ServingInputReceiver(tensor, {}),
        "`receiver_tensors` must be a tensor or a dict",
    ),
    "a receiver's name is a number": (
        lambda tensor: kte.export.ServingInputReceiver(tensor, {1: tensor}),
        "The keys of `receiver_tensors` must be strings. Received: 1",
    ),
    "alternatives are a tensor": (
        lambda tensor: kte.export.ServingInputReceiver(tensor, tensor, tensor),
        "`receiver_tensors_alternatives` must be a dict",
    ),
    "bare features are a dict": (
        lambda tensor: kte.export.TensorServingInputReceiver({"x": tensor}, tensor),
        "must be one tensor.*Use ServingInputReceiver",
    ),
    "a key of supervised features is a float": (
        lambda tensor: kte.export.SupervisedInputReceiver(
            {0.5: tensor}, tensor, tensor
        ),
        "keys of `features` must be strings or integers. Received: 0.5",
    ),
    "a key of labels is None": (
        lambda tensor: kte.export.SupervisedInputReceiver(
            tensor, {None: tensor}, tensor
        ),
        "keys of `labels` must be strings or integers. Received: None",
    ),
    "labels are missing": (
        lambda tensor: kte.export.SupervisedInputReceiver(tensor, None, tensor),
        "`labels` must be a tensor or a dict",
    ),
}


@pytest.mark.parametrize("name", FIELDS)
def test_receiver_fields(name):
    import tensorflow as tf

    make, message = FIELDS[name]
    with pytest.raises(ValueError, match=message):
        make(tf.constant([1.0]))


def test_single_tensors_get_names():
    import tensorflow as tf

    tensor = tf.constant([1.0])
    receiver = kte.export.ServingInputReceiver(tensor, tensor, {"other": tensor})
    assert list(receiver.features) == ["feature"]
    assert list(receiver.receiver_tensors) == ["input"]
    assert list(receiver.receiver_tensors_alternatives["other"]) == ["input"]
    # Named tuples are also accepted.
    features, receivers, _ = receiver
    assert features is receiver[0] is receiver.features
    assert receivers is receiver.receiver_tensors


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: kte.outside_compilation(X["x"]), "`fn` must be a function"),
        (lambda: kte.outside_compilation(abs, 3), "tensors of the model"),
    ],
)
def test_outside_compilation(make, message):
    with pytest.raises(TypeError, match=message):
        make()


@pytest.mark.skipif(os.name == "nt", reason="Windows has other patterns.")
def test_path_that_tensorflow_reads_as_a_pattern_warns(tmp_path, caplog):
    estimator = estimator_of(classifier, tmp_path / "model")
    estimator.train(lambda params: (X, Y), steps=1)
    folder = estimator.export_saved_model(tmp_path / "a[b]", RAW)
    assert os.path.isfile(os.path.join(folder, "saved_model.pb"))
    assert "reads brackets and backslashes as a pattern" in caplog.text
