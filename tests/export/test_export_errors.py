"""Tests that models that cannot be exported raise errors with a workaround."""

import dataclasses
import inspect
import os

import jax
import keras
import numpy as np
import pytest
from export_helpers import classifier, data
from helpers import estimator_of, refused
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


def sparse(tf, x):
    return tf.sparse.from_dense(x)


RECEIVERS = {
    "none": (None, ValueError, "receiver function not None"),
    "called": (called_too_early(), TypeError, "function its Omit the parentheses"),
    "no function": ({"x": 1}, TypeError, "a function without arguments"),
    "returns a function": (
        lambda: RAW,
        TypeError,
        "return ServingInputReceiver TensorServ call that function",
    ),
    "returns features": (lambda: X, TypeError, "{'x' dict Return"),
    "other names": (
        kte.export.build_raw_serving_input_receiver_fn({"z": X["x"]}),
        ValueError,
        "feature 'x' `model_fn` ['z']",
    ),
    "other width": (
        receiver_of(lambda tf, x: x[:, :3]),
        ValueError,
        "'infer' 'dense/kernel' (3, 8)",
    ),
    "text": (
        receiver_of(lambda tf, x: x, "string"),
        ValueError,
        "['x'] numbers string Convert",
    ),
    "sparse": (
        receiver_of(sparse, "int32", (3, 4)),
        ValueError,
        "['x'] dense SparseTensor to_dense",
    ),
    "unknown rank": (
        receiver_of(lambda tf, x: x, shape=None),
        ValueError,
        "['x'] known dim tf.ensure_shape",
    ),
    "scalar": (receiver_of(lambda tf, x: x, shape=()), ValueError, "['x'] batch first"),
    "forgotten placeholder": (
        forgets_a_placeholder,
        ValueError,
        "all placeholders Add ['y']",
    ),
}


@pytest.mark.parametrize("name", RECEIVERS)
def test_receivers(name, estimator, tmp_path, untried):
    receiver_fn, exception, words = RECEIVERS[name]
    with refused(exception, words):
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


def two_outputs(x):
    return {name: kte.export.PredictOutput(x) for name in "ab"}


MODELS = {
    "no outputs": (predicting(export_outputs={}), ValueError, "`export_outputs` {}"),
    "none default": (
        predicting(export_outputs=two_outputs),
        ValueError,
        "'serving_default' ['a', 'b']",
    ),
    "no export output": (
        predicting(export_outputs=lambda x: {"a": x}),
        TypeError,
        "`export_outputs['a']` PredictOutput Wrap",
    ),
    "never called": (
        predicting(export_outputs=lambda x: {"a": kte.export.RegressionOutput(x)}),
        ValueError,
        "one signature usable ['a', 'serving_default']",
    ),
    "batch size": (reads_batch_size, ValueError, "params['batch_size'] export"),
    "a key of its own": (
        predicting(predictions=lambda x: {"y": x * {1: 2}[-1]}),
        KeyError,
        "-1",
    ),
    "fixed batch": (fixes_the_batch, ValueError, "lower Set the sizes receiver"),
    "not in the checkpoint": (new_layer, ValueError, "'infer' checkpoint fresh/"),
    "linear algebra": (
        solves,
        kte.export.UnservableError,
        "cholesky (lapack_spotrf_ffi) outside_compilation",
    ),
}


@pytest.mark.parametrize("name", MODELS)
def test_models(name, model_dir, tmp_path, untried):
    model_fn, exception, words = MODELS[name]
    with refused(exception, words):
        estimator_of(model_fn, model_dir).export_saved_model(tmp_path, RAW)
    assert os.listdir(tmp_path) == []


def test_missing_checkpoint_is_an_error(tmp_path):
    with refused(ValueError, "No checkpoint `train`"):
        estimator_of(classifier, tmp_path).export_saved_model(tmp_path, RAW)


def test_warm_start_checkpoint_is_exported(model_dir, tmp_path, untried):
    warm = estimator_of(classifier, tmp_path / "new", warm_start_from=model_dir)
    warm.export_saved_model(tmp_path / "export", RAW)
    assert len(os.listdir(tmp_path / "export")) == 1


def test_no_metagraph(model_dir, tmp_path):
    neither = estimator_of(
        classifier, model_dir, export_to_cpu=False, export_to_tpu=False
    )
    with refused(ValueError, "True False for both"):
        neither.export_saved_model(tmp_path, RAW)


def test_no_modes(estimator, tmp_path):
    with refused(ValueError, "empty map"):
        estimator.experimental_export_all_saved_models(tmp_path, {})
    with refused(ValueError, "'serve' Use"):
        estimator.export_saved_model(tmp_path, RAW, experimental_mode="serve")


