"""Shows the values of defaults that are private names."""

from typing import Any

import griffe


class ShownDefaults(griffe.Extension):
    """Replaces private names in defaults by the values that they stand for.

    A constant such as `_START_SECS` is shown as its value, and a call of a
    private class such as `_Unset(600)` as its argument.
    """

    def on_function(self, *, func: griffe.Function, **kwargs: Any) -> None:
        """Replaces the defaults of a function's parameters."""
        del kwargs
        for parameter in func.parameters:
            parameter.default = _shown(parameter.default, func.module)

    def on_attribute(self, *, attr: griffe.Attribute, **kwargs: Any) -> None:
        """Replaces the value of a field, the default in a dataclass."""
        del kwargs
        if attr.parent is not None and attr.parent.is_class:
            attr.value = _shown(attr.value, attr.module)


def _shown(
    value: str | griffe.Expr | None, module: griffe.Module
) -> str | griffe.Expr | None:
    match value:
        case griffe.ExprName(name=name) if name.startswith("_"):
            constant = module.members.get(name)
            if isinstance(constant, griffe.Attribute):
                return _shown(constant.value, module)
        case griffe.ExprCall(
            function=griffe.ExprName(name=name), arguments=[argument]
        ) if name.startswith("_"):
            return _shown(argument, module)
    return value
