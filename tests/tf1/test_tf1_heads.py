"""Tests heads of TF1 against the numbers of TensorFlow 1.15.

`golden/heads.py` made the expected results with TensorFlow 1.15.5.
"""

import keras_tpu_estimator as kte  # isort: skip

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from tf1_golden import golden

# Warnings of TensorFlow about its own layers.
pytestmark = pytest.mark.filterwarnings("ignore:.* is deprecated and will be")
EXPECTED = golden("heads")


@pytest.fixture(scope="module")
def program():
    kte.tf1.install()
    import heads

    return heads


@pytest.mark.rows(4)
@pytest.mark.parametrize("case", sorted(EXPECTED))
def test_results_are_those_of_tensorflow_1(case, program, tmp_path):
    found = program.results(case, str(tmp_path))
    expected = EXPECTED[case]
    assert found["signatures"] == expected["signatures"]
    np.testing.assert_allclose(found["kernel"], expected["kernel"], 1e-5)
    for part in ("evaluated", "predicted"):
        assert found[part].keys() == expected[part].keys()
        for name, value in expected[part].items():
            if np.asarray(value).dtype.kind == "f":
                np.testing.assert_allclose(found[part][name], value, 1e-5, 1e-6)
            else:
                assert found[part][name] == value


def test_head_of_a_program_has_the_base_class_of_tensorflow(tmp_path):
    from tensorflow.python.estimator.canned import head as canned

    class Own(canned._Head):
        def __init__(self, name=None):
            self._name = name

        @property
        def name(self):
            return self._name

        @property
        def logits_dimension(self):
            return 1

        def create_loss(self, features, mode, logits, labels):
            return tf.losses.mean_squared_error(labels[:, None], logits)

        def _create_tpu_estimator_spec(self, features, mode, logits, labels=None):
            loss = self.create_loss(features, mode, logits, labels)
            step = tf.train.get_global_step()
            train_op = tf.train.GradientDescentOptimizer(0.1).minimize(loss, step)
            return tf.estimator.tpu.TPUEstimatorSpec(mode, loss=loss, train_op=train_op)

    def model_fn(features, labels, mode):
        logits = tf.layers.dense(features["x"], 1)
        return Own("own").create_estimator_spec(features, mode, logits, labels)

    data = {"x": np.ones([4, 3], "float32")}, np.ones(4, "float32")
    made = tf.estimator.Estimator(model_fn, tmp_path)
    made.train(lambda: tf.data.Dataset.from_tensor_slices(data).batch(4))
    assert made.get_variable_value("global_step") == 1
    assert isinstance(canned._regression_head(), canned._Head)
    assert isinstance(
        canned._binary_logistic_or_multi_class_head(3, None, None, SUM), (canned._Head)
    )


@pytest.mark.parametrize(
    "method", ["create_estimator_spec", "_create_tpu_estimator_spec"]
)
def test_head_of_a_program_has_the_public_base_class(method, tmp_path):
    kte.tf1.install()

    class Own(tf.estimator.Head):
        name = None
        logits_dimension = 1
        loss_reduction = "sum"

        def loss(self, labels, logits, **kwargs):
            return tf.losses.mean_squared_error(labels[:, None], logits)

        def predictions(self, logits, keys=None):
            return {"logits": logits}

        def metrics(self, regularization_losses=None):
            return {}

        def update_metrics(self, eval_metrics, *args, **kwargs):
            return eval_metrics

    def spec(head, features, mode, logits, labels=None, **kwargs):
        loss = head.loss(labels, logits)
        step = tf.train.get_global_step()
        train_op = tf.train.GradientDescentOptimizer(0.1).minimize(loss, step)
        kind = tf.estimator.EstimatorSpec
        if method == "_create_tpu_estimator_spec":
            kind = tf.estimator.tpu.TPUEstimatorSpec
        return kind(mode, loss=loss, train_op=train_op)

    setattr(Own, method, spec)
    column = tf.feature_column.numeric_column("x", shape=[3])
    made = tf.estimator.LinearEstimator(Own(), [column], tmp_path)
    data = {"x": np.ones([4, 3], "float32")}, np.ones(4, "float32")
    made.train(lambda: tf.data.Dataset.from_tensor_slices(data).batch(4))
    assert made.get_variable_value("global_step") == 1


def test_head_of_a_program_must_make_a_spec():
    kte.tf1.install()

    class Own(tf.estimator.Head):
        name = logits_dimension = loss_reduction = None
        loss = predictions = metrics = update_metrics = None

    with pytest.raises(NotImplementedError, match="must define `create_estimator_spec"):
        Own().create_estimator_spec({}, "train", None)


SUM = tf.losses.Reduction.SUM


