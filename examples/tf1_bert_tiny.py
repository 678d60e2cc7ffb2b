"""Trains a small BERT on masked words and fine-tunes it, as in 2018.

The sentences are generated: ten words each, from one of three vocabularies.
TensorFlow no longer has estimators, but this program still uses them:

    python -m keras_tpu_estimator tf1 examples/tf1_bert_tiny.py --use_tpu

It takes about a minute.
"""

import math
import os
import re
import tempfile

import numpy as np
import tensorflow as tf

flags = tf.flags
FLAGS = flags.FLAGS

flags.DEFINE_string("output_dir", None, "Where checkpoints go.")
flags.DEFINE_bool("use_tpu", False, "Whether to use all cores.")
flags.DEFINE_integer("pretraining_steps", 300, "Steps on masked words.")
flags.DEFINE_integer("train_steps", 100, "Steps on labels.")
flags.DEFINE_integer("batch_size", 32, "The sentences of a step.")

WORLDS = {
    "sea": "wave boat sail fish salt gull sand tide reef crew".split(),
    "wood": "tree leaf moss deer nest root bark owl fern log".split(),
    "town": "street tram shop roof clock crowd lamp bell stair wall".split(),
}
OTHERS = "the a and of over under near old small quiet loud far".split()
VOCABULARY = ["[PAD]", "[CLS]", "[MASK]", *OTHERS, *sum(WORLDS.values(), [])]
CLS, MASK = 1, 2
LENGTH = 11
LABELED, HELD_OUT = 128, 256

HIDDEN, HEADS, LAYERS = 32, 2, 2


# The text.


def sentences(count, seed):
    """Returns word ids, few of which depend on the world, and the worlds."""
    rng = np.random.RandomState(seed)
    labels = rng.randint(len(WORLDS), size=count)
    rows = np.full((count, LENGTH), CLS)
    for row, label in zip(rows, labels):
        own = list(WORLDS.values())[label]
        words = [rng.choice(own if rng.rand() < 0.3 else OTHERS) for _ in row]
        row[1:] = [VOCABULARY.index(word) for word in words[1:]]
    return rows.astype(np.int32), labels.astype(np.int32)


# modeling.py


def create_initializer():
    return tf.truncated_normal_initializer(stddev=0.1)


def dense(x, units, name, activation=None):
    return tf.layers.dense(
        x, units, activation, name=name, kernel_initializer=create_initializer()
    )


def layer_norm(x):
    return tf.contrib.layers.layer_norm(
        inputs=x, begin_norm_axis=-1, begin_params_axis=-1, scope="LayerNorm"
    )


def gelu(x):
    return x * 0.5 * (1.0 + tf.erf(x / math.sqrt(2.0)))


def dropout(x, is_training):
    return tf.nn.dropout(x, keep_prob=0.9) if is_training else x


