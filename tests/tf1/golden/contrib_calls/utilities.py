"""Calls of functions below `tf.contrib`, by the paths of their modules."""

import importlib
import os
import tempfile

import numpy as np
import tensorflow.compat.v1 as tf

from contrib_calls.calling import floats, x

CLASSES = [0, 1, 1, 0, 2, 2]
_LOSSES = "losses.python.metric_learning.metric_loss_ops"


def _module(path):
    return importlib.import_module(f"tensorflow.contrib.{path}")


def _of(path, make):
    """Returns a call with the module at `path`."""
    return lambda contrib: make(_module(path))


def _layers(make):
    return _of("layers.python.layers.utils", make)


def _sparse(make):
    return _of("layers.python.ops.sparse_ops", make)


def _distances(make):
    """Returns a call of a part of `cluster_loss`, with distances."""

    def call(module):
        distances = module.pairwise_distance(x(6, 3), squared=False)
        return make(module, distances, tf.constant(CLASSES))

    return _of(_LOSSES, call)


def _aliases(module):
    assert module.NamedOutputs("name", 2).outputs == 2
    one, two = x(2), x(3)
    module.append_tensor_alias(one, "first")
    module.append_tensor_alias(one, "again")
    module.collect_named_outputs("kept", "second", two)
    module.collect_named_outputs("kept", "third", one)
    return [
        module.gather_tensors_aliases([one, two]),
        module.get_tensor_aliases(two),
        sorted(module.convert_collection_to_dict("kept")),
    ]


def _constants(module):
    return [
        module.constant_value(tf.constant(3)),
        module.constant_value(tf.placeholder(tf.int32)) is None,
        module.static_cond(True, lambda: 1, lambda: 2),
        module.smart_cond(tf.constant(True), lambda: x(1), lambda: x(2)),
    ]


def _numbers(module):
    return [
        module.channel_dimension(tf.TensorShape([1, 2, 3]), "NHWC"),
        module.channel_dimension(tf.TensorShape([1, 2, 3]), "NCHW"),
        module.last_dimension(tf.TensorShape([1, 2, 3]), min_rank=2),
        module.two_element_tuple(3),
        module.two_element_tuple([3, 4]),
        module.n_positive_integers(3, 2),
        module.get_variable_collections({"weights": ["w"]}, "weights"),
        module.get_variable_collections(["all"], "weights"),
    ]


def _graphs(module):
    graph = module.get_graph_from_inputs([x(2), x(3)])
    with tf.name_scope("outer"):
        return [graph is tf.get_default_graph(), module.get_name_scope()]


def _medoids(module, distances, labels):
    chosen = tf.placeholder_with_default([0, 1, 4], [None])
    assigned = module.get_cluster_assignment(distances, chosen)
    updated = module.update_all_medoids(
        distances, tf.cast(assigned, tf.int32), labels, chosen, 1.0, "nmi"
    )
    return [assigned, updated]


def _differentiated(module):
    given = x(6, 3)
    made = module.pairwise_distance(given)
    squared = module.pairwise_distance(given, squared=True)
    return [made, squared, tf.gradients(made, given)]


def _from_arrays(contrib):
    del contrib
    features = {"a": floats(5, 2), "b": np.arange(5)}
    read = tf.estimator.inputs.numpy_input_fn(
        features, np.arange(5) * 2, batch_size=2, shuffle=False
    )
    with tf.Graph().as_default():
        made = read()
        with tf.train.MonitoredSession() as session:
            return [session.run(made) for _ in range(3)]


def _protos(contrib):
    del contrib
    return [
        list(tf.train.FloatList(value=floats(3)).value),
        list(tf.train.Int64List(value=[3, 4]).value),
    ]


def _words_of_file(contrib):
    path = os.path.join(tempfile.mkdtemp(), "words")
    with open(path, "w") as file:
        file.write("a\nb\n")
    table = contrib.lookup.string_to_index_table_from_file(path, num_oov_buckets=2)
    return table.lookup(tf.constant(["b", "z"]))


