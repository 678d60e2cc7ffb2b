"""Running a node of a step only if a condition holds."""

from typing import Any

from keras_tpu_estimator.tf1.functions import BRANCHES, Function, Node, data_inputs
from keras_tpu_estimator.tf1.source_lines import line_of
from keras_tpu_estimator.tf1.writing import set_inputs, type_number


def running_if(
    predicate: str, op: Any, node: Node, library: dict[str, Function]
) -> Node:
    """Returns a node that runs another one if a condition holds.

    Args:
        predicate: A reference to the condition.
        op: The operation.
        node: The node of the operation, which may have additional boolean outputs.
        library: The library to which new functions are added.
    """
    import tensorflow as tf

    outputs = [(tensor.dtype, tensor.shape) for tensor in op.outputs]
    if node.op in BRANCHES:
        more = len(node.attr["Tout"].list.type) - len(outputs)
        outputs += [(tf.bool, tf.TensorShape([]))] * more
    if any(dtype == tf.resource for dtype, _ in outputs):
        raise ValueError(
            "A loop that assigns variables must not wait for an operation in "
            f"a branch. Received: {op.name}, made at {line_of(op)}. Assign "
            "them after the loop."
        )
    taken = _function(f"{op.name}_kte_then", op, library)
    other = _function(f"{op.name}_kte_else", op, library)
    references = _outputs(op, len(outputs))
    inner = taken.node_def.add()
    inner.CopyFrom(node)
    del inner.input[:]
    inner.input.extend(each.name for each in taken.signature.input_arg)
    for number, (dtype, shape) in enumerate(outputs):
        name = f"kte_output_{number}"
        for function in (taken, other):
            function.signature.output_arg.add(name=name, type=dtype.as_datatype_enum)
        taken.ret[name] = f"{inner.name}:{references[number]}"
        nothing = other.node_def.add(name=f"kte_none_{number}", op="FakeParam")
        nothing.attr["dtype"].type = dtype.as_datatype_enum
        nothing.attr["shape"].shape.CopyFrom(shape.as_proto())
        other.ret[name] = f"{nothing.name}:output:0"
    return _if(predicate, node, taken, other)


def _if(predicate: str, node: Node, taken: Function, other: Function) -> Node:
    """Returns the conditional that replaces a node, with its name."""
    new = type(node)(name=node.name, op="If", input=node.input)
    set_inputs(new, [predicate, *data_inputs(node)])
    new.attr["Tcond"].type = type_number("bool")
    signature = taken.signature
    new.attr["Tin"].list.type.extend(a.type for a in signature.input_arg)
    new.attr["Tout"].list.type.extend(a.type for a in signature.output_arg)
    new.attr["then_branch"].func.name = signature.name
    new.attr["else_branch"].func.name = other.signature.name
    return new


def _function(name: str, op: Any, library: dict[str, Function]) -> Function:
    """Adds a function with the arguments of an operation."""
    from tensorflow.core.framework import function_pb2

    function = function_pb2.FunctionDef()
    function.signature.name = name.replace("/", "_")
    for number, tensor in enumerate(op.inputs):
        function.signature.input_arg.add(
            name=f"kte_input_{number}", type=tensor.dtype.as_datatype_enum
        )
    library[function.signature.name] = function
    return function


def _outputs(op: Any, count: int) -> list[str]:
    """Returns the references by which a function names the outputs of an operation."""
    args = op.op_def.output_arg
    if len(args) == 1 and args[0].type_list_attr:
        return [f"{args[0].name}:{number}" for number in range(count)]
    return [f"{each.name}:0" for each in args]
