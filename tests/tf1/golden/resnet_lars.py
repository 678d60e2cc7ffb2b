"""A residual network with LARS and cross-replica batch normalization."""

import os

import numpy as np
import starting_values
import tensorflow.compat.v1 as tf

STEPS = 12
BATCH = 16
PARAMS = {"learning_rate": 2.0, "momentum": 0.9, "weight_decay": 1e-4}
SIZE, CLASSES = 8, 5


class Lars(tf.train.Optimizer):
    """Momentum with a learning rate that depends on the norms of each variable."""

    def __init__(self, learning_rate, momentum, weight_decay, skipped):
        super().__init__(use_locking=False, name="LARSOptimizer")
        self._rate, self._momentum = learning_rate, momentum
        self._weight_decay, self._skipped = weight_decay, skipped

    def _create_slots(self, var_list):
        for variable in var_list:
            self._zeros_slot(variable, "momentum", self._name)

    def _prepare(self):
        self._rate_tensor = tf.convert_to_tensor(self._rate, tf.float32)
        self._momentum_tensor = tf.convert_to_tensor(self._momentum)

    def _scaled(self, gradient, variable):
        if any(part in variable.name for part in self._skipped):
            return gradient, self._rate_tensor
        weight_norm = tf.norm(variable, ord=2)
        gradient_norm = tf.norm(gradient, ord=2)
        ratio = 0.001 * weight_norm
        ratio /= gradient_norm + self._weight_decay * weight_norm
        trust = tf.where(
            tf.greater(weight_norm, 0),
            tf.where(tf.greater(gradient_norm, 0), ratio, 1.0),
            1.0,
        )
        gradient = gradient + self._weight_decay * variable
        return gradient, self._rate_tensor * trust

    def _resource_apply_dense(self, grad, var):
        gradient, rate = self._scaled(grad, var)
        return tf.raw_ops.ResourceApplyMomentum(
            var=var.handle,
            accum=self.get_slot(var, "momentum").handle,
            lr=1.0,
            grad=gradient * rate,
            momentum=self._momentum_tensor,
        )

    def _apply_dense(self, grad, var):
        gradient, rate = self._scaled(grad, var)
        slot = self.get_slot(var, "momentum")
        slot_now = slot.assign(slot * self._momentum_tensor + gradient * rate)
        return tf.group(var.assign_sub(slot_now))


def batch_norm(x, is_training, params, start_at_zero=False):
    """Normalizes by the moments of the examples of all cores."""
    channels = x.shape.as_list()[-1]
    gamma_start = tf.zeros_initializer if start_at_zero else tf.ones_initializer
    with tf.variable_scope(None, "batch_normalization"):
        gamma = tf.get_variable("gamma", [channels], initializer=gamma_start())
        beta = tf.get_variable("beta", [channels], initializer=tf.zeros_initializer())
        moving_mean = tf.get_variable(
            "moving_mean",
            [channels],
            initializer=tf.zeros_initializer(),
            trainable=False,
        )
        moving_variance = tf.get_variable(
            "moving_variance",
            [channels],
            initializer=tf.ones_initializer(),
            trainable=False,
        )
        mean, variance = moving_mean, moving_variance
        if is_training:
            mean, variance = moments(x, params)
            for moving, now in (
                (moving_mean, mean),
                (moving_variance, variance),
            ):
                update = tf.assign_sub(moving, (moving - now) * (1 - 0.9))
                tf.add_to_collection(tf.GraphKeys.UPDATE_OPS, update)
        return tf.nn.batch_normalization(x, mean, variance, beta, gamma, 1e-5)


def moments(x, params):
    """Returns the mean and the variance of the examples of all cores."""
    mean, variance = tf.nn.moments(x, [0, 1, 2])
    if not params["use_tpu"]:
        return mean, variance
    cores = params["context"].num_replicas
    square = variance + tf.square(mean)
    mean = tf.tpu.cross_replica_sum(mean) / cores
    square = tf.tpu.cross_replica_sum(square) / cores
    return mean, square - tf.square(mean)


def block(x, filters, strides, is_training, params, start):
    """Applies two convolutions with a shortcut."""

    def convolution(x, size, strides):
        return tf.layers.conv2d(
            x,
            filters,
            size,
            strides,
            padding="SAME",
            use_bias=False,
            kernel_initializer=start,
        )

    shortcut = x
    if strides > 1:
        shortcut = convolution(x, 1, strides)
        shortcut = batch_norm(shortcut, is_training, params)
    x = tf.nn.relu(batch_norm(convolution(x, 3, strides), is_training, params))
    x = batch_norm(convolution(x, 3, 1), is_training, params, True)
    return tf.nn.relu(x + shortcut)


