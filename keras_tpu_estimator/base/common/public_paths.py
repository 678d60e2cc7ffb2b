"""The public paths of classes and functions."""

import types

_Defined = type | types.FunctionType
_PREFIX = f"{__name__.partition('.')[0]}."


def assign(*modules: types.ModuleType) -> None:
    """Sets the `__module__` of public names to their public modules.

    Tracebacks, `help()` and pickles then contain paths that users can import. A name
    that two modules export gets the path of the first.
    """
    assigned: set[object] = set()
    for module in modules:
        for name in module.__all__:
            value = getattr(module, name)
            # An alias may be a class of another package, such as `typing.Any`.
            if (
                isinstance(value, _Defined)
                and value not in assigned
                and value.__module__.startswith(_PREFIX)
            ):
                _assign(value, module.__name__)
                assigned.add(value)


def _assign(value: type | types.FunctionType, path: str) -> None:
    """Sets the module of a function, or of a class and its members."""
    value.__module__ = path
    for member in vars(value).values():
        defined = getattr(member, "__func__", member)
        if isinstance(defined, _Defined) and defined.__qualname__.startswith(
            f"{value.__qualname__}."
        ):
            # Doctest ignores methods of another module.
            _assign(defined, path)
