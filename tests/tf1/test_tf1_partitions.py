"""Tests lookups in variables that TensorFlow 1.15 would partition."""

import keras_tpu_estimator as kte  # isort: skip

import json
import os
import pathlib

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from helpers import estimator_of
from tf1_programs import values_of

from keras_tpu_estimator.tf1.graph import internals

GOLDEN = json.loads(
    (pathlib.Path(__file__).parent / "golden" / "partitions.json").read_text()
)
IDS = np.array([[0, 6, 3], [5, 5, 1], [2, 4, 6]], "int64")


def look_up(kind, strategy, table, ids):
    """The lookups of `golden/make_partitions.py`, of ids that are dense."""
    if kind == "embedding_lookup":
        return tf.nn.embedding_lookup(table, ids, partition_strategy=strategy)
    cells = np.argwhere(np.ones(IDS.shape, bool))
    sparse = tf.SparseTensor(cells, tf.reshape(ids, [-1]), IDS.shape)
    return getattr(tf.nn, kind)(
        table, sparse, None, combiner="sum", partition_strategy=strategy
    )


def model_fn_of(kind, strategy, partitions, rows):
    """Returns the `model_fn` that the original ran."""

    def model_fn(features, labels, mode, params):
        table = tf.get_variable(
            "table",
            [rows, 2],
            initializer=tf.zeros_initializer(),
            partitioner=tf.fixed_size_partitioner(partitions),
        )
        found = look_up(kind, strategy, table, features)
        if mode == kte.ModeKeys.PREDICT:
            return kte.tf1.TPUEstimatorSpec(mode, predictions={"found": found})
        count = int(np.prod(found.shape.as_list()))
        targets = np.arange(count, dtype="float32").reshape(found.shape)
        loss = tf.reduce_sum(tf.square(found - targets))
        optimizer = tf.train.GradientDescentOptimizer(0.05)
        return kte.tf1.TPUEstimatorSpec(
            mode,
            loss=loss,
            train_op=optimizer.minimize(loss, tf.train.get_global_step()),
        )

    return model_fn


def estimator(case, model_dir):
    """An estimator of one of the cases."""
    kind, strategy, *sizes = case.split()
    model_fn = model_fn_of(kind, strategy, *map(int, sizes))
    return estimator_of(kte.tf1.model_fn(model_fn), model_dir, batch=3)


DENSE = [case for case in GOLDEN if case.startswith("embedding_lookup ")]