def public(kind, *args, **kwargs):
    return getattr(tf.estimator, kind)(*args, **kwargs)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: public("BinaryClassHead", loss_reduction=SUM),
            "`loss_reduction` must",
        ),
        (lambda: public("MultiLabelHead", 1), "`n_classes` must be an integer above 1"),
        (
            lambda: public("MultiLabelHead", 2, label_vocabulary=["a"]),
            "`label_vocabulary` must have 2 words",
        ),
        (
            lambda: public("MultiLabelHead", 2, classes_for_class_based_metrics=["a"]),
            "must be words of `label_vocabulary`, or integers below 2",
        ),
        (
            lambda: public("MultiClassHead", 3, label_vocabulary=["a"]),
            "`label_vocabulary` must have 3 words",
        ),
        (
            lambda: public("BinaryClassHead", thresholds=[0.5, 1.0]),
            r"`thresholds` must be between 0 and 1. Received: \[1.0\]",
        ),
        (
            lambda: public("MultiLabelHead", 2, thresholds=[0.0]),
            "`thresholds` must be between 0 and 1",
        ),
        (
            lambda: public("RegressionHead", loss_fn=lambda labels, scores: 0),
            r"Received: \['labels', 'scores'\]",
        ),
        (
            lambda: public(
                "RegressionHead", loss_fn=lambda labels, logits: logits[:, 0]
            ).loss(np.ones([2, 1]), np.ones([2, 1])),
            r"losses of `loss_fn` must have the shape \[batch, ..., 1\]",
        ),
        (lambda: public("MultiHead", []), "`heads` must be heads with names"),
        (
            lambda: public("MultiHead", [public("RegressionHead")]),
            "Pass `name` to each head",
        ),
        (
            lambda: public("MultiHead", [public("RegressionHead", name="a")], [1, 2]),
            "`head_weights` must have one number for each of 1 heads",
        ),
        (
            lambda: public("RegressionHead").predictions(tf.ones([2, 1]), ["classes"]),
            r"`keys` must be some of \['predictions'\]",
        ),
        (lambda: both_heads().loss({"a": 0}, tf.ones([2, 2])), r"without \['b'\]"),
        (lambda: both_heads().predictions({"a": 0}), r"dict without \['b'\]"),
        (lambda: both_heads().predictions(tf.ones([2, 3])), "last layer of 2 units"),
        (
            lambda: both_heads(loss_reduction="sum").loss_reduction,
            "must have the same `loss_reduction`",
        ),
        (
            lambda: public("RegressionHead").create_estimator_spec(
                {}, "train", tf.ones([2, 1]), tf.ones([2, 1]), tf.keras.optimizers.SGD()
            ),
            "`trainable_variables` must be a list of variables",
        ),
        (
            lambda: public("RegressionHead").create_estimator_spec(
                {},
                "train",
                tf.ones([2, 1]),
                tf.ones([2, 1]),
                tf.keras.optimizers.SGD(),
                {"variables": []},
            ),
            "`trainable_variables` must be a list of variables",
        ),
        *(
            (
                lambda kind=kind: public(*kind, weight_column="w").loss(
                    tf.ones([2, 3, 1]), tf.ones([2, 3, 1]), {"w": tf.ones([2, 1])}
                ),
                r"weights of shape \(2, 1, 1\) for logits of shape \(2, 3, 1\)",
            )
            for kind in (["RegressionHead"], ["BinaryClassHead"])
        ),
    ],
)
def test_wrong_arguments_are_errors(make, message):
    with tf.Graph().as_default(), pytest.raises(ValueError, match=message):
        make()


def both_heads(**options):
    first = public("RegressionHead", name="a")
    return public("MultiHead", [first, public("RegressionHead", name="b", **options)])


def test_ready_made_networks_accept_all_heads(tmp_path):
    kte.tf1.install()
    columns = [tf.feature_column.numeric_column("x", [3])]
    made = tf.estimator.DNNEstimator(
        both_heads(), [4], columns, tmp_path, tf.train.AdamOptimizer()
    )
    labels = dict.fromkeys("ab", np.ones([4], "float32"))
    data = {"x": np.ones([4, 3], "float32")}, labels

    def input_fn():
        return tf.data.Dataset.from_tensor_slices(data).batch(4)

    metrics = made.train(input_fn).evaluate(input_fn)
    assert {"loss/a", "loss/b", "average_loss/b", "label/mean/a"} <= metrics.keys()
    assert metrics["loss"] == pytest.approx(metrics["loss/a"] + metrics["loss/b"])
    predicted = next(made.predict(input_fn))
    assert [*predicted] == [("a", "predictions"), ("b", "predictions")]


def heads_of(kind):
    """Returns a head of `canned` or of `tf.estimator`, with its classes."""
    from tensorflow.python.estimator.canned import head as canned

    return {
        "regression": lambda: canned._regression_head(),
        "binary": canned._binary_logistic_head_with_sigmoid_cross_entropy_loss,
        "classes": lambda: canned._multi_class_head_with_softmax_cross_entropy_loss(3),
        "labels": lambda: tf.contrib.estimator.multi_label_head(3),
    }[kind]()


WIDTHS = {"regression": 1, "binary": 1, "classes": 3, "labels": 3}
LABELS = {
    "regression": [0.5, 2.0],
    "binary": [0, 1],
    "classes": [0, 2],
    "labels": [[0, 1, 1], [1, 0, 0]],
}
# The sums over the batch.
LOSSES = {"regression": 2.5, "binary": 1.626523376, "classes": 2.197224577}