CALLS = {
    "estimator.inputs.numpy_input_fn": _from_arrays,
    "framework.python.ops.ops": _of("framework.python.ops.ops", _graphs),
    "layers.python.layers.utils.constant_value": _layers(_constants),
    "layers.python.layers.utils.get_tensor_aliases": _layers(_aliases),
    "layers.python.layers.utils.last_dimension": _layers(_numbers),
    "layers.python.ops.sparse_ops.dense_to_sparse_tensor": _sparse(
        lambda m: m.dense_to_sparse_tensor(x(2, 3) * [1.0, 0.0, 1.0], 0.0)
    ),
    "layers.python.ops.sparse_ops.indicators_to_sparse_ids": _sparse(
        lambda m: m.indicators_to_sparse_ids(tf.constant([[0, 1, 1], [1, 0, 0]]))
    ),
    "layers.python.ops.sparse_ops.sparse_row_envelope": _sparse(
        lambda m: m.sparse_row_envelope(
            tf.SparseTensor([[0, 1], [1, 2], [3, 0]], [1, 2, 3], [4, 3])
        )
    ),
    "metric_loss_ops.compute_clustering_score": _distances(
        lambda m, distances, labels: [
            m.compute_clustering_score(labels, labels[::-1], kind)
            for kind in ("nmi", "ami", "ari", "vmeasure", "const")
        ]
    ),
    "metric_loss_ops.compute_facility_energy": _distances(
        lambda m, distances, labels: [
            m.compute_facility_energy(distances, tf.constant([0, 1, 4])),
            m.compute_gt_cluster_score(distances, labels),
        ]
    ),
    "metric_loss_ops.masked_maximum": _distances(
        lambda m, distances, labels: [
            m.masked_maximum(distances, tf.cast(distances > 1.0, tf.float32)),
            m.masked_minimum(distances, tf.cast(distances > 1.0, tf.float32)),
        ]
    ),
    "metric_loss_ops.pairwise_distance": _of(_LOSSES, _differentiated),
    "metric_loss_ops.update_1d_tensor": _distances(
        lambda m, distances, labels: m.update_1d_tensor(labels, 2, 7)
    ),
    "metric_loss_ops.update_all_medoids": _distances(_medoids),
    "lookup.index_table_from_tensor": lambda c: c.lookup.index_table_from_tensor(
        mapping=tf.constant(["a", "b"]), num_oov_buckets=1
    ).lookup(tf.constant(["b", "z"])),
    "lookup.index_to_string": lambda c: c.lookup.index_to_string(
        tf.constant([1, 2], tf.int64), mapping=["a", "b"], default_value="none"
    ),
    "lookup.index_to_string_table_from_tensor": lambda c: (
        c.lookup.index_to_string_table_from_tensor(mapping=["a", "b"])
    ).lookup(tf.constant([1, 2], tf.int64)),
    "lookup.string_to_index": lambda c: c.lookup.string_to_index(
        tf.constant(["b", "z"]), mapping=["a", "b"]
    ),
    "lookup.string_to_index_table_from_file": _words_of_file,
    "lookup.string_to_index_table_from_tensor": lambda c: (
        c.lookup.string_to_index_table_from_tensor(mapping=["a", "b"])
    ).lookup(tf.constant(["b", "z"])),
    "train.FloatList": _protos,
}
_UTILS = "layers.python.layers.utils."
# Other entries also call these functions.
ALIASES = {
    **{
        f"{_UTILS}{name}": f"{_UTILS}get_tensor_aliases"
        for name in (
            "NamedOutputs",
            "append_tensor_alias",
            "collect_named_outputs",
            "convert_collection_to_dict",
            "gather_tensors_aliases",
        )
    },
    **{
        f"{_UTILS}{name}": f"{_UTILS}constant_value"
        for name in ("smart_cond", "static_cond")
    },
    **{
        f"{_UTILS}{name}": f"{_UTILS}last_dimension"
        for name in (
            "channel_dimension",
            "get_variable_collections",
            "n_positive_integers",
            "two_element_tuple",
        )
    },
    "framework.python.ops.ops.get_graph_from_inputs": ("framework.python.ops.ops"),
    "framework.python.ops.ops.get_name_scope": "framework.python.ops.ops",
    **{
        f"metric_loss_ops.{name}": f"losses.{name}"
        for name in (
            "cluster_loss",
            "contrastive_loss",
            "lifted_struct_loss",
            "npairs_loss",
            "npairs_loss_multilabel",
            "triplet_semihard_loss",
        )
    },
    "metric_loss_ops.compute_augmented_facility_locations": ("losses.cluster_loss"),
    "metric_loss_ops.compute_augmented_facility_locations_pam": ("losses.cluster_loss"),
    "metric_loss_ops.compute_gt_cluster_score": (
        "metric_loss_ops.compute_facility_energy"
    ),
    "metric_loss_ops.get_cluster_assignment": ("metric_loss_ops.update_all_medoids"),
    "metric_loss_ops.masked_minimum": "metric_loss_ops.masked_maximum",
    "metric_loss_ops.update_medoid_per_cluster": ("metric_loss_ops.update_all_medoids"),
    "train.Int64List": "train.FloatList",
}
