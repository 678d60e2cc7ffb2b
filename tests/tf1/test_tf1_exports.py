"""Tests SavedModels of TF1 scripts: the graph itself with trained values."""

import keras_tpu_estimator as kte  # isort: skip

import os

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from tf1_programs import batches, dense, estimator, fed, metric_fn, plain_session

from keras_tpu_estimator import evaluate_continuously, export
from keras_tpu_estimator.export import receivers
from keras_tpu_estimator.files.directory import state_file
from keras_tpu_estimator.tf1.shims.resolving import resolve

pytestmark = pytest.mark.usefixtures("forked_trials")

X = np.random.default_rng(0).normal(size=(20, 3)).astype("float32")
Y = (X[:, 0] > 0).astype("int64")
SERVE = [tf.saved_model.tag_constants.SERVING]


def model_fn_of(network=None, outputs=None):
    """A classifier of features["x"].

    Args:
        network: Of features, returns logits. Defaults to a layer.
        outputs: Given probabilities, returns `export_outputs`. Defaults to
            none.
    """

    def model_fn(features, labels, mode, params):
        if network is None:
            hidden = dense(features["x"], 3, "hidden", tf.nn.relu)
            logits = dense(hidden, 2, "logits", seed=1)
        else:
            logits = network(features)
        probabilities = tf.nn.softmax(logits)
        if mode == kte.ModeKeys.PREDICT:
            return kte.tf1.TPUEstimatorSpec(
                mode,
                predictions={"p": probabilities},
                loss=tf.reduce_mean(probabilities),
                export_outputs=outputs and outputs(probabilities),
            )
        loss = tf.losses.sparse_softmax_cross_entropy(labels, logits)
        if mode == kte.ModeKeys.EVAL:
            return kte.tf1.TPUEstimatorSpec(
                mode, loss=loss, eval_metrics=(metric_fn, [labels, logits])
            )
        optimizer = tf.train.AdamOptimizer(0.1)
        if params["use_tpu"]:
            optimizer = tf.tpu.CrossShardOptimizer(optimizer)
        return kte.tf1.TPUEstimatorSpec(
            mode,
            loss=loss,
            train_op=optimizer.minimize(loss, tf.train.get_global_step()),
        )

    return model_fn


def data(steps=3):
    return [({"x": x}, y) for x, y in batches(X, Y, steps)]


def trained(model_dir, model_fn=None, **settings):
    made = estimator(model_fn or model_fn_of(), model_dir, **settings)
    return made.train(fed(data()), steps=3)


@pytest.fixture(scope="module")
def classifier(tmp_path_factory):
    return trained(tmp_path_factory.mktemp("classifier"))


def predicted(made, x=X):
    def input_fn(params):
        for start in range(0, len(x), 16):
            yield {"x": x[start : start + 16]}

    return np.stack([each["p"] for each in made.predict(input_fn)])


def raw_receiver():
    x = tf.placeholder(tf.float32, [None, 3], name="x")
    return export.ServingInputReceiver({"x": x}, {"x": x})


def served(folder, inputs, signature="serving_default", tags=SERVE):
    """Answers a request in a session."""
    with tf.Graph().as_default(), plain_session() as session:
        meta = tf.saved_model.loader.load(session, tags, folder)
        definition = meta.signature_def[signature]
        return session.run(
            {n: info.name for n, info in definition.outputs.items()},
            {definition.inputs[n].name: v for n, v in inputs.items()},
        )


def signatures_of(folder, tags=SERVE):
    with tf.Graph().as_default(), plain_session() as session:
        return dict(tf.saved_model.loader.load(session, tags, folder).signature_def)


@pytest.mark.parametrize("is_disabled", [False, True])
def test_served_results_match_predictions(classifier, tmp_path, is_disabled):
    expected = predicted(classifier)
    if is_disabled:
        tf.disable_v2_behavior()
    try:
        folder = classifier.export_saved_model(tmp_path, raw_receiver)
    finally:
        if is_disabled:
            tf.reset_default_graph()
            tf.enable_v2_behavior()
    for tags in (SERVE, [*SERVE, "tpu"]):
        result = served(folder, {"x": X}, tags=tags)
        np.testing.assert_allclose(result["p"], expected, atol=1e-6)
    assert sorted(os.listdir(folder)) == ["saved_model.pb", "variables"]
    names = dict(tf.train.list_variables(f"{folder}/variables/variables"))
    assert sorted(names) == [
        "global_step",
        "hidden/bias",
        "hidden/kernel",
        "logits/bias",
        "logits/kernel",
    ]


