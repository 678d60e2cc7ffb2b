"""Tests ready-made estimators and heads against the numbers of TensorFlow 1.15."""

import inspect
import json
import pathlib
import re

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from helpers import slow, some_slow
from tf1_golden import golden

from keras_tpu_estimator.errors import NanLossDuringTrainingError
from keras_tpu_estimator.tf1.shims.resolving import resolve
from keras_tpu_estimator.tf1_tools.tf_estimator import class_heads, heads, premade
from keras_tpu_estimator.tf1_tools.tf_estimator.estimators import (
    Estimator,
    add_metrics,
    forward_features,
)

CASES = json.loads(
    (pathlib.Path(__file__).parent / "golden" / "ready_made.json").read_text()
)
CASES.pop("made_with")
# Other cases have the same columns and optimizer, and the same heads.
RARE = (
    "linear model of two classes",
    "linear model of three classes",
    "linear model of numbers",
    "network of numbers",
)


@pytest.fixture(scope="module")
def program():
    import ready_made

    return ready_made


@pytest.mark.parametrize("case", some_slow(CASES, RARE))
def test_results_are_those_of_tensorflow_1(case, program, tmp_path):
    expected = CASES[case]
    start, model_dir = tmp_path / "start", str(tmp_path / "model")
    start.mkdir()
    program.write_start(str(start), expected["start"])
    found = program.results(case, model_dir, str(start))
    assert found["evaluated"] == pytest.approx(expected["evaluated"], rel=2e-5)
    assert found["values"].keys() == expected["values"].keys()
    for name, value in expected["values"].items():
        np.testing.assert_allclose(found["values"][name], value, rtol=1e-4, atol=1e-5)
    for row, wanted in zip(found["predicted"], expected["predicted"], strict=True):
        assert row.keys() == wanted.keys()
        for name, value in wanted.items():
            if "classes" in name:
                assert row[name] == value
            else:
                np.testing.assert_allclose(row[name], value, rtol=1e-4, atol=1e-5)
    assert found["signatures"] == expected["signatures"]
    assert found["summaries"] == expected["summaries"]


def test_checkpoint_of_the_original_trains_on(tmp_path):
    """Training continues from the values and slots of a checkpoint."""
    import make_canned

    reader = tf.train.load_checkpoint(f"{make_canned.DIRECTORY}/model.ckpt-20")
    estimator = make_canned.classifier(str(tmp_path))
    for name in ("checkpoint", "index", "data-00000-of-00002", "data-00001-of-00002"):
        source = name if name == "checkpoint" else f"model.ckpt-0.{name}"
        content = (pathlib.Path(make_canned.DIRECTORY) / source).read_bytes()
        (tmp_path / source).write_bytes(content)
    (tmp_path / "checkpoint").write_text('model_checkpoint_path: "model.ckpt-0"\n')
    estimator.train(lambda: make_canned.input_fn(1, 640, 32), steps=20)
    names = estimator.get_variable_names()
    assert sorted(names) == sorted(reader.get_variable_to_shape_map())
    for name in names:
        np.testing.assert_allclose(
            estimator.get_variable_value(name),
            reader.get_tensor(name),
            rtol=1e-4,
            atol=1e-5,
        )
    evaluated = estimator.evaluate(lambda: make_canned.input_fn(2, 256, 64))
    assert evaluated == pytest.approx(golden("canned")["20"]["metrics"], rel=1e-5)


