"""The parts of the package that others find by name, and import at first use.

The core imports no front end, export or tool. It asks for a part by its name, and a
table (`parts.py`) says which module has it. The folder of such a part may be missing.
"""

import importlib
from collections.abc import Mapping
from typing import Any

_addresses: dict[str, str] = {}
_found: dict[str, Any] = {}


class MissingPartError(ImportError):
    """A part of the package is not installed."""


def offer(addresses: Mapping[str, str]) -> None:
    """Adds parts by name, or replaces those of the same names.

    An address is a module, or a module and one of its attributes, as "module:name".
    """
    for name, address in addresses.items():
        _addresses[name] = address
        _found.pop(name, None)


def find(name: str) -> Any | None:
    """Returns a part, or `None` if its module is not installed."""
    if name not in _found:
        _found[name] = _imported(_addresses.get(name, ""))
    return _found[name]


def part(name: str) -> Any:
    """Returns a part that must be installed."""
    value = find(name)
    if value is None:
        raise MissingPartError(
            f"The part {name!r} of this package must be installed. Received: "
            f"{_addresses.get(name, 'no address')!r}, which does not exist. Install "
            "the complete package."
        )
    return value


def _imported(address: str) -> Any | None:
    path, _, attribute = address.partition(":")
    if not path:
        return None
    try:
        module = importlib.import_module(path)
    except ModuleNotFoundError as error:
        # An import inside the module may fail, which is an error.
        if not f"{path}.".startswith(f"{error.name}."):
            raise
        return None
    return getattr(module, attribute) if attribute else module
