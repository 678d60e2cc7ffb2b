"""The installed distributions of TensorFlow, which share their files."""

import functools
import importlib.metadata
import logging

# `pyproject.toml` requires one of them, by platform.
_NAMES = ("tensorflow", "tensorflow-cpu")
_logger = logging.getLogger("keras_tpu_estimator")


def installed() -> dict[str, str]:
    """Returns the version of each distribution of TensorFlow by its name.

    Example:

    >>> from keras_tpu_estimator.base.common import tensorflow_distributions
    >>> len(set(tensorflow_distributions.installed().values()))
    1
    """
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