def spec_of(head, labels, logits=None, mode="train", features=None, **settings):
    with tf.Graph().as_default():
        tf.train.get_or_create_global_step()
        if logits is None:
            logits = tf.get_variable("logits", [4, head.logits_dimension])
        settings.setdefault("optimizer", tf.train.GradientDescentOptimizer(0.1))
        if labels is not None and not callable(labels):
            labels = tf.constant(labels)
        labels = labels() if callable(labels) else labels
        return head.create_estimator_spec(
            features or {}, mode, logits, labels, **settings
        )


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: class_heads.MultiClassHead(2),
            "`n_classes` must be an integer above 2",
        ),
        (lambda: heads.RegressionHead(label_dimension=0), "`label_dimension` must"),
        (
            lambda: heads.RegressionHead(loss_reduction="none"),
            "`loss_reduction` must be one of",
        ),
        (lambda: spec_of(class_heads.BinaryClassHead(), None), "Received: no labels"),
        (
            lambda: spec_of(class_heads.BinaryClassHead(), np.zeros((4, 2))),
            r"Labels must have the shape \[batch, ..., 1\]. Received labels",
        ),
        (
            lambda: spec_of(class_heads.MultiClassHead(3), np.zeros(4, "float32")),
            "Labels must be integers. Received labels of dtype float32",
        ),
        (
            lambda: spec_of(
                class_heads.MultiClassHead(3, label_vocabulary=["a", "b", "c"]),
                np.zeros(4),
            ),
            "With `label_vocabulary`, labels must be strings",
        ),
        (
            lambda: spec_of(class_heads.BinaryClassHead(), np.zeros(4), optimizer=None),
            "Training needs either `optimizer` or `train_op_fn`",
        ),
        (
            lambda: spec_of(
                heads.RegressionHead(weight_column="w"),
                np.zeros(4),
                features={"w": np.ones((4, 3))},
            ),
            r"Weights must have the shape \[batch, ...\]",
        ),
    ],
)
def test_a_head_says_what_is_wrong(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_logits_have_the_size_of_the_head():
    with tf.Graph().as_default(), pytest.raises(ValueError, match="last layer of 1 u"):
        class_heads.BinaryClassHead().create_estimator_spec(
            {}, "infer", tf.zeros([4, 2])
        )


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({}, "`linear_feature_columns` or `dnn_feature_columns` must contain columns"),
        (
            {"dnn_feature_columns": [tf.feature_column.numeric_column("x")]},
            "`dnn_hidden_units` must contain numbers of units",
        ),
    ],
)
def test_an_estimator_needs_columns_and_units(settings, message):
    with pytest.raises(ValueError, match=message):
        premade.DNNLinearCombinedClassifier(**settings)


@pytest.mark.parametrize(
    ("optimizer", "features", "message"),
    [
        ("adam", {"x": 0}, "Received: 'adam'. Use tf.train.AdamOptimizer"),
        ("Adam", [0], "Features must be a dict of tensors"),
    ],
)
def test_a_network_checks_its_optimizer_and_features(
    optimizer, features, message, tmp_path
):
    column = tf.feature_column.numeric_column("x")
    made = premade.DNNClassifier([2], [column], tmp_path, optimizer=optimizer)
    with tf.Graph().as_default(), pytest.raises(ValueError, match=message):
        made.model_fn(features, None, "train", made.config)


def model_fn(features, labels, mode):
    return heads.RegressionHead().create_estimator_spec(
        features, mode, features["x"], labels
    )


def test_extensions_check_their_arguments(tmp_path):
    made = Estimator(model_fn, tmp_path)
    with pytest.raises(ValueError, match=re.escape("Received a function of ['x']")):
        add_metrics(made, lambda x: {})
    for keys in ("y", "predictions"):
        extended = forward_features(made, keys)
        with tf.Graph().as_default(), pytest.raises(ValueError, match="`keys` must"):
            extended.model_fn({"x": tf.zeros([2, 1])}, None, "infer", made.config)


@pytest.mark.parametrize("keys", [1, ["x", 1], {"x": 1}, {"x"}])
def test_keys_of_features_must_be_strings(keys, tmp_path):
    with pytest.raises(TypeError, match="`keys` must be a string or a list of"):
        forward_features(Estimator(model_fn, tmp_path), keys)


def test_default_values_are_only_for_sparse_features(tmp_path):
    made = forward_features(Estimator(model_fn, tmp_path), "x", {"x": 0.0})
    with (
        tf.Graph().as_default(),
        pytest.raises(ValueError, match="'x', which is"),
    ):
        made.model_fn({"x": tf.zeros([2, 1])}, None, "infer", made.config)


