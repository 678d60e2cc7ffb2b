"""What is asked of the devices that a run is planned for."""

from typing import Any, Protocol

from keras_tpu_estimator.ground.base.machine import Machine
from keras_tpu_estimator.planning.chips import Chip


class Board(Protocol):
    """Chips of one kind that are connected, and their hosts."""

    @property
    def chip(self) -> Chip:
        """Their kind."""

    @property
    def platform(self) -> str:
        """What JAX calls devices of its kind: "tpu" or "gpu"."""

    @property
    def name(self) -> str:
        """What it is called, however it was asked for."""

    @property
    def num_chips(self) -> int:
        """Chips of all hosts."""

    @property
    def num_cores(self) -> int:
        """Cores of all chips, which are the devices of JAX."""

    @property
    def num_hosts(self) -> int:
        """Hosts, each of which is a process."""

    @property
    def chips_per_host(self) -> int:
        """Chips of one host."""

    @property
    def compiler_options(self) -> dict[str, Any]:
        """What compiling for it without it takes."""

    @property
    def quick_options(self) -> dict[str, Any]:
        """What has the compiler take little trouble, beside those."""

    def of_one_host(self) -> "Board":
        """The chips of a host by itself, as it predicts."""

    def machine(self) -> Machine:
        """Its devices, which need not be there."""
