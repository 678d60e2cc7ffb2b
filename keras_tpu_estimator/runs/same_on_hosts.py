"""What is the same on all hosts: settings, the first values, and edits."""

import logging
import secrets
import tempfile
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np

from keras_tpu_estimator.engine.device.run_state import RunState
from keras_tpu_estimator.ground.hosts.agreement import Hosts
from keras_tpu_estimator.ground.hosts.host_exchange import HostExchange

_logger = logging.getLogger("keras_tpu_estimator")


def agreed(
    hosts: Hosts, model_dir: str | None, seed: int | None
) -> tuple[str, int | None]:
    """A directory and a seed that are the same on all hosts.

    Args:
        model_dir: The user's, or `None` for a temporary one of the chief's.
        seed: The user's, or `None` for one of the chief's; a host that is
            alone needs none.
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
    """What was assigned since hosts have compared it last.

    Args:
        subject: The call in which that happens.
    """

    def __init__(self, subject: str):
        self._subject = subject
        # Checksums by path, of all that was assigned to it.
        self._sums: dict[str, int] = {}

    def note(self, assigned: Mapping[str, Any]) -> None:
        """Takes what user code assigns.

        Args:
            assigned: Values by path, before they lie on the cores.
        """
        for path, value in assigned.items():
            before = self._sums.get(path, 0)
            self._sums[path] = zlib.crc32(_content(value), before)

    def digest(self) -> int:
        """Equal where the same was assigned."""
        if not self._sums:
            return 0
        return zlib.crc32(repr(sorted(self._sums.items())).encode())

    def facts(self) -> dict[str, int]:
        """The checksums by path."""
        return self._sums

    def is_equal(self) -> None:
        """Begins anew."""
        self._sums = {}

    def error(self, said: Sequence[Mapping[str, Any]]) -> ValueError:
        """What to raise where others were assigned.

        Args:
            said: The checksums of each host.
        """
        paths = sorted({path for each in said for path in each})
        unlike = [p for p in paths if len({each.get(p) for each in said}) > 1]
        received = "; ".join(
            f"for {path!r}, " + ", ".join(_told(path, said)) for path in unlike
        )
        return ValueError(
            "Callbacks and hooks should assign the same values to variables on "
            f"all hosts, which {self._subject} one model together. Received: "
            f"{received}. Compute them of what is equal everywhere, such as "
            "the loss and the step, and seed random numbers; or let one host "
            "decide, in a hook, by session.by_chief(...)."
        )


def compare_edits(call: HostExchange, values: RunState, subject: str) -> None:
    """Has hosts compare, whenever they talk, what user code has assigned.

    Args:
        subject: The call, as a verb.
    """
    if call.is_with_others:
        edits = SameEdits(subject)
        values.on_edit = edits.note
        call.compared = edits


def _told(path: str, said: Sequence[Mapping[str, int]]) -> list[str]:
    return [
        f"host {host} has assigned "
        + (f"values of checksum {each[path]:08x}" if path in each else "none")
        for host, each in enumerate(said)
    ]


def _content(value: Any) -> bytes:
    """What to compare of a value."""
    head = f"{value.shape} {value.dtype}".encode()
    if (
        isinstance(value, jax.Array)
        and not value.is_fully_replicated
        and not value.is_fully_addressable
    ):
        # All hosts have made it together, and each has other parts.
        return head
    return head + np.asarray(value).tobytes()


def check_same_model(
    call: HostExchange, values: Mapping[str, jax.Array], is_new: bool
) -> None:
    """Checks that variables, and values that are new, are equal on all hosts.

    Args:
        is_new: Whether they were made here, rather than read.
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
            # It was made by all hosts together.
            continue
        array = np.asarray(values[path])
        checksum = zlib.crc32(array.tobytes(), checksum)
    return checksum
