"""The choice of Keras's backend, made before Keras is imported."""

import os
import sys


def select_jax() -> None:
    """Selects JAX if nothing was chosen.

    Raises:
        RuntimeError: Keras runs on another backend, or is about to.
    """
    if "keras" in sys.modules:
        chosen = sys.modules["keras"].config.backend()
        what_to_do = "import keras_tpu_estimator before keras"
    else:
        chosen = os.environ.setdefault("KERAS_BACKEND", "jax")
        what_to_do = "unset KERAS_BACKEND"
    if chosen != "jax":
        raise RuntimeError(
            "keras_tpu_estimator needs Keras on the JAX backend. Received: "
            f"{chosen!r}. Set the environment variable KERAS_BACKEND=jax, or "
            f"{what_to_do}."
        )
