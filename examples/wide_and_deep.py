"""Trains wide and deep: a linear model over ids and a network in one `model_fn`.

Run it with `python examples/wide_and_deep.py`. It takes about half a minute.

It has the variables, optimizers, metrics and signatures of the original's
`DNNLinearCombinedClassifier`. `python examples/wide_and_deep.py DIRECTORY`
evaluates the checkpoint of such a classifier, and starts training from its
weights.

The data are simulated. A person's income depends on education, age and hours,
and on pairs of education and occupation, which only the linear model sees.
"""

import logging
import sys

# Import Keras after this package, so that Keras runs on JAX.
import keras_tpu_estimator as kte  # isort: split

import keras
import numpy as np
import tensorflow as tf
from keras import layers, ops

EDUCATION = ["school", "college", "bachelor", "master", "doctor"]
OCCUPATION = ["clerk", "cook", "driver", "farmer", "nurse", "teacher", "writer"]
BUCKETS, CROSSED, AGES = 20, 50, [25.0, 35.0, 45.0, 55.0]
# The columns of the linear model, and their numbers of ids.
WIDE = {
    "age_bucketized": len(AGES) + 1,
    "education": len(EDUCATION),
    "education_X_occupation": CROSSED,
    "occupation": BUCKETS,
}
HIDDEN, DIMENSION = (16, 8), 4


def people(count, seed):
    """Returns features, and labels of shape [count, 1]: 1 for a high income."""
    rng = np.random.RandomState(seed)
    education = rng.randint(len(EDUCATION), size=count)
    occupation = rng.randint(len(OCCUPATION), size=count)
    age = rng.randint(18, 70, size=count).astype("float32")
    hours = rng.randint(10, 60, size=count).astype("float32")
    score = 0.6 * education + 0.03 * age + 0.05 * hours - 4.5
    score += np.where((education + occupation) % 3 == 0, 1.0, -0.5)
    labels = score + rng.normal(size=count) > 0
    features = {
        "age": age,
        "education": np.array(EDUCATION)[education],
        "hours": hours,
        "occupation": np.array(OCCUPATION)[occupation],
    }
    return features, labels.astype("int64")[:, None]


def ids_of(features):
    """Replaces strings by ids on the host, with a list, hashes and a cross."""
    education, occupation = features["education"], features["occupation"]
    matches = tf.cast(tf.equal(education[:, None], EDUCATION), tf.int64)
    places = tf.range(1, len(EDUCATION) + 1, dtype=tf.int64)
    pairs = [education[:, None], occupation[:, None]]
    crossed = tf.sparse.cross_hashed(pairs, CROSSED)
    return {
        "age": features["age"],
        "hours": features["hours"],
        # A word that is not in the list has the id -1.
        "education": tf.reduce_sum(matches * places, axis=1) - 1,
        "occupation": tf.strings.to_hash_bucket_fast(occupation, BUCKETS),
        "education_X_occupation": tf.sparse.to_dense(crossed)[:, 0],
    }


def input_fn_of(count, seed, epochs=1):
    """Returns an input_fn of people, in order."""

    def input_fn(params):
        data = tf.data.Dataset.from_tensor_slices(people(count, seed))
        data = data.repeat(epochs).batch(params["batch_size"])
        return data.map(lambda features, labels: (ids_of(features), labels))

    return input_fn


def rows_of(table, ids):
    """Returns the row of each id, and zeros for -1."""
    rows = ops.take(table, ops.maximum(ids, 0), axis=0)
    return ops.where(ids[:, None] >= 0, rows, 0.0)


def wide(features):
    """Returns the logits of the linear model."""
    ages = ops.sum(features["age"][:, None] >= np.array(AGES), axis=1)
    ids = {**features, "age_bucketized": ages}
    with kte.variable_scope("linear/linear_model"):
        logits = keras.Variable("zeros", (1,), name="bias_weights")
        for column, rows in WIDE.items():
            with kte.variable_scope(column):
                weights = keras.Variable("zeros", (rows, 1), name="weights")
            logits = logits + rows_of(weights, ids[column])
    return logits


def deep(features):
    """Returns the logits of the network."""
    spread = keras.initializers.TruncatedNormal(stddev=DIMENSION**-0.5)
    with kte.variable_scope("dnn"):
        column = "input_from_feature_columns/input_layer/occupation_embedding"
        with kte.variable_scope(column):
            table = keras.Variable(
                spread, (BUCKETS, DIMENSION), name="embedding_weights"
            )
        # Like `input_layer`, concatenate columns in the order of their names.
        x = ops.concatenate(
            [
                (features["age"][:, None] - 44) / 15,
                ops.one_hot(features["education"], len(EDUCATION)),
                (features["hours"][:, None] - 35) / 15,
                rows_of(table, features["occupation"]),
            ],
            axis=1,
        )
        for number, units in enumerate(HIDDEN):
            name = f"hiddenlayer_{number}"
            x = layers.Dense(units, activation="relu", name=name)(x)
        return layers.Dense(1, name="logits")(x)


