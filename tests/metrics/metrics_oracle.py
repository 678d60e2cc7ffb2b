"""TensorFlow's own metrics, as a reference.

Their results are stored, because TensorFlow takes longer to make graphs than everything
else here. Results that are not stored, or come from another release, are computed.
"""

import functools
import hashlib
import json
import pathlib

import jax
import numpy as np

from keras_tpu_estimator import metrics
from keras_tpu_estimator.base.common import tensorflow_session

STORED = pathlib.Path(__file__).parents[1] / "golden" / "metrics.json"


def tf_values(names, *args, **kwargs):
    """TensorFlow's values and updates for one batch.

    Args:
        names: Names of functions in `tf.compat.v1.metrics`.
        *args: Their arguments; arrays become tensors.
        **kwargs: Their keyword arguments.

    Returns:
        A list with a pair `(value, update)` for each name.
    """
    stored = _stored().get(key_of(names, args, kwargs))
    if stored is None:
        return live_values(names, *args, **kwargs)
    return [tuple(map(np.asarray, pair)) for pair in stored]


def live_values(names, *args, **kwargs):
    """The same values, computed by TensorFlow now."""
    import tensorflow as tf

    def tensor(value):
        return tf.constant(value) if isinstance(value, np.ndarray) else value

    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        args = [tensor(value) for value in args]
        kwargs = {name: tensor(value) for name, value in kwargs.items()}
        pairs = [getattr(tf.compat.v1.metrics, name)(*args, **kwargs) for name in names]
        session.run(tf.compat.v1.local_variables_initializer())
        updates = session.run([update for _, update in pairs])
        values = session.run([value for value, _ in pairs])
        return list(zip(values, updates, strict=True))


def key_of(names, args, kwargs):
    """The name of a comparison: a digest of everything that it depends on."""
    version, *_ = tensorflow_session.installed().values()
    told = [version, names, *args, *sorted(kwargs.items())]
    text = "\n".join(map(_text, told))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _text(value):
    if isinstance(value, list | tuple):
        return repr([_text(each) for each in value])
    if isinstance(value, np.ndarray):
        return f"{value.dtype} {value.shape} {value.tobytes().hex()}"
    return repr(value)


@functools.cache
def _stored():
    return json.loads(STORED.read_text())


def eager(names, *args, **kwargs):
    """This package's values, computed eagerly."""
    return [getattr(metrics, name)(*args, **kwargs) for name in names]


def compiled(names, *args, **kwargs):
    """This package's values, with arrays as traced values."""
    arrays = {k: v for k, v in kwargs.items() if isinstance(v, np.ndarray)}
    indices = [
        index for index, value in enumerate(args) if isinstance(value, np.ndarray)
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
