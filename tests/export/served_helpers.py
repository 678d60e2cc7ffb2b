"""Serves exports in one process without JAX, like a server."""

import atexit
import functools
import pickle
import subprocess
import sys

import pytest

_SCRIPT = """
import pickle, sys
for name in ("jax", "jaxlib", "keras"):
    sys.modules[name] = None
import tensorflow as tf

def answer(folder, tags, signature, inputs):
    model = tf.saved_model.load(folder, tags=tags)
    outputs = model.signatures[signature](
        **{name: tf.constant(value) for name, value in inputs.items()})
    return {name: value.numpy() for name, value in outputs.items()}

while True:
    answers = [answer(*each) for each in pickle.load(sys.stdin.buffer)]
    pickle.dump(answers, sys.stdout.buffer)
    sys.stdout.flush()
"""


def serve(*requests):
    """Answers requests: tuples of folder, tags, signature and inputs."""
    server = _server()
    try:
        pickle.dump(requests, server.stdin)
        server.stdin.flush()
        return pickle.load(server.stdout)
    except (OSError, EOFError):
        _server.cache_clear()
        pytest.fail(server.communicate()[1].decode()[-3000:])


@functools.cache
def _server():
    """The server of all tests in this process, because TensorFlow imports slowly."""
    server = subprocess.Popen(
        [sys.executable, "-c", _SCRIPT],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    atexit.register(_end, server)
    return server


def _end(server):
    server.kill()
    server.communicate()


def example(**features):
    """A serialized `tf.Example` of lists of floats and of strings."""
    import tensorflow as tf

    def feature(values):
        if isinstance(values[0], bytes):
            return tf.train.Feature(bytes_list=tf.train.BytesList(value=values))
        return tf.train.Feature(float_list=tf.train.FloatList(value=values))

    return tf.train.Example(
        features=tf.train.Features(
            feature={name: feature(v) for name, v in features.items()}
        )
    ).SerializeToString()
