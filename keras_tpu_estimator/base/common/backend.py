"""The import of Keras on the JAX backend."""

import contextlib
import gc
import glob
import importlib
import importlib.util
import os
import sys
from collections.abc import Iterator

from keras_tpu_estimator.base.common import waiting

# Without the first two, libtpu prints five lines of warnings on a machine that
# has no TPU, where it only compiles. Several processes may do that at once.
_WITHOUT_TPU = {
    "TPU_ACCELERATOR_TYPE": "v5litepod-4",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
}
_TPU_DEVICES = ("/dev/accel*", "/dev/vfio/[0-9]*")


def import_keras(is_used: bool = True) -> None:
    """Imports Keras on JAX, or raises a `RuntimeError` if another backend is chosen.

    If it is not used, it is imported only by child processes, on JAX.
    """
    if "keras" in sys.modules:
        backend = sys.modules["keras"].config.backend()
        what_to_do = (
            "import keras_tpu_estimator before keras, and before tensorflow, "
            "which imports it"
        )
    else:
        backend = os.environ.setdefault("KERAS_BACKEND", "jax")
        what_to_do = "unset KERAS_BACKEND"
    if backend != "jax":
        raise RuntimeError(
            "keras_tpu_estimator needs Keras on the JAX backend. Received: "
            f"{backend!r}. Set the environment variable KERAS_BACKEND=jax, or "
            f"{what_to_do}."
        )
    if not is_used:
        return
    shown = waiting.showing("Importing Keras and JAX ...")
    with _without_collection(), shown:
        importlib.import_module("keras")
    if not _may_have_tpu():
        for name, value in _WITHOUT_TPU.items():
            os.environ.setdefault(name, value)


def _may_have_tpu() -> bool:
    """Returns whether libtpu, if installed, might find a TPU."""
    return (
        importlib.util.find_spec("libtpu") is None
        # JAX sets this variable if it finds no TPU.
        or os.environ.get("TPU_SKIP_MDS_QUERY") != "1"
        or any(glob.glob(pattern) for pattern in _TPU_DEVICES)
    )


@contextlib.contextmanager
def _without_collection() -> Iterator[None]:
    """Moves the objects made in a `with` block to the oldest generation.

    Keras creates 200,000 objects. Repeated garbage collections would take an eighth of
    the import time.
    """
    is_collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if not gc.get_freeze_count():
            # This moves all objects to the oldest generation.
            gc.freeze()
            gc.unfreeze()
        if is_collecting:
            gc.enable()
