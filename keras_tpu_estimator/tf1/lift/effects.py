"""The order in which a step reads and writes each variable.

TF1 does not define an order unless the script does. Here it is the order in which the
operations were made, with one exception: a read comes before an earlier write that it
does not wait for if it waits for fewer operations than the write. TensorFlow runs an
operation as soon as it is ready, so a global step that is read after `minimize` has the
value before the step.
"""

import collections
import dataclasses
from collections.abc import Collection, Mapping, Sequence

from keras_tpu_estimator.engine.program.store import GLOBAL_STEP
from keras_tpu_estimator.tf1.graph.definitions import (
    LOOPS,
    Body,
    Library,
    Node,
    called,
    data_inputs,
    first_argument,
    source,
)

# Operations that return a variable they receive, at the same position.
PASSING_ON = frozenset({"Identity", *LOOPS})
READS = frozenset(
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
    """The reads and writes of a body.

    Attributes:
        used: By node name, the inputs that are variables: positions and variable names.
        last_writes: The last node that writes each variable that may be assigned.
        earlier: By node name, the nodes that must run before it.
    """

    used: Mapping[str, list[tuple[int, str]]]
    last_writes: Mapping[str, str]
    earlier: Mapping[str, tuple[str, ...]]


def effects_of(body: Body, library: Library) -> Effects:
    """Finds the reads and writes of a body."""
    aliases = {name: name for name in body.variables}
    used: dict[str, list[tuple[int, str]]] = {}
    order = _Order()
    for node in body.nodes:
        order.enter(node)
        accesses = [
            (position, aliases[reference])
            for position, reference in enumerate(data_inputs(node))
            if reference in aliases
        ]
        if node.op in PASSING_ON:
            aliases |= _passed_on(node, accesses)
        if node.op == "Identity":
            continue
        assigned = written(node, [position for position, _ in accesses], library)
        for position, variable in accesses:
            if position in assigned:
                order.write(node, variable)
            elif node.op in READS:
                order.read(node, variable)
            else:
                order.read_in_place(node, variable)
        used[node.name] = accesses
    return Effects(used, order.last_writes(), order.earlier())


class _Order:
    """Orders a variable's reads and writes as they were made.

    The exception is a read that TensorFlow runs before an earlier write.
    """

    def __init__(self) -> None:
        self._before: dict[str, list[str]] = {}
        self._waits: dict[str, int] = {}
        self._writes: dict[str, list[str]] = {}
        # By variable and the number of earlier writes.
        self._reads = collections.defaultdict[tuple[str, int], list[str]](list)
        self._added = collections.defaultdict[str, list[str]](list)

    def enter(self, node: Node) -> None:
        """Enters a node, after the nodes of its inputs."""
        inputs = [source(reference) for reference in node.input]
        self._before[node.name] = inputs
        # Arguments and variables are not entered. A value that depends only on
        # constants is a constant, which waits for nothing.
        most = max((self._waits.get(name, 1) for name in inputs), default=0)
        self._waits[node.name] = most + 1 if most else 0

    def write(self, node: Node, variable: str) -> None:
        """Orders a write after all earlier reads and writes."""
        writes = self._writes.setdefault(variable, [])
        reads = self._reads[variable, len(writes)]
        self._add(node.name, [*writes[-1:], *reads])
        writes.append(node.name)

    def read_in_place(self, node: Node, variable: str) -> None:
        """Orders a read after all earlier writes."""
        writes = self._writes.get(variable, [])
        self._read_after(node.name, variable, writes)

    def read(self, node: Node, variable: str) -> None:
        """Orders a read, which may come before earlier writes."""
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
        """Returns, by node name, the nodes that must run before it."""
        return {
            # A node may use one variable at two positions.
            name: tuple(dict.fromkeys(n for n in names if n != name))
            for name, names in self._added.items()
        }

    def _read_after(self, name: str, variable: str, writes: Sequence[str]) -> None:
        self._reads[variable, len(writes)].append(name)
        self._add(name, writes[-1:])

    def _add(self, name: str, names: Collection[str]) -> None:
        self._added[name] += names

    def _comes_before(self, read: str, write: str) -> bool:
        """Returns whether TensorFlow would run a read before a write."""
        if self._waits[read] >= self._waits[write]:
            return False
        return write not in self._all_before(read)

    def _all_before(self, name: str) -> set[str]:
        earlier, stack = set[str](), [name]
        while stack:
            current = stack.pop()
            if current not in earlier:
                earlier.add(current)
                stack += self._before.get(current, ())
                stack += self._added.get(current, ())
        return earlier


def _passed_on(node: Node, used: list[tuple[int, str]]) -> dict[str, str]:
    """Returns the variables that are outputs of a node, by each reference to them."""
    aliases = {}
    for position, variable in used:
        aliases[f"{node.name}:{position}"] = variable
        aliases[f"{node.name}:output:{position}"] = variable
        if position == 0:
            aliases[node.name] = variable
    return aliases


def written(node: Node, positions: Collection[int], library: Library) -> set[int]:
    """Returns the positions of variables among the inputs that a node may assign."""
    functions = called(node)
    if not functions or not positions:
        return set() if node.op in READS else set(positions)
    first, assigned_positions = first_argument(node), set()
    for callee in functions:
        function = library[callee.name]
        names = [argument.name for argument in function.signature.input_arg]
        assigned = effects_of(Body.from_function(function), library).last_writes
        assigned_positions |= {p for p in positions if names[p - first] in assigned}
    return assigned_positions


_SAME_VALUE = frozenset({"Identity", "Cast", "StopGradient"})


def counts_once(body: Body, library: Library, effects: Effects) -> bool:
    """Returns whether every run adds exactly one to the global step.

    It recognizes `assign_add(step, 1)` and `assign(step, step + 1)` outside of
    conditions, loops and functions if nothing else assigns the step. Other graphs may
    count differently, with gradient accumulation, loss scaling or two optimizers.
    """
    nodes = {node.name: node for node in body.nodes}
    writers = [
        nodes[name]
        for name, used in effects.used.items()
        if _writes_step(nodes[name], used, library)
    ]
    if len(writers) != 1:
        return False
    (writer,) = writers
    if writer.op == "AssignAddVariableOp":
        return _is_one(writer.input[1], nodes)
    return writer.op == "AssignVariableOp" and _is_step_plus_one(
        writer.input[1], nodes, effects
    )


def _writes_step(node: Node, used: list[tuple[int, str]], library: Library) -> bool:
    positions = [p for p, variable in used if variable == GLOBAL_STEP]
    return bool(written(node, positions, library))


def _is_step_plus_one(
    reference: str, nodes: Mapping[str, Node], effects: Effects
) -> bool:
    """Returns whether a value is the global step before the run, plus one.

    Only one node assigns the step, and it depends on this value, so all reads in the
    value come before the assignment.
    """
    node = _origin(reference, nodes)
    if node is None or node.op not in ("Add", "AddV2"):
        return False
    first, second = data_inputs(node)
    return any(
        _is_step(one, nodes, effects) and _is_one(other, nodes)
        for one, other in ((first, second), (second, first))
    )


def _is_step(reference: str, nodes: Mapping[str, Node], effects: Effects) -> bool:
    node = _origin(reference, nodes)
    return (
        node is not None
        and node.op == "ReadVariableOp"
        and any(v == GLOBAL_STEP for _, v in effects.used[node.name])
    )


def _is_one(reference: str, nodes: Mapping[str, Node]) -> bool:
    import tensorflow as tf

    node = _origin(reference, nodes)
    if node is None or node.op != "Const":
        return False
    return bool((tf.make_ndarray(node.attr["value"].tensor) == 1).all())


def _origin(reference: str, nodes: Mapping[str, Node]) -> Node | None:
    """Returns the node from which a value comes unchanged, if there is one."""
    node = nodes.get(source(reference))
    while node is not None and node.op in _SAME_VALUE:
        node = nodes.get(source(data_inputs(node)[0]))
    return node
