"""Tests converted TF1 graphs with options that place and change them."""

import pathlib
import sys

# The folder of the networks.
sys.path.append(str(pathlib.Path(__file__).parents[1] / "tf1"))

import functools

import pytest
import tensorflow.compat.v1 as tf  # noqa: TID253 - scripts import it
from tf1_programs import dense, model_fn_of
from tpu_models import input_fn, made
from tpu_programs import ALONE, DATA_PARALLEL, EVALUATED, LAID_OUT, Program, rows
from tpu_table import TOPOLOGIES

import keras_tpu_estimator as kte

LAYOUT = {"up/kernel": (None, "model"), "up/bias": ("model",)}
V2 = kte.InputPipelineConfig.PER_HOST_V2


def two_layers(x, is_training):
    x = dense(x, 64, "up", tf.nn.relu)
    x = tf.nn.dropout(x, rate=0.1 * is_training)
    return dense(x, 4, "down")


def algebra(x, is_training):
    """Operations for which TPUs have no instruction."""
    square = tf.reshape(dense(x, 256, "up"), [-1, 16, 16])
    square = tf.matmul(square, square, transpose_b=True) + 16 * tf.eye(16)
    values = tf.linalg.svd(square, compute_uv=False)
    best, _ = tf.nn.top_k(tf.sort(values), 4)
    parts = [
        tf.linalg.diag_part(tf.linalg.cholesky(square)),
        tf.linalg.diag_part(tf.linalg.inv(square)),
        tf.abs(tf.signal.rfft(x)),
        tf.math.cumsum(x, axis=1),
        best,
    ]
    return dense(tf.concat(parts, axis=1), 4, "out")


def loops(x, is_training):
    """A loop, a branch and an embedding table."""
    x = dense(x, 32, "up")
    _, x = tf.while_loop(
        lambda i, x: i < 3,
        lambda i, x: (i + 1, tf.tanh(x)),
        (0, x),
        maximum_iterations=3,
    )
    x = tf.cond(tf.reduce_sum(x) > 0, lambda: x, lambda: -x)
    table = tf.get_variable("table", [10, 32])
    ids = tf.argmax(x, axis=1) % 10
    return dense(x + tf.nn.embedding_lookup(table, ids), 4, "down")


def adam(step):
    return tf.train.AdamOptimizer(0.01)


def classes_input_fn(params):
    """The same features, with classes as labels."""
    for features, labels in input_fn(params):
        yield features, labels[:, 0].astype("int32")


def lifted(network=two_layers, collectives=DATA_PARALLEL, **settings):
    fields = {
        name: settings.pop(name)
        for name in ("modes", "topologies", "seldom")
        if name in settings
    }
    model_fn = kte.tf1.model_fn(model_fn_of(network, adam))
    return Program(
        functools.partial(made, model_fn=model_fn, **settings),
        lambda mode: classes_input_fn,
        seldom_in=EVALUATED,
        collectives=collectives,
        **fields,
    )


def spread(cores=2, **tpu):
    return lifted(
        collectives=LAID_OUT,
        tpu={"num_cores_per_replica": cores, **tpu},
        config={"layout_map": LAYOUT},
        seldom=TOPOLOGIES[1:] if cores == 4 and not tpu else (),
    )


PROGRAMS = {
    "as ever": lifted(),
    # Each operation also occurs in Keras layers.
    "linear algebra and sorting": lifted(algebra, topologies=(), seldom=TOPOLOGIES[:1]),
    "loops, branches and tables": lifted(loops),
    "use_tpu=False": lifted(use_tpu=False, collectives=ALONE),
    "num_cores_per_replica=2, layout_map": spread(),
    "num_cores_per_replica=4, layout_map": spread(4),
    "input_partition_dims": spread(
        4, per_host_input_for_training=V2, input_partition_dims=[[1, 4], None]
    ),
    "shard_optimizer": lifted(
        config={"shard_optimizer": True},
        collectives={**DATA_PARALLEL, "train": None},
    ),
}


@pytest.mark.rows(4)
@pytest.mark.parametrize(("name", "mode", "topology"), rows(PROGRAMS))
def test_converted_programs(name, mode, topology, compiles):
    compiles(PROGRAMS, name, mode, topology)
