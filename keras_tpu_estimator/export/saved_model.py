"""Writing graphs as the metagraphs of one SavedModel."""

import pathlib
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from keras_tpu_estimator.base.common.logs import without_interactive_default
from keras_tpu_estimator.base.common.tensorflow_session import host_session
from keras_tpu_estimator.export.serving_graph import ServingGraph, make_variables

if TYPE_CHECKING:
    import tensorflow as tf
    from tensorflow.core.framework.node_def_pb2 import NodeDef
    from tensorflow.core.protobuf.saved_model_pb2 import SavedModel


def write(
    folder: str,
    graphs: Sequence[tuple[ServingGraph, Sequence[tuple[str, ...]]]],
    as_text: bool,
    strip_default_attrs: bool,
) -> None:
    """Writes graphs with their sets of tags as a SavedModel into an empty folder.

    The first graph contains the variables of all. Older TensorFlow releases can read
    graphs without default attributes.
    """
    import tensorflow as tf

    builder = tf.compat.v1.saved_model.Builder(folder)
    with without_interactive_default():
        _add_graphs(builder, graphs, strip_default_attrs)
        builder.save(as_text)


def _add_graphs(
    builder: "tf.compat.v1.saved_model.Builder",
    graphs: Sequence[tuple[ServingGraph, Sequence[tuple[str, ...]]]],
    strip_default_attrs: bool,
) -> None:
    """Adds a metagraph for each graph and set of tags."""
    import tensorflow as tf

    all_values = {
        path: value for graph, _ in graphs for path, value in graph.model.values.items()
    }
    writes_variables = True
    for graph, tag_sets in graphs:
        with graph.graph.as_default():
            main_op = graph.init_op
            if main_op is None:
                # This initializes tables and the variables of metrics.
                main_op = tf.group(
                    tf.compat.v1.local_variables_initializer(),
                    tf.compat.v1.tables_initializer(),
                )
            for tags in tag_sets:
                settings = {
                    "signature_def_map": graph.signatures,
                    "assets_collection": tf.compat.v1.get_collection(
                        tf.compat.v1.GraphKeys.ASSET_FILEPATHS
                    ),
                    "main_op": main_op,
                    "strip_default_attrs": strip_default_attrs,
                }
                # A graph keeps its operation for the next set of tags.
                main_op = None
                if not writes_variables:
                    builder.add_meta_graph(list(tags), **settings)
                    continue
                with host_session() as session:
                    _assign(session, graph, all_values)
                    builder.add_meta_graph_and_variables(
                        session, list(tags), **settings
                    )
                writes_variables = False


def replace_modules(folder: str, replacements: Mapping[bytes, bytes]) -> None:
    """Replaces XLA modules in a SavedModel, by a dict from existing to new modules."""
    from google.protobuf import text_format
    from tensorflow.core.protobuf import saved_model_pb2

    (path,) = pathlib.Path(folder).glob("saved_model.pb*")
    saved, is_text = saved_model_pb2.SavedModel(), path.suffix == ".pbtxt"
    if is_text:
        text_format.Parse(path.read_bytes(), saved)
    else:
        saved.ParseFromString(path.read_bytes())
    for node in _nodes(saved):
        module = node.attr["module"].s if node.op == "XlaCallModule" else b""
        if module in replacements:
            node.attr["module"].s = replacements[module]
    path.write_bytes(
        text_format.MessageToString(saved).encode()
        if is_text
        else saved.SerializeToString(deterministic=True)
    )


def _nodes(saved: "SavedModel") -> Iterator["NodeDef"]:
    """Yields all nodes of graphs and functions."""
    for meta_graph in saved.meta_graphs:
        yield from meta_graph.graph_def.node
        for function in meta_graph.graph_def.library.function:
            yield from function.node_def


def _assign(
    session: "tf.compat.v1.Session",
    graph: ServingGraph,
    values: Mapping[str, np.ndarray],
) -> None:
    """Assigns values to the variables of a graph and of other graphs."""
    import tensorflow as tf

    new_values = {k: v for k, v in values.items() if k not in graph.variables}
    variables = {**graph.variables, **make_variables(new_values)}
    # These variables belong to receivers; the model's get their values below.
    model_names = {variable.op.name for variable in variables.values()}
    session.run(
        [
            variable.initializer
            for variable in tf.compat.v1.global_variables()
            if variable.op.name not in model_names
        ]
    )
    for path, variable in variables.items():
        # Values are fed, because a graph that contains them must not exceed 2 GB.
        initial = variable.initializer.inputs[1]
        session.run(variable.initializer, {initial: values[path]})
