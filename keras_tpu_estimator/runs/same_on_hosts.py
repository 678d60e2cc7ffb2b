"""Agreement of hosts on settings, initial values and assigned values."""

import logging
import secrets
import tempfile
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np

from keras_tpu_estimator.base.hosts.agreement import Hosts
from keras_tpu_estimator.base.hosts.host_exchange import HostExchange
from keras_tpu_estimator.engine.device.run_state import RunState

_logger = logging.getLogger("keras_tpu_estimator")


def agreed(
    hosts: Hosts, model_dir: str | None, seed: int | None
) -> tuple[str, int | None]:
    """Returns a directory and a seed that are equal on all hosts.

    Args:
        model_dir: The user's directory, or `None` for a temporary one that the
            chief makes.
        seed: The user's seed, or `None` for a seed from the chief. A single host
            does not need a seed.
    """
    with hosts.call("a TPUEstimator") as call:
        directory = model_dir or call.from_chief(_temporary_dir)
        if seed is None and hosts.are_several:
            seed = call.from_chief(lambda: secrets.randbits(31))
    return directory, seed


def _temporary_dir() -> str:
    directory = tempfile.mkdtemp()
    _logger.warning("Using temporary folder as model_dir: %s", directory)
    return directory


class SameEdits:
    """Checksums of the values assigned since the last comparison of hosts.

    Args:
        subject: The call, as a verb.
    """

    def __init__(self, subject: str):
        self._subject = subject
        # Checksums of all values that were assigned to each path.
        self._checksums: dict[str, int] = {}

    def note(self, assigned: Mapping[str, Any]) -> None:
        """Adds the values that user code assigns.

        Args:
            assigned: Values by path, before they are on the cores.
        """
        for path, value in assigned.items():
            before = self._checksums.get(path, 0)
            self._checksums[path] = zlib.crc32(_content(value), before)

    def digest(self) -> int:
        """Returns a checksum that is equal for equal assigned values."""
        if not self._checksums:
            return 0
        return zlib.crc32(repr(sorted(self._checksums.items())).encode())

    def facts(self) -> dict[str, int]:
        """Returns the checksums by path."""
        return self._checksums

    def is_equal(self) -> None:
        """Resets the checksums after a successful comparison."""
        self._checksums = {}

    def error(self, facts: Sequence[Mapping[str, Any]]) -> ValueError:
        """Returns the error for different values.

        Args:
            facts: The checksums of each host.
        """
        paths = sorted({path for each in facts for path in each})
        unlike = [p for p in paths if len({each.get(p) for each in facts}) > 1]
        received = "; ".join(
            f"for {path!r}, " + ", ".join(_assigned(path, facts)) for path in unlike
        )
        return ValueError(
            "Callbacks and hooks must assign the same values to variables on "
            f"all hosts, which {self._subject} one model together. Received: "
            f"{received}. Compute them from values that are equal on all hosts, "
            "such as the loss and the step, and seed random numbers; or compute "
            "them on one host, with session.by_chief(...) in a hook."
        )


def compare_edits(call: HostExchange, values: RunState, subject: str) -> None:
    """Makes hosts compare, at each exchange, the values that user code assigns.

    Args:
        subject: The call, as a verb.
    """
    if call.is_with_others:
        edits = SameEdits(subject)
        values.on_edit = edits.note
        call.compared = edits


def _assigned(path: str, facts: Sequence[Mapping[str, int]]) -> list[str]:
    return [
        f"host {host} has assigned "
        + (f"values of checksum {each[path]:08x}" if path in each else "none")
        for host, each in enumerate(facts)
    ]


def _content(value: Any) -> bytes:
    """Returns the bytes of a value to compare."""
    head = f"{value.shape} {value.dtype}".encode()
    if (
        isinstance(value, jax.Array)
        and not value.is_fully_replicated
        and not value.is_fully_addressable
    ):
        # All hosts have computed it together, and each has other shards.
        return head
    return head + np.asarray(value).tobytes()


def check_same_model(
    call: HostExchange, values: Mapping[str, jax.Array], is_new: bool
) -> None:
    """Checks that variables, and initial values, are equal on all hosts.

    Args:
        is_new: Whether the values are initial values, instead of a checkpoint's.
    """
    if not call.is_with_others:
        return
    shapes = {path: (v.shape, str(v.dtype)) for path, v in values.items()}
    facts = {
        "variables (of model_fn)": f"{len(shapes)} variables of "
        f"{sum(value.size for value in values.values())} numbers, "
        f"checksum {zlib.crc32(repr(sorted(shapes.items())).encode()):08x}"
    }
    if is_new:
        facts["initial values"] = f"checksum {_checksum(values):08x}"
    call.check_same(facts)


def _checksum(values: Mapping[str, jax.Array]) -> int:
    checksum = 0
    for path in sorted(values):
        if not values[path].is_fully_replicated:
            # All hosts have computed it together.
            continue
        array = np.asarray(values[path])
        checksum = zlib.crc32(array.tobytes(), checksum)
    return checksum
