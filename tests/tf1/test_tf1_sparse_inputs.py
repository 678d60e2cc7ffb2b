"""Tests sparse and ragged tensors that TF1 scripts read and receive."""

import keras_tpu_estimator as kte  # isort: skip

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from tf1_programs import estimator, plain_session, values_of, weights

from keras_tpu_estimator import export
from keras_tpu_estimator.tf1.graph import lookups

X = np.arange(8, dtype="float32").reshape(4, 2)
# The ids of rows 1 and 3 are missing.
CELLS = [[0, 0], [2, 1], [2, 0]]
IDS = np.array([1, 3, 2])
DENSE = np.array([[1, -1], [-1, -1], [2, 3], [-1, -1]])
COLUMN = tf.feature_column.categorical_column_with_identity("ids", 4)


def sparse(values=IDS):
    return tf.SparseTensor(CELLS, values, [4, 2])


def model_fn(features, labels, mode, params):
    table = tf.feature_column.embedding_column(
        COLUMN, 2, "sum", initializer=weights(4, 2)
    )
    given = {"ids": features["ids"]}
    read = tf.feature_column.input_layer(given, [table])
    w = tf.get_variable("w", [2, 2], initializer=weights(2, 2, seed=1))
    y = read + tf.matmul(features["x"], w)
    if mode == kte.ModeKeys.PREDICT:
        return kte.tf1.EstimatorSpec(mode, predictions={"y": y})
    loss = tf.reduce_mean(tf.square(y - labels))
    optimizer = tf.train.GradientDescentOptimizer(0.1)
    return kte.tf1.EstimatorSpec(
        mode,
        loss=loss,
        train_op=optimizer.minimize(loss, tf.train.get_global_step()),
    )


def trained(model_dir, input_fn):
    made = estimator(model_fn, model_dir, use_tpu=False)
    return made.train(input_fn, steps=2)


def of_dataset(params, ids=sparse):
    data = ({"x": X, "ids": ids()}, X)
    return tf.data.Dataset.from_tensors(data).repeat()


def of_tensors(params):
    return {"x": tf.constant(X), "ids": sparse()}, tf.constant(X)


def of_an_iterator(params):
    return tf.data.make_one_shot_iterator(of_dataset(params)).get_next()


def of_dense_ids(params):
    return of_dataset(params, lambda: DENSE)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([1, 0], "in the order of their rows"),
        ([0, 2], "rowid=2 which is not less than 2"),
        ([-1, 0], "rowid=-1 which is not less than 2"),
    ],
)
def test_rows_of_ids_are_checked(rows, message):
    with tf.Graph().as_default(), tf.Session() as session:
        fed = tf.placeholder_with_default(rows, [None])
        columns, _ = lookups.in_columns(fed, tf.constant([3, 4]), None, [2], [2])
        with pytest.raises(tf.errors.InvalidArgumentError, match=message):
            session.run(columns)


@pytest.mark.parametrize("input_fn", [of_dataset, of_tensors, of_an_iterator])
def test_sparse_ids_train_like_dense_ids(tmp_path, input_fn):
    expected = values_of(trained(tmp_path / "dense", of_dense_ids))
    found = values_of(trained(tmp_path / "sparse", input_fn))
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_array_equal(found[name], value)


# Rows 2 and 4 of eight have no ids, nor have the last two.
FIXED_CELLS = [[0, 0], [0, 1], [1, 0], [3, 0], [3, 1], [3, 2], [5, 0]]


@pytest.mark.parametrize("is_weighted", [False, True])
@pytest.mark.parametrize("combiner", ["sum", "mean", "sqrtn"])
def test_ids_in_constant_cells_may_come_from_devices(combiner, is_weighted, tmp_path):
    table = np.random.RandomState(0).normal(size=(5, 2, 2)).astype("float32")
    x = np.arange(7, dtype="float32") + 0.5

    def loss_of(table, x):
        ids = tf.cast(x * 3, tf.int64) % 5
        ids = tf.SparseTensor(FIXED_CELLS, ids, [8, 3])
        shares = tf.SparseTensor(FIXED_CELLS, x, [8, 3]) if is_weighted else None
        found = tf.nn.embedding_lookup_sparse(
            table, ids, shares, combiner=combiner, max_norm=1.5
        )
        assert found.shape.as_list()[0] in (6, None)
        return tf.reduce_sum(found**2) + tf.reduce_mean(found)

    def of_lookups(features, labels, mode, params):
        own = tf.get_variable("table", initializer=table)
        loss = loss_of(own, features["x"])
        optimizer = tf.train.GradientDescentOptimizer(0.1)
        return kte.tf1.EstimatorSpec(
            mode,
            loss=loss,
            train_op=optimizer.minimize(loss, tf.train.get_global_step()),
        )

    made = estimator(of_lookups, tmp_path, use_tpu=False)
    made.train(lambda params: tf.data.Dataset.from_tensors({"x": x}), steps=1)
    with tf.GradientTape() as tape:
        own = tf.constant(table)
        tape.watch(own)
        loss = loss_of(own, tf.constant(x))
    expected = table - 0.1 * tf.convert_to_tensor(tape.gradient(loss, own)).numpy()
    np.testing.assert_allclose(
        made.get_variable_value("table"), expected, rtol=1e-5, atol=1e-6
    )


