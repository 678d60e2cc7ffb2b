"""Adam with decoupled weight decay, and a learning rate with warm-up."""

import re

import tensorflow.compat.v1 as tf


def create_train_op(loss, params, steps, warm_up):
    """Returns an operation that makes a step and increments the global step."""
    global_step = tf.train.get_or_create_global_step()
    peak = tf.constant(params["learning_rate"], tf.float32, shape=[])
    rate = tf.train.polynomial_decay(
        peak, global_step, steps, end_learning_rate=0.0, power=1.0, cycle=False
    )
    if warm_up:
        done = tf.cast(global_step, tf.int32)
        share = tf.cast(done, tf.float32) / tf.constant(warm_up, tf.float32)
        is_warm_up = tf.cast(done < warm_up, tf.float32)
        rate = (1.0 - is_warm_up) * rate + is_warm_up * peak * share
    optimizer = AdamWeightDecayOptimizer(
        rate, decay=0.01, excluded=["LayerNorm", "layer_norm", "bias"]
    )
    if params["use_tpu"]:
        optimizer = tf.tpu.CrossShardOptimizer(optimizer)
    variables = tf.trainable_variables()
    gradients = tf.gradients(loss, variables)
    gradients, _ = tf.clip_by_global_norm(gradients, params["clip_norm"])
    applied = optimizer.apply_gradients(
        zip(gradients, variables, strict=True), global_step=global_step
    )
    # This custom optimizer does not increment the global step.
    new_global_step = global_step + 1
    return tf.group(applied, [global_step.assign(new_global_step)])


class AdamWeightDecayOptimizer(tf.train.Optimizer):
    """Adam without bias correction."""

    def __init__(self, rate, decay, excluded=(), name="AdamWeightDecay"):
        super().__init__(False, name)
        self._rate, self._decay, self._excluded = rate, decay, excluded

    def apply_gradients(self, grads_and_vars, global_step=None, name=None):
        """See the base class."""
        assignments = []
        for gradient, parameter in grads_and_vars:
            if gradient is None or parameter is None:
                continue
            path = re.match("^(.*):\\d+$", parameter.name).group(1)
            m, v = (
                tf.get_variable(
                    name=path + slot,
                    shape=parameter.shape.as_list(),
                    dtype=tf.float32,
                    trainable=False,
                    initializer=tf.zeros_initializer(),
                )
                for slot in ("/adam_m", "/adam_v")
            )
            # The gradient of gathered rows becomes dense here.
            next_m = tf.multiply(0.9, m) + tf.multiply(1.0 - 0.9, gradient)
            next_v = tf.multiply(0.999, v)
            next_v += tf.multiply(1.0 - 0.999, tf.square(gradient))
            update = next_m / (tf.sqrt(next_v) + 1e-6)
            if not any(re.search(each, path) for each in self._excluded):
                update += self._decay * parameter
            assignments += [
                parameter.assign(parameter - self._rate * update),
                m.assign(next_m),
                v.assign(next_v),
            ]
        return tf.group(*assignments, name=name)
