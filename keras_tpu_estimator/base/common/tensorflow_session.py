"""TensorFlow sessions on the CPU, with or without eager execution."""

import functools
import importlib.metadata
import logging
import sys
from collections.abc import Callable
from typing import Any


def host_session(graph: Any = None) -> Any:
    """Returns a CPU session of a graph; only operations that run need a CPU kernel."""
    import tensorflow as tf

    v1 = tf.compat.v1
    # Operations that a program places on a missing GPU run on the CPU, as in the
    # sessions of an Estimator.
    config = v1.ConfigProto(device_count={"GPU": 0}, allow_soft_placement=True)
    graph_options = config.graph_options
    # Otherwise each operation of the graph would need a CPU kernel.
    graph_options.place_pruned_graph = True
    # Optimizing a graph takes longer than running it once: constant folding of
    # a 200 MB dataset takes most of a minute.
    graph_options.optimizer_options.opt_level = v1.OptimizerOptions.L0
    graph_options.rewrite_options.disable_meta_optimizer = True
    return v1.Session(graph=graph, config=config)


def evaluated(
    initializer: Callable[..., Any], shape: tuple[int, ...], dtype: str
) -> Any:
    """Returns the array that an initializer makes, which may be TensorFlow's."""
    if "tensorflow" not in sys.modules:
        return initializer(shape, dtype=dtype)
    import tensorflow as tf

    with tf.Graph().as_default():
        value = initializer(shape, dtype=dtype)
        if not tf.is_tensor(value):
            return value
        with host_session() as session:
            return session.run(value)


# `pyproject.toml` requires one of them, by platform.
_NAMES = ("tensorflow", "tensorflow-cpu")
_logger = logging.getLogger("keras_tpu_estimator")


def installed() -> dict[str, str]:
    """Returns the version of each installed TensorFlow distribution by its name."""
    versions = {}
    for name in _NAMES:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return versions


@functools.cache
def warn_of_two_versions() -> None:
    """Logs one line in a process if two versions are installed."""
    versions = installed()
    if len(set(versions.values())) > 1:
        _logger.warning(
            "%s are both installed and overwrite each other's files, so "
            "TensorFlow may fail anywhere. Keep one version: run `pip "
            "uninstall -y %s`, and install this package again.",
            " and ".join(f"{name} {versions[name]}" for name in versions),
            " ".join(versions),
        )


def hide_gpus() -> None:
    """Hides GPUs from TensorFlow, if it is imported.

    All code that uses TensorFlow calls this first, so it also warns if two versions are
    installed.
    """
    tensorflow = sys.modules.get("tensorflow")
    if tensorflow is None:
        return
    warn_of_two_versions()
    try:
        tensorflow.config.set_visible_devices([], "GPU")
    except RuntimeError:
        # The user has already initialized TensorFlow's devices.
        return
