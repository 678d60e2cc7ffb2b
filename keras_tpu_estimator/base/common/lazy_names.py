"""Public names whose modules are imported when the names are first used."""

import importlib
import sys
from collections.abc import Callable, Mapping
from typing import Any


def imported_at_use(
    package: str, addresses: Mapping[str, str]
) -> Callable[[str], object]:
    """Returns a module's `__getattr__`, which imports public names at first use.

    Args:
        package: The name of the module that has the names.
        addresses: The module of each name, or the name's own address if it is a
            module in the package.
    """

    def __getattr__(name: str) -> Any:
        module = sys.modules[package]
        if name not in addresses:
            raise AttributeError(
                f"module {package!r} has no attribute {name!r}", name=name, obj=module
            )
        address = addresses[name]
        value: Any = importlib.import_module(address)
        if address != f"{package}.{name}":
            value = getattr(value, name)
        # Python finds the name in the module from now on.
        setattr(module, name, value)
        return value

    return __getattr__
