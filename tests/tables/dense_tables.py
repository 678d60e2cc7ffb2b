"""Models with embedding tables, and the same with dense tables in NumPy."""

import math

import jax
import jax.numpy as jnp
import keras
import numpy as np
from helpers import estimator_of
from keras import ops

import keras_tpu_estimator as kte

tables = kte.experimental

BATCH = 32


def ids_of(rng, vocabulary, examples=BATCH * 4, length=5):
    """Padded ids: several in an example, in two examples, or none."""
    ids = rng.integers(0, vocabulary, (examples, length))
    ids[:, 1] = ids[:, 0]
    ids[rng.random(ids.shape) < 0.3] = -1
    ids[0] = -1
    return ids.astype("int32")


def score(activations, kernel):
    """The model's output, one number for each example."""
    # The number of examples may be unknown, as in exports.
    flat = [
        each.reshape(each.shape[0], math.prod(each.shape[1:]))
        for _, each in sorted(activations.items())
    ]
    return jnp.sum(jnp.tanh(jnp.concatenate(flat, axis=1) * kernel), axis=1)


def at_once(optimizer, loss):
    """A train op that minimises a loss."""
    return optimizer.minimize(loss)


def by_gradients(optimizer, loss):
    """The same by gradients that model_fn computes."""
    return optimizer.apply_gradients(optimizer.compute_gradients(loss))


def model_fn_of(spec, size, keys=None, minimize=at_once):
    """A model_fn of a spec's activations with `size` additional weights."""

    def model_fn(features, labels, mode, params):
        names = [*spec.feature_to_config_dict]
        assert {*(keys or names)} == {*features}
        kernel = keras.Variable(np.full(size, 0.5, "float32"), name="kernel")
        y = score({n: features[n] for n in names}, kernel.value)
        predictions = {"y": y, **{n: features[n] for n in features}}
        if mode == kte.ModeKeys.PREDICT:
            return kte.TPUEstimatorSpec(mode, predictions=predictions)
        loss = ops.mean((y - labels) ** 2)
        train_op = None
        if mode == kte.ModeKeys.TRAIN:
            optimizer = kte.CrossShardOptimizer(keras.optimizers.SGD(0.1))
            train_op = minimize(optimizer, loss)
        return kte.TPUEstimatorSpec(mode, loss=loss, train_op=train_op)

    return model_fn


def input_of(features, labels):
    """An input_fn that repeats arrays in order."""

    def input_fn(params):
        size = params["batch_size"]
        while True:
            for start in range(0, len(labels) - size + 1, size):
                rows = slice(start, start + size)
                yield {k: v[rows] for k, v in features.items()}, labels[rows]

    return input_fn


def tables_estimator(spec, size, model_dir, use_tpu=True, **settings):
    """An estimator of the model of a spec."""
    keys = settings.pop("keys", None)
    return estimator_of(
        model_fn_of(spec, size, keys),
        model_dir,
        use_tpu=use_tpu,
        batch=BATCH,
        embedding_config_spec=spec,
        **settings,
    )


def in_checkpoint(estimator):
    """All variables of the latest checkpoint."""
    names = estimator.get_variable_names()
    return {name: estimator.get_variable_value(name) for name in names}


def dense_training(spec, start, features, labels, steps, move):
    """The same training with dense tables, whose unused rows do not change.

    Args:
        spec: The tables.
        start: Their values before the first step.
        features: Ids by feature, and weights by key.
        labels: The labels.
        steps: The number of steps.
        move: A function of a table's name, rows, slots, gradient and step that returns
            the new rows and slots. Slots start as `None`.

    Returns:
        Tables, slots and the other weights.
    """
    own = spec.feature_to_config_dict
    tables = {name: np.array(start[name]) for name in spec.tables}
    slots = {name: [None] * len(start[name]) for name in spec.tables}
    size = sum(
        spec.tables[f.table_id].dimension * (f.max_sequence_length or 1)
        for f in own.values()
    )
    kernel = np.full(size, 0.5, "float32")

    def activation(table, feature, ids, weights):
        there = ids >= 0
        rows = table[jnp.maximum(ids, 0)] * there[..., None]
        if feature.max_sequence_length:
            return (rows * weights[..., None])[:, : feature.max_sequence_length]
        weights = weights * there
        combiner = spec.tables[feature.table_id].combiner
        total = {
            "sum": np.ones(len(ids)),
            "mean": weights.sum(1),
            "sqrtn": jnp.sqrt((weights**2).sum(1)),
            None: np.ones(len(ids)),
        }[combiner]
        total = jnp.where(total == 0, 1, total)
        return (rows * weights[..., None]).sum(1) / total[:, None]

    def loss(tables, kernel, features, labels):
        activations = {}
        for name, feature in own.items():
            ids = features[name]
            weights = (
                features[feature.weight_key]
                if feature.weight_key
                else np.ones(ids.shape, "float32")
            )
            activations[name] = activation(
                tables[feature.table_id], feature, ids, weights
            )
        return jnp.mean((score(activations, kernel) - labels) ** 2)

    gradients_of = jax.jit(jax.grad(loss, (0, 1)))
    for step in range(steps):
        begin = step * BATCH % len(labels)
        part = slice(begin, begin + BATCH)
        gradients, of_kernel = gradients_of(
            tables,
            kernel,
            {name: values[part] for name, values in features.items()},
            labels[part],
        )
        gradients = jax.tree.map(np.asarray, gradients)
        kernel = kernel - 0.1 * np.asarray(of_kernel)
        for name in tables:
            used = {
                int(number)
                for key, feature in own.items()
                if feature.table_id == name
                for number in np.unique(
                    features[key][part][:, : feature.max_sequence_length or None]
                )
                if number >= 0
            }
            for row in used:
                tables[name][row], slots[name][row] = move(
                    name,
                    tables[name][row],
                    slots[name][row],
                    gradients[name][row],
                    step,
                )
    return tables, slots, kernel
