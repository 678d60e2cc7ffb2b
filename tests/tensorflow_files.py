"""Writes checkpoints with TensorFlow, as TF1 scripts did."""

import contextlib
import os

import tensorflow as tf  # noqa: TID253 - writes the files to read


@contextlib.contextmanager
def graph_of(variables):
    """A session of a TF1 graph with variables that have these values."""
    v1 = tf.compat.v1
    with tf.Graph().as_default(), v1.Session() as session:
        for name, value in variables.items():
            v1.get_variable(
                name,
                initializer=tf.constant(value),
                trainable=value.dtype.kind == "f" and "adam" not in name,
            )
        session.run(v1.global_variables_initializer())
        yield session


def save_tf1(directory, variables, step=None, version=2):
    """Writes a checkpoint with `tf.compat.v1.train.Saver`."""
    os.makedirs(directory, exist_ok=True)
    with graph_of(variables) as session:
        saver = tf.compat.v1.train.Saver(write_version=version)
        prefix = os.path.join(directory, "model.ckpt")
        return saver.save(session, prefix, global_step=step)


def values_in_tf1(session):
    """The values of all variables of the default graph."""
    every = tf.compat.v1.global_variables()
    return {
        variable.name.removesuffix(":0"): session.run(variable) for variable in every
    }
