"""TensorFlow's own metrics, to compare with."""

import jax
import numpy as np

from keras_tpu_estimator import metrics


def tf_values(names, *args, **kwargs):
    """Values and updates of one batch, from TensorFlow.

    Args:
        names: Names of functions in `tf.compat.v1.metrics`.
        *args: Their arguments; arrays become tensors.
        **kwargs: Their keyword arguments.

    Returns:
        A list with a pair `(value, update)` for each name.
    """
    import tensorflow as tf

    def tensor(value):
        return tf.constant(value) if isinstance(value, np.ndarray) else value

    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        args = [tensor(value) for value in args]
        kwargs = {name: tensor(value) for name, value in kwargs.items()}
        pairs = [
            getattr(tf.compat.v1.metrics, name)(*args, **kwargs)
            for name in names
        ]
        session.run(tf.compat.v1.local_variables_initializer())
        updates = session.run([update for _, update in pairs])
        values = session.run([value for value, _ in pairs])
        return list(zip(values, updates, strict=True))


def eager(names, *args, **kwargs):
    """The same from this package, computed at once."""
    return [getattr(metrics, name)(*args, **kwargs) for name in names]


def compiled(names, *args, **kwargs):
    """The same from this package, with arrays as traced values."""
    arrays = {k: v for k, v in kwargs.items() if isinstance(v, np.ndarray)}
    indices = [
        index
        for index, value in enumerate(args)
        if isinstance(value, np.ndarray)
    ]

    @jax.jit
    def run(positional, named):
        merged = list(args)
        for index, value in zip(indices, positional, strict=True):
            merged[index] = value
        return eager(names, *merged, **{**kwargs, **named})

    return run([args[index] for index in indices], arrays)


def assert_same(names, *args, run=compiled, **kwargs):
    """Checks values and updates against TensorFlow's.

    Args:
        names: A name, or several that take the same arguments.
        *args: The arguments.
        run: `compiled`, or `eager` for many cases of the same shapes.
        **kwargs: The keyword arguments.
    """
    names = [names] if isinstance(names, str) else names
    expected = tf_values(names, *args, **kwargs)
    received = run(names, *args, **kwargs)
    for name, ours, theirs in zip(names, received, expected, strict=True):
        assert isinstance(ours, tuple), name
        for a, b in zip(ours, theirs, strict=True):
            assert (a.dtype, a.shape) == (np.float32, np.shape(b)), name
            np.testing.assert_allclose(a, b, 2e-6, 1e-7, err_msg=name)
