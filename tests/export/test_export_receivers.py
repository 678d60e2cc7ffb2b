"""Tests that each kind of receiver is served."""

import dataclasses

import keras
import numpy as np
import pytest
from export_helpers import classifier, data, first_request_left_out, input_fn
from helpers import estimator_of
from keras import ops
from served_helpers import example, serve

import keras_tpu_estimator as kte

pytestmark = pytest.mark.usefixtures("forked_trials")

X, _ = data()
SERVE = ["serve"]


def parsing():
    import tensorflow as tf

    return kte.export.build_parsing_serving_input_receiver_fn(
        {"x": tf.io.FixedLenFeature([4], tf.float32)}
    )


def raw():
    return kte.export.build_raw_serving_input_receiver_fn(X)


def of_fixed_size():
    return kte.export.build_raw_serving_input_receiver_fn(X, 2)


def text():
    """Numbers as text, with TF1's placeholders and TF2's ops."""
    import tensorflow as tf

    @tf.function
    def parse(lines):
        columns = tf.strings.split(lines, ",").to_tensor(shape=[None, 4])
        return tf.strings.to_number(columns)

    def receiver_fn():
        lines = tf.compat.v1.placeholder(tf.string, [None], name="lines")
        return kte.export.ServingInputReceiver({"x": parse(lines)}, lines)

    return receiver_fn


def looked_up(vocabulary):
    """Words with ids from a vocabulary file, or the ids themselves."""
    import tensorflow as tf

    def receiver_fn():
        words = tf.compat.v1.placeholder(tf.string, [None], name="words")
        table = tf.lookup.StaticHashTable(
            tf.lookup.TextFileInitializer(
                vocabulary,
                tf.string,
                tf.lookup.TextFileIndex.WHOLE_LINE,
                tf.int64,
                tf.lookup.TextFileIndex.LINE_NUMBER,
            ),
            -1,
        )
        ids = table.lookup(words)
        return kte.export.ServingInputReceiver(
            {"x": tf.one_hot(ids, 4)},
            {"words": words},
            {"ids": {"ids": ids}},
        )

    return receiver_fn


@dataclasses.dataclass(frozen=True)
class Case:
    """A receiver function, a signature, and a request."""

    receiver_fn: object
    signature: str
    inputs: dict


@pytest.fixture(scope="module")
def cases(tmp_path_factory):
    vocabulary = tmp_path_factory.mktemp("words") / "words.txt"
    vocabulary.write_text("a\nb\nc\nd\n")
    examples = [example(x=list(row)) for row in X["x"]]
    lines = [",".join(map(str, row)) for row in X["x"]]
    words, parse = looked_up(str(vocabulary)), parsing()
    return {
        "examples": Case(parse, "serving_default", {"examples": examples}),
        "classes": Case(parse, "classes", {"inputs": examples}),
        "best": Case(parse, "best", {"inputs": examples}),
        "raw": Case(raw(), "serving_default", {"x": X["x"][:1]}),
        "fixed": Case(of_fixed_size(), "serving_default", {"x": X["x"][:2]}),
        "text": Case(text(), "serving_default", {"input": lines}),
        "words": Case(words, "serving_default", {"words": [b"c", b"a"]}),
        "ids": Case(words, "ids:serving_default", {"ids": np.array([2, 0], "int64")}),
    }


@pytest.fixture(scope="module")
def answers(cases, estimator, tmp_path_factory):
    """The answer to each case's request."""
    base = tmp_path_factory.mktemp("exports")
    functions = {case.receiver_fn for case in cases.values()}
    with first_request_left_out():
        folders = {
            function: estimator.export_saved_model(base, function)
            for function in functions
        }
    requests = [
        (folders[case.receiver_fn], SERVE, case.signature, case.inputs)
        for case in cases.values()
    ]
    return dict(zip(cases, serve(*requests), strict=True))


@pytest.mark.parametrize("name", ["examples", "raw", "fixed", "text"])
def test_the_default_signature_returns_predictions(name, answers, predictions):
    answer = answers[name]
    assert answer.keys() == predictions.keys()
    count = len(answer["logits"])
    np.testing.assert_allclose(
        answer["logits"], predictions["logits"][:count], rtol=1e-4
    )
    assert answer["names"].tolist() == predictions["names"][:count].tolist()


def test_classes_are_strings_and_scores(answers, predictions):
    answer = answers["classes"]
    assert answer.keys() == {"classes", "scores"}
    assert answer["classes"].tolist() == predictions["names"].tolist()
    assert (answer["scores"][:, 0] >= answer["scores"][:, 1]).all()


