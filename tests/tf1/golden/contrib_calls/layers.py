"""Calls of `tf.contrib.layers`."""

import tensorflow.compat.v1 as tf

from contrib_calls.calling import image, with_gradient, x


def _volume():
    return x(1, 2, 4, 4, 2)


def _batch_norm(shape=(2, 4, 4, 3), **kwargs):
    """Returns a call with two updates of moving averages, and an evaluation."""

    def call(contrib):
        inputs = x(*shape)
        made = contrib.layers.batch_norm(
            inputs, decay=0.5, scale=True, scope="norm", **kwargs
        )
        evaluated = contrib.layers.batch_norm(
            inputs, scale=True, scope="norm", is_training=False, reuse=True
        )
        updates = tf.get_collection(tf.GraphKeys.UPDATE_OPS)
        return {"update": [made, updates], "then": [made, evaluated]}

    return call


def _gradients_twice(contrib):
    inputs = x(2, 4)
    f = contrib.layers.recompute_grad(
        lambda y: tf.layers.dense(y, 4, tf.nn.relu, name="inner")
    )
    with tf.variable_scope("outer", use_resource=True):
        made = f(inputs)
    made = tf.reduce_sum(made * made)
    return [made, tf.gradients(made, [inputs, *tf.trainable_variables()])]


def _pooled(contrib):
    from tensorflow.contrib.layers.python.layers import layers

    return layers.pool(image(), [2, 2], "AVG")


def _normalized_as_poincare(contrib):
    from tensorflow.contrib.layers.python.layers import layers

    return layers.poincare_normalize(image(), 3)


def _reversible(contrib):
    first, second = x(2, 4), x(2, 4, start=2.0)

    def layer(y):
        return tf.layers.dense(y, 4, tf.nn.relu)

    with tf.variable_scope("outer", use_resource=True):
        made = contrib.layers.rev_block(first, second, layer, layer, 2)
    total = tf.add_n([tf.reduce_sum(y * y) for y in made])
    return [made, tf.gradients(total, [first, second])]


def _optimized(optimizer="SGD", **kwargs):
    """Returns a call that trains two steps."""

    def call(contrib):
        step = tf.train.create_global_step()
        made = tf.layers.dense(x(3, 4), 2, name="inner")
        train = contrib.layers.optimize_loss(
            tf.reduce_mean(made * made), step, 0.3, optimizer, **kwargs
        )
        variables = tf.trainable_variables()
        return {"update": train, "then": [step, variables]}

    return call


def _clipped_adaptively(contrib):
    from tensorflow.contrib.layers.python.layers.optimizers import (
        adaptive_clipping_fn,
    )

    return _optimized(clip_gradients=adaptive_clipping_fn(decay=0.5))(contrib)


def _optimizer_classes(contrib):
    classes = contrib.layers.OPTIMIZER_CLS_NAMES
    return sorted(classes) + sorted(contrib.layers.OPTIMIZER_SUMMARIES)


def _weights(make):
    return lambda contrib: make(contrib.layers)(x(2, 3))


def _initial(make):
    def call(contrib):
        return make(contrib.layers)([3, 4], dtype=tf.float32)

    return call


def _summarized(make):
    """Returns a call with the names and values of summaries."""

    def call(contrib):
        tensor = tf.nn.relu(x(2, 3), name="tensor")
        tf.add_to_collection(tf.GraphKeys.ACTIVATIONS, tensor)
        for name in ("weights", "biases"):
            tf.add_to_collection(name, tensor)
        tf.get_variable("variable", [2])
        made = make(contrib.layers, tensor)
        made = made if isinstance(made, list) else [made]
        return [each.op.name for each in made if each is not None]

    return call


def _safely_looked_up(contrib):
    """Looks up invalid ids, and an example without ids."""
    ids = tf.SparseTensor(
        [[0, 0], [0, 1], [2, 0], [3, 0]],
        tf.constant([1, 2, -1, 3], tf.int64),
        [4, 2],
    )
    weights = tf.SparseTensor(ids.indices, x(4) + 1.5, ids.dense_shape)
    look_up = contrib.layers.safe_embedding_lookup_sparse
    return [
        look_up([x(4, 3)], ids, combiner="mean"),
        look_up([x(4, 3)], ids, weights, "sqrtn", default_id=0),
        look_up([x(2, 3), x(2, 3, start=2.0)], ids, combiner="sum"),
    ]


