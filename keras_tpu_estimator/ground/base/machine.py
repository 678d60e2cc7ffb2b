"""The devices that programs are made for, and which of their hosts this is."""

import dataclasses
import functools
from typing import Self

import jax


@dataclasses.dataclass(frozen=True)
class Machine:
    """Devices, of this process and of those that run the same program.

    They need not be there: those of `jax.experimental.topologies` do for
    whoever compiles and runs nothing.

    Attributes:
        devices: All of them, in their order.
        host: The number of the process among theirs that this one is.
            Defaults to 0.
        board: What stands for the devices of this host, in their order, in
            programs that it runs by itself: a compiler for devices that are
            not there knows only whole topologies. Defaults to none, for
            themselves.

    Raises:
        ValueError: No device belongs to this host, or the board has not as
            many as the host.

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
                f"Host {self.host} should have a device at least. Received "
                f"devices of the hosts {hosts}."
            )
        if self.board and len(self.board) != len(self.own):
            raise ValueError(
                "The board should have as many devices as the host, "
                f"{len(self.own)}. Received: {len(self.board)}."
            )

    @classmethod
    def here(cls) -> Self:
        """What JAX has found; nothing else in this package asks it."""
        return cls(tuple(jax.devices()), jax.process_index())

    def of_first(self, count: int) -> Self:
        """Returns the first devices of a machine of one host.

        Args:
            count: How many.

        Example:

        >>> len(Machine.here().of_first(1).devices)
        1
        """
        devices, board = self.devices[:count], self.board[:count]
        return dataclasses.replace(self, devices=devices, board=board)

    @functools.cached_property
    def own(self) -> tuple[jax.Device, ...]:
        """The devices of this host."""
        return tuple(d for d in self.devices if d.process_index == self.host)

    @property
    def first(self) -> jax.Device:
        """The device that runs what only one runs."""
        return (self.board or self.own)[0]

    @property
    def num_hosts(self) -> int:
        """How many processes have the devices."""
        return len({device.process_index for device in self.devices})

    @property
    def platform(self) -> str:
        """What kind of devices they are, such as "cpu"."""
        return self.first.platform