def test_tensorflow_2_loads_an_export(classifier, tmp_path):
    folder = classifier.export_saved_model(tmp_path, raw_receiver)
    serve = tf.saved_model.load_v2(folder, SERVE).signatures
    result = serve["serving_default"](x=tf.constant(X[:5]))["p"]
    np.testing.assert_allclose(result, predicted(classifier)[:5], atol=1e-6)


@pytest.mark.parametrize(
    "name",
    [
        "tf.contrib.tpu.export_estimator_savedmodel",
        "tf.python.estimator.tpu.tpu_estimator.export_estimator_savedmodel",
    ],
)
def test_export_estimator_savedmodel(classifier, tmp_path, name):
    export_estimator = resolve(name.removeprefix("tf."))
    folder = export_estimator(classifier, tmp_path, raw_receiver, as_text=True)
    assert os.path.exists(f"{folder}/saved_model.pbtxt")
    result = served(folder, {"x": X}, tags=[*SERVE, "tpu"])
    np.testing.assert_allclose(result["p"], predicted(classifier), atol=1e-6)


def test_requests_of_examples(classifier, tmp_path):
    receiver_fn = export.build_parsing_serving_input_receiver_fn(
        {"x": tf.io.FixedLenFeature([3], tf.float32)}
    )
    folder = classifier.export_saved_model(tmp_path, receiver_fn)
    requests = [
        tf.train.Example(
            features=tf.train.Features(
                feature={
                    "x": tf.train.Feature(float_list=tf.train.FloatList(value=row))
                }
            )
        ).SerializeToString()
        for row in X
    ]
    result = served(folder, {"examples": np.array(requests)})
    np.testing.assert_allclose(result["p"], predicted(classifier), atol=1e-6)


def test_a_raw_receiver_and_the_files_of_an_export(classifier, tmp_path):
    (tmp_path / "note.txt").write_text("a note")
    folder = classifier.export_saved_model(
        tmp_path / "exports",
        export.build_raw_serving_input_receiver_fn({"x": X}),
        assets_extra={"note": str(tmp_path / "note.txt")},
        as_text=True,
    )
    assert os.path.exists(f"{folder}/saved_model.pbtxt")
    with open(f"{folder}/assets.extra/note") as file:
        assert file.read() == "a note"
    result = served(folder, {"x": X})
    np.testing.assert_allclose(result["p"], predicted(classifier), atol=1e-6)


def receivers_of_tensors(kind):
    with tf.Graph().as_default():
        x = tf.placeholder("float32", [None, 3], "pixels")
        y = tf.placeholder("int64", [None], "truth")
        if kind == "serving":
            return export.build_raw_serving_input_receiver_fn({"x": x})
        if kind == "supervised":
            return export.build_raw_supervised_input_receiver_fn({"x": x}, y)
        build = export.build_supervised_input_receiver_fn_from_input_fn
        return build(lambda: ({"x": x}, y))


@pytest.mark.parametrize("kind", ["serving", "supervised", "input_fn"])
def test_placeholders_have_the_names_of_the_tensors_they_are_like(kind):
    with tf.Graph().as_default():
        tensors = receivers_of_tensors(kind)().receiver_tensors
    names = {key: tensor.name for key, tensor in tensors.items()}
    labels = {} if kind == "serving" else {"label": "truth:0"}
    assert names == {"x": "pixels:0"} | labels


def test_programs_feed_an_export_by_the_names_of_tensors(classifier, tmp_path):
    receiver_fn = receivers_of_tensors("serving")
    folder = classifier.export_saved_model(tmp_path, receiver_fn)
    with tf.Session(graph=tf.Graph()) as session:
        tf.saved_model.loader.load(session, SERVE, folder)
        found = session.run("Softmax:0", {"pixels:0": X})
    np.testing.assert_allclose(found, predicted(classifier), atol=1e-6)


