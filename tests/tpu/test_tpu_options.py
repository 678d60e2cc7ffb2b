"""Tests options that change the compiled program."""

import keras
import numpy as np
import pytest
from keras import layers, ops
from spread_networks import NETWORKS
from tpu_models import (
    attentive,
    convolutional,
    dense,
    input_fn,
    joined,
    made,
    recurrent,
)
from tpu_programs import ALONE, DATA_PARALLEL, EVALUATED, LAID_OUT, Program, rows
from tpu_table import TOPOLOGIES

import keras_tpu_estimator as kte

INPUTS = kte.InputPipelineConfig
# The rules of a network whose layers have these names.
LAYOUT = {".*up/kernel": (None, "model"), ".*up/bias": ("model",)}
TRAINED_ALONE = {**DATA_PARALLEL, "train": {}}
EVALUATED_ALONE = {**DATA_PARALLEL, "eval": {}}


def option(network=dense, collectives=None, **settings):
    """A program with settings, by default for one core."""
    fields = {
        name: settings.pop(name)
        for name in ("input_fn", "modes", "topologies", "seldom", "seldom_in")
        if name in settings
    }
    given = fields.pop("input_fn", input_fn)
    return Program(
        lambda folder: made(folder, network, **settings),
        lambda mode: given,
        collectives=collectives or DATA_PARALLEL,
        **fields,
    )


def spread(network=dense, cores=2, rules=None, tpu=None, **settings):
    """A program whose replicas have several cores."""
    tpu = {"num_cores_per_replica": cores, **(tpu or {})}
    config = {"layout_map": rules, **settings.pop("config", {})}
    settings = {"collectives": LAID_OUT, "seldom_in": EVALUATED, **settings}
    return option(network, tpu=tpu, config=config, **settings)


def transposed_input_fn(params):
    """Batches with the examples along the last axis."""
    for features, labels in input_fn(params):
        yield features.T, labels


def image_input_fn(params):
    """Batches of named images that a replica's cores share."""
    size = params["batch_size"]
    while True:
        images = np.ones((size, 16, 16, 3), "float32")
        yield {"image": images}, np.ones((size, 1), "float32")


def with_images(features, is_training):
    x = layers.Conv2D(8, 3, padding="same")(features["image"])
    x = layers.BatchNormalization()(x, training=is_training)
    return joined(layers.MaxPooling2D(2)(x))


def words_of(features, is_training):
    ids = ops.cast(ops.abs(features[:, :12]), "int32")
    return layers.Dense(1)(NETWORKS_BY_NAME["transformer"](ids, is_training))


def transposed(features, is_training):
    return dense(ops.transpose(features), is_training)


def all_outputs_model_fn(features, labels, mode, params):
    """A model_fn with metrics, summaries, host calls, averages and clipping."""
    y = dense(features, mode == kte.ModeKeys.TRAIN)
    if mode == kte.ModeKeys.PREDICT:
        calls = {"host_call": (_seen, [y])}
        return kte.TPUEstimatorSpec(mode, predictions={"y": y}, **calls)
    loss = ops.mean((y - labels) ** 2)
    kte.summary.scalar("loss", loss)
    kte.summary.histogram("outputs", y)
    kte.identity(y, name="outputs")
    averages = kte.ExponentialMovingAverage(0.9)
    if mode == kte.ModeKeys.EVAL:
        return kte.TPUEstimatorSpec(
            mode, loss=loss, eval_metrics=(_metrics, [labels, y])
        )
    optimizer = kte.CrossShardOptimizer(keras.optimizers.Adam())
    pairs = optimizer.compute_gradients(loss)
    gradients, _ = kte.clip_by_global_norm([g for g, _ in pairs], 1.0)
    train_op = optimizer.apply_gradients(
        [(g, v) for g, (_, v) in zip(gradients, pairs, strict=True)]
    )
    return kte.TPUEstimatorSpec(
        mode,
        loss=loss,
        train_op=[train_op, averages.apply()],
        host_call=(_seen, [y]),
    )


def _seen(*tensors):
    raise AssertionError("The host is not there.")


def _metrics(labels, outputs):
    return {"error": kte.metrics.mean_squared_error(labels, outputs)}


def grouped_model_fn(features, labels, mode, params):
    """Two groups of cores, each with a separate model."""
    y = dense(features, mode == kte.ModeKeys.TRAIN)
    loss = ops.mean((y - labels) ** 2)
    optimizer = kte.CrossShardOptimizer(
        keras.optimizers.SGD(0.1), group_assignment=[[0, 1], [2, 3]]
    )
    return kte.TPUEstimatorSpec(mode, loss=loss, train_op=optimizer.minimize(loss))


NETWORKS_BY_NAME = {network.__name__: network for network in NETWORKS}

