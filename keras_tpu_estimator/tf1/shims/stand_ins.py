"""Modules that stand in for other modules, and behave like them."""

import types
from collections.abc import Iterator, MutableMapping
from typing import Any

# The dict that holds a module's own attributes, behind the property below.
_DICT = vars(types.ModuleType)["__dict__"]


class StandIn(types.ModuleType):
    """A module that finds its attributes elsewhere.

    Subclasses define `__getattr__`, `__dir__` and `__reduce__`. `vars(module)` then has
    the same attributes, also those that are not found yet.
    """

    def __init_subclass__(cls, **kwargs: Any):
        """Names the type as Python names the type of a module."""
        super().__init_subclass__(**kwargs)
        cls.__name__ = types.ModuleType.__name__

    @property
    def __dict__(self) -> Any:  # type: ignore[override]
        """All attributes, as a mapping that reads and sets them."""
        return _Attributes(self)


def stored(module: StandIn) -> dict[str, Any]:
    """Returns the dict of the attributes that are stored in a stand-in."""
    return _DICT.__get__(module)


class _Attributes(MutableMapping[str, Any]):
    """The attributes of a stand-in."""

    def __init__(self, module: StandIn):
        self._module = module

    def __getitem__(self, name: str) -> Any:
        if name not in dir(self._module):
            raise KeyError(name)
        return getattr(self._module, name)

    def __setitem__(self, name: str, value: Any) -> None:
        setattr(self._module, name, value)

    def __delitem__(self, name: str) -> None:
        if name not in dir(self._module):
            raise KeyError(name)
        delattr(self._module, name)

    def __iter__(self) -> Iterator[str]:
        return iter(dir(self._module))

    def __len__(self) -> int:
        return len(dir(self._module))
