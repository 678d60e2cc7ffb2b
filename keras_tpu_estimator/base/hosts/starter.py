"""One way to start the processes of a job, as the variables that it sets."""

import dataclasses
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Generic, TypeAlias, TypeVar

Environment: TypeAlias = Mapping[str, str]
T = TypeVar("T")


@dataclasses.dataclass(frozen=True)
class Definition:
    """The values of a cluster that an environment defines, which may be incomplete.

    Args:
        source: Where it was found, as an error shows it.
        address: The address of the coordinator.
        count: The number of processes.
        number: The number of this process.
        local_id: See `Cluster`.
    """

    source: str = ""
    address: str | None = None
    count: int | None = None
    number: int | None = None
    local_id: int | None = None

    @property
    def is_empty(self) -> bool:
        """Whether nothing is defined."""
        return self.address is None and self.count is None and self.number is None

    @property
    def is_complete(self) -> bool:
        """Whether this defines a cluster. A single process needs no address."""
        return self.count == 1 or None not in (self.address, self.count, self.number)

    def completed_by(self, other: "Definition") -> "Definition":
        """Returns this with the values that another one adds, unless it contradicts."""
        for value, further in (self.count, other.count), (self.number, other.number):
            if value is not None and further is not None and value != further:
                return self
        return Definition(
            other.source if self.is_empty else self.source,
            _first(self.address, other.address),
            _first(self.count, other.count),
            _first(self.number, other.number),
            _first(self.local_id, other.local_id),
        )


@dataclasses.dataclass(frozen=True)
class Field(Generic[T]):
    """One value of a cluster, and the variables that define it.

    Args:
        names: The variables, as an error shows them: `"A"`, `"A and B"`, or `"A or B"`.
        read: Reads the value; `None` if the variables do not define it.
    """

    names: str
    read: Callable[[Environment], T | None]

    def __post_init__(self) -> None:
        if not [*self.variables()]:
            raise ValueError(
                "`names` must contain a variable in capitals. Received: "
                f"{self.names!r}. Name the variables that `read` reads."
            )

    def variables(self) -> Iterator[str]:
        """Yields the names of the variables."""
        yield from re.findall("[A-Z][A-Z0-9_]+", self.names)


@dataclasses.dataclass(frozen=True)
class Starter:
    """A way to start the processes of a job.

    It is present in an environment that defines any of its values, and complete if all
    are defined.

    Args:
        name: Its name, as an error shows it.
        address: The address of the coordinator. Starters without one need another
            variable for it.
        count: The number of processes.
        number: The number of this process.
        local_id: Reads the number of this process on its machine, if it has several.
        is_final: Whether a count of 1 means a single process, whatever variables of
            other starters define.
        advice: A sentence that an error adds.
    """

    name: str
    address: Field[str]
    count: Field[int]
    number: Field[int]
    local_id: Callable[[Environment], int | None] = lambda _: None
    is_final: bool = False
    advice: str = ""

    def __post_init__(self) -> None:
        if self.advice and not self.advice.endswith("."):
            raise ValueError(
                f"`advice` must be a sentence. Received: {self.advice!r}. End it with "
                "a period."
            )

    def read(self, environment: Environment) -> Definition | None:
        """Returns what an environment defines, if this starter is present in it."""
        count = self.count.read(environment)
        # The other variables of a single process may have any values, such as -1.
        if count == 1 and not self.is_final:
            return None
        definition = Definition(
            f"the environment variables of {self.name}",
            self.address.read(environment),
            count,
            self.number.read(environment),
            self.local_id(environment),
        )
        return None if definition.is_empty else definition

    def incomplete(self, environment: Environment, definition: Definition) -> str:
        """Returns the error text for an incomplete definition."""
        fields: list[tuple[Field[Any], object]] = [
            (self.count, definition.count),
            (self.number, definition.number),
            (self.address, definition.address),
        ]
        variables = {name for field, _ in fields for name in field.variables()}
        shown = ", ".join(
            f"{name}={environment[name]!r}"
            for name in sorted(variables & environment.keys())
        )
        missing = [field.names for field, value in fields if value is None]
        count = "..." if definition.count is None else definition.count
        number = "..." if definition.number is None else definition.number
        return (
            f"A process that {self.name} starts must find the number of processes, "
            "its own number and the address of process 0 in its environment. "
            f"Received: {shown}, without {', and without '.join(missing)}. "
            + (f"{self.advice} Otherwise, call" if self.advice else "Set them, or call")
            + " keras_tpu_estimator.initialize(coordinator_address='host:port', "
            f"num_processes={count}, process_id={number}), or "
            "initialize(num_processes=1) to train alone in this process."
        )


def _first(value: T | None, other: T | None) -> T | None:
    return other if value is None else value
