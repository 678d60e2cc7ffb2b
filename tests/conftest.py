"""Makes the suite stricter than users: eight simulated cores, no luck.

Everything here happens before anything imports Keras or JAX.
"""

import os

os.environ["KERAS_BACKEND"] = "jax"
os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8"
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
os.environ.pop("TF_CONFIG", None)

import random  # noqa: E402

import numpy as np  # noqa: E402
import pytest  # noqa: E402


@pytest.fixture(autouse=True)
def fixed_seed():
    """Every test starts from the same random state."""
    random.seed(0)
    np.random.seed(0)


# Runs under the last TensorFlow that had estimators, never here.
collect_ignore = ["golden/make_golden.py"]