def test_older_checkpoint_is_exported(classifier, tmp_path):
    path = os.path.join(classifier.model_dir, "model.ckpt-0")
    folder = classifier.export_saved_model(tmp_path, raw_receiver, checkpoint_path=path)
    kernel = tf.train.load_variable(f"{folder}/variables/variables", "hidden/kernel")
    assert np.array_equal(kernel, kte.load_variable(path, "hidden/kernel"))
    result = served(folder, {"x": X})["p"]
    assert not np.allclose(result, predicted(classifier), atol=1e-3)


def test_signatures_and_their_methods(tmp_path):
    def outputs(probabilities):
        classes = tf.as_string(tf.argmax(probabilities, 1))[:, None]
        return {
            "serving_default": export.PredictOutput({"q": probabilities}),
            "classify": export.ClassificationOutput(probabilities, classes),
            "regress": export.RegressionOutput(probabilities[:, 0]),
        }

    made = trained(tmp_path / "m", model_fn_of(outputs=outputs))
    receiver_fn = export.build_parsing_serving_input_receiver_fn(
        {"x": tf.io.FixedLenFeature([3], tf.float32)}
    )
    folder = made.export_saved_model(tmp_path / "e", receiver_fn)
    signatures = signatures_of(folder)
    assert {
        name: (
            signature.method_name,
            sorted(signature.inputs),
            sorted(signature.outputs),
        )
        for name, signature in signatures.items()
        if not name.startswith("_")
    } == {
        "serving_default": ("tensorflow/serving/predict", ["examples"], ["q"]),
        "classify": (
            "tensorflow/serving/classify",
            ["inputs"],
            ["classes", "scores"],
        ),
        "regress": ("tensorflow/serving/regress", ["inputs"], ["outputs"]),
    }


def test_text_and_files_are_served(tmp_path):
    """Receivers and sessions support operations that devices lack."""
    (tmp_path / "words.txt").write_text("a\nb\nc\n")

    def receiver_fn():
        words = tf.placeholder(tf.string, [None])
        table = tf.lookup.StaticVocabularyTable(
            tf.lookup.TextFileInitializer(
                str(tmp_path / "words.txt"),
                tf.string,
                tf.lookup.TextFileIndex.WHOLE_LINE,
                tf.int64,
                tf.lookup.TextFileIndex.LINE_NUMBER,
            ),
            1,
        )
        x = tf.one_hot(table.lookup(words), 3)
        return export.ServingInputReceiver({"x": x}, {"words": words})

    made = trained(tmp_path / "m")
    folder = made.export_saved_model(tmp_path / "e", receiver_fn)
    (tmp_path / "words.txt").unlink()
    result = served(folder, {"words": np.array(["c", "a", "b"])})["p"]
    expected = predicted(made, np.eye(3, dtype="float32")[[2, 0, 1]])
    np.testing.assert_allclose(result, expected, atol=1e-6)


def test_all_modes_share_their_variables(classifier, tmp_path):
    supervised = export.build_raw_supervised_input_receiver_fn({"x": X}, Y)
    folder = classifier.experimental_export_all_saved_models(
        tmp_path,
        {
            kte.ModeKeys.TRAIN: supervised,
            kte.ModeKeys.EVAL: supervised,
            kte.ModeKeys.PREDICT: raw_receiver,
        },
    )
    inputs = {"x": X, "label": Y}
    loss = served(folder, inputs, "train", ["train"])["loss"]
    with tf.Graph().as_default(), plain_session() as session:
        meta = tf.saved_model.loader.load(session, ["eval"], folder)
        assert sorted(meta.signature_def["eval"].outputs) == [
            "loss",
            "metrics/accuracy/update_op",
            "metrics/accuracy/value",
            "metrics/logits/update_op",
            "metrics/logits/value",
        ]
    evaluated = served(folder, inputs, "eval", ["eval"])
    np.testing.assert_allclose(evaluated["loss"], loss, rtol=1e-6)
    result = predicted(classifier)
    np.testing.assert_allclose(
        evaluated["metrics/accuracy/update_op"],
        np.mean(result.argmax(1) == Y),
    )
    np.testing.assert_allclose(served(folder, {"x": X})["p"], result, atol=1e-6)
    names = dict(tf.train.list_variables(f"{folder}/variables/variables"))
    assert "hidden/kernel/Adam" in names


