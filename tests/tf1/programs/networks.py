"""The network of `digits.py`."""

import tensorflow.compat.v1 as tf
from tensorflow.contrib import layers as contrib_layers


def network(features, training):
    # Shapes are of `Dimension`s, as they were.
    units = 2 * features.shape[-1].value
    net = tf.layers.dense(features, units, activation=tf.nn.relu)
    net = contrib_layers.layer_norm(net, begin_norm_axis=-1)
    net = tf.layers.dropout(net, 0.1, training=training)
    return tf.layers.dense(net, 3)