def test_sparse_features_become_dense_predictions(tmp_path):
    plain = Estimator(model_fn, tmp_path)
    made = forward_features(plain, "ids", {"ids": -1})
    with tf.Graph().as_default(), tf.Session() as session:
        ids = tf.SparseTensor([[0, 0], [1, 1]], [5, 6], [2, 2])
        features = {"x": tf.zeros([2, 1]), "ids": ids}
        with pytest.raises(ValueError, match="must contain 'ids'"):
            forward_features(plain).model_fn(
                {"ids": ids, "x": features["x"]}, None, "infer", made.config
            )
        spec = made.model_fn(features, None, "infer", made.config)
        found = session.run(spec.predictions["ids"])
    np.testing.assert_array_equal(found, [[5, -1], [-1, 6]])


@pytest.mark.filterwarnings("ignore:`layer.add_variable` is deprecated")
def test_logits_of_ready_made_models():
    columns = [tf.feature_column.numeric_column("x", [3])]
    experimental = resolve("estimator.experimental")
    network = experimental.dnn_logit_fn_builder(
        units=2,
        hidden_units=[4],
        feature_columns=columns,
        activation_fn=tf.nn.relu,
        dropout=None,
        input_layer_partitioner=None,
        batch_norm=True,
    )
    linear = experimental.linear_logit_fn_builder(2, columns)
    with tf.Graph().as_default(), tf.variable_scope("root"):
        features = {"x": tf.ones([2, 3])}
        for function in (network, linear):
            logits = experimental.call_logit_fn(function, features, "train", {}, None)
            assert logits.shape == [2, 2]
        names = [v.op.name.removeprefix("root/") for v in tf.global_variables()]
    norm = "hiddenlayer_0/batchnorm_0/"
    # As TensorFlow 1.15 has them.
    assert names == [
        "hiddenlayer_0/kernel",
        "hiddenlayer_0/bias",
        *(f"{norm}{n}" for n in ("gamma", "beta", "moving_mean", "moving_variance")),
        "logits/kernel",
        "logits/bias",
        "linear_model/x/weights",
        "linear_model/bias_weights",
    ]
    with pytest.raises(ValueError, match="`units` must be an integer"):
        experimental.dnn_logit_fn_builder(2.5, [4], columns, None, None, None, False)
    for wrong in (3, {1: tf.ones([1])}, {"a": 3}):
        with pytest.raises(ValueError, match="`logit_fn` must return a tensor"):
            experimental.call_logit_fn(
                lambda features, wrong=wrong: wrong, {}, "eval", {}, None
            )


X = np.random.RandomState(0).normal(size=(20, 3)).astype("float32")
WEIGHTS = (1 + np.arange(20) % 3).astype("float32")


def input_fn_of(labels, **features):
    features = {"x": X, "w": WEIGHTS, **features}
    return lambda: tf.data.Dataset.from_tensor_slices((features, labels)).batch(10)


def trained(made, labels, **features):
    """Returns the evaluation of an estimator after two steps."""
    input_fn = input_fn_of(labels, **features)
    made.train(input_fn, steps=2)
    return made.evaluate(input_fn)


def columns():
    return [tf.feature_column.numeric_column("x", shape=(3,))]


POSITIONS = {
    premade.DNNClassifier: (
        "hidden_units feature_columns model_dir n_classes weight_column"
        " label_vocabulary optimizer activation_fn dropout input_layer_partitioner"
        " config warm_start_from loss_reduction batch_norm"
    ),
    premade.LinearRegressor: (
        "feature_columns model_dir label_dimension weight_column optimizer config"
        " partitioner warm_start_from loss_reduction sparse_combiner"
    ),
    premade.DNNLinearCombinedClassifier: (
        "model_dir linear_feature_columns linear_optimizer dnn_feature_columns"
        " dnn_optimizer dnn_hidden_units dnn_activation_fn dnn_dropout n_classes"
        " weight_column label_vocabulary input_layer_partitioner config"
        " warm_start_from loss_reduction batch_norm linear_sparse_combiner"
    ),
}


@pytest.mark.parametrize("made", POSITIONS)
def test_arguments_have_the_positions_of_the_original(made):
    assert [*inspect.signature(made).parameters] == POSITIONS[made].split()


