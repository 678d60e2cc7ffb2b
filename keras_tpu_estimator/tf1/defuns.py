"""Calls of `function.Defun`, rewritten as calls that name their function.

The type of such an operation is the name of a function. All other modules know calls as
`PartitionedCall`.
"""

from collections.abc import Mapping
from typing import Any

from keras_tpu_estimator.tf1.functions import Function, Library, Node, library_of


def name_functions(graph_def: Any) -> None:
    """Rewrites the calls in a graph and its functions to name their functions."""
    library = library_of(graph_def)
    for node in graph_def.node:
        _name_function(node, library)
    for function in library.values():
        renamed: dict[str, str] = {}
        for node in function.node_def:
            renamed |= _name_function(node, library)
        if renamed:
            _rename(function, renamed)


def _name_function(node: Node, library: Library) -> Mapping[str, str]:
    """Returns new names of outputs, as inputs in a function refer to them."""
    function = library.get(node.op)
    if function is None:
        return {}
    signature = function.signature
    shapes = node.attr["_output_shapes"].list.shape[:]
    for name in list(node.attr):
        del node.attr[name]
    node.op = "StatefulPartitionedCall" if signature.is_stateful else "PartitionedCall"
    node.attr["f"].func.name = signature.name
    node.attr["Tin"].list.type.extend(a.type for a in signature.input_arg)
    node.attr["Tout"].list.type.extend(a.type for a in signature.output_arg)
    if shapes:
        node.attr["_output_shapes"].list.shape.extend(shapes)
    return {
        f"{node.name}:{each.name}:0": f"{node.name}:output:{number}"
        for number, each in enumerate(signature.output_arg)
    }


def _rename(function: Function, names: Mapping[str, str]) -> None:
    """Renames the references within a function."""
    for node in function.node_def:
        inputs = [names.get(each, each) for each in node.input]
        del node.input[:]
        node.input.extend(inputs)
    for output, reference in function.ret.items():
        function.ret[output] = names.get(reference, reference)