def model_fn(features, labels, mode, params):
    logits = deep(features) + wide(features)
    if mode == kte.ModeKeys.PREDICT:
        return predictions_of(logits)
    labels = ops.cast(labels, "float32")
    losses = ops.binary_crossentropy(labels, logits, from_logits=True)
    # The original's head uses the sum, not the mean.
    loss = ops.sum(losses)
    if mode == kte.ModeKeys.EVAL:
        metrics = (metric_fn, [labels, logits, losses])
        return kte.TPUEstimatorSpec(mode, loss=loss, eval_metrics=metrics)
    return kte.TPUEstimatorSpec(
        mode,
        loss=loss,
        train_op=[
            minimize(keras.optimizers.Adagrad(0.001, epsilon=0), loss, "dnn/"),
            minimize(keras.optimizers.Ftrl(0.005), loss, "linear/"),
        ],
    )


def minimize(optimizer, loss, scope):
    """Returns a train op for the variables of one scope."""
    variables = [
        variable
        for variable in kte.trainable_variables()
        if variable.path.startswith(scope)
    ]
    # The loss is the sum over this core's examples.
    optimizer = kte.CrossShardOptimizer(optimizer, reduction="sum")
    return optimizer.minimize(loss, var_list=variables)


def metric_fn(labels, logits, losses):
    """Returns the metrics of the original's head."""
    logistic = ops.sigmoid(logits)
    classes = ops.cast(logits > 0, "float32")
    mean, _ = kte.metrics.mean(labels)
    baseline = ops.maximum(mean, 1 - mean)
    return {
        "accuracy": kte.metrics.accuracy(labels, classes),
        "accuracy_baseline": (baseline, baseline),
        "auc": kte.metrics.auc(labels, logistic),
        "auc_precision_recall": kte.metrics.auc(labels, logistic, curve="PR"),
        "average_loss": kte.metrics.mean(losses),
        "label/mean": kte.metrics.mean(labels),
        "precision": kte.metrics.precision(labels, classes),
        "prediction/mean": kte.metrics.mean(logistic),
        "recall": kte.metrics.recall(labels, classes),
    }


def predictions_of(logits):
    """Returns the predictions and the signatures of the original's head."""
    logistic = ops.sigmoid(logits)
    probabilities = ops.concatenate([1 - logistic, logistic], axis=1)
    class_ids = ops.cast(logits > 0, "int32")
    every_id = ops.zeros_like(class_ids) + ops.arange(2, dtype="int32")
    every_class = as_strings(every_id)
    predictions = {
        "all_class_ids": every_id,
        "all_classes": every_class,
        "class_ids": as_int64(class_ids),
        "classes": as_strings(class_ids),
        "logistic": logistic,
        "logits": logits,
        "probabilities": probabilities,
    }
    classification = kte.export.ClassificationOutput(probabilities, every_class)
    return kte.TPUEstimatorSpec(
        kte.ModeKeys.PREDICT,
        predictions=predictions,
        export_outputs={
            "serving_default": classification,
            "classification": classification,
            "predict": kte.export.PredictOutput(predictions),
            "regression": kte.export.RegressionOutput(logistic),
        },
    )


def as_strings(ids):
    """Returns ids as strings, which exist only on the host."""
    return kte.outside_compilation(tf.as_string, ids)


def as_int64(ids):
    """Returns ids as the original exports them."""
    return kte.outside_compilation(lambda ids: tf.cast(ids, tf.int64), ids)


def serving_input_receiver_fn():
    """Returns a receiver of serialized examples of the four features."""
    examples = tf.compat.v1.placeholder(tf.string, [None], name="examples")
    spec = {
        "age": tf.io.FixedLenFeature([], tf.float32),
        "education": tf.io.FixedLenFeature([], tf.string),
        "hours": tf.io.FixedLenFeature([], tf.float32),
        "occupation": tf.io.FixedLenFeature([], tf.string),
    }
    features = ids_of(tf.io.parse_example(examples, spec))
    return kte.export.ServingInputReceiver(features, {"examples": examples})


def estimator_of(model_dir=None, old=None, use_tpu=True, batch=32):
    """Returns the classifier, with the weights of an old checkpoint if given."""
    return kte.TPUEstimator(
        model_fn,
        model_dir,
        kte.RunConfig(log_step_count_steps=500, tf_random_seed=1),
        use_tpu=use_tpu,
        train_batch_size=batch,
        eval_batch_size=64,
        predict_batch_size=64,
        warm_start_from=old,
    )


def main(old=None, steps=2000, model_dir=None):
    """Trains, evaluates, exports, and runs the export for one person."""
    logging.basicConfig(format="%(message)s")
    logging.getLogger("keras_tpu_estimator").setLevel(logging.INFO)
    estimator = estimator_of(model_dir, old)
    held_out = input_fn_of(1024, seed=2)
    if old is not None:
        before = estimator.evaluate(held_out, checkpoint_path=old)
        print(f"old checkpoint: accuracy {before['accuracy']:.3f}")
    estimator.train(input_fn_of(8192, seed=1, epochs=None), steps=steps)
    result = estimator.evaluate(held_out)
    for name, value in sorted(result.items()):
        print(f"{name} = {value:.3f}")
    path = estimator.export_saved_model(
        f"{estimator.model_dir}/export", serving_input_receiver_fn
    )
    served = tf.saved_model.load(path, tags=["serve"])
    print(f"signatures: {', '.join(sorted(served.signatures))}")
    return result


if __name__ == "__main__":
    main(*sys.argv[1:2])