@pytest.mark.parametrize(
    ("assets", "exception", "words"),
    [
        ("words.txt", TypeError, "dict from paths"),
        ({"../words.txt": __file__}, ValueError, "below 'assets.extra'"),
        ({"/words.txt": __file__}, ValueError, "'/words.txt'"),
        ({"a": "/no/such"}, ValueError, "exist '/no/such'"),
    ],
)
def test_assets(assets, exception, words, estimator, tmp_path):
    with refused(exception, words):
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
    with refused(kte.export.UnservableError, "same as JAX export_helpers.py: makes"):
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
        lacks = "TensorFlow infers their shapes" if composites else "it has none"
        pytest.skip(f"Composites of JAX {jax.__version__}: {lacks}.")


def test_hanging_first_request_is_an_error(model_dir, tmp_path, monkeypatch):
    script = tmp_path / "hangs.py"
    script.write_text("import signal\nsignal.pause()\n")
    monkeypatch.setattr(checking, "_SCRIPT", script)
    hasty = estimator_of(classifier, model_dir, config={"export_timeout_secs": 0.1})
    with refused(TimeoutError, "within 0.1 s still export_timeout_secs=..."):
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


exporting = kte.export
TENSORS = {
    "no scores": (lambda: exporting.ClassificationOutput(), "`scores` or `classes`"),
    "scores": (
        lambda: exporting.ClassificationOutput(np.ones(2, int)),
        "floats int64",
    ),
    "classes": (
        lambda: exporting.ClassificationOutput(classes=np.ones(2)),
        "strings outside_compilation",
    ),
    "value": (
        lambda: exporting.RegressionOutput(np.ones(2, int)),
        "`value` RegressionOutput floats",
    ),
    "list": (
        lambda: exporting.PredictOutput({"y": [1]}),
        "'y' PredictOutput [1]",
    ),
    "no name": (lambda: exporting.PredictOutput({3: np.ones(2)}), "strings tuples 3"),
    "no shape": (
        lambda: exporting.build_raw_serving_input_receiver_fn({"x": 3}),
        "'x' shape, batch first dtype",
    ),
    "no features to parse": (
        lambda: exporting.build_parsing_serving_input_receiver_fn({}),
        "`feature_spec` dict",
    ),
    "labels called as features": (
        lambda: exporting.build_raw_supervised_input_receiver_fn(X, X),
        "different names ['x']",
    ),
    "an input_fn without labels": (
        lambda: exporting.build_supervised_input_receiver_fn_from_input_fn(lambda: X),
        "return features and labels",
    ),
    "sizes": (
        lambda: exporting.BatchConfig(1, 8, 0, [8, 4]),
        "increase max_batch_size=8",
    ),
    "threads": (
        lambda: exporting.BatchConfig(0, 8, 0),
        "`num_batch_threads` int at least 1 0",
    ),
    "inputs": (
        lambda: exporting.inference_on_tpu(abs, X["x"], 1, 8, 0),
        "`inputs_to_tpu` list",
    ),
}


@pytest.mark.parametrize("name", TENSORS)
def test_values(name):
    make, words = TENSORS[name]
    with refused(ValueError, words):
        make()


def test_names_of_outputs():
    one = kte.export.PredictOutput(np.ones(2))
    assert list(one.tensors) == ["output"]
    heads = kte.export.PredictOutput({("head", "y"): np.ones(2)})
    assert list(heads.tensors) == ["head/y"]


PLAIN, SUPERVISED = exporting.ServingInputReceiver, exporting.SupervisedInputReceiver
FIELDS = {
    "no features": (lambda x: PLAIN(None, x), "`features` tensor dict None"),
    "array": (lambda x: PLAIN(X, x), "'x' `features` TensorFlow tensor"),
    "float": (lambda x: PLAIN({0.5: x}, x), "strings integers 0.5"),
    "no receivers": (lambda x: PLAIN(x, {}), "`receiver_tensors` tensor dict"),
    "number": (lambda x: PLAIN(x, {1: x}), "keys `receiver_tensors` strings 1"),
    "alternatives": (lambda x: PLAIN(x, x, x), "`receiver_tensors_alternatives` dict"),
    "bare features are a dict": (
        lambda x: exporting.TensorServingInputReceiver({"x": x}, x),
        "one tensor ServingInputReceiver",
    ),
    "supervised features": (
        lambda x: SUPERVISED({0.5: x}, x, x),
        "keys `features` strings integers 0.5",
    ),
    "supervised labels": (
        lambda x: SUPERVISED(x, {None: x}, x),
        "keys `labels` strings integers None",
    ),
    "no labels": (lambda x: SUPERVISED(x, None, x), "`labels` tensor dict"),
}


@pytest.mark.parametrize("name", FIELDS)
def test_receiver_fields(name):
    import tensorflow as tf

    make, words = FIELDS[name]
    with refused(ValueError, words):
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