AT_LENGTH = {"topologies": (), "seldom": TOPOLOGIES[:1]}
PROGRAMS = {
    "as ever": option(topologies=TOPOLOGIES[:2], seldom=TOPOLOGIES[2:]),
    "iterations_per_loop=1": option(tpu={"iterations_per_loop": 1}, modes=("train",)),
    "iterations_per_loop=1000": option(
        tpu={"iterations_per_loop": 1000}, modes=("train",), **AT_LENGTH
    ),
    'iterations_per_loop="30s"': option(
        tpu={"iterations_per_loop": "30s"}, modes=("train",)
    ),
    "num_shards=1": option(tpu={"num_shards": 1}, collectives=ALONE),
    "num_cores_per_replica=2": spread(),
    "num_cores_per_replica=4": spread(cores=4),
    "num_cores_per_replica=4, layout_map": spread(
        cores=4,
        rules=LAYOUT,
        topologies=TOPOLOGIES[:2],
        seldom=TOPOLOGIES[2:],
    ),
    "layout_map, a transformer": spread(
        words_of, rules=next(r for n, r in NETWORKS.items() if len(r) > 5)
    ),
    "layout_map, shard_optimizer": spread(
        rules=LAYOUT, config={"shard_optimizer": True}
    ),
    "layout_map, micro_batches": spread(
        rules=LAYOUT, config={"micro_batches": 2}, modes=("train",), **AT_LENGTH
    ),
    "layout_map, mixed_bfloat16": spread(
        rules=LAYOUT, config={"dtype_policy": "mixed_bfloat16"}, **AT_LENGTH
    ),
    "layout_map, remat": spread(
        rules=LAYOUT, config={"remat": "full"}, modes=("train",), **AT_LENGTH
    ),
    "layout_map, attention": spread(
        attentive,
        rules={".*(query|key|value)/kernel": (None, "model", None)},
        **AT_LENGTH,
    ),
    "layout_map, a recurrent layer": spread(
        recurrent, rules={".*lstm/.*kernel": (None, "model")}, **AT_LENGTH
    ),
    "input_partition_dims": spread(
        with_images,
        cores=4,
        input_fn=image_input_fn,
        tpu={
            "per_host_input_for_training": INPUTS.PER_HOST_V2,
            "input_partition_dims": [{"image": [1, 2, 2, 1]}],
        },
    ),
    "PER_SHARD_V1": option(tpu={"per_host_input_for_training": False}),
    "PER_HOST_V2": option(tpu={"per_host_input_for_training": INPUTS.PER_HOST_V2}),
    "BROADCAST": option(tpu={"per_host_input_for_training": INPUTS.BROADCAST}),
    "SLICED": option(
        tpu={
            "per_host_input_for_training": INPUTS.PER_HOST_V2,
            "eval_training_input_configuration": INPUTS.SLICED,
        },
        topologies=("v5e:2x2", "v5e:4x4"),
    ),
    "batch_axis": option(
        transposed,
        batch_axis=[1, 0],
        input_fn=transposed_input_fn,
        modes=("train", "eval"),
    ),
    "use_tpu=False": option(use_tpu=False, collectives=ALONE),
    "eval_on_tpu=False": option(eval_on_tpu=False, collectives=EVALUATED_ALONE),
    "debug_nans": option(config={"debug_nans": True}, collectives=ALONE),
    "micro_batches": option(
        convolutional,
        config={"micro_batches": 2},
        modes=("train",),
        **AT_LENGTH,
    ),
    "mixed_bfloat16": option(
        convolutional, config={"dtype_policy": "mixed_bfloat16"}, **AT_LENGTH
    ),
    "remat of activations": option(
        convolutional, config={"remat": "activations"}, modes=("train",)
    ),
    "full remat": option(
        attentive, config={"remat": "full"}, modes=("train",), **AT_LENGTH
    ),
    "shard_optimizer": option(
        config={"shard_optimizer": True},
        collectives={**DATA_PARALLEL, "train": None},
        topologies=TOPOLOGIES[:2],
        seldom=TOPOLOGIES[2:],
    ),
    "shard_optimizer, micro_batches, mixed_bfloat16, remat": option(
        convolutional,
        config={
            "shard_optimizer": True,
            "micro_batches": 2,
            "dtype_policy": "mixed_bfloat16",
            "remat": "full",
        },
        collectives={**DATA_PARALLEL, "train": None},
        modes=("train",),
    ),
    "host_call, summaries, metrics, averages": option(
        model_fn=all_outputs_model_fn,
        config={"save_summary_steps": 1},
        tpu={"experimental_host_call_every_n_steps": 2},
        collectives=LAID_OUT,
    ),
    "group_assignment": option(
        model_fn=grouped_model_fn, collectives=LAID_OUT, modes=("train",)
    ),
}


@pytest.mark.rows(10)
@pytest.mark.parametrize(("name", "mode", "topology"), rows(PROGRAMS))
def test_options(name, mode, topology, compiles):
    compiles(PROGRAMS, name, mode, topology)
