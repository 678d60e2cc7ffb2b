"""Calls of TF1 functions in separate graphs, and their results."""

import numpy as np
import tensorflow.compat.v1 as tf


def floats(*shape, **kwargs):
    """Returns reproducible numbers between -1 and 1."""
    count = int(np.prod(shape))
    numbers = np.sin(np.arange(count) * 1.7 + kwargs.get("start", 1.0))
    return numbers.reshape(shape).astype("float32")


def x(*shape, **kwargs):
    """Returns such numbers as a tensor."""
    return tf.constant(floats(*shape, **kwargs))


def image(*shape):
    """Returns a small batch of images."""
    return x(*(shape or (2, 4, 4, 3)))


def probabilities(count):
    """Returns numbers between 0 and 1."""
    return tf.constant((floats(count) + 1) / 2)


def with_gradient(make):
    """Returns a call that also returns the gradient of its result.

    Args:
        make: A function from `tf.contrib` and a tensor of images to a tensor.
    """

    def call(contrib):
        given = image()
        made = make(contrib, given)
        return [made, tf.gradients(tf.reduce_sum(made * made), given)]

    return call


def outcome(call, contrib):
    """Returns the result of a call in a separate graph, as lists of numbers.

    Trainable variables first get reproducible values. The entry 'update' runs twice
    before the others.

    Args:
        call: Returns a pytree of tensors, or one for 'update' and one for 'then'.
        contrib: `tf.contrib`.
    """
    with tf.Graph().as_default(), tf.Session() as session:
        tf.set_random_seed(5)
        made = call(contrib)
        names = sorted(v.op.name for v in tf.global_variables())
        session.run(
            [
                tf.global_variables_initializer(),
                tf.local_variables_initializer(),
                tf.tables_initializer(),
            ]
        )
        for variable in tf.trainable_variables():
            shape = variable.shape.as_list()
            variable.load(floats(*shape, start=len(shape)) + 0.1, session)
        if isinstance(made, dict) and "update" in made:
            for _ in range(2):
                session.run(made["update"])
            made = made["then"]
        values = [_value(each, session) for each in flat(made)]
    return {"variables": names, "values": values}


def outcome_or_error(call, contrib):
    """Returns the result of a call, or the error that it raises."""
    try:
        return outcome(call, contrib)
    except (AttributeError, ImportError) as error:
        return {"error": f"{type(error).__name__}: {error}"}


def flat(nest):
    """Returns the leaves of a pytree, in order."""
    if isinstance(nest, dict):
        return [each for key in sorted(nest) for each in flat(nest[key])]
    if isinstance(nest, (list, tuple)):
        return [each for inner in nest for each in flat(inner)]
    if isinstance(nest, tf.SparseTensor):
        return [nest.indices, nest.values, nest.dense_shape]
    is_valued = nest is not None and not isinstance(nest, tf.Operation)
    return [nest] if is_valued else []


def _value(each, session):
    if tf.is_tensor(each) or isinstance(each, tf.Variable):
        each = session.run(each)
    if isinstance(each, bytes):
        each = each.decode()
    if isinstance(each, (str, bool)):
        return each
    array = np.asarray(each)
    if array.dtype.kind in "OS":
        return [value.decode() for value in array.ravel()]
    if array.dtype.kind in "biu":
        return array.tolist()
    return np.vectorize(lambda number: float(f"{number:.9g}"))(array).tolist()
