"""The order in which a step reads and writes each variable.

TF1 leaves it to chance unless a program says it. Here it is the order in which
the operations were made.
"""

import collections
import dataclasses
from collections.abc import Collection
from collections.abc import Mapping

from keras_tpu_estimator.tf1.functions import LOOPS
from keras_tpu_estimator.tf1.functions import Body
from keras_tpu_estimator.tf1.functions import Library
from keras_tpu_estimator.tf1.functions import Node
from keras_tpu_estimator.tf1.functions import called
from keras_tpu_estimator.tf1.functions import data_inputs
from keras_tpu_estimator.tf1.functions import first_argument

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
    last_writes: dict[str, str] = {}
    reads: dict[str, list[str]] = collections.defaultdict(list)
    earlier: dict[str, tuple[str, ...]] = {}
    for node in body.nodes:
        here = [
            (position, aliases[reference])
            for position, reference in enumerate(data_inputs(node))
            if reference in aliases
        ]
        if node.op in PASSING_ON:
            aliases |= _passed_on(node, here)
        if node.op == "Identity":
            continue
        before: list[str] = []
        assigned = written(node, [position for position, _ in here], library)
        for position, variable in here:
            if variable in last_writes:
                before.append(last_writes[variable])
            if position in assigned:
                before += reads.pop(variable, [])
                last_writes[variable] = node.name
            else:
                reads[variable].append(node.name)
        used[node.name] = here
        # A node may use one variable at two positions.
        others = (name for name in before if name != node.name)
        earlier[node.name] = tuple(dict.fromkeys(others))
    return Effects(used, last_writes, earlier)


def _passed_on(node: Node, used: list[tuple[int, str]]) -> dict[str, str]:
    """The variables that are outputs of a node, by all ways to refer to it."""
    aliases = {}
    for position, variable in used:
        aliases[f"{node.name}:{position}"] = variable
        aliases[f"{node.name}:output:{position}"] = variable
        if position == 0:
            aliases[node.name] = variable
    return aliases


def written(
    node: Node, positions: Collection[int], library: Library
) -> set[int]:
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