def network(images, is_training, params):
    """Returns the logits."""
    start = starting_values.Normal(0.2)
    x = tf.layers.conv2d(
        images,
        4,
        3,
        padding="SAME",
        use_bias=False,
        kernel_initializer=start,
        name="first",
    )
    x = tf.nn.relu(batch_norm(x, is_training, params))
    x = block(x, 4, 1, is_training, params, start)
    x = block(x, 8, 2, is_training, params, start)
    x = tf.reduce_mean(x, [1, 2])
    return tf.layers.dense(x, CLASSES, kernel_initializer=start, name="final_dense")


def model_fn(features, labels, mode, params):
    """Trains the classifier, and writes summaries of each step."""
    is_training = mode == tf.estimator.ModeKeys.TRAIN
    logits = network(features, is_training, params)
    if mode == tf.estimator.ModeKeys.PREDICT:
        predictions = {
            "classes": tf.argmax(logits, axis=1),
            "probabilities": tf.nn.softmax(logits, name="softmax_tensor"),
        }
        return tf.estimator.tpu.TPUEstimatorSpec(
            mode=mode,
            predictions=predictions,
            export_outputs={"classify": tf.estimator.export.PredictOutput(predictions)},
        )
    one_hot = tf.one_hot(labels, CLASSES)
    cross_entropy = tf.losses.softmax_cross_entropy(
        logits=logits, onehot_labels=one_hot, label_smoothing=0.1
    )
    loss = cross_entropy + params["weight_decay"] * tf.add_n(
        [
            tf.nn.l2_loss(v)
            for v in tf.trainable_variables()
            if "batch_normalization" not in v.name
        ]
    )
    if mode == tf.estimator.ModeKeys.EVAL:
        return tf.estimator.tpu.TPUEstimatorSpec(
            mode=mode, loss=loss, eval_metrics=(metric_fn, [labels, logits])
        )
    step = tf.train.get_global_step()
    rate = tf.train.polynomial_decay(params["learning_rate"], step, 20, 0.1, 2.0)
    optimizer = Lars(
        rate,
        params["momentum"],
        params["weight_decay"],
        skipped=["batch_normalization", "bias"],
    )
    if params["use_tpu"]:
        optimizer = tf.tpu.CrossShardOptimizer(optimizer)
    with tf.control_dependencies(tf.get_collection(tf.GraphKeys.UPDATE_OPS)):
        train_op = optimizer.minimize(loss, step)
    tensors = [tf.reshape(each, [1]) for each in (step, loss, rate)]
    return tf.estimator.tpu.TPUEstimatorSpec(
        mode=mode,
        loss=loss,
        train_op=train_op,
        host_call=(host_call_fn_of(params["model_dir"]), tensors),
    )


def host_call_fn_of(folder):
    """Returns a function that writes the step, the loss and the rate."""

    def host_call_fn(step, loss, rate):
        step = step[0]
        writer = tf.compat.v2.summary.create_file_writer(
            os.path.join(folder, "by_host"), max_queue=4
        )
        with writer.as_default(), tf.compat.v2.summary.record_if(True):
            tf.compat.v2.summary.scalar("training_loss", loss[0], step=step)
            tf.compat.v2.summary.scalar("learning_rate", rate[0], step=step)
            return tf.summary.all_v2_summary_ops()

    return host_call_fn


def metric_fn(labels, logits):
    """Computes top-1 and top-2 accuracies."""
    guesses = tf.argmax(logits, axis=1)
    in_two = tf.cast(tf.nn.in_top_k(logits, labels, 2), tf.float32)
    return {
        "top_1_accuracy": tf.metrics.accuracy(labels, guesses),
        "top_2_accuracy": tf.metrics.mean(in_two),
    }


def dataset(examples, seed):
    """Returns images whose color depends on their class."""
    rng = np.random.RandomState(seed)
    labels = rng.randint(CLASSES, size=examples).astype(np.int32)
    images = rng.normal(size=(examples, SIZE, SIZE, 3))
    colors = np.random.RandomState(0).normal(size=(CLASSES, 3))
    images += colors[labels][:, None, None, :]
    return tf.data.Dataset.from_tensor_slices((images.astype(np.float32), labels))


def train_input_fn(params):
    """Returns endless batches."""
    data = dataset(STEPS * BATCH, seed=1)
    return data.repeat().batch(params["batch_size"], drop_remainder=True)


def eval_input_fn(params):
    """Returns held-out images."""
    data = dataset(4 * BATCH, seed=2)
    return data.batch(params["batch_size"], drop_remainder=True)
