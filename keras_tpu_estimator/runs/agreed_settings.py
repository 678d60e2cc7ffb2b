"""What all hosts of an estimator have to have in common, and one chooses."""

import logging
import secrets
import tempfile

from keras_tpu_estimator.ground.hosts.agreement import Hosts

_logger = logging.getLogger("keras_tpu_estimator")


def agreed(
    hosts: Hosts, model_dir: str | None, seed: int | None
) -> tuple[str, int | None]:
    """A directory and a seed that are the same on all hosts.

    Args:
        hosts: The hosts.
        model_dir: The user's, or `None` for a temporary one of the chief's.
        seed: The user's, or `None` for one of the chief's; a host that is
            alone needs none.
    """
    with hosts.call("a TPUEstimator") as call:
        directory = model_dir or call.chiefs(_temporary_dir)
        if seed is None and hosts.are_several:
            seed = call.chiefs(lambda: secrets.randbits(31))
    return directory, seed


def _temporary_dir() -> str:
    directory = tempfile.mkdtemp()
    _logger.warning("Using temporary folder as model_dir: %s", directory)
    return directory
