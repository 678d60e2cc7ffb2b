"""An upper bound on the number of rounds of a loop, derived from its graph.

XLA keeps the values that a loop's gradient needs in lists of a fixed size. A counter
that grows by a constant, and is compared with a constant or a size from a static shape,
bounds the rounds as `maximum_iterations` would.
"""

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any

# A function that returns the value of a graph tensor, or `None` if it varies.
StaticValue = Callable[[Any], Any]

_SAME = frozenset({"Identity", "Cast", "Squeeze", "StopGradient"})
_SWAPPED = {
    "Greater": "Less",
    "GreaterEqual": "LessEqual",
    "Less": "Greater",
    "LessEqual": "GreaterEqual",
    "NotEqual": "NotEqual",
}


@dataclasses.dataclass(frozen=True)
class Loop:
    """A loop before it becomes an operation; `variables` are its initial values."""

    variables: Sequence[Any]
    condition: Any
    body: Any
    static_value: StaticValue

    def bound(self) -> int | None:
        """Returns an upper bound on the number of rounds, if one is known."""
        return self._bound_of(self.condition.outputs[0])

    def _bound_of(self, predicate: Any) -> int | None:
        op = _origin(predicate).op
        if op.type == "LogicalAnd":
            bounds = [self._bound_of(operand) for operand in op.inputs]
            return min((b for b in bounds if b is not None), default=None)
        if op.type not in _SWAPPED:
            return None
        first, second = op.inputs
        bound = self._compared(first, op.type, second)
        if bound is None:
            bound = self._compared(second, _SWAPPED[op.type], first)
        return bound

    def _compared(self, counter: Any, kind: str, end: Any) -> int | None:
        """Returns the number of rounds in which a comparison with an end holds."""
        position = _position(self.condition, counter)
        if position is None or not self.variables[position].dtype.is_integer:
            return None
        step = self._step(position)
        if not step:
            return None
        start = self._extreme(self.variables[position], step < 0)
        last = self._extreme(self._outer(end), step > 0)
        if start is None or last is None:
            return None
        rounds = (last - start) / step
        if kind == "NotEqual":
            return int(rounds) if rounds >= 0 and rounds % 1 == 0 else None
        if (step > 0) != kind.startswith("Less"):
            return None
        count = math.ceil(rounds)
        if kind.endswith("Equal") and count == rounds:
            count += 1
        return max(count, 0)

    def _step(self, position: int) -> float | None:
        """Returns the constant that each round adds to a variable, if there is one."""
        op = _origin(self.body.outputs[position]).op
        if op.type not in ("Add", "AddV2", "Sub"):
            return None
        first, second = op.inputs
        sign = -1.0 if op.type == "Sub" else 1.0
        if _position(self.body, first) != position:
            if op.type == "Sub":
                return None
            first, second = second, first
        if _position(self.body, first) != position:
            return None
        value = self._value(self._outer(second, self.body))
        return None if value is None else sign * value

    def _outer(self, tensor: Any, inner: Any = None) -> Any:
        """Returns the value of a tensor outside of the loop, if no round changes it."""
        position = _position(inner or self.condition, tensor)
        if position is None:
            return tensor
        if _position(self.body, self.body.outputs[position]) != position:
            return tensor
        return self.variables[position]

    def _extreme(self, tensor: Any, is_upper: bool) -> float | None:
        """Returns an upper or lower bound of a tensor."""
        value = self._value(tensor)
        origin = _origin(tensor)
        if value is None and origin.op.type == ("Minimum" if is_upper else "Maximum"):
            bounds = [
                self._extreme(self._outer(operand), is_upper)
                for operand in origin.op.inputs
            ]
            limits = [bound for bound in bounds if bound is not None]
            choose = min if is_upper else max
            return choose(limits) if limits else None
        return value

    def _value(self, tensor: Any) -> float | None:
        value = self.static_value(_captured(tensor))
        return None if value is None or value.ndim else float(value)


def _origin(tensor: Any) -> Any:
    """Returns the tensor of which this one is a copy."""
    while tensor.op.type in _SAME:
        tensor = tensor.op.inputs[0]
    return tensor


def _position(graph: Any, tensor: Any) -> int | None:
    """Returns the position of a tensor among the arguments of a function's graph."""
    tensor = _origin(tensor)
    positions = (n for n, argument in enumerate(graph.inputs) if argument is tensor)
    return next(positions, None)


def _captured(tensor: Any) -> Any:
    """Returns the outer tensor that a function's graph captures as this one."""
    tensor = _origin(tensor)
    for outer, inner in getattr(tensor.graph, "captures", ()):
        if inner is tensor:
            return _captured(outer)
    return tensor
