"""The layer of `tf.contrib.feature_column` that reads sequences."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import tensorflow as tf

from keras_tpu_estimator.base.common.shown import shown
from keras_tpu_estimator.tf1.graph.feature_columns import has_all_cells, shape_of

v1 = tf.compat.v1


def sequence_input_layer(
    features: Mapping[str, Any],
    feature_columns: Iterable[Any],
    weight_collections: Sequence[str] | None = None,
    trainable: bool = True,
) -> tuple[Any, Any]:
    """Reads columns of sequences.

    The counterpart of `tf.contrib.feature_column.sequence_input_layer`.

    Args:
        features: The tensors by name.
        feature_columns: Columns made by `sequence_numeric_column`, or by
            `embedding_column` or `indicator_column` of a
            `sequence_categorical_column_with_*`.
        weight_collections: Other collections of the variables. Defaults to none.
        trainable: Whether the variables are trained. Defaults to `True`.

    Returns:
        A pair: a tensor of shape `[batch, time, elements]`, where `time` is the
        length of the longest row, and the lengths of the rows.

    Raises:
        ValueError: A column is no column of sequences.
    """
    columns = [feature_columns] if hasattr(feature_columns, "name") else feature_columns
    ordered = sorted(columns, key=lambda column: column.name)
    for column in ordered:
        if not hasattr(column, "get_sequence_dense_tensor"):
            raise ValueError(
                "`feature_columns` must read sequences. Received: "
                f"{shown(column)}. Wrap a sequence_categorical_column_with_... in "
                "embedding_column or indicator_column, or use "
                "sequence_numeric_column."
            )
    cache = tf.__internal__.feature_column.FeatureTransformationCache(features)
    state = _Variables(weight_collections, trainable)
    read, lengths = [], []
    with v1.variable_scope(None, "sequence_input_layer", [*features.values()]):
        for column in ordered:
            with v1.variable_scope(None, default_name=column.name):
                column.create_state(state)
                tensor, length = column.get_sequence_dense_tensor(cache, state)
                elements = column.variable_shape.num_elements()
                rows, times = tf.unstack(tf.shape(tensor)[:2])
                read.append(tf.reshape(tensor, [rows, times, elements]))
                ids = getattr(column, "categorical_column", None)
                if ids is not None:
                    sparse_ids = ids.get_sparse_tensors(cache, state).id_tensor
                    length = _length(sparse_ids, length)
                lengths.append(length)
        return tf.concat(read, -1), _equal(lengths)


def _length(ids: Any, length: Any) -> Any:
    """Returns the lengths of rows; those of dense ids end before missing ids."""
    if not has_all_cells(ids):
        return length
    rows, times, *_ = shape_of(ids).as_list()
    is_id = tf.reshape(ids.values, [rows, times, -1]) >= 0
    ordinals = tf.range(1, times + 1, dtype=tf.int64)
    is_present = tf.cast(tf.reduce_any(is_id, 2), tf.int64)
    return tf.reduce_max(is_present * ordinals, 1)


def _equal(lengths: Sequence[Any]) -> Any:
    """Returns the lengths of all columns, which must be equal."""
    first, *following = lengths
    if not following:
        return first
    checks = [v1.assert_equal(first, other) for other in following]
    with tf.control_dependencies(checks):
        return tf.identity(first)


class _Variables:
    """The variables of columns in the current scope, as TensorFlow's `StateManager`."""

    def __init__(self, collections: Sequence[str] | None, trainable: bool):
        names = [*(collections or ()), v1.GraphKeys.GLOBAL_VARIABLES]
        self._collections = [*dict.fromkeys(names)]
        self._trainable = trainable
        self._resources: dict[Any, Any] = {}

    def create_variable(
        self,
        feature_column: Any,
        name: str,
        shape: Any,
        dtype: Any = None,
        trainable: bool = True,
        use_resource: bool = True,
        initializer: Any = None,
    ) -> Any:
        """Makes a variable of a column."""
        del use_resource
        variable = v1.get_variable(
            name,
            shape,
            dtype or tf.float32,
            initializer,
            trainable=self._trainable and trainable,
            collections=self._collections,
        )
        self._resources[feature_column, name] = variable
        return variable

    def get_variable(self, feature_column: Any, name: str) -> Any:
        """Returns a variable of a column."""
        return self._resources[feature_column, name]

    def add_resource(self, feature_column: Any, name: str, resource: Any) -> None:
        """Keeps the table of a column."""
        self._resources[feature_column, name] = resource

    def has_resource(self, feature_column: Any, name: str) -> bool:
        """Returns whether a column has a table."""
        return (feature_column, name) in self._resources

    def get_resource(self, feature_column: Any, name: str) -> Any:
        """Returns the table of a column."""
        return self._resources[feature_column, name]