@pytest.mark.parametrize("case", DENSE)
def test_rows_match_the_original(case, tmp_path):
    made, expected = estimator(case, tmp_path), GOLDEN[case]
    made.train(lambda params: iter([IDS] * 3), steps=3)
    np.testing.assert_allclose(
        values_of(made)["table"], expected["table"], rtol=1e-5, atol=1e-6
    )
    found = [p["found"] for p in made.predict(lambda params: iter([IDS]))]
    np.testing.assert_allclose(found, expected["found"], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("case", GOLDEN)
def test_every_lookup_of_unpartitioned_variables_finds_the_rows(case):
    kind, strategy, partitions, rows = case.split()
    with tf.Graph().as_default(), internals.whole_variables():
        table = tf.get_variable(
            "table",
            initializer=np.float32(GOLDEN[case]["table"]),
            partitioner=tf.fixed_size_partitioner(int(partitions)),
        )
        assert table.shape.as_list() == [int(rows), 2]
        found = look_up(kind, strategy, table, tf.constant(IDS))
        with tf.Session() as session:
            session.run(tf.global_variables_initializer())
            values = session.run(found)
    np.testing.assert_allclose(values, GOLDEN[case]["found"], rtol=1e-5)


@pytest.mark.parametrize("strategy", ["mod", "div"])
def test_exports_find_the_same_rows(strategy, tmp_path):
    case = f"embedding_lookup {strategy} 3 7"
    made = estimator(case, tmp_path / "model")
    made.train(lambda params: iter([IDS] * 3), steps=3)

    def receiver():
        ids = tf.placeholder(tf.int64, [None, 3], "ids")
        return kte.export.TensorServingInputReceiver(ids, ids)

    path = made.export_saved_model(str(tmp_path / "export"), receiver)
    with tf.Graph().as_default(), tf.Session() as session:
        meta = tf.saved_model.load(session, ["serve"], os.fsdecode(path))
        signature = meta.signature_def["serving_default"]
        (given,) = [each.name for each in signature.inputs.values()]
        (output,) = [each.name for each in signature.outputs.values()]
        found = session.run(output, {given: IDS})
    np.testing.assert_allclose(found, GOLDEN[case]["found"], rtol=1e-5)


def test_sampled_losses_find_the_rows_of_partitions(tmp_path):
    """All classes are sampled, so the loss is nearly a softmax loss."""
    rows, partitions = 7, 3
    rng = np.random.default_rng(0)
    weights = rng.normal(size=(rows, 2)).astype("float32")
    biases = rng.normal(size=rows).astype("float32")
    x = rng.normal(size=(4, 2)).astype("float32")
    labels = np.array([[0], [3], [5], [6]], "int64")
    # Row `r` of the variable belongs to the id that "mod" maps to it.
    ids = [i for part in range(partitions) for i in range(part, rows, partitions)]

    def model_fn(features, labels, mode, params):
        parts = tf.fixed_size_partitioner(partitions)
        weight, bias = (
            tf.get_variable(
                name,
                value.shape,
                initializer=tf.constant_initializer(value[ids]),
                partitioner=parts,
            )
            for name, value in (("weights", weights), ("biases", biases))
        )
        every = np.arange(rows, dtype="int64")
        expected = np.ones(rows, "float32")
        loss = tf.reduce_mean(
            tf.nn.sampled_softmax_loss(
                weight,
                bias,
                labels,
                features,
                rows,
                rows,
                sampled_values=(
                    tf.constant(every),
                    tf.ones([4, 1]),
                    tf.constant(expected),
                ),
                remove_accidental_hits=False,
                partition_strategy="mod",
            )
        )
        return kte.tf1.TPUEstimatorSpec(mode, loss=loss)

    made = estimator_of(kte.tf1.model_fn(model_fn), tmp_path, batch=4)
    loss = made.evaluate(lambda params: iter([(x, labels)]))["loss"]
    logits = x @ weights.T + biases
    true = logits[np.arange(4), labels[:, 0]]
    # Without the removal of accidental hits, the true class counts twice.
    log_sum = np.log(np.exp(logits).sum(1) + np.exp(true))
    expected = (log_sum - true).mean()
    np.testing.assert_allclose(loss, expected, rtol=1e-5)


def test_an_unknown_strategy_is_refused(tmp_path):
    made = estimator("embedding_lookup modulo 3 7", tmp_path)
    with pytest.raises(ValueError, match='must be "mod" or "div"'):
        made.train(lambda params: iter([IDS]), steps=1)


# The names that TensorFlow 1.15.5 saves in a checkpoint.
SLOTS = {
    "m": ["m/in/b/0/Adam", "m/in/b/0/Adam_1"],
    "dnn": ["dnn/in/b/t_0/Adam", "dnn/in/b/t_0/Adam_1"],
    "model": ["model/in/b/art_0/Adam", "model/in/b/art_0/Adam_1"],
    "a_long_scope": [
        "a_long_scope/in/b//in/b/part_0/Adam",
        "a_long_scope/in/b//in/b/part_0/Adam_1",
    ],
    "a/b": ["a/b/in/b/t_0/Adam", "a/b/in/b/t_0/Adam_1"],
}


@pytest.mark.parametrize("scope", SLOTS)
@pytest.mark.parametrize("inside", [True, False])
def test_slots_of_partitioned_variables_have_the_names_of_checkpoints(scope, inside):
    parts = tf.fixed_size_partitioner(1)
    optimizer = tf.train.AdamOptimizer()
    with tf.Graph().as_default(), internals.whole_variables():
        with tf.variable_scope(scope, partitioner=parts):
            with tf.variable_scope("in"):
                b = tf.get_variable("b", [3])
            if inside:
                optimizer.minimize(tf.reduce_sum(b))
        if not inside:
            optimizer.minimize(tf.reduce_sum(b))
        names = [v.op.name for v in tf.global_variables() if "/in/b/" in v.op.name]
    plain = [f"{scope}/in/b/Adam", f"{scope}/in/b/Adam_1"]
    assert names == (SLOTS[scope] if inside else plain)
