"""Names of moving averages in a checkpoint."""

import dataclasses
from collections.abc import Iterable
from typing import Self

# The default name of `ExponentialMovingAverage`, here and in TensorFlow.
DEFAULT = "ExponentialMovingAverage"


@dataclasses.dataclass(frozen=True)
class AverageNames:
    """The averages in a checkpoint.

    Attributes:
        names: All variables of the checkpoint, by name, or by the part of the
            name after that of an optimizer.
        last: The last part of an average's name.
        of_keras: Whether the averages of Keras's optimizers also count.

    Example:

    >>> names = AverageNames.of(["a/b/ExponentialMovingAverage"], True)
    >>> names.of_paths(["a/b", "c"])
    {'a/b': 'a/b/ExponentialMovingAverage'}
    """

    names: dict[str, str]
    last: str
    of_keras: bool

    @classmethod
    def of(cls, names: Iterable[str], kind: bool | str) -> Self:
        """Finds the averages among variables.

        Args:
            names: The names of all variables.
            kind: `True` for all averages with their default names, or the name
                of an `ExponentialMovingAverage`.
        """
        of_keras = kind is True
        known = {}
        for name in names:
            known[name] = name
            if of_keras:
                known.setdefault("/" + name.rpartition("/")[2], name)
        return cls(known, DEFAULT if kind is True else str(kind), of_keras)

    def of_paths(self, paths: Iterable[str]) -> dict[str, str]:
        """Returns the names of averages, by the paths of their variables.

        Args:
            paths: Variables. Those without an average are left out.
        """
        found = {}
        for path in paths:
            for name in self._candidates(path):
                if name in self.names:
                    found[path] = self.names[name]
                    break
        return found

    def examples(self, path: str) -> str:
        """Returns possible names of a variable's average, for a message."""
        shown = [repr(f"{path}/{self.last}")]
        if self.of_keras:
            shown.append(repr(f"<optimizer>{self._candidates(path)[1]}"))
        return " or ".join(shown)

    def _candidates(self, path: str) -> tuple[str, ...]:
        own = f"{path}/{self.last}"
        if not self.of_keras:
            return (own,)
        return own, f"/{path.replace('/', '_')}_average"
