"""Serves exports in one process that has no JAX, as a server would."""

import pickle
import subprocess
import sys

_SCRIPT = """
import pickle, sys
for name in ("jax", "jaxlib", "keras"):
    sys.modules[name] = None
import tensorflow as tf

results = []
for folder, tags, signature, inputs in pickle.load(sys.stdin.buffer):
    model = tf.saved_model.load(folder, tags=tags)
    outputs = model.signatures[signature](
        **{name: tf.constant(value) for name, value in inputs.items()})
    results.append({name: value.numpy() for name, value in outputs.items()})
pickle.dump(results, sys.stdout.buffer)
"""


def serve(*requests):
    """Answers requests: tuples of folder, tags, signature and inputs.

    All of them go to one process, since TensorFlow takes seconds to import.
    """
    done = subprocess.run(
        [sys.executable, "-c", _SCRIPT],
        input=pickle.dumps(requests),
        capture_output=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr.decode()[-3000:]
    return pickle.loads(done.stdout)


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
