"""Fine-tunes a small BERT on real sentences, like the scripts of 2018.

The sentences are those of the documentation of NumPy, scikit-learn and Keras;
the classifier predicts which of the three a sentence is from. It starts from a
TensorFlow 1 checkpoint, which is written first by training a model on masked
words.

Run it with `python examples/bert_tiny.py`. It takes about a minute.
"""

import collections
import inspect
import logging
import os
import re
import tempfile

# Import Keras after this package, so that Keras runs on JAX.
import keras_tpu_estimator as kte  # isort: split

import keras
import numpy as np
import sklearn.cluster
import sklearn.ensemble
import sklearn.linear_model
import sklearn.metrics
import sklearn.preprocessing
import tensorflow as tf
from keras import layers, ops

LIBRARIES = {
    "NumPy": (np, np.linalg, np.random, np.fft, np.ma, np.polynomial),
    "scikit-learn": (
        sklearn.cluster,
        sklearn.ensemble,
        sklearn.linear_model,
        sklearn.metrics,
        sklearn.preprocessing,
    ),
    "Keras": (
        keras.callbacks,
        keras.layers,
        keras.losses,
        keras.metrics,
        keras.ops,
        keras.optimizers,
    ),
}
SENTENCES = 1200  # Of each library.
HELD_OUT = 500
LENGTH = 24
WORDS = 2000
PAD, CLS, MASK, UNKNOWN = range(4)

HIDDEN, HEADS, LAYERS = 64, 4, 2


# The text.


def sentences_of(modules):
    """Returns the distinct sentences in the documentation of some modules."""
    found = {}
    for module in modules:
        for name, value in sorted(vars(module).items()):
            if name.startswith("_") or not callable(value):
                continue
            prose = re.split(r"\n\s*(?:-{3,}|```|>>>)", inspect.getdoc(value) or "")
            for sentence in re.split(r"(?<=\.)\s+|\n\n", prose[0]):
                words = re.findall(r"[a-z]+|[0-9]+", sentence.lower())
                if len(words) >= 5:
                    found[" ".join(words[: LENGTH - 1])] = None
    return list(found)


def load():
    """Returns word ids of shape `[sentences, LENGTH]`, and each one's library."""
    texts, labels = [], []
    rng = np.random.default_rng(0)
    for label, modules in enumerate(LIBRARIES.values()):
        sentences = sentences_of(modules)
        chosen = rng.permutation(len(sentences))[:SENTENCES]
        texts += [sentences[i] for i in chosen]
        labels += [label] * len(chosen)
    counts = collections.Counter(w for text in texts for w in text.split())
    common = [word for word, _ in counts.most_common(WORDS - 4)]
    ids = {word: 4 + i for i, word in enumerate(common)}
    rows = np.full((len(texts), LENGTH), PAD, "int32")
    for row, text in zip(rows, texts, strict=True):
        words = [CLS, *(ids.get(word, UNKNOWN) for word in text.split())]
        row[: len(words)] = words
    order = rng.permutation(len(texts))
    return texts, rows[order], np.array(labels, "int32")[order], order


# The model. Its variables have the names of BERT's checkpoints.


def dense(units, name, activation=None):
    start = keras.initializers.TruncatedNormal(stddev=0.02)
    return layers.Dense(units, activation, kernel_initializer=start, name=name)


def norm():
    return layers.LayerNormalization(epsilon=1e-6, name="LayerNorm")


def table(name, rows):
    start = keras.initializers.TruncatedNormal(stddev=0.02)
    return keras.Variable(start, (rows, HIDDEN), "float32", name=name)


