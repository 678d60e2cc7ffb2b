"""The devices of a program, and the number of this process."""

import dataclasses
import functools
from typing import Self

import jax


@dataclasses.dataclass(frozen=True)
class Machine:
    """The devices of all processes that run the same program.

    For compilation only, they may be those of `jax.experimental.topologies`, which need
    not exist. The substitutes then replace `own` in programs that only this process
    runs, because the compiler accepts only complete topologies.
    """

    devices: tuple[jax.Device, ...]
    host: int = 0
    substitutes: tuple[jax.Device, ...] = ()

    def __post_init__(self) -> None:
        if not self.host_devices:
            hosts = sorted({d.process_index for d in self.devices})
            raise ValueError(
                f"Host {self.host} must have at least one device. Received: "
                f"devices of the hosts {hosts}."
            )
        if self.substitutes and len(self.substitutes) != len(self.host_devices):
            raise ValueError(
                "`substitutes` must have as many devices as the host, "
                f"{len(self.host_devices)}. Received: {len(self.substitutes)}."
            )

    @classmethod
    def from_jax(cls) -> Self:
        """Returns JAX's devices; only this method asks JAX for them."""
        return cls(tuple(jax.devices()), jax.process_index())

    def of_first(self, count: int) -> Self:
        """Returns the first devices of a machine of one host."""
        devices, substitutes = self.devices[:count], self.substitutes[:count]
        return dataclasses.replace(self, devices=devices, substitutes=substitutes)

    @functools.cached_property
    def host_devices(self) -> tuple[jax.Device, ...]:
        """The devices of this process."""
        return tuple(d for d in self.devices if d.process_index == self.host)

    @property
    def first(self) -> jax.Device:
        """The device of programs for one device."""
        return (self.substitutes or self.host_devices)[0]

    @property
    def num_hosts(self) -> int:
        """The number of processes."""
        return len({device.process_index for device in self.devices})

    @functools.cached_property
    def slices(self) -> tuple[int, ...]:
        """The number of each device's TPU slice, whose chips have their own network.

        Other devices are in one slice.
        """
        return tuple(
            getattr(device, "slice_index", None) or 0 if device.platform == "tpu" else 0
            for device in self.devices
        )

    @property
    def platform(self) -> str:
        """The kind of the devices, such as "cpu"."""
        return self.first.platform