def test_metric_update_may_be_an_operation(tmp_path):
    def model_fn(features, labels, mode, params):
        w = tf.get_variable("w", [], initializer=tf.ones_initializer())
        loss = tf.reduce_mean(features["x"] * w)
        value, update = tf.metrics.mean(labels)
        return kte.tf1.EstimatorSpec(
            mode,
            loss=loss,
            train_op=tf.assign_add(tf.train.get_global_step(), 1),
            eval_metric_ops={"mean": (value, tf.group(update))},
        )

    made = estimator(model_fn, tmp_path / "model", use_tpu=False)
    made.train(fed(data()), steps=1)
    supervised = export.build_raw_supervised_input_receiver_fn({"x": X}, Y)
    folder = made.experimental_export_all_saved_models(
        tmp_path / "new", {kte.ModeKeys.EVAL: supervised}
    )
    with tf.Graph().as_default(), plain_session() as session:
        meta = tf.saved_model.loader.load(session, ["eval"], folder)
        signature = meta.signature_def["eval"]
        feeds = {
            signature.inputs[name].name: value
            for name, value in {"x": X, "label": Y}.items()
        }
        outputs = signature.outputs
        update = session.run(outputs["metrics/mean/update_op"].name, feeds)
        assert update.shape == (0,)
        mean = session.run(outputs["metrics/mean/value"].name, feeds)
    np.testing.assert_allclose(mean, Y.mean(), rtol=1e-6)


def test_model_without_labels_is_exported_in_training(tmp_path):
    def unlabeled(features, labels, mode, params):
        y = dense(features["x"], 1, "y")
        loss = tf.reduce_mean(y * y)
        train_op = tf.assign_add(tf.train.get_global_step(), 1)
        return kte.tf1.EstimatorSpec(
            mode, loss=loss, predictions={"y": y}, train_op=train_op
        )

    def receiver_fn():
        x = tf.placeholder(tf.float32, [None, *X.shape[1:]])
        return receivers.UnsupervisedInputReceiver({"x": x}, {"x": x})

    made = estimator(unlabeled, tmp_path / "model", use_tpu=False)
    made.train(fed(data()), steps=1)
    modes = [kte.ModeKeys.TRAIN, kte.ModeKeys.EVAL]
    folder = made.experimental_export_all_saved_models(
        tmp_path / "new", dict.fromkeys(modes, receiver_fn)
    )
    for tag in ("train", "eval"):
        with tf.Graph().as_default(), plain_session() as session:
            meta = tf.saved_model.loader.load(session, [tag], folder)
            assert [*meta.signature_def[tag].inputs] == ["x"]


def test_saver_determines_the_restored_values(tmp_path):
    def averaged(features, labels, mode, params):
        spec = model_fn_of()(features, labels, mode, params)
        average = tf.train.ExponentialMovingAverage(0.5)
        if mode == kte.ModeKeys.TRAIN:
            with tf.control_dependencies([spec.train_op]):
                apply = average.apply(tf.trainable_variables())
            return spec._replace(train_op=apply)

        def scaffold_fn():
            saver = tf.train.Saver(average.variables_to_restore())
            return tf.train.Scaffold(saver=saver)

        return spec._replace(scaffold_fn=scaffold_fn)

    made = trained(tmp_path / "m", averaged)
    folder = made.export_saved_model(tmp_path / "e", raw_receiver)
    path = f"{folder}/variables/variables"
    for name in ("hidden/kernel", "logits/bias"):
        shadow = made.get_variable_value(f"{name}/ExponentialMovingAverage")
        assert np.array_equal(tf.train.load_variable(path, name), shadow)