def attention(x, is_word, dropout):
    def heads(y):
        y = ops.reshape(y, (-1, LENGTH, HEADS, HIDDEN // HEADS))
        return ops.transpose(y, (0, 2, 1, 3))

    with keras.name_scope("self"):
        query = heads(dense(HIDDEN, "query")(x))
        key = heads(dense(HIDDEN, "key")(x))
        value = heads(dense(HIDDEN, "value")(x))
    scores = query @ ops.swapaxes(key, -1, -2) / (HIDDEN // HEADS) ** 0.5
    scores += -1e4 * (1 - is_word[:, None, None, :])
    mixed = dropout(ops.softmax(scores)) @ value
    mixed = ops.reshape(ops.transpose(mixed, (0, 2, 1, 3)), x.shape)
    with keras.name_scope("output"):
        return norm()(x + dropout(dense(HIDDEN, "dense")(mixed)))


def bert(ids, is_training):
    """Returns the hidden states of a sentence, and the word embeddings."""
    drop = layers.Dropout(0.1, seed=1)

    def dropout(x):
        return drop(x, training=is_training)

    is_word = ops.cast(ids != PAD, "float32")
    with keras.name_scope("bert"):
        with keras.name_scope("embeddings"):
            words = table("word_embeddings", WORDS)
            positions = table("position_embeddings", LENGTH)
            x = ops.take(words, ids, axis=0) + positions
            x = dropout(norm()(x))
        with keras.name_scope("encoder"):
            for i in range(LAYERS):
                with keras.name_scope(f"layer_{i}"):
                    with keras.name_scope("attention"):
                        x = attention(x, is_word, dropout)
                    with keras.name_scope("intermediate"):
                        wide = dense(4 * HIDDEN, "dense", "gelu")(x)
                    with keras.name_scope("output"):
                        narrow = dropout(dense(HIDDEN, "dense")(wide))
                        x = norm()(x + narrow)
        with keras.name_scope("pooler"):
            pooled = dense(HIDDEN, "dense", "tanh")(x[:, 0])
    return x, dropout(pooled), words


# The port of `optimization.py`.


class WarmUpAndDecay(keras.optimizers.schedules.LearningRateSchedule):
    """A linear warm-up to a learning rate, then a linear decay to zero."""

    def __init__(self, peak, warmup_steps, steps):
        self.peak, self.warmup_steps, self.steps = peak, warmup_steps, steps

    def __call__(self, step):
        step = ops.cast(step, "float32")
        rise = step / self.warmup_steps
        fall = (self.steps - step) / (self.steps - self.warmup_steps)
        return self.peak * ops.clip(ops.minimum(rise, fall), 0.0, 1.0)

    def get_config(self):
        return vars(self)


def create_optimizer(loss, params):
    rate = WarmUpAndDecay(
        params["learning_rate"], params["steps"] // 10, params["steps"]
    )
    optimizer = kte.optimizers.AdamWeightDecay(
        learning_rate=rate,
        weight_decay_rate=0.01,
        exclude_from_weight_decay=["LayerNorm", "layer_norm", "bias"],
    )
    optimizer = kte.CrossShardOptimizer(optimizer)
    tvars = kte.trainable_variables()
    grads = kte.gradients(loss, tvars)
    grads, _ = kte.clip_by_global_norm(grads, clip_norm=1.0)
    return optimizer.apply_gradients(zip(grads, tvars, strict=True))


# Pre-training on masked words, which writes the first checkpoint.


def pretraining_model_fn(features, labels, mode, params):
    x, _, words = bert(features, mode == kte.ModeKeys.TRAIN)
    with keras.name_scope("cls"):
        bias = keras.Variable("zeros", (WORDS,), name="output_bias")
    logits = x @ ops.transpose(words) + bias
    per_word = keras.losses.sparse_categorical_crossentropy(
        labels, logits, from_logits=True
    )
    is_masked = ops.cast(features == MASK, "float32")
    loss = ops.sum(per_word * is_masked) / (ops.sum(is_masked) + 1e-5)
    return kte.TPUEstimatorSpec(
        mode, loss=loss, train_op=create_optimizer(loss, params)
    )


def write_tensorflow_1_checkpoint(ids, steps, path):
    """Trains on masked words, and saves a TensorFlow checkpoint."""

    def input_fn(params):
        rng = np.random.default_rng(0)
        while True:
            rows = ids[rng.integers(len(ids), size=params["batch_size"])]
            hidden = (rng.random(rows.shape) < 0.15) & (rows > MASK)
            yield np.where(hidden, MASK, rows).astype("int32"), rows

    estimator = estimator_for(
        pretraining_model_fn, tempfile.mkdtemp(), steps, learning_rate=5e-4
    )
    estimator.train(input_fn, steps=steps)
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        for name in estimator.get_variable_names():
            value = estimator.get_variable_value(name)
            tf.compat.v1.get_variable(name, initializer=value)
        session.run(tf.compat.v1.global_variables_initializer())
        return tf.compat.v1.train.Saver().save(session, path)


# The classifier.


def model_fn(features, labels, mode, params):
    is_training = mode == kte.ModeKeys.TRAIN
    _, pooled, _ = bert(features["input_ids"], is_training)
    logits = dense(len(LIBRARIES), "classifier")(pooled)

    def scaffold_fn():
        kte.init_from_checkpoint(params["init_checkpoint"], {"bert/": "bert/"})
        return kte.Scaffold()

    if mode == kte.ModeKeys.PREDICT:
        return kte.TPUEstimatorSpec(
            mode, predictions={"probabilities": ops.softmax(logits)}
        )
    per_example = keras.losses.sparse_categorical_crossentropy(
        labels, logits, from_logits=True
    )
    if mode == kte.ModeKeys.EVAL:
        tensors = [per_example, labels, logits, features["is_real_example"]]
        return kte.TPUEstimatorSpec(
            mode,
            loss=ops.mean(per_example),
            eval_metrics=(metric_fn, tensors),
        )
    loss = ops.mean(per_example)
    return kte.TPUEstimatorSpec(
        mode,
        loss=loss,
        train_op=create_optimizer(loss, params),
        scaffold_fn=scaffold_fn,
    )


def metric_fn(per_example, labels, logits, is_real_example):
    predicted = ops.argmax(logits, axis=-1)
    return {
        "eval_accuracy": kte.metrics.accuracy(
            labels, predicted, weights=is_real_example
        ),
        "eval_loss": kte.metrics.mean(per_example, weights=is_real_example),
    }


def estimator_for(model_fn, model_dir, steps, **params):
    return kte.TPUEstimator(
        model_fn,
        config=kte.RunConfig(
            model_dir=model_dir,
            tpu_config=kte.TPUConfig(iterations_per_loop=50),
            tf_random_seed=0,
        ),
        params={"steps": steps, **params},
        train_batch_size=64,
        eval_batch_size=64,
        predict_batch_size=64,
    )


def main(steps=300, pretraining_steps=600, model_dir=None):
    """Trains, evaluates and predicts. Returns the results of the evaluation."""
    texts, ids, labels, order = load()
    model_dir = model_dir or tempfile.mkdtemp()
    checkpoint = write_tensorflow_1_checkpoint(
        ids[HELD_OUT:],
        pretraining_steps,
        os.path.join(model_dir, "pretrained", "bert_model.ckpt"),
    )
    estimator = estimator_for(
        model_fn,
        model_dir,
        steps,
        learning_rate=3e-4,
        init_checkpoint=checkpoint,
    )

    def train_input_fn(params):
        data = {"input_ids": ids[HELD_OUT:]}, labels[HELD_OUT:]
        dataset = tf.data.Dataset.from_tensor_slices(data)
        dataset = dataset.repeat().shuffle(1000, seed=0)
        return dataset.batch(params["batch_size"], drop_remainder=True)

    def held_out_input_fn(params):
        # As the original needs it on a TPU, padding examples with zero weight
        # fill the last batch.
        missing = -HELD_OUT % params["batch_size"]
        features = {
            "input_ids": np.pad(ids[:HELD_OUT], ((0, missing), (0, 0))),
            "is_real_example": np.pad(np.ones(HELD_OUT, "float32"), (0, missing)),
        }
        data = features, np.pad(labels[:HELD_OUT], (0, missing))
        dataset = tf.data.Dataset.from_tensor_slices(data)
        return dataset.batch(params["batch_size"], drop_remainder=True)

    estimator.train(train_input_fn, max_steps=steps)
    result = estimator.evaluate(held_out_input_fn)
    print(f"accuracy on {HELD_OUT} held-out sentences: {result['eval_accuracy']:.3f}")
    predictions = estimator.predict(held_out_input_fn)
    for index, row in zip(order[:5], predictions, strict=False):
        best = int(np.argmax(row["probabilities"]))
        print(
            f"{list(LIBRARIES)[best]} ({row['probabilities'][best]:.0%} "
            f"sure): {texts[index]}"
        )
    predictions.close()
    return result


if __name__ == "__main__":
    logging.basicConfig(format="%(message)s")
    logging.getLogger("keras_tpu_estimator").setLevel(logging.INFO)
    main()