def attention(x, is_training):
    batch, length, width = x.shape.as_list()

    def heads(name):
        y = tf.reshape(dense(x, width, name), [batch, length, HEADS, -1])
        return tf.transpose(y, [0, 2, 1, 3])

    query, key, value = heads("query"), heads("key"), heads("value")
    scores = tf.matmul(query, key, transpose_b=True)
    scores = scores / math.sqrt(width // HEADS)
    mixed = tf.matmul(dropout(tf.nn.softmax(scores), is_training), value)
    return tf.reshape(tf.transpose(mixed, [0, 2, 1, 3]), [batch, length, width])


def bert(ids, is_training):
    """Returns the hidden states of the words, and the embedding table."""
    with tf.variable_scope("bert"):
        with tf.variable_scope("embeddings"):
            words = tf.get_variable(
                "word_embeddings",
                [len(VOCABULARY), HIDDEN],
                initializer=create_initializer(),
            )
            positions = tf.get_variable(
                "position_embeddings",
                [LENGTH, HIDDEN],
                initializer=create_initializer(),
            )
            x = tf.gather(words, ids) + positions
            x = dropout(layer_norm(x), is_training)
        with tf.variable_scope("encoder"):
            for number in range(LAYERS):
                with tf.variable_scope("layer_%d" % number):
                    x = transformer_layer(x, is_training)
    return x, words


def transformer_layer(x, is_training):
    """A layer that normalizes its input, which trains faster than BERT's."""
    with tf.variable_scope("attention"):
        with tf.variable_scope("self"):
            mixed = attention(layer_norm(x), is_training)
        with tf.variable_scope("output"):
            x += dropout(dense(mixed, HIDDEN, "dense"), is_training)
    with tf.variable_scope("intermediate"):
        wide = dense(layer_norm(x), 4 * HIDDEN, "dense", gelu)
    with tf.variable_scope("output"):
        return x + dropout(dense(wide, HIDDEN, "dense"), is_training)


# optimization.py


class AdamWeightDecayOptimizer(tf.train.Optimizer):
    """Adam with decoupled weight decay."""

    def __init__(self, learning_rate, weight_decay):
        super().__init__(use_locking=False, name="AdamWeightDecay")
        self.learning_rate = learning_rate
        self.weight_decay = weight_decay

    def apply_gradients(self, grads_and_vars, global_step=None, name=None):
        assignments = []
        for grad, param in grads_and_vars:
            if grad is None:
                continue
            path = re.sub(":0$", "", param.name)
            m, v = (
                tf.get_variable(
                    path + slot,
                    param.shape.as_list(),
                    initializer=tf.zeros_initializer(),
                    trainable=False,
                )
                for slot in ("/adam_m", "/adam_v")
            )
            next_m = tf.multiply(0.9, m) + tf.multiply(0.1, grad)
            next_v = tf.multiply(0.999, v) + tf.multiply(0.001, tf.square(grad))
            update = next_m / (tf.sqrt(next_v) + 1e-6)
            if not re.search("LayerNorm|bias", path):
                update += self.weight_decay * param
            assignments += [
                param.assign(param - self.learning_rate * update),
                m.assign(next_m),
                v.assign(next_v),
            ]
        return tf.group(*assignments, name=name)


def create_optimizer(loss, peak, steps):
    """Returns a warm-up in a tenth of the steps, and then a decay to zero."""
    global_step = tf.train.get_or_create_global_step()
    rate = tf.train.polynomial_decay(peak, global_step, steps, 0.0)
    done = tf.cast(global_step, tf.float32) / (0.1 * steps)
    optimizer = AdamWeightDecayOptimizer(rate * tf.minimum(done, 1.0), 0.01)
    if FLAGS.use_tpu:
        optimizer = tf.contrib.tpu.CrossShardOptimizer(optimizer)
    tvars = tf.trainable_variables()
    grads, _ = tf.clip_by_global_norm(tf.gradients(loss, tvars), clip_norm=1.0)
    train_op = optimizer.apply_gradients(zip(grads, tvars), global_step)
    return tf.group(train_op, [global_step.assign(global_step + 1)])


# run_pretraining.py


def pretraining_model_fn(features, labels, mode, params):
    x, words = bert(features, mode == tf.estimator.ModeKeys.TRAIN)
    with tf.variable_scope("cls/predictions"):
        bias = tf.get_variable(
            "output_bias", [len(VOCABULARY)], initializer=tf.zeros_initializer()
        )
    logits = tf.tensordot(x, words, [[2], [1]]) + bias
    is_masked = tf.cast(tf.equal(features, MASK), tf.float32)
    loss = tf.losses.sparse_softmax_cross_entropy(labels, logits, is_masked)
    train_op = create_optimizer(loss, 5e-3, FLAGS.pretraining_steps)
    return tf.contrib.tpu.TPUEstimatorSpec(mode, loss=loss, train_op=train_op)


def pretraining_input_fn(params):
    ids, _ = sentences(2000, seed=0)
    dataset = tf.data.Dataset.from_tensor_slices(ids).repeat()

    def masked(ids):
        hidden = tf.random_uniform([LENGTH], seed=1) < 0.2
        hidden = tf.logical_and(hidden, ids > MASK)
        return tf.where(hidden, tf.fill([LENGTH], MASK), ids), ids

    dataset = dataset.shuffle(2000, seed=2).map(masked)
    return dataset.batch(params["batch_size"], drop_remainder=True)


# run_classifier.py


def model_fn(features, labels, mode, params):
    x, _ = bert(features, mode == tf.estimator.ModeKeys.TRAIN)
    with tf.variable_scope("bert/pooler"):
        pooled = dense(x[:, 0], HIDDEN, "dense", tf.tanh)
    logits = dense(pooled, len(WORLDS), "classifier")

    # Variables that the checkpoint contains start from its values.
    def scaffold_fn():
        known = {name for name, _ in tf.train.list_variables(init_checkpoint)}
        names = [v.op.name for v in tf.trainable_variables()]
        assignment_map = {name: name for name in names if name in known}
        tf.train.init_from_checkpoint(init_checkpoint, assignment_map)
        return tf.train.Scaffold()

    init_checkpoint = params["init_checkpoint"]
    if mode == tf.estimator.ModeKeys.PREDICT:
        return tf.contrib.tpu.TPUEstimatorSpec(
            mode, predictions={"probabilities": tf.nn.softmax(logits)}
        )
    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(
        labels=labels, logits=logits
    )
    loss = tf.reduce_mean(losses)
    if mode == tf.estimator.ModeKeys.EVAL:
        return tf.contrib.tpu.TPUEstimatorSpec(
            mode, loss=loss, eval_metrics=(metric_fn, [losses, labels, logits])
        )
    return tf.contrib.tpu.TPUEstimatorSpec(
        mode,
        loss=loss,
        train_op=create_optimizer(loss, 3e-3, FLAGS.train_steps),
        scaffold_fn=scaffold_fn,
    )


def metric_fn(losses, labels, logits):
    predictions = tf.argmax(logits, axis=-1, output_type=tf.int32)
    return {
        "eval_accuracy": tf.metrics.accuracy(labels, predictions),
        "eval_loss": tf.metrics.mean(losses),
    }


def train_input_fn(params):
    dataset = tf.data.Dataset.from_tensor_slices(sentences(LABELED, seed=3))
    dataset = dataset.repeat().shuffle(LABELED, seed=4)
    return dataset.batch(params["batch_size"], drop_remainder=True)


def held_out_input_fn(params):
    dataset = tf.data.Dataset.from_tensor_slices(sentences(HELD_OUT, seed=5))
    return dataset.batch(params["batch_size"], drop_remainder=True)


def estimator_for(model_fn, model_dir, params):
    return tf.contrib.tpu.TPUEstimator(
        model_fn=model_fn,
        use_tpu=FLAGS.use_tpu,
        train_batch_size=FLAGS.batch_size,
        eval_batch_size=FLAGS.batch_size,
        predict_batch_size=FLAGS.batch_size,
        params=params,
        config=tf.contrib.tpu.RunConfig(
            model_dir=model_dir,
            tf_random_seed=0,
            tpu_config=tf.contrib.tpu.TPUConfig(iterations_per_loop=50),
        ),
    )


def main(_):
    tf.logging.set_verbosity(tf.logging.INFO)
    output_dir = FLAGS.output_dir or tempfile.mkdtemp()
    pretrained = os.path.join(output_dir, "pretrained")
    estimator = estimator_for(pretraining_model_fn, pretrained, {})
    estimator.train(pretraining_input_fn, max_steps=FLAGS.pretraining_steps)

    params = {"init_checkpoint": tf.train.latest_checkpoint(pretrained)}
    classifier = os.path.join(output_dir, "classifier")
    estimator = estimator_for(model_fn, classifier, params)
    estimator.train(train_input_fn, max_steps=FLAGS.train_steps)
    result = estimator.evaluate(held_out_input_fn)
    print("accuracy on held-out sentences: %.3f" % result["eval_accuracy"])

    ids, _ = sentences(HELD_OUT, seed=5)
    for row, prediction in zip(ids[:5], estimator.predict(held_out_input_fn)):
        world = np.argmax(prediction["probabilities"])
        text = " ".join(VOCABULARY[word] for word in row[1:])
        print("%s: %s" % (list(WORLDS)[world], text))


if __name__ == "__main__":
    tf.app.run()