CALLS = {
    "GDN": with_gradient(lambda c, x: c.layers.GDN()(x)),
    "OPTIMIZER_CLS_NAMES": _optimizer_classes,
    "RevBlock": lambda c: c.layers.RevBlock(
        [tf.layers.Dense(3, name="a")], [tf.layers.Dense(3, name="b")]
    ).forward(x(2, 3), x(2, 3, start=2.0)),
    "adaptive_clipping_fn": _clipped_adaptively,
    "apply_regularization": lambda c: c.layers.apply_regularization(
        c.layers.l2_regularizer(0.1), [x(2, 3), x(4)]
    ),
    "avg_pool2d": with_gradient(lambda c, x: c.layers.avg_pool2d(x, 3)),
    "avg_pool3d": lambda c: c.layers.avg_pool3d(_volume(), 2),
    "batch_norm": _batch_norm(),
    "batch_norm of rank 2": _batch_norm((4, 3)),
    "batch_norm, fused": _batch_norm(fused=True),
    "batch_norm, in place": _batch_norm(updates_collections=None),
    "batch_norm, not fused": _batch_norm(fused=False),
    "batch_norm, renorm": _batch_norm(renorm=True),
    "bias_add": with_gradient(lambda c, x: c.layers.bias_add(x, tf.nn.relu)),
    "bow_encoder": lambda c: c.layers.bow_encoder(
        tf.constant([[0, 2], [1, 1]]), 4, 3, scope="words"
    ),
    "bucketize": lambda c: c.layers.bucketize(x(7), [-0.5, 0.0, 0.5]),
    "conv1d": lambda c: c.layers.conv1d(x(2, 5, 3), 2, 3),
    "conv2d": with_gradient(
        lambda c, x: c.layers.conv2d(
            x, 4, [3, 3], stride=2, normalizer_fn=c.layers.batch_norm
        )
    ),
    "conv2d, dilated": lambda c: c.layers.conv2d(image(), 2, 3, rate=2),
    "conv2d_in_plane": lambda c: c.layers.conv2d_in_plane(image(), 3),
    "conv2d_transpose": with_gradient(
        lambda c, x: c.layers.conv2d_transpose(x, 2, 3, stride=2)
    ),
    "conv3d": lambda c: c.layers.conv3d(_volume(), 2, 3),
    "conv3d_transpose": lambda c: c.layers.conv3d_transpose(_volume(), 2, 2),
    "dense_to_sparse": lambda c: c.layers.dense_to_sparse(
        tf.constant([[1, 2, 0], [3, 0, 0]])
    ),
    "dropout": lambda c: c.layers.dropout(image(), is_training=False),
    "elu": lambda c: c.layers.elu(x(2, 3), 2),
    "embed_sequence": lambda c: c.layers.embed_sequence(
        tf.constant([[0, 2], [1, 1]]), 4, 3
    ),
    "embedding_lookup_unique": lambda c: c.layers.embedding_lookup_unique(
        x(4, 3), tf.constant([[0, 2], [1, 1]])
    ),
    "flatten": lambda c: c.layers.flatten(image()),
    "fully_connected": with_gradient(
        lambda c, x: c.layers.fully_connected(
            x, 3, weights_regularizer=c.layers.l2_regularizer(0.1)
        )
    ),
    "gdn": lambda c: c.layers.gdn(image(), inverse=True),
    "group_norm": with_gradient(
        lambda c, x: c.layers.group_norm(tf.tile(x, [1, 1, 1, 2]), groups=2)
    ),
    "images_to_sequence": lambda c: c.layers.images_to_sequence(image()),
    "instance_norm": with_gradient(lambda c, x: c.layers.instance_norm(x)),
    "l1_l2_regularizer": _weights(lambda c: c.l1_l2_regularizer(0.1, 0.2)),
    "l1_regularizer": _weights(lambda c: c.l1_regularizer(0.1)),
    "l2_regularizer": _weights(lambda c: c.l2_regularizer(0.1)),
    "layer_norm": with_gradient(lambda c, x: c.layers.layer_norm(x)),
    "legacy_fully_connected": lambda c: c.layers.legacy_fully_connected(
        x(2, 3), 2, tf.nn.relu
    ),
    "legacy_linear": lambda c: c.layers.legacy_linear(x(2, 3), 2),
    "legacy_relu": lambda c: c.layers.legacy_relu(x(2, 3), 2),
    "linear": lambda c: c.layers.linear(x(2, 3), 2),
    "max_pool2d": with_gradient(lambda c, x: c.layers.max_pool2d(x, 3)),
    "max_pool3d": lambda c: c.layers.max_pool3d(_volume(), 2),
    "maxout": lambda c: c.layers.maxout(x(2, 6), 3),
    "one_hot_encoding": lambda c: c.layers.one_hot_encoding(tf.constant([0, 2]), 3),
    "optimize_loss": _optimized(),
    "optimize_loss, clipped": _optimized(
        "Adam",
        clip_gradients=0.1,
        learning_rate_decay_fn=lambda rate, step: (
            rate / (1.0 + tf.cast(step, tf.float32))
        ),
    ),
    "optimize_loss, multiplied": _optimized(
        lambda rate: tf.train.MomentumOptimizer(rate, 0.9),
        gradient_multipliers={"inner/kernel": 2.0},
        summaries=["loss", "gradients", "gradient_norm", "learning_rate"],
    ),
    "poincare_normalize": _normalized_as_poincare,
    "pool": _pooled,
    "recompute_grad": _gradients_twice,
    "relu": lambda c: c.layers.relu(x(2, 3), 2),
    "relu6": lambda c: c.layers.relu6(x(2, 3), 2),
    "repeat": lambda c: c.layers.repeat(image(), 2, c.layers.conv2d, 2, 3),
    "rev_block": _reversible,
    "safe_embedding_lookup_sparse": _safely_looked_up,
    "scale_gradient": with_gradient(
        lambda c, x: c.layers.scale_gradient(x, tf.constant(0.3))
    ),
    "separable_conv2d": with_gradient(
        lambda c, x: c.layers.separable_conv2d(x, 4, 3, 2)
    ),
    "sequence_to_images": lambda c: c.layers.sequence_to_images(x(4, 6, 2), 3),
    "softmax": lambda c: c.layers.softmax(x(2, 3, 4)),
    "spatial_softmax": lambda c: c.layers.spatial_softmax(image()),
    "stack": lambda c: c.layers.stack(x(2, 3), c.layers.linear, [4, 2]),
    "sum_regularizer": _weights(
        lambda c: c.sum_regularizer([c.l1_regularizer(0.1), c.l2_regularizer(0.2)])
    ),
    "summarize_activation": _summarized(lambda c, x: c.summarize_activation(x)),
    "summarize_activations": _summarized(lambda c, x: c.summarize_activations()),
    "summarize_biases": _summarized(lambda c, x: c.summarize_biases()),
    "summarize_collection": _summarized(lambda c, x: c.summarize_collection("weights")),
    "summarize_tensor": _summarized(lambda c, x: c.summarize_tensor(x)),
    "summarize_tensors": _summarized(lambda c, x: c.summarize_tensors([x])),
    "summarize_variables": _summarized(lambda c, x: c.summarize_variables()),
    "summarize_weights": _summarized(lambda c, x: c.summarize_weights()),
    "unit_norm": with_gradient(lambda c, x: c.layers.unit_norm(x, 3)),
    "variance_scaling_initializer": _initial(
        lambda c: c.variance_scaling_initializer(seed=1)
    ),
    "xavier_initializer": _initial(lambda c: c.xavier_initializer(seed=1)),
    "xavier_initializer_conv2d": _initial(
        lambda c: c.xavier_initializer_conv2d(False, seed=1)
    ),
}
# Aliases of the same functions.
ALIASES = {
    "OPTIMIZER_SUMMARIES": "OPTIMIZER_CLS_NAMES",
    "convolution": "conv2d",
    "convolution1d": "conv1d",
    "convolution2d": "conv2d",
    "convolution2d_in_plane": "conv2d_in_plane",
    "convolution2d_transpose": "conv2d_transpose",
    "convolution3d": "conv3d",
    "convolution3d_transpose": "conv3d_transpose",
    "separable_convolution2d": "separable_conv2d",
    # A decorator of a function above.
    "enable_with_args": "recompute_grad",
}
