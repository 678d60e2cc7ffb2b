"""Recommends items from tables of a million rows, sharded over all devices.

Run it with `python examples/recommender.py`. It takes about a minute. With
XLA_FLAGS=--xla_force_host_platform_device_count=8, one CPU is eight cores.

The data are simulated: users and items have a taste, most ids are rare, and
earlier views predict the next click. A tower of dense layers reads the rows of
the user, and another those of the item; their product predicts a click.
"""

import logging

# Import Keras after this package, so that Keras runs on JAX.
import keras_tpu_estimator as kte  # isort: split

import jax
import keras
import numpy as np
from keras import layers, ops

USERS, ITEMS, TASTES = 1_000_000, 1_000_000, 16
DIMENSION, HISTORY, BATCH = 16, 12, 1024
HELD_OUT = 20


def spec_of_tables(users, items):
    """Returns a table of users, and a table of items for two features."""
    tables = kte.experimental
    return tables.EmbeddingConfigSpec(
        optimization_parameters=tables.AdagradParameters(0.3),
        table_to_config_dict={
            "users": tables.TableConfig(users, DIMENSION, combiner=None),
            "items": tables.TableConfig(items, DIMENSION, combiner="mean"),
        },
        feature_to_config_dict={
            "user": tables.FeatureConfig("users"),
            "item": tables.FeatureConfig("items"),
            "history": tables.FeatureConfig("items"),
        },
    )


def batches(size, users, items, seed):
    """Yields batches of features and clicks forever."""
    rng = np.random.default_rng(seed)

    def ids(count, *shape):
        # A few ids are common, and most of them are rare.
        return rng.zipf(1.2, (size, *shape)) % count

    def of_taste(items, user, share):
        # Some items are replaced by items of the user's taste.
        wanted = items - items % TASTES + user % TASTES
        return np.where(rng.random(items.shape) < share, wanted, items)

    while True:
        user = ids(users)
        item = of_taste(ids(items), user, 0.5)
        history = of_taste(ids(items, HISTORY), user[:, None], 0.8)
        # Some users have viewed fewer items.
        seen = rng.integers(0, HISTORY, (size, 1))
        history[np.arange(HISTORY) >= seen] = -1
        agree = user % TASTES == item % TASTES
        clicked = rng.random(size) < np.where(agree, 0.9, 0.1)
        features = {"user": user, "item": item, "history": history}
        yield (
            {name: values.astype("int32") for name, values in features.items()},
            clicked.astype("float32"),
        )


def tower(*parts):
    """Returns the output of dense layers over concatenated rows."""
    hidden = layers.Concatenate()(parts) if len(parts) > 1 else parts[0]
    return layers.Dense(DIMENSION)(layers.Dense(32, "relu")(hidden))


def model_fn(features, labels, mode, params):
    # The features are rows of the tables, in place of the ids from input_fn.
    user = tower(features["user"], features["history"])
    item = tower(features["item"])
    logits = layers.Dense(1)(user * item)[:, 0]
    if mode == kte.ModeKeys.PREDICT:
        predictions = {"click": ops.sigmoid(logits)}
        return kte.TPUEstimatorSpec(mode, predictions=predictions)
    loss = ops.mean(ops.binary_crossentropy(labels, logits, from_logits=True))
    if mode == kte.ModeKeys.EVAL:
        metrics = (metric_fn, [labels, ops.sigmoid(logits)])
        return kte.TPUEstimatorSpec(mode, loss=loss, eval_metrics=metrics)
    # Adam trains the dense layers. The tables have Adagrad.
    optimizer = kte.CrossShardOptimizer(keras.optimizers.Adam(0.003))
    train_op = optimizer.minimize(loss)
    return kte.TPUEstimatorSpec(mode, loss=loss, train_op=train_op)


def metric_fn(labels, click):
    return {"auc": kte.metrics.auc(labels, click)}


def main(steps=2000, users=USERS, items=ITEMS, model_dir=None):
    """Trains, evaluates, and ranks some items for a user."""
    logging.basicConfig(format="%(message)s")
    logging.getLogger("keras_tpu_estimator").setLevel(logging.INFO)
    estimator = kte.TPUEstimator(
        model_fn,
        model_dir,
        kte.RunConfig(
            tpu_config=kte.TPUConfig(iterations_per_loop=100),
            log_step_count_steps=500,
            save_checkpoints_steps=10**9,
            tf_random_seed=1,
        ),
        train_batch_size=BATCH,
        eval_batch_size=BATCH,
        predict_batch_size=BATCH,
        embedding_config_spec=spec_of_tables(users, items),
    )
    cores = jax.device_count()
    megabytes = 2 * (users + items) * DIMENSION * 4 / 1e6
    print(
        f"{megabytes:.0f} MB of tables and slots, {megabytes / cores:.0f} MB "
        f"on each of {cores} cores"
    )
    estimator.train(
        lambda params: batches(params["batch_size"], users, items, seed=1),
        max_steps=steps,
    )
    result = estimator.evaluate(
        lambda params: batches(params["batch_size"], users, items, seed=2),
        steps=HELD_OUT,
    )
    print(f"AUC {result['auc']:.3f} after {result['global_step']} steps")

    # The user has viewed two items of one taste. Rank a hundred other items.
    candidates = np.arange(100, dtype="int32")
    history = np.full((100, HISTORY), -1, "int32")
    history[:, :2] = 3, 3 + TASTES
    features = {
        "user": np.full(100, 3, "int32"),
        "item": candidates,
        "history": history,
    }

    def candidates_of(params):
        size = params["batch_size"]
        for start in range(0, len(candidates), size):
            yield {
                name: values[start : start + size] for name, values in features.items()
            }

    clicks = [prediction["click"] for prediction in estimator.predict(candidates_of)]
    best = candidates[np.argsort(clicks)[::-1][:5]]
    print(f"for user 3: items {', '.join(map(str, best))}")
    return {**result, "best": best}


if __name__ == "__main__":
    main()
