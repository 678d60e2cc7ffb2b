"""Measures this package against its peers: `python -m benchmarks`.

Importing this package chooses Keras's backend, as a user's shell would.
"""

import os

os.environ.setdefault("KERAS_BACKEND", "jax")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
