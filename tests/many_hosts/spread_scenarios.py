"""Models and optimizer states that are sharded over several hosts."""

import dataclasses
import os
from collections.abc import Callable, Iterator
from typing import Any

# Import Keras after this package, so that Keras runs on JAX.
import keras_tpu_estimator as kte  # isort: split

import keras
import numpy as np
from keras import ops

from keras_tpu_estimator import experimental
from keras_tpu_estimator.checkpoints import SaveFiles
from tests.many_hosts.problems import BATCH, Here, dealt, listed, weights
from tests.spread_networks import CLASSES, NETWORKS, TOKENS, convolutions, transformer

RULES = {
    "up/kernel": (None, "model"),
    "up/bias": ("model",),
    "down/kernel": ("model", None),
}
# For each number of hosts, its part of a training on several numbers of hosts: the last
# step, the number of cores of a replica, and whether optimizer slots are sharded.
MOVES = {1: (4, 4, True), 2: (8, 8, False), 4: (12, 8, True)}
LAST_STEP = 16
SIZES = [11, 3]
# The rows of the embedding table, which are no multiple of the number of cores.
ROWS = 33


def perceptron(features, labels, mode, params):
    hidden = keras.layers.Dense(64, "tanh", name="up")(features["x"])
    hidden = keras.layers.Dense(16, name="down")(hidden)
    y = keras.layers.Dense(1, name="out")(hidden)
    if mode == kte.ModeKeys.PREDICT:
        return kte.TPUEstimatorSpec(mode, predictions={"y": y})
    loss = ops.mean((y - labels) ** 2)
    # With the usual epsilon, Adam divides rounding errors by themselves.
    adam = keras.optimizers.Adam(0.01, epsilon=1e-3)
    train_op = kte.CrossShardOptimizer(adam).minimize(loss)
    return kte.TPUEstimatorSpec(mode, loss=loss, train_op=train_op)


def averaged(features, labels, mode, params):
    """A perceptron that evaluates and predicts with averages."""
    spec = perceptron(features, labels, mode, params)
    averages = kte.ExponentialMovingAverage(0.5)
    if mode == kte.ModeKeys.TRAIN:
        return spec._replace(train_op=[*spec.train_op, averages.apply()])
    names = averages.variables_to_restore()
    return spec._replace(scaffold_fn=lambda: kte.Scaffold(variables_to_restore=names))


def estimator_of(
    here: Here,
    cores: int | None,
    model_fn: Callable[..., Any] = perceptron,
    embedding_config_spec: Any = None,
    **config: Any,
) -> kte.TPUEstimator:
    """Returns an estimator with a number of cores per replica, or on one core."""
    shards = 1 if cores is None else None
    return kte.TPUEstimator(
        model_fn,
        embedding_config_spec=embedding_config_spec,
        config=kte.RunConfig(
            model_dir=here.directory,
            tpu_config=kte.TPUConfig(4, num_shards=shards, num_cores_per_replica=cores),
            tf_random_seed=7,
            log_step_count_steps=None,
            save_summary_steps=None,
            **config,
        ),
        train_batch_size=BATCH,
        eval_batch_size=BATCH,
        predict_batch_size=BATCH,
    )


def shared_slots(here: Here) -> dict[str, Any]:
    """Shards optimizer slots and two weights over the cores of all hosts."""
    rules = {".*up/kernel": (None, "batch"), ".*down/kernel": ("batch", None)}
    shared = {"shard_optimizer": True, "fsdp": True, "layout_map": rules}
    config = shared if here.hosts > 1 else {}
    cores = 1 if config else None
    estimator = estimator_of(here, cores, averaged, **config)
    result = _all_modes(estimator, here, listed(here.share(SIZES)))
    if config:
        values = estimator._context.runtime.values._cached._values
        slots = [v for p, v in values.items() if p.startswith("adam/")]
        own = sum(v.addressable_shards[0].data.nbytes for v in slots)
        assert own <= 0.14 * sum(v.nbytes for v in slots)
        kernel = values["up/kernel"]
        assert 8 * kernel.addressable_shards[0].data.nbytes == kernel.nbytes
    return result


def trees(here: Here) -> dict[str, Any]:
    """Saves unsharded Orbax checkpoints, and then sharded slots."""
    for steps in (4, 8, 12):
        shares = here.hosts > 1 and steps > 4
        estimator = estimator_of(
            here,
            1 if here.hosts > 1 else None,
            shard_optimizer=shares,
            checkpoint_format="orbax",
        )
        estimator.train(dealt, max_steps=steps)
    return weights(estimator)


def damaged_part(here: Here) -> dict[str, Any]:
    """Corrupts a file that one host reads; all hosts use the previous checkpoint."""
    for steps in (4, 8):
        estimator = estimator_of(here, 1, shard_optimizer=True)
        estimator.train(dealt, max_steps=steps)
        if steps == 4 and here.is_last:
            prefix = os.path.join(here.directory, "model.ckpt-4")
            path = SaveFiles.at(prefix).named("shard-1-of-2")
            os.truncate(path, os.path.getsize(path) - 1)
    return weights(estimator)


def spanning(here: Here) -> dict[str, Any]:
    """Trains one replica on the cores of all hosts, with equal inputs."""
    cores, rules = (8, RULES) if here.hosts > 1 else (None, None)
    estimator = estimator_of(here, cores, layout_map=rules)
    return _all_modes(estimator, here, listed([*range(11)]))


def networks(here: Here) -> dict[str, Any]:
    """Trains other networks, each with one replica on the cores of all hosts."""
    cores = 8 if here.hosts > 1 else None
    return {
        network.__name__: _trained(
            estimator_of(
                here / network.__name__,
                cores,
                model_fn=_classifier(network),
                layout_map=rules if cores else None,
            )
        )
        for network, rules in NETWORKS.items()
    }


