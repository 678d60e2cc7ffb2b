"""TensorFlow's own metrics, to compare with."""

import jax
import numpy as np

from keras_tpu_estimator import metrics


def tf_value(name, *args, **kwargs):
    """The value and the update of one batch, from TensorFlow.

    Args:
        name: Name of a function in `tf.compat.v1.metrics`.
        *args: Its arguments; arrays become tensors.
        **kwargs: Its keyword arguments.
    """
    import tensorflow as tf

    def tensor(value):
        return tf.constant(value) if isinstance(value, np.ndarray) else value

    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        value, update = getattr(tf.compat.v1.metrics, name)(
            *map(tensor, args), **{k: tensor(v) for k, v in kwargs.items()}
        )
        session.run(tf.compat.v1.local_variables_initializer())
        updated = session.run(update)
        return session.run(value), updated


def compiled(name, *args, **kwargs):
    """The value and the update of one batch, with arrays as traced values."""
    names = [k for k, v in kwargs.items() if isinstance(v, np.ndarray)]
    indices = [i for i, v in enumerate(args) if isinstance(v, np.ndarray)]

    @jax.jit
    def run(positional, named):
        merged = list(args)
        for index, value in zip(indices, positional, strict=True):
            merged[index] = value
        return getattr(metrics, name)(*merged, **{**kwargs, **named})

    return run([args[i] for i in indices], {k: kwargs[k] for k in names})


def assert_same(name, *args, **kwargs):
    """Checks value and update against TensorFlow's, eager and compiled."""
    expected = tf_value(name, *args, **kwargs)
    for pair in (
        getattr(metrics, name)(*args, **kwargs),
        compiled(name, *args, **kwargs),
    ):
        assert isinstance(pair, tuple)
        for ours, theirs in zip(pair, expected, strict=True):
            assert ours.dtype == np.float32
            assert ours.shape == np.shape(theirs)
            np.testing.assert_allclose(ours, theirs, rtol=2e-6, atol=1e-7)
