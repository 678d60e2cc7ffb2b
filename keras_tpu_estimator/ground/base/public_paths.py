"""The public paths of classes and functions."""

import types

_Defined = type | types.FunctionType
_PREFIX = f"{__name__.partition('.')[0]}."


def assign(*modules: types.ModuleType) -> None:
    """Makes public modules the `__module__` of the names that they offer.

    Tracebacks, `help()` and pickles then show a path that users can import. If
    two modules offer a name, its path is in the first.
    """
    assigned: set[object] = set()
    for module in modules:
        for name in module.__all__:
            value = getattr(module, name)
            # `typing.Any`, which an alias may be, is a class from elsewhere.
            if (
                isinstance(value, _Defined)
                and value not in assigned
                and value.__module__.startswith(_PREFIX)
            ):
                _assign(value, module.__name__)
                assigned.add(value)


def _assign(value: type | types.FunctionType, path: str) -> None:
    """Moves a function, or a class with its methods and the classes in it."""
    value.__module__ = path
    for member in vars(value).values():
        defined = getattr(member, "__func__", member)
        if isinstance(defined, _Defined) and defined.__qualname__.startswith(
            f"{value.__qualname__}."
        ):
            # Doctest leaves out methods of another module.
            _assign(defined, path)
