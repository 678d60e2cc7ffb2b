"""The reservation of GPU memory for JAX."""

import sys

from keras_tpu_estimator.base.common import tensorflow_distributions


def hide_gpus() -> None:
    """Hides GPUs from TensorFlow, if it is imported.

    All code that uses TensorFlow calls this first, so it also warns if two
    versions are installed.
    """
    tensorflow = sys.modules.get("tensorflow")
    if tensorflow is None:
        return
    tensorflow_distributions.warn_of_two_versions()
    try:
        tensorflow.config.set_visible_devices([], "GPU")
    except RuntimeError:
        # The user has already initialized TensorFlow's devices.
        return
