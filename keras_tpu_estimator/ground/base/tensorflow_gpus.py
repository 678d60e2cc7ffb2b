"""Keeping TensorFlow from the memory of GPUs, which JAX needs."""

import sys


def hide_gpus() -> None:
    """Hides GPUs from TensorFlow, if it is there."""
    tensorflow = sys.modules.get("tensorflow")
    if tensorflow is None:
        return
    try:
        tensorflow.config.set_visible_devices([], "GPU")
    except RuntimeError:
        # It has been initialised; then its devices are the user's choice.
        return