def test_mismatched_checkpoint_is_an_error(classifier, tmp_path):
    def wider(features):
        return dense(dense(features["x"], 4, "hidden"), 2, "logits")

    def other(features):
        return dense(features["x"], 2, "only")

    for network, message in (
        (wider, r"In mode 'infer'.*'hidden/kernel' has shape \(3, 4\)"),
        (other, r"In mode 'infer'.* has no variable 'only/"),
    ):
        made = estimator(model_fn_of(network), tmp_path / "m")
        with pytest.raises(ValueError, match=message):
            made.export_saved_model(
                tmp_path / "e",
                raw_receiver,
                checkpoint_path=classifier.latest_checkpoint(),
            )


def test_mismatched_receivers_are_an_error(classifier, tmp_path):
    def unfed():
        x = tf.placeholder(tf.float32, [None, 3])
        y = tf.placeholder(tf.float32, [None, 3])
        return export.ServingInputReceiver({"x": x + y}, {"x": x})

    def renamed():
        x = tf.placeholder(tf.float32, [None, 3])
        return export.ServingInputReceiver({"z": x}, {"z": x})

    for receiver_fn, message in (
        (unfed, "must contain all placeholders"),
        (renamed, "must have the feature 'x', which `model_fn` reads"),
    ):
        with pytest.raises(ValueError, match=message):
            classifier.export_saved_model(tmp_path, receiver_fn)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    ("outputs", "error", "message"),
    [
        (lambda p: p, TypeError, "must be a dict from signature names"),
        (lambda p: {"a": p}, TypeError, r"\['a'\]` must be a PredictOutput"),
        (
            lambda p: dict.fromkeys("ab", export.PredictOutput(p)),
            ValueError,
            "must be 'serving_default'",
        ),
        (
            lambda p: {"a": export.RegressionOutput(tf.argmax(p, 1))},
            ValueError,
            "must be floats",
        ),
        (
            lambda p: {"a": export.ClassificationOutput(classes=p)},
            ValueError,
            "must be strings",
        ),
    ],
)
def test_export_outputs_are_checked(classifier, tmp_path, outputs, error, message):
    made = estimator(model_fn_of(outputs=outputs), classifier.model_dir)
    with pytest.raises(error, match=message):
        made.export_saved_model(tmp_path, raw_receiver)


def test_model_fn_may_wrap_another(classifier, tmp_path):
    inner = estimator(model_fn_of(), tmp_path).model_fn

    def model_fn(features, labels, mode, params, config):
        spec = inner(features, labels, mode, config)
        if mode == kte.ModeKeys.PREDICT:
            double = 2 * spec.predictions["p"]
            return spec._replace(predictions={"p": double}, export_outputs=None)
        if mode == kte.ModeKeys.EVAL:
            more = {"mean_label": tf.metrics.mean(labels)}
            return spec._replace(eval_metric_ops={**spec.eval_metric_ops, **more})
        return spec

    made = estimator(model_fn, tmp_path)
    made.train(fed(data()), steps=3)
    result = made.evaluate(fed(data(1)), steps=1)
    np.testing.assert_allclose(result["mean_label"], Y[:16].mean(), rtol=1e-6)
    assert "accuracy" in result
    expected = predicted(classifier)
    np.testing.assert_allclose(predicted(made), 2 * expected, atol=1e-5)
    folder = made.export_saved_model(tmp_path / "e", raw_receiver)
    np.testing.assert_allclose(served(folder, {"x": X})["p"], 2 * expected, atol=1e-5)


def test_training_and_exporting_together(tmp_path):
    made = estimator(model_fn_of(), tmp_path / "m", use_tpu=True)
    exporters = [
        kte.BestExporter("best", raw_receiver),
        kte.LatestExporter("latest", raw_receiver),
        kte.FinalExporter("final", raw_receiver),
    ]
    result, exported = kte.train_and_evaluate(
        made,
        kte.TrainSpec(fed(data(6)), max_steps=6),
        kte.EvalSpec(fed(data(2)), steps=2, exporters=exporters, throttle_secs=0),
    )
    assert result["global_step"] == 6
    assert len(exported) == 3
    for name in ("best", "latest", "final"):
        directory = tmp_path / "m" / "export" / name
        newest = max(f for f in os.listdir(directory) if f.isdigit())
        path = str(directory / newest)
        np.testing.assert_allclose(
            served(path, {"x": X})["p"], predicted(made), atol=1e-6
        )


