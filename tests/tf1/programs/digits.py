"""A classifier as programs of 2018 were written; run as a script."""

import networks
import numpy as np
import tensorflow as tf
from tensorflow.contrib import cluster_resolver as contrib_cluster_resolver

flags = tf.flags
FLAGS = flags.FLAGS

flags.DEFINE_string("output_dir", None, "Where checkpoints go.")
flags.DEFINE_integer("train_steps", 20, "How many steps to train.")
flags.DEFINE_integer("train_batch_size", 16, "Examples in a step.")
flags.DEFINE_bool("use_tpu", False, "Whether to use all cores.")
flags.DEFINE_string("tpu_name", None, "The TPU.")
flags.DEFINE_integer("num_tpu_cores", 8, "Its cores.")


def model_fn(features, labels, mode, params):
    logits = networks.network(features, mode == tf.estimator.ModeKeys.TRAIN)
    if mode == tf.estimator.ModeKeys.PREDICT:
        predictions = {"class": tf.argmax(logits, axis=1)}
        return tf.contrib.tpu.TPUEstimatorSpec(mode, predictions=predictions)
    loss = tf.losses.sparse_softmax_cross_entropy(labels, logits)
    if mode == tf.estimator.ModeKeys.EVAL:

        def metric_fn(labels, logits):
            classes = tf.argmax(logits, axis=1)
            return {"accuracy": tf.metrics.accuracy(labels, classes)}

        return tf.contrib.tpu.TPUEstimatorSpec(
            mode=mode, loss=loss, eval_metrics=(metric_fn, [labels, logits])
        )
    optimizer = tf.train.AdamOptimizer(0.02)
    if FLAGS.use_tpu:
        optimizer = tf.contrib.tpu.CrossShardOptimizer(optimizer)
    train_op = optimizer.minimize(loss, tf.train.get_or_create_global_step())
    return tf.contrib.tpu.TPUEstimatorSpec(mode=mode, loss=loss, train_op=train_op)


def dataset():
    x = np.random.RandomState(0).rand(64, 8).astype("float32")
    y = np.argmax(x[:, :3], axis=1).astype("int32")
    return tf.data.Dataset.from_tensor_slices((x, y))


def train_input_fn(params):
    data = dataset().apply(tf.contrib.data.shuffle_and_repeat(64, seed=1))
    return data.apply(
        tf.contrib.data.map_and_batch(
            lambda x, y: (x, y), params["batch_size"], drop_remainder=True
        )
    )


def eval_input_fn(params):
    data = dataset().batch(params["batch_size"])
    return data.make_one_shot_iterator().get_next()


def main(_):
    tf.logging.set_verbosity(tf.logging.INFO)
    tf.gfile.MakeDirs(FLAGS.output_dir)
    resolver = None
    if FLAGS.use_tpu and FLAGS.tpu_name:
        resolver = contrib_cluster_resolver.TPUClusterResolver(FLAGS.tpu_name)
    config = tf.contrib.tpu.RunConfig(
        cluster=resolver,
        master=None,
        model_dir=FLAGS.output_dir,
        session_config=tf.ConfigProto(log_device_placement=False),
        tpu_config=tf.contrib.tpu.TPUConfig(
            iterations_per_loop=10,
            num_shards=FLAGS.num_tpu_cores,
            per_host_input_for_training=(
                tf.contrib.tpu.InputPipelineConfig.PER_HOST_V2
            ),
        ),
    )
    estimator = tf.contrib.tpu.TPUEstimator(
        use_tpu=FLAGS.use_tpu,
        model_fn=model_fn,
        config=config,
        train_batch_size=FLAGS.train_batch_size,
        eval_batch_size=FLAGS.train_batch_size,
        predict_batch_size=FLAGS.train_batch_size,
    )
    estimator.train(train_input_fn, max_steps=FLAGS.train_steps)
    result = estimator.evaluate(eval_input_fn, steps=4)
    classes = [row["class"] for row in estimator.predict(eval_input_fn)]
    with tf.gfile.GFile(FLAGS.output_dir + "/result.txt", "w") as writer:
        writer.write("accuracy = %.3f\n" % result["accuracy"])
        writer.write("predicted = %d\n" % len(classes))
    tf.logging.info("names: %s", sorted(estimator.get_variable_names()))


if __name__ == "__main__":
    flags.mark_flag_as_required("output_dir")
    tf.app.run()