def test_columns_are_padded_to_a_power_of_two():
    assert [lookups.columns_for(n) for n in (0, 3, 4)] == [1, 4, 4]
    padded = lookups.filled(np.array([[1], [2]]), -1, 2)
    np.testing.assert_array_equal(padded, [[1, -1], [2, -1]])


def test_model_fn_receives_sparse_floats(tmp_path):
    seen = []

    def floats_model_fn(features, labels, mode, params):
        seen.append(features["ids"])
        total = tf.sparse.reduce_sum(features["ids"])
        w = tf.get_variable("w", [], initializer=tf.zeros_initializer())
        optimizer = tf.train.GradientDescentOptimizer(0.5)
        loss = w * tf.reshape(total, [])
        return kte.tf1.EstimatorSpec(
            mode,
            loss=loss,
            train_op=optimizer.minimize(loss, tf.train.get_global_step()),
        )

    made = estimator(floats_model_fn, tmp_path, use_tpu=False)
    floats = np.array([1, 2, 4], "float32")
    made.train(lambda params: of_dataset(params, lambda: sparse(floats)), steps=1)
    assert made.get_variable_value("w") == -3.5
    assert isinstance(seen[-1], tf.SparseTensor)


def test_ragged_tensors_are_refused(tmp_path):
    def ragged():
        return tf.ragged.constant([[1]] * 4)

    with pytest.raises(TypeError, match=r"\['ids'\].* (must|should) be a? ?dense"):
        trained(tmp_path, lambda params: of_dataset(params, ragged))


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return trained(tmp_path_factory.mktemp("sparse"), of_dense_ids)


@pytest.fixture(scope="module")
def expected(model):
    return np.stack([each["y"] for each in model.predict(of_dense_ids_once)])


def of_dense_ids_once(params):
    return tf.data.Dataset.from_tensors({"x": X, "ids": DENSE})


def parsed():
    """Returns the features that `make_parse_example_spec` requests."""
    columns = [tf.feature_column.numeric_column("x", [2]), COLUMN]
    spec = tf.feature_column.make_parse_example_spec(columns)
    return export.build_parsing_serving_input_receiver_fn(spec)


def sparse_receiver():
    x = tf.placeholder(tf.float32, [None, 2])
    ids = tf.sparse_placeholder(tf.int64, [None, None])
    features = {"x": x, "ids": ids}
    return export.ServingInputReceiver(features, features)


def ragged_receiver():
    x = tf.placeholder(tf.float32, [None, 2])
    ids = tf.ragged.placeholder(tf.int64, 1, [])
    features = {"x": x, "ids": ids.to_sparse()}
    return export.ServingInputReceiver(features, {"x": x, "ids": ids})


def mixed_keys_receiver():
    given = sparse_receiver()
    features = {**given.features, 0: given.features["x"]}
    return export.ServingInputReceiver(features, given.receiver_tensors)


def answer(folder, feed):
    """Answers a request in a session through its signature."""
    with tf.Graph().as_default() as graph, plain_session() as session:
        meta = tf.saved_model.loader.load(session, ["serve"], folder)
        signature = meta.signature_def["serving_default"]
        element = graph.as_graph_element
        feeds = {element(name): value for name, value in feed(signature.inputs).items()}
        return session.run(signature.outputs["y"].name, feeds)


def fed_sparse(inputs):
    ids = inputs["ids"].coo_sparse
    return {
        inputs["x"].name: X,
        ids.indices_tensor_name: CELLS,
        ids.values_tensor_name: IDS,
        ids.dense_shape_tensor_name: [4, 2],
    }


def fed_ragged(inputs):
    values, splits = inputs["ids"].composite_tensor.components
    return {
        inputs["x"].name: X,
        values.name: [1, 2, 3],
        splits.name: [0, 1, 1, 3, 3],
    }


def fed_examples(inputs):
    rows = [[1], [], [2, 3], []]
    return {inputs["examples"].name: [*map(example, X, rows)]}


def example(x, ids):
    """A serialized `tf.Example`."""
    return tf.train.Example(
        features=tf.train.Features(
            feature={
                "x": tf.train.Feature(float_list={"value": x}),
                "ids": tf.train.Feature(int64_list={"value": ids}),
            }
        )
    ).SerializeToString()


@pytest.mark.parametrize(
    ("receiver_fn", "feed"),
    [
        (parsed(), fed_examples),
        (sparse_receiver, fed_sparse),
        (mixed_keys_receiver, fed_sparse),
        (ragged_receiver, fed_ragged),
    ],
)
def test_sparse_features_are_served(model, expected, tmp_path, receiver_fn, feed):
    folder = model.export_saved_model(tmp_path, receiver_fn)
    np.testing.assert_allclose(answer(folder, feed), expected, rtol=1e-5)


def test_missing_component_of_a_sparse_placeholder_is_named(model, tmp_path):
    def receiver_fn():
        x = tf.placeholder(tf.float32, [None, 2])
        ids = tf.sparse_placeholder(tf.int64, [None, 2], name="forgotten")
        return export.ServingInputReceiver({"x": x, "ids": ids}, {"x": x})

    with pytest.raises(
        ValueError, match="must contain all placeholders.*Add .*'forgotten/indices'"
    ):
        model.export_saved_model(tmp_path, receiver_fn)
