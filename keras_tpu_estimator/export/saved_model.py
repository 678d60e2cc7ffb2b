"""Writing graphs as the metagraphs of one SavedModel."""

from collections.abc import Mapping
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from keras_tpu_estimator.export.serving_graph import ServingGraph
from keras_tpu_estimator.export.serving_graph import make_variables
from keras_tpu_estimator.ground.base.tensorflow_session import host_session

if TYPE_CHECKING:
    import tensorflow as tf


def write(
    folder: str,
    graphs: Sequence[tuple[ServingGraph, Sequence[tuple[str, ...]]]],
    as_text: bool,
    strip_default_attrs: bool,
) -> None:
    """Writes a SavedModel.

    Args:
        folder: An empty folder.
        graphs: Graphs, each with the sets of tags that it is found by. The
            first has the variables of all.
        as_text: Whether the graphs are written as text.
        strip_default_attrs: Whether attributes with default values are left
            out, so that older releases of TensorFlow read more.
    """
    import tensorflow as tf

    builder = tf.compat.v1.saved_model.Builder(folder)
    all_values = {
        path: value
        for graph, _ in graphs
        for path, value in graph.model.values.items()
    }
    writes_variables = True
    for graph, tag_sets in graphs:
        with graph.graph.as_default():
            # Tables, and what metrics count in.
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
                # A graph remembers its op for the next set of tags.
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
    builder.save(as_text)


def _assign(
    session: "tf.compat.v1.Session",
    graph: ServingGraph,
    values: Mapping[str, np.ndarray],
) -> None:
    """Gives values to a graph's variables, and to those of other graphs."""
    import tensorflow as tf

    others = {k: v for k, v in values.items() if k not in graph.variables}
    variables = {**graph.variables, **make_variables(others)}
    # Those of receivers. The initializers of the model's need not run here.
    own = {variable.op.name for variable in variables.values()}
    session.run(
        [
            variable.initializer
            for variable in tf.compat.v1.global_variables()
            if variable.op.name not in own
        ]
    )
    for path, variable in variables.items():
        # Fed, since a graph with the values in it could not be over 2 GB.
        initial = variable.initializer.inputs[1]
        session.run(variable.initializer, {initial: values[path]})
