"""The TensorFlow graph of a served model: receivers, model, signatures."""

import dataclasses
import logging
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from keras_tpu_estimator.api.model_fn.outside_compilation import (
    with_host_tensors,
)
from keras_tpu_estimator.base.common.logs import warn_once
from keras_tpu_estimator.base.common.modes import ModeKeys
from keras_tpu_estimator.base.common.shown import shown
from keras_tpu_estimator.base.common.tensorflow_session import hide_gpus
from keras_tpu_estimator.base.common.types import Features, PyTree
from keras_tpu_estimator.engine.inputs.datasets import dense
from keras_tpu_estimator.export.lowering import LoweredModel
from keras_tpu_estimator.export.rebuilding import RebuiltModel
from keras_tpu_estimator.export.receivers import Receiver, ReceiverFn
from keras_tpu_estimator.export.served_model_fn import SignatureOutput
from keras_tpu_estimator.export.shapes import FeatureSpec, feature_spec

if TYPE_CHECKING:
    import tensorflow as tf
    from tensorflow.core.protobuf.meta_graph_pb2 import SignatureDef, TensorInfo


_logger = logging.getLogger("keras_tpu_estimator")
Model = LoweredModel | RebuiltModel

# TensorFlow's method names of signatures.
_METHODS = {
    "predict": "serving/predict",
    "classify": "serving/classify",
    "regress": "serving/regress",
    ModeKeys.TRAIN: "supervised/training",
    ModeKeys.EVAL: "supervised/eval",
}
# The bytes of a device's integers.
_DEVICE_BYTES = 4
# Requests of these methods contain a tensor of serialized examples.
_OF_EXAMPLES = ("classify", "regress")


def components(tree: PyTree) -> list["tf.Tensor"]:
    """Returns the dense tensors in a pytree, including the parts of sparse tensors.

    Keys of dicts may have several types, which neither JAX nor TensorFlow can sort.
    """
    import tensorflow as tf

    if isinstance(tree, Mapping):
        return [component for value in tree.values() for component in components(value)]
    return list(tf.nest.flatten(tree, expand_composites=True))


@dataclasses.dataclass(frozen=True)
class ServingGraph:
    """A TensorFlow graph with the names of the model's features and outputs.

    `results` are the names of all tensors that signatures return. `init_op` runs when
    the model is loaded; `None` initializes tables and local variables.
    """

    graph: "tf.Graph"
    signatures: Mapping[str, "SignatureDef"]
    variables: Mapping[str, "tf.Variable"]
    model: Any
    features: tuple[str, ...]
    outputs: tuple[str, ...]
    results: tuple[str, ...]
    init_op: Any = None


def build_graph(
    receiver_fn: ReceiverFn,
    kinds: tuple[type[Receiver], ...],
    model_for: Callable[[PyTree], Model],
) -> ServingGraph:
    """Builds the graph of a served model, which `model_for` makes for `FeatureSpec`s.

    The receiver function may return the types `kinds`.
    """
    import tensorflow as tf

    hide_gpus()
    graph = tf.Graph()
    with graph.as_default():
        receiver = checked_receiver(receiver_fn(), kinds)
        _check_sortable(receiver.features)
        paths, tree = jax.tree_util.tree_flatten_with_path(
            receiver.inputs, is_leaf=tf.is_tensor
        )
        tensors = [dense(tensor) for _, tensor in paths]
        specs = [
            feature_spec(jax.tree_util.keystr(path) or "", tensor)
            for (path, _), tensor in zip(paths, tensors, strict=True)
        ]
        # Each feature can be fed separately, even if two are the same tensor.
        features = [tf.identity(tensor) for tensor in tensors]
        check_fed(features, receiver.receiver_tensors, "the features")
        model = model_for(jax.tree.unflatten(tree, specs))
        if isinstance(model, RebuiltModel):
            _warn_of_clipping(receiver, tensors, specs)
        variables = make_variables(model.values)
        flat = _called(
            model,
            variables,
            [
                in_dtype(feature, spec.dtype, spec.name)
                for feature, spec in zip(features, specs, strict=True)
            ],
        )
        outputs = with_host_tensors(
            jax.tree.unflatten(model.outputs, flat),
            finish=lambda tensor: tensor,
        )
        signatures = dict(signature_defs(receiver, model.signatures, outputs))
    check_any(model.signatures, signatures)
    return ServingGraph(
        graph=graph,
        signatures=signatures,
        variables=variables,
        model=model,
        features=tuple(tensor.name for tensor in features),
        outputs=tuple(tensor.name for tensor in flat),
        results=tuple(tensor.name for tensor in outputs.values()),
    )