def test_arguments_may_be_positional(tmp_path):
    labels = (X[:, 0] > 0).astype("int64")
    made = premade.LinearClassifier(columns(), tmp_path, 2, "w", None, "SGD")
    found = trained(made, labels)
    named = premade.LinearClassifier(
        feature_columns=columns(), optimizer="SGD", weight_column="w"
    )
    assert found == trained(named, labels)
    assert found["label/mean"] == pytest.approx(np.average(labels, weights=WEIGHTS))
    with pytest.raises(TypeError, match="too many positional arguments"):
        premade.LinearClassifier(*range(20))
    with pytest.raises(TypeError, match="unexpected keyword argument 'classes'"):
        premade.LinearClassifier(columns(), classes=2)


def test_activations_may_be_names_and_classes_numbers_of_numpy(tmp_path):
    made = premade.DNNClassifier(
        [2], columns(), tmp_path, n_classes=np.int64(3), activation_fn="tanh"
    )
    assert trained(made, np.arange(20) % 3)["average_loss"] > 0


@pytest.mark.parametrize(
    ("options", "labels"),
    [
        ({}, np.arange(20) % 2 + 1),
        ({"n_classes": 3}, np.arange(20) % 4),
        ({"n_classes": 3}, np.arange(20) % 3 - 1),
        ({"label_vocabulary": ["a", "b"]}, np.array(["a", "c"] * 10)),
    ],
)
def test_a_label_that_is_no_class_makes_the_loss_nan(options, labels, tmp_path):
    made = premade.LinearClassifier(columns(), tmp_path, **options)
    with pytest.raises(NanLossDuringTrainingError, match="NaN loss"):
        trained(made, labels)


@pytest.mark.parametrize(
    "dtype",
    ["bool", "float64", slow("int8"), slow("uint8"), slow("int32")],
)
def test_labels_of_two_classes_may_have_any_dtype(dtype, tmp_path):
    made = premade.LinearClassifier(columns(), tmp_path)
    assert trained(made, (np.arange(20) % 2).astype(dtype))["label/mean"] == 0.5


def test_weights_of_a_missing_feature_are_an_error(tmp_path):
    made = premade.LinearClassifier(columns(), tmp_path, weight_column="nothing")
    with pytest.raises(ValueError, match="'nothing', and features .'w', 'x'."):
        trained(made, np.arange(20) % 2)


def test_metrics_may_use_forwarded_features(tmp_path):
    plain = premade.LinearRegressor(columns(), tmp_path)
    made = add_metrics(
        forward_features(plain, "w"),
        lambda predictions: {"mean_weight": tf.metrics.mean(predictions["w"])},
    )
    found = trained(made, X[:, 0])
    assert found["mean_weight"] == pytest.approx(WEIGHTS.mean())


def test_baselines_learn_only_a_bias(tmp_path):
    labels = np.array([1, 2, 0, 2], "int32")

    def input_fn(dtype="int32", epochs=1):
        data = {"x": np.ones([4, 3], "float32")}, labels.astype(dtype)
        return tf.data.Dataset.from_tensor_slices(data).batch(4).repeat(epochs)

    optimizer = tf.train.GradientDescentOptimizer(0.125)
    numbers = tf.estimator.BaselineRegressor(tmp_path / "n", optimizer=optimizer)
    numbers.train(lambda: input_fn("float32"), steps=1)
    assert numbers.get_variable_names() == ["baseline/bias", "global_step"]
    # The sum of the squares has the gradient -2 * 5.
    np.testing.assert_allclose(numbers.get_variable_value("baseline/bias"), [1.25])
    assert next(numbers.predict(input_fn))["predictions"] == [1.25]

    classes = tf.estimator.BaselineClassifier(tmp_path / "c", 3)
    classes.train(lambda: input_fn(epochs=200))
    found = next(classes.predict(input_fn))["probabilities"]
    np.testing.assert_allclose(found, [0.25, 0.25, 0.5], atol=0.02)

    with pytest.raises(ValueError, match="Features must be a dict with at least one"):
        numbers.train(lambda: tf.data.Dataset.from_tensors(([1.0], [1.0])), steps=1)
