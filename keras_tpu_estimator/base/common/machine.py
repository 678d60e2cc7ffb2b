"""The devices of a program, the number of this process, and its system."""

import dataclasses
import functools
import os
from typing import Self

import jax


@dataclasses.dataclass(frozen=True)
class Machine:
    """The devices of all processes that run the same program.

    For compilation only, they may be those of `jax.experimental.topologies`,
    which need not exist.

    Attributes:
        devices: All devices, in their order.
        host: The number of this process. Defaults to 0.
        board: The devices that replace those of this process in programs that
            only it runs, because the compiler for devices that do not exist
            accepts only complete topologies. Defaults to none.

    Raises:
        ValueError: No device belongs to this process, or `board` has another
            number of devices.

    Example:

    >>> machine = Machine.here()
    >>> machine.num_hosts, machine.platform
    (1, 'cpu')
    """

    devices: tuple[jax.Device, ...]
    host: int = 0
    board: tuple[jax.Device, ...] = ()

    def __post_init__(self) -> None:
        if not self.own:
            hosts = sorted({d.process_index for d in self.devices})
            raise ValueError(
                f"Host {self.host} must have at least one device. Received: "
                f"devices of the hosts {hosts}."
            )
        if self.board and len(self.board) != len(self.own):
            raise ValueError(
                "`board` must have as many devices as the host, "
                f"{len(self.own)}. Received: {len(self.board)}."
            )

    @classmethod
    def here(cls) -> Self:
        """Returns JAX's devices; only this method asks JAX for them."""
        return cls(tuple(jax.devices()), jax.process_index())

    def of_first(self, count: int) -> Self:
        """Returns the first devices of a machine of one host.

        Args:
            count: The number of devices.

        Example:

        >>> len(Machine.here().of_first(1).devices)
        1
        """
        devices, board = self.devices[:count], self.board[:count]
        return dataclasses.replace(self, devices=devices, board=board)

    @functools.cached_property
    def own(self) -> tuple[jax.Device, ...]:
        """The devices of this process."""
        return tuple(d for d in self.devices if d.process_index == self.host)

    @property
    def first(self) -> jax.Device:
        """The device of programs for one device."""
        return (self.board or self.own)[0]

    @property
    def num_hosts(self) -> int:
        """The number of processes."""
        return len({device.process_index for device in self.devices})

    @property
    def platform(self) -> str:
        """The kind of the devices, such as "cpu"."""
        return self.first.platform


# Windows lacks part of `os` and `signal`, and it neither renames nor deletes a
# file that a program has open.
IS_WINDOWS = os.name == "nt"


def check_is_posix(what: str, instead: str) -> None:
    """Checks that this is not Windows.

    Args:
        what: The feature that needs Linux or macOS, as the subject of a
            sentence.
        instead: A sentence that says what to do on Windows.

    Raises:
        NotImplementedError: It is Windows.

    Example:

    >>> check_is_posix("The command `launch`", "Use WSL.")
    """
    if IS_WINDOWS:
        raise NotImplementedError(f"{what} is not supported on Windows. {instead}")
