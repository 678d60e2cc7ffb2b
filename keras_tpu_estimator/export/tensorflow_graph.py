"""A script: makes the graph of a Keras model, under the TensorFlow backend.

It is run by its path, in a process of its own, and imports nothing of this
package. What it made, or what went wrong, is said on its standard output.
"""

import json
import sys
from typing import TYPE_CHECKING
from typing import Any

if TYPE_CHECKING:
    import tensorflow as tf


def main() -> None:
    """Makes what the standard input asks for."""
    # TensorFlow imports them where they are.
    # `None` keeps a module from being imported, which its type does not say.
    sys.modules.update(dict.fromkeys(("jax", "jaxlib")))  # type: ignore[arg-type]
    request = json.load(sys.stdin)
    try:
        sys.stdout.write(json.dumps(make(request["model"], request["path"])))
    except Exception as error:
        sys.stdout.write(f"{type(error).__name__}: {error}")
        sys.exit(3)


def make(config: str, path: str) -> dict[str, list[str]]:
    """Writes a graph.

    Args:
        config: A model as `to_json` writes it. Its inputs are a list, its
            outputs a dict.
        path: Where to write the graph.

    Returns:
        Names of its tensors: `variables` in Keras's order, `features`, and
        `outputs` in the order of their names.
    """
    import keras
    import tensorflow as tf

    model = keras.models.model_from_json(config)
    trained = len(model.trainable_variables)

    def run(variables: list[Any], features: list[Any]) -> list[Any]:
        outputs, _ = model.stateless_call(
            variables[:trained], variables[trained:], features, training=False
        )
        return [outputs[name] for name in sorted(outputs)]

    variables = [*model.trainable_variables, *model.non_trainable_variables]
    traced = tf.function(run, autograph=False).get_concrete_function(
        [tf.TensorSpec(v.shape, v.dtype) for v in variables],
        [tf.TensorSpec(x.shape, x.dtype) for x in model.inputs],
    )
    with open(path, "wb") as file:
        file.write(with_constants(traced).SerializeToString())
    names = [tensor.name for tensor in traced.inputs]
    features = slice(len(variables), len(variables) + len(model.inputs))
    return {
        "variables": names[: len(variables)],
        "features": names[features],
        "outputs": [tensor.name for tensor in traced.outputs],
    }


def with_constants(
    traced: "tf.types.experimental.ConcreteFunction",
) -> "tf.compat.v1.GraphDef":
    """The graph of a traced function, with the arrays that it closes over."""
    import tensorflow as tf

    graph = traced.graph.as_graph_def()
    nodes = {node.name: node for node in graph.node}
    captured = traced.captured_inputs
    given = len(traced.inputs) - len(captured)
    for placeholder, tensor in zip(
        traced.inputs[given:], captured, strict=True
    ):
        node = nodes[placeholder.op.name]
        node.op = "Const"
        node.attr.clear()
        node.attr["dtype"].type = tensor.dtype.as_datatype_enum
        node.attr["value"].tensor.CopyFrom(tf.make_tensor_proto(tensor.numpy()))
    return graph


if __name__ == "__main__":
    main()