def _trained(estimator: kte.TPUEstimator) -> dict[str, Any]:
    estimator.train(dealt, max_steps=20)
    return weights(estimator)


def _classifier(network: Callable[[Any, bool], Any]) -> Callable[..., Any]:
    """Returns a model_fn that makes the inputs of a network from the examples."""

    def model_fn(features, labels, mode, params):
        x, ids = features["x"], features["id"]
        inputs = ops.sin(ops.matmul(x, ops.ones((3, 32)) * ops.arange(32.0)))
        if network is transformer:
            inputs = (ids[:, None] * ops.arange(1, 13)) % TOKENS
        elif network is convolutions:
            inputs = ops.sin(x[:, None, None, :] * ops.arange(192.0).reshape(16, 12, 1))
        logits = network(inputs, mode == kte.ModeKeys.TRAIN)
        loss = ops.mean(
            keras.losses.sparse_categorical_crossentropy(
                ids % CLASSES, logits, from_logits=True
            )
        )
        adam = keras.optimizers.Adam(0.01, epsilon=1e-3)
        train_op = kte.CrossShardOptimizer(adam).minimize(loss)
        return kte.TPUEstimatorSpec(mode, loss=loss, train_op=train_op)

    return model_fn


class AssignsRows(keras.callbacks.Callback):
    """Assigns rows of an embedding table before training."""

    def on_train_begin(self, logs: Any = None) -> None:
        (rows,) = (v for v in self.model.variables if v.path == "rows")
        rows.assign(np.sin(np.arange(4.0 * ROWS)).reshape(rows.shape))


def tables(here: Here) -> dict[str, Any]:
    """Shards an embedding table over the cores of all hosts."""

    def with_tables(features, labels, mode, params):
        features = dict(features)
        looked_up = features.pop("id")
        hidden = keras.layers.Dense(4, name="up")(features["x"])
        y = ops.sum(hidden * looked_up, axis=-1, keepdims=True)
        if mode == kte.ModeKeys.PREDICT:
            return kte.TPUEstimatorSpec(mode, predictions={"y": y})
        loss = ops.mean((y - labels) ** 2)
        optimizer = kte.CrossShardOptimizer(keras.optimizers.SGD(0.05))
        return kte.TPUEstimatorSpec(
            mode,
            loss=loss,
            train_op=optimizer.minimize(loss),
            scaffold_fn=lambda: kte.Scaffold(init_fn=init_fn),
            training_hooks=[AssignsRows()],
        )

    def init_fn(scaffold, session):
        session.assign({"rows": np.cos(np.arange(4.0 * ROWS)).reshape(-1, 4)})

    def few(input_fn: Any) -> Any:
        """Limits the ids of examples to rows of the table."""

        def with_ids(params: dict[str, Any]) -> Iterator[Any]:
            for features, labels in input_fn(params):
                yield {**features, "id": features["id"] % ROWS}, labels

        return with_ids

    spec = experimental.EmbeddingConfigSpec(
        table_to_config_dict={"rows": experimental.TableConfig(ROWS, 4)},
        feature_to_config_dict={"id": experimental.FeatureConfig("rows")},
        optimization_parameters=experimental.AdagradParameters(0.1),
    )
    estimator = estimator_of(here, 1, model_fn=with_tables, embedding_config_spec=spec)
    return _all_modes(estimator, here, few(listed(here.share(SIZES))), few)


def _all_modes(
    estimator: kte.TPUEstimator,
    here: Here,
    to_evaluate: Any,
    way: Callable[[Any], Any] = lambda input_fn: input_fn,
) -> dict[str, Any]:
    input_fn = way(listed(here.share([6, 6])))
    before = [float(row["y"][0]) for row in estimator.predict(input_fn)]
    estimator.train(way(dealt), max_steps=4)
    evaluated = estimator.evaluate(to_evaluate)
    predicted = [float(row["y"][0]) for row in estimator.predict(input_fn)]
    estimator.train(way(dealt), max_steps=20)
    return {
        "evaluated": {name: float(v) for name, v in evaluated.items()},
        "predicted": predicted,
        "predicted_before": before,
        **weights(estimator),
    }


def moved(here: Here) -> dict[str, Any]:
    """Trains this number of hosts' part of a training, and evaluates."""
    steps, cores, shares = MOVES[here.hosts]
    estimator = estimator_of(here, cores, layout_map=RULES, shard_optimizer=shares)
    return part(estimator, steps, _readers(here, estimator))


def undisturbed(here: Here) -> list[dict[str, Any]]:
    """Trains all parts on one core."""
    estimator = estimator_of(here, None)
    ends = [steps for steps, _, _ in MOVES.values()]
    return [part(estimator, steps, here) for steps in [*ends, LAST_STEP]]


def part(estimator: kte.TPUEstimator, steps: int, here: Here) -> dict[str, Any]:
    """Trains to a step, and evaluates."""
    estimator.train(dealt, max_steps=steps)
    evaluated = estimator.evaluate(listed(here.share(SIZES)))
    return {"loss": float(evaluated["loss"]), **weights(estimator)}


def _readers(here: Here, estimator: kte.TPUEstimator) -> Here:
    """Returns the place of an input reader: one host, or a pair of hosts."""
    topology = estimator._context.mode_devices.cores.topology
    return dataclasses.replace(
        here, host=topology.reader_index, hosts=topology.num_readers
    )


SCENARIOS = {
    each.__name__: each
    for each in (
        shared_slots,
        trees,
        damaged_part,
        spanning,
        networks,
        tables,
        moved,
    )
}