def test_a_regression_returns_one_value(answers):
    best = answers["best"]["outputs"]
    np.testing.assert_allclose(best, answers["classes"]["scores"][:, 0])


def test_words_are_looked_up_in_an_asset(answers, estimator):
    x = np.eye(4, dtype="float32")[[2, 0]]
    (expected,) = estimator.predict(
        lambda params: {"x": x}, yield_single_examples=False
    )
    for name in ("words", "ids"):
        np.testing.assert_allclose(
            answers[name]["logits"], expected["logits"], rtol=1e-4
        )


def test_predictions_of_the_host_are_strings(predictions):
    assert predictions["names"].shape == (16, 2)
    assert set(predictions["names"].ravel()) == {b"cat", b"dog", b"owl"}


def test_host_work_on_several_cores(model_dir, predictions):
    on_cores = estimator_of(classifier, model_dir, use_tpu=True)
    rows = list(on_cores.predict(input_fn))
    assert [list(row["names"]) for row in rows] == predictions["names"].tolist()


def test_host_work_on_the_results_of_host_work(tmp_path):
    import tensorflow as tf

    def model_fn(features, labels, mode, params):
        word, length = kte.outside_compilation(
            lambda x: (tf.strings.as_string(x), tf.ones_like(x)),
            ops.cast(features[:, 0], "int32"),
        )
        shouted = kte.outside_compilation(
            lambda word, x: word + "!" + tf.strings.as_string(x), word, length
        )
        return kte.EstimatorSpec(mode, {"word": word, "shouted": shouted})

    estimator = estimator_of(model_fn, tmp_path)
    x = np.array([[1], [7]], "float32")
    rows = list(estimator.predict(lambda params: x))
    assert [(row["word"], row["shouted"]) for row in rows] == [
        (b"1", b"1!1"),
        (b"7", b"7!1"),
    ]


def test_model_fn_in_batches(model_dir, tmp_path, untried):
    def model_fn(features, labels, mode, params):
        if not params["use_tpu"]:
            return classifier(features, labels, mode, params)
        return kte.export.model_fn_inference_on_tpu(
            classifier,
            features,
            params=params,
            batch_config=kte.export.BatchConfig(1, 8, 1000, [4, 8]),
        )

    estimator = estimator_of(model_fn, model_dir, export_saved_model_api_version=2)
    folder = estimator.export_saved_model(tmp_path, raw())
    rows = {"x": X["x"][:3]}
    plain, batched = serve(
        (folder, SERVE, "serving_default", rows),
        (folder, ["serve", "tpu"], "serving_default", rows),
    )
    np.testing.assert_allclose(plain["logits"], batched["logits"], rtol=1e-5)
    from tensorflow.core.protobuf import saved_model_pb2

    with open(f"{folder}/saved_model.pb", "rb") as file:
        graphs = file.read()
    # Functions in graphs also contain no lines of source files.
    assert b".py" not in graphs
    proto = saved_model_pb2.SavedModel.FromString(graphs)
    assert [
        [node.op for node in each.graph_def.node].count("BatchFunction")
        for each in proto.meta_graphs
    ] == [0, 1]


def test_batched_requests_and_bare_features(tmp_path):
    def model_fn(features, labels, mode, params):
        dense = keras.layers.Dense(2)
        outputs = kte.export.inference_on_tpu(dense, [features], 1, 4, 1000, [2, 4])
        if mode == kte.ModeKeys.PREDICT:
            return kte.TPUEstimatorSpec(mode, {"y": outputs})
        loss = ops.mean((outputs - labels) ** 2)
        train_op = kte.CrossShardOptimizer(keras.optimizers.SGD()).minimize(loss)
        return kte.TPUEstimatorSpec(mode, loss=loss, train_op=train_op)

    def receiver_fn():
        import tensorflow as tf

        x = tf.compat.v1.placeholder(tf.float32, [None, 3], name="x")
        return kte.export.TensorServingInputReceiver(x, {"x": x})

    x = np.random.rand(7, 3).astype("float32")
    estimator = estimator_of(model_fn, tmp_path, batch=7)
    estimator.train(lambda params: (x, x[:, :2]), steps=1)
    folder = estimator.export_saved_model(tmp_path / "export", receiver_fn)
    one, three = serve(
        (folder, SERVE, "serving_default", {"x": x[:1]}),
        (folder, SERVE, "serving_default", {"x": x[:3]}),
    )
    (expected,) = estimator.predict(lambda params: x, yield_single_examples=False)
    np.testing.assert_allclose(three["y"], expected["y"][:3], rtol=1e-5)
    np.testing.assert_allclose(one["y"], expected["y"][:1], rtol=1e-5)