def test_checkpoints_are_evaluated_as_they_appear(tmp_path):
    made = estimator(
        model_fn_of(),
        tmp_path,
        iterations=2,
        config={"save_checkpoints_steps": 2},
    )
    made.train(fed(data(6)), steps=6)
    # The TensorFlow function over which TF1 scripts loop.
    (newest,) = tf.train.checkpoints_iterator(str(tmp_path), timeout=0)
    assert newest == made.latest_checkpoint()
    results = [
        made.evaluate(fed(data(1)), steps=1, checkpoint_path=path)
        for path in tf.train.get_checkpoint_state(
            str(tmp_path)
        ).all_model_checkpoint_paths
    ]
    assert [each["global_step"] for each in results] == [0, 2, 4, 6]


def test_evaluator_follows_training(tmp_path):
    made = trained(tmp_path)
    state_file.mark_complete(str(tmp_path), 3)
    seen = []

    class Evaluated(kte.Exporter):
        name = "evaluated"

        def export(
            self,
            estimator,
            export_path,
            checkpoint_path,
            eval_result,
            is_the_final_export,
        ):
            seen.append((os.path.basename(checkpoint_path), is_the_final_export))

    evaluate_continuously(
        made,
        kte.EvalSpec(fed(data(1)), steps=1, start_delay_secs=0, exporters=Evaluated()),
    )
    assert seen == [("model.ckpt-3", False)]


BATCHED = {"num_batch_threads": 1, "batch_timeout_micros": 1000}


def by_computation(features):
    """Logits that are computed on batches of requests."""

    def computation(x, scales):
        hidden = dense(x, 3, "hidden", tf.nn.relu)
        # Layers without names have this scope.
        with tf.variable_scope(None, "unnamed"):
            return dense(hidden * scales["one"], 2, "logits", seed=1)

    scales = {"one": tf.ones_like(features["x"][:, :1])}
    return export.inference_on_tpu(
        computation, [features["x"], scales], max_batch_size=4, **BATCHED
    )


def by_model_fn(features, labels, mode, params):
    """A model_fn that is called on batches of requests."""
    if mode != kte.ModeKeys.PREDICT:
        return model_fn_of()(features, labels, mode, params)
    return export.model_fn_inference_on_tpu(
        model_fn_of(outputs=two_signatures),
        features,
        params=params,
        batch_config=export.BatchConfig(max_batch_size=4, **BATCHED),
    )


def two_signatures(probabilities):
    return {
        "serving_default": export.PredictOutput({"p": probabilities}),
        "best": export.PredictOutput({"best": tf.argmax(probabilities, 1)}),
    }


@pytest.mark.parametrize("model_fn", [model_fn_of(by_computation), by_model_fn])
def test_requests_are_batched(tmp_path, model_fn):
    made = trained(tmp_path, model_fn)
    folder = made.export_saved_model(tmp_path / "export", raw_receiver)
    for tags in (SERVE, [*SERVE, "tpu"]):
        with tf.Graph().as_default() as graph, plain_session() as session:
            tf.saved_model.loader.load(session, tags, folder)
            kinds = [op.type for op in graph.get_operations()]
        assert kinds.count("BatchFunction") == 1
        result = served(folder, {"x": X[:3]}, tags=tags)
        np.testing.assert_allclose(result["p"], predicted(made)[:3], atol=1e-6)
        # This request has more rows than a batch allows.
        with pytest.raises(tf.errors.InvalidArgumentError, match="batch size"):
            served(folder, {"x": X[:5]}, tags=tags)
    names = dict(tf.train.list_variables(f"{folder}/variables/variables"))
    assert {*names} <= {*made.get_variable_names()}
    assert len(names) == 5


def test_requests_are_not_batched_without_a_size(tmp_path):
    def network(features):
        return export.inference_on_tpu(
            lambda x: dense(x, 2, "logits"),
            [features["x"]],
            max_batch_size=None,
            **BATCHED,
        )

    made = trained(tmp_path, model_fn_of(network))
    folder = made.export_saved_model(tmp_path / "export", raw_receiver)
    np.testing.assert_allclose(
        served(folder, {"x": X})["p"], predicted(made), atol=1e-6
    )
