"""The order in which a step reads and writes each variable.

TF1 leaves it to chance unless a program says it. Here it is the order in which
the operations were made, with one exception. A read that waits for less than an
earlier-made write, and not for that write, comes first, because TensorFlow runs
what is ready: a global step that is read after `minimize` is that of before.
"""

import collections
import dataclasses
from collections.abc import Collection, Mapping, Sequence

from keras_tpu_estimator.tf1.functions import (
    LOOPS,
    Body,
    Library,
    Node,
    called,
    data_inputs,
    first_argument,
    source,
)

# What returns a variable that it is given, at the same position.
PASSING_ON = frozenset({"Identity", *LOOPS})
_READS = frozenset(
    {
        "ReadVariableOp",
        "ResourceGather",
        "ResourceGatherNd",
        "VarIsInitializedOp",
        "VariableShape",
    }
)


@dataclasses.dataclass(frozen=True)
class Effects:
    """What a body does with its variables.

    Attributes:
        used: By the name of a node, its inputs that are variables: their
            positions and the variables' names.
        last_writes: By the name of a variable that it may assign, the last
            node that does.
        earlier: By the name of a node, those that it must not overtake.
    """

    used: Mapping[str, list[tuple[int, str]]]
    last_writes: Mapping[str, str]
    earlier: Mapping[str, tuple[str, ...]]


def effects_of(body: Body, library: Library) -> Effects:
    """Finds out what a body does with its variables."""
    aliases = {name: name for name in body.variables}
    used: dict[str, list[tuple[int, str]]] = {}
    order = _Order()
    for node in body.nodes:
        order.enter(node)
        here = [
            (position, aliases[reference])
            for position, reference in enumerate(data_inputs(node))
            if reference in aliases
        ]
        if node.op in PASSING_ON:
            aliases |= _passed_on(node, here)
        if node.op == "Identity":
            continue
        assigned = written(node, [position for position, _ in here], library)
        for position, variable in here:
            if position in assigned:
                order.write(node, variable)
            elif node.op in _READS:
                order.read(node, variable)
            else:
                order.read_in_place(node, variable)
        used[node.name] = here
    return Effects(used, order.last_writes(), order.earlier())


class _Order:
    """The order of reads and writes, as far as it is settled."""

    def __init__(self) -> None:
        self._before: dict[str, list[str]] = {}
        self._waits: dict[str, int] = {}
        self._writes: dict[str, list[str]] = {}
        # By variable and the number of writes before.
        self._reads = collections.defaultdict[tuple[str, int], list[str]](list)
        self._added = collections.defaultdict[str, list[str]](list)

    def enter(self, node: Node) -> None:
        """Enters a node, after those whose outputs it takes."""
        inputs = [source(each) for each in node.input]
        self._before[node.name] = inputs
        # An argument or a variable is not entered. What comes of constants
        # alone is a constant, which waits for nothing.
        most = max((self._waits.get(name, 1) for name in inputs), default=0)
        self._waits[node.name] = most + 1 if most else 0

    def write(self, node: Node, variable: str) -> None:
        """Settles a write: after all that was made before it."""
        writes = self._writes.setdefault(variable, [])
        reads = self._reads[variable, len(writes)]
        self._add(node.name, [*writes[-1:], *reads])
        writes.append(node.name)

    def read_in_place(self, node: Node, variable: str) -> None:
        """Settles a read: after the writes that were made before it."""
        writes = self._writes.get(variable, [])
        self._read_after(node.name, variable, writes)

    def read(self, node: Node, variable: str) -> None:
        """Settles a read that may come before writes made before it."""
        writes = self._writes.get(variable, [])
        count = len(writes)
        while count and self._comes_before(node.name, writes[count - 1]):
            count -= 1
        self._read_after(node.name, variable, writes[:count])
        for write in writes[count : count + 1]:
            self._add(write, [node.name])

    def last_writes(self) -> dict[str, str]:
        """Returns the last write of each variable."""
        return {name: writes[-1] for name, writes in self._writes.items()}

    def earlier(self) -> dict[str, tuple[str, ...]]:
        """Returns by the name of a node those that it must not overtake."""
        return {
            # A node may use one variable at two positions.
            name: tuple(dict.fromkeys(n for n in names if n != name))
            for name, names in self._added.items()
        }

    def _read_after(self, name: str, variable: str, writes: Sequence[str]) -> None:
        self._reads[variable, len(writes)].append(name)
        self._add(name, writes[-1:])

    def _add(self, name: str, others: Collection[str]) -> None:
        self._added[name] += others

    def _comes_before(self, read: str, write: str) -> bool:
        """Returns whether TensorFlow would run a read before a write."""
        if self._waits[read] >= self._waits[write]:
            return False
        return write not in self._all_before(read)

    def _all_before(self, name: str) -> set[str]:
        found, stack = set[str](), [name]
        while stack:
            each = stack.pop()
            if each not in found:
                found.add(each)
                stack += self._before.get(each, ())
                stack += self._added.get(each, ())
        return found


def _passed_on(node: Node, used: list[tuple[int, str]]) -> dict[str, str]:
    """The variables that are outputs of a node, by all ways to refer to it."""
    aliases = {}
    for position, variable in used:
        aliases[f"{node.name}:{position}"] = variable
        aliases[f"{node.name}:output:{position}"] = variable
        if position == 0:
            aliases[node.name] = variable
    return aliases


def written(node: Node, positions: Collection[int], library: Library) -> set[int]:
    """Which of its inputs, at the positions of variables, a node may assign."""
    functions = called(node)
    if not functions or not positions:
        return set() if node.op in _READS else set(positions)
    first, found = first_argument(node), set()
    for each in functions:
        function = library[each.name]
        names = [argument.name for argument in function.signature.input_arg]
        assigned = effects_of(Body.of(function), library).last_writes
        found |= {p for p in positions if names[p - first] in assigned}
    return found