def logits_of(kind):
    rows = [[1.0], [1.0]] if kind == "binary" else [[0.0], [0.5]]
    return np.array(rows, "float32") + np.zeros([2, WIDTHS[kind]], "float32")


@pytest.mark.parametrize("kind", WIDTHS)
@pytest.mark.parametrize(
    "form", ["arrays", "float64", "lists", "unknown sizes", "unknown ranks"]
)
def test_labels_and_logits_of_any_form_have_the_same_loss(kind, form):
    kte.tf1.install()
    logits, labels = logits_of(kind), np.array(LABELS[kind])
    with tf.Graph().as_default(), tf.Session() as session:
        exact = heads_of(kind).create_loss(
            {}, "eval", tf.constant(logits), tf.constant(labels)
        )
        if form == "lists":
            pair = logits.tolist(), labels.tolist()
        elif form == "arrays":
            pair = logits, labels
        elif form == "float64":
            pair = logits.astype("float64"), labels
        else:
            unknown = [None] * 2 if form == "unknown sizes" else None
            labels = labels.reshape(2, -1)
            pair = tuple(
                tf.placeholder_with_default(each, unknown) for each in (logits, labels)
            )
        loss = heads_of(kind).create_loss({}, "eval", *pair)
        first, second = session.run([exact[0], loss[0]])
    assert first == second
    if kind in LOSSES:
        np.testing.assert_allclose(first, LOSSES[kind], 1e-5)


@pytest.mark.parametrize("shape", [None, [None, None], [None, 1]])
def test_weights_of_unknown_sizes_count(shape):
    kte.tf1.install()
    with tf.Graph().as_default(), tf.Session() as session:
        weights = tf.placeholder_with_default([[1.0], [3.0]], shape)
        head = public("RegressionHead", weight_column="w")
        loss = head.loss([[1.0], [2.0]], [[0.0], [0.0]], {"w": weights})
        assert session.run(loss) == pytest.approx((1 + 3 * 4) / 2)


@pytest.mark.parametrize("number", [-1, 3])
def test_label_that_is_no_class_makes_the_loss_nan(number):
    kte.tf1.install()
    with tf.Graph().as_default(), tf.Session() as session:
        sparse = tf.SparseTensor([[0, 0], [1, 0], [1, 1]], [0, number, 0], [2, 2])
        head = public("MultiLabelHead", 3)
        assert np.isnan(session.run(head.loss(sparse, np.zeros([2, 3]))))
        assert np.isnan(session.run(head.loss([[0, number, 0]], np.zeros([1, 3]))))


@pytest.mark.parametrize("labels", [[-1.0], [2.0]])
@pytest.mark.parametrize("kind", ["LogisticRegressionHead", "PoissonRegressionHead"])
def test_label_that_is_impossible_makes_the_loss_nan(kind, labels):
    kte.tf1.install()
    is_wrong = kind == "LogisticRegressionHead" or labels == [-1.0]
    with tf.Graph().as_default(), tf.Session() as session:
        loss = public(kind).loss([labels], np.zeros([1, 1], "float32"))
        assert np.isnan(session.run(loss)) == is_wrong


def test_sizes_of_an_unknown_rank_are_checked_as_the_program_runs():
    kte.tf1.install()
    with tf.Graph().as_default(), tf.Session() as session:
        logits, labels = tf.placeholder("float32"), tf.placeholder("float32")
        loss = public("RegressionHead").loss(labels, logits)
        right, wrong = [[1.0], [2.0]], [[0.0, 1.0], [0.0, 1.0]]
        zeros = [[0.0], [0.0]]
        assert session.run(loss, {logits: zeros, labels: right}) == 2.5
        assert session.run(loss, {logits: zeros, labels: [1.0, 2.0]}) == 2.5
        for feed in ({logits: wrong, labels: right}, {logits: zeros, labels: wrong}):
            with pytest.raises(tf.errors.InvalidArgumentError):
                session.run(loss, feed)


def summaries_of(graph):
    """Returns the values of all summaries of a graph."""
    with tf.Session(graph=graph) as session:
        session.run(tf.global_variables_initializer())
        found = tf.Summary.FromString(session.run(tf.summary.merge_all()))
    return {value.tag: value.simple_value for value in found.value}


def test_several_heads_write_the_summaries_of_each_one():
    kte.tf1.install()
    with tf.Graph().as_default() as graph:
        both_heads().create_estimator_spec(
            {},
            "train",
            tf.zeros([2, 2]),
            {"a": tf.constant([1.0, 1.0]), "b": tf.constant([2.0, 2.0])},
            train_op_fn=tf.identity,
            regularization_losses=[tf.constant(0.5)],
        )
        found = summaries_of(graph)
    expected = {"loss": 5.5, "loss/a": 1, "loss/b": 4, "regularization_loss": 0.5}
    assert found == expected
