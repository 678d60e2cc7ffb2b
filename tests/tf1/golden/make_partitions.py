"""Writes `partitions.json`: lookups in partitioned variables of TensorFlow 1.15.

python tests/tf1/golden/make_partitions.py  # With tensorflow==1.15.5.
"""

import json
import os

import tensorflow as tf

IDS = [[0, 6, 3], [5, 5, 1], [2, 4, 6]]


def looked_up(kind, strategy, table):
    """Looks up rows, with different gradients for each row."""
    ids = tf.constant(IDS, tf.int64)
    if kind == "embedding_lookup":
        return tf.nn.embedding_lookup(table, ids, partition_strategy=strategy)
    cells = [[i, j] for i in range(3) for j in range(3)]
    sparse = tf.SparseTensor(cells, tf.reshape(ids, [-1]), [3, 3])
    look_up = {
        "embedding_lookup_sparse": tf.nn.embedding_lookup_sparse,
        "safe_embedding_lookup_sparse": tf.nn.safe_embedding_lookup_sparse,
    }[kind]
    return look_up(table, sparse, None, combiner="sum", partition_strategy=strategy)


def case(kind, strategy, partitions, rows):
    """Returns the complete table after several steps, and the looked-up rows."""
    with tf.Graph().as_default(), tf.Session() as session:
        parts = tf.fixed_size_partitioner(partitions)
        table = tf.get_variable(
            "table",
            [rows, 2],
            tf.float32,
            tf.zeros_initializer(),
            None,
            True,
            partitioner=parts,
        )
        found = looked_up(kind, strategy, table)
        targets = tf.reshape(
            tf.cast(tf.range(tf.size(found)), tf.float32), tf.shape(found)
        )
        loss = tf.reduce_sum(tf.square(found - targets))
        step = tf.train.GradientDescentOptimizer(0.05).minimize(loss)
        session.run(tf.global_variables_initializer())
        for _ in range(3):
            session.run(step)
        whole = session.run(tf.convert_to_tensor(table))
        return {"table": whole.tolist(), "found": session.run(found).tolist()}


def main():
    """Writes the file."""
    cases = {
        f"{kind} {strategy} {partitions} {rows}": case(kind, strategy, partitions, rows)
        for kind in (
            "embedding_lookup",
            "embedding_lookup_sparse",
            "safe_embedding_lookup_sparse",
        )
        for strategy in ("mod", "div")
        for partitions, rows in ((3, 7), (4, 8))
    }
    path = os.path.join(os.path.dirname(__file__), "partitions.json")
    with open(path, "w") as file:
        json.dump(cases, file, indent=0)


if __name__ == "__main__":
    main()