def _called(
    model: Model,
    variables: Mapping[str, "tf.Variable"],
    features: Sequence["tf.Tensor"],
) -> list["tf.Tensor"]:
    """Returns the flat outputs of a model, and assigns its new state.

    The next request reads assigned values, as the next batch of `predict` does.
    Concurrent requests therefore wait for each other.
    """
    import tensorflow as tf

    if not (isinstance(model, LoweredModel) and model.assigned):
        values = [variable.read_value() for variable in variables.values()]
        flat, _ = model.call(values, features)
        return flat
    lock = tf.raw_ops.MutexLock(mutex=tf.raw_ops.MutexV2(shared_name="model"))
    with tf.control_dependencies([lock]):
        values = [variable.read_value() for variable in variables.values()]
    flat, state = model.call(values, features)
    assignments = [
        variables[path].assign(value, read_value=False) for path, value in state.items()
    ]
    with tf.control_dependencies([*assignments, *flat]):
        unlock = tf.raw_ops.ConsumeMutexLock(mutex_lock=lock)
    with tf.control_dependencies([unlock]):
        return [tf.identity(tensor) for tensor in flat]


def _check_sortable(features: Features) -> None:
    kinds = {type(k) for k in features} if isinstance(features, Mapping) else ()
    if len(kinds) > 1:
        raise ValueError(
            "The keys of `features` must be all strings or all integers, "
            "because JAX sorts them. Received: "
            f"{list(features)}. Rename some of them."
        )


def checked_receiver(receiver: object, kinds: tuple[type[Receiver], ...]) -> Receiver:
    """Returns a receiver after checking its type."""
    if isinstance(receiver, kinds):
        return receiver
    names = " or a ".join(kind.__name__ for kind in kinds)
    hint = "Return one from it."
    if callable(receiver):
        hint = "It returned a function: call that function, or pass it instead."
    raise TypeError(
        f"The serving input receiver function must return a {names}. "
        f"Received: {shown(receiver)}. {hint}"
    )


def make_variables(
    values: Mapping[str, np.ndarray],
) -> dict[str, "tf.Variable"]:
    """Returns an uninitialized TensorFlow variable for each path."""
    import tensorflow as tf

    return {
        path: tf.compat.v1.get_variable(
            _variable_name(path),
            value.shape,
            value.dtype,
            initializer=tf.compat.v1.zeros_initializer(),
            use_resource=True,
        )
        for path, value in values.items()
    }


def _variable_name(path: str) -> str:
    """Returns the path in characters that TensorFlow allows."""
    name = re.sub(r"[^A-Za-z0-9_./-]", "_", path)
    return name if name[0].isalnum() else f"v{name}"


def signature_defs(
    receiver: Receiver,
    signatures: Mapping[str, SignatureOutput],
    outputs: Mapping[str, "tf.Tensor"],
) -> Iterator[tuple[str, "SignatureDef"]]:
    """Yields `SignatureDef`s by name, and skips those that requests cannot use."""
    receivers = {"": receiver.receiver_tensors}
    for name, alternative in (receiver.receiver_tensors_alternatives or {}).items():
        receivers[f"{name}:"] = alternative
    for prefix, inputs in receivers.items():
        for name, signature in signatures.items():
            tensors = {
                output: outputs[source] for output, source in signature.names.items()
            }
            reason = _unusable(signature.method, inputs)
            if reason is None and prefix and _unfed(tensors, inputs):
                reason = "its inputs are not enough to compute the outputs"
            if reason is None:
                yield (
                    prefix + name,
                    _signature(signature.method, inputs, tensors),
                )
            else:
                _logger.warning(
                    "The signature %r is omitted: %s.", prefix + name, reason
                )


def _unusable(method: str, inputs: Mapping[str, "tf.Tensor"]) -> str | None:
    """Returns why requests of a method cannot contain these inputs, or `None`."""
    if method not in _OF_EXAMPLES:
        return None
    dtypes = [tensor.dtype.name for tensor in inputs.values()]
    is_dense = len(components(inputs)) == 1
    if dtypes == ["string"] and is_dense:
        return None
    return (
        f"requests to {method} contain one tensor of strings, but the inputs are "
        f"{dict(zip(inputs, dtypes, strict=True))}"
    )


def _signature(
    method: str,
    inputs: Mapping[str, "tf.Tensor"],
    outputs: Mapping[str, "tf.Tensor"],
) -> "SignatureDef":
    from tensorflow.core.protobuf import meta_graph_pb2

    if method in _OF_EXAMPLES:
        (tensor,) = inputs.values()
        inputs = {"inputs": tensor}
    return meta_graph_pb2.SignatureDef(
        inputs={name: _info(tensor) for name, tensor in inputs.items()},
        outputs={name: _info(tensor) for name, tensor in outputs.items()},
        method_name=f"tensorflow/{_METHODS[method]}",
    )


def _info(tensor: "tf.Tensor") -> "TensorInfo":
    import tensorflow as tf

    return tf.compat.v1.saved_model.utils.build_tensor_info(tensor)


def check_fed(tensors: PyTree, inputs: Mapping[str, "tf.Tensor"], what: str) -> None:
    """Raises if inputs lack placeholders that tensors depend on."""
    unfed = _unfed(tensors, inputs)
    if unfed:
        raise ValueError(
            f"`receiver_tensors` must contain all placeholders that {what} depend "
            f"on. Received: {sorted(inputs)}. Add {sorted(unfed)}."
        )


def _unfed(tensors: PyTree, inputs: Mapping[str, "tf.Tensor"]) -> set[str]:
    """Returns the names of the placeholders that tensors need beside these inputs."""
    fed = {tensor.ref() for tensor in components(inputs)}
    waiting, visited, unfed = components(tensors), set(), set()
    while waiting:
        tensor = waiting.pop()
        if tensor.ref() in fed or tensor.op.name in visited:
            continue
        visited.add(tensor.op.name)
        if tensor.op.type == "Placeholder":
            unfed.add(tensor.op.name)
        waiting.extend(tensor.op.inputs)
    return unfed


def _warn_of_clipping(
    receiver: Receiver,
    features: Sequence["tf.Tensor"],
    specs: Sequence[FeatureSpec],
) -> None:
    """Warns once about features whose integers a converted model clips.

    A converter removes the error of `in_dtype`. Requests of serialized examples contain
    no integers, and converters do not support them.
    """
    names = [
        spec.name
        for feature, spec in zip(features, specs, strict=True)
        if _is_wide(feature) and spec.dtype.itemsize < feature.dtype.size
    ]
    if names and any(map(_is_wide, components(receiver.receiver_tensors))):
        warn_once(
            "The SavedModel refuses int64 features that do not fit 32 bits: "
            f"{', '.join(names)}. If you convert it, for example to ONNX, OpenVINO or "
            "LiteRT, the converted model uses the nearest integer that fits instead. "
            "Use int32 placeholders for such a model."
        )


def _is_wide(tensor: "tf.Tensor") -> bool:
    return bool(tensor.dtype.is_integer) and tensor.dtype.size > _DEVICE_BYTES


def check_any(signatures: Mapping[str, object], usable: Mapping[str, object]) -> None:
    """Raises `ValueError` if no signature is left."""
    if not usable.keys() & signatures.keys():
        raise ValueError(
            "At least one signature must be usable. ClassificationOutput and "
            "RegressionOutput need one input, a tensor of strings. Received: "
            f"{sorted(signatures)}. Add a PredictOutput to `export_outputs`, or "
            "use build_parsing_serving_input_receiver_fn."
        )


def in_dtype(tensor: "tf.Tensor", dtype: np.dtype, name: str) -> "tf.Tensor":
    """Casts a feature, with an error for requests whose numbers do not fit.

    Converters for other runtimes drop the error. There, integers that do not fit become
    the nearest ones that fit, which are in no vocabulary.
    """
    import tensorflow as tf

    narrow = tf.as_dtype(dtype)
    if tensor.dtype == narrow:
        return tensor
    if tensor.dtype.is_integer:
        wide = tensor.dtype
        least, most = max(wide.min, narrow.min), min(wide.max, narrow.max)
        result = tf.cast(tf.clip_by_value(tensor, least, most), narrow)
        fits = tf.equal(tf.cast(result, tensor.dtype), tensor)
    else:
        result = tf.cast(tensor, narrow)
        fits = tf.equal(_is_finite(result), _is_finite(tensor))
    check = tf.debugging.Assert(
        tf.reduce_all(fits),
        [
            f"The feature {name} must fit {narrow.name}, because devices have "
            "32 bits. Received:",
            tensor,
        ],
    )
    with tf.control_dependencies([check]):
        return tf.identity(result)


def _is_finite(tensor: "tf.Tensor") -> "tf.Tensor":
    import tensorflow as tf

    if tensor.dtype.is_complex:
        return _is_finite(tf.math.real(tensor)) & _is_finite(tf.math.imag(tensor))
    return tf.math.is_finite(tensor)
