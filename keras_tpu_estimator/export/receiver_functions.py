"""Functions that make the inputs of a served model."""

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from keras_tpu_estimator.base.common.shown import shown
from keras_tpu_estimator.base.common.types import Features, InputFn, Labels, PyTree
from keras_tpu_estimator.export.receivers import (
    SINGLE_FEATURE,
    SINGLE_LABEL,
    SINGLE_RECEIVER,
    ReceiverFn,
    ServingInputReceiver,
    SupervisedInputReceiver,
)

if TYPE_CHECKING:
    import tensorflow as tf


def build_raw_serving_input_receiver_fn(
    features: Features, default_batch_size: int | None = None
) -> ReceiverFn:
    """Makes a receiver function for requests that contain the features.

    The counterpart of the function of this name in `tf.estimator.export`.

    Args:
        features: A dict of values with a shape and a dtype (tensors, arrays,
            `tf.TensorSpec`s), batch first; or a single value. The shape of a
            placeholder may be unknown.
        default_batch_size: The batch size of requests. Defaults to any size.

    Returns:
        A function without arguments for `export_saved_model`.

    Raises:
        ValueError: A feature has no shape or no dtype.

    Example:

    >>> import numpy as np
    >>> import keras_tpu_estimator as kte
    >>> receiver_fn = kte.export.build_raw_serving_input_receiver_fn(
    ...     {"x": np.zeros((1, 3), "float32")})
    """
    specs = _raw_specs(features, SINGLE_FEATURE, default_batch_size)

    def serving_input_receiver_fn() -> ServingInputReceiver:
        placeholders = _placeholders(specs)
        return ServingInputReceiver(placeholders, placeholders)

    return serving_input_receiver_fn


def build_parsing_serving_input_receiver_fn(
    feature_spec: Mapping[str, object], default_batch_size: int | None = None
) -> ReceiverFn:
    """Makes a receiver function for requests that contain `tf.Example`s.

    The input is called 'examples', a tensor of serialized `tf.Example`s.

    The counterpart of the function of this name in `tf.estimator.export`.

    Args:
        feature_spec: A dict from names to `tf.io.FixedLenFeature`s and others that
            `tf.io.parse_example` turns into dense tensors.
        default_batch_size: The batch size of requests. Defaults to any size.

    Returns:
        A function without arguments for `export_saved_model`.

    Raises:
        ValueError: The dict is empty.

    Example:

    >>> import tensorflow as tf
    >>> import keras_tpu_estimator as kte
    >>> receiver_fn = kte.export.build_parsing_serving_input_receiver_fn(
    ...     {"x": tf.io.FixedLenFeature([3], tf.float32)})
    """
    if not isinstance(feature_spec, Mapping) or not feature_spec:
        raise ValueError(
            "`feature_spec` must be a dict from names to tf.io features. "
            f"Received: {feature_spec!r}. Pass a dict as for tf.io.parse_example."
        )

    def serving_input_receiver_fn() -> ServingInputReceiver:
        import tensorflow as tf

        _check_in_graph()
        examples = tf.compat.v1.placeholder(
            tf.string, [default_batch_size], name="input_example_tensor"
        )
        features = tf.io.parse_example(examples, dict(feature_spec))
        return ServingInputReceiver(features, {"examples": examples})

    return serving_input_receiver_fn


def build_raw_supervised_input_receiver_fn(
    features: Features, labels: Labels, default_batch_size: int | None = None
) -> ReceiverFn:
    """Makes a receiver function for exporting a model in TRAIN or EVAL.

    The counterpart of the function of this name in `tf.estimator.experimental`.

    Args:
        features: As in `build_raw_serving_input_receiver_fn`; a single value has the
            name 'input'.
        labels: Like the features; a single value has the name 'label'.
        default_batch_size: The batch size of requests. Defaults to any size.

    Returns:
        A function without arguments for `experimental_export_all_saved_models`.

    Raises:
        ValueError: Features and labels have names in common, or one has no
            shape or no dtype.

    Example:

    >>> import numpy as np
    >>> import keras_tpu_estimator as kte
    >>> receiver_fn = kte.export.build_raw_supervised_input_receiver_fn(
    ...     {"x": np.zeros((1, 3), "float32")}, np.zeros((1, 1), "float32"))
    """
    feature_specs = _raw_specs(features, SINGLE_RECEIVER, default_batch_size)
    label_specs = _raw_specs(labels, SINGLE_LABEL, default_batch_size)
    common = feature_specs.keys() & label_specs.keys()
    if common:
        raise ValueError(
            "Features and labels must have different names. Received in "
            f"both: {sorted(common)}. Rename the labels."
        )

    def supervised_input_receiver_fn() -> SupervisedInputReceiver:
        feature_tensors = _placeholders(feature_specs)
        label_tensors = _placeholders(label_specs)
        return SupervisedInputReceiver(
            feature_tensors
            if isinstance(features, Mapping)
            else feature_tensors[SINGLE_RECEIVER],
            label_tensors
            if isinstance(labels, Mapping)
            else label_tensors[SINGLE_LABEL],
            {**feature_tensors, **label_tensors},
        )

    return supervised_input_receiver_fn


def build_supervised_input_receiver_fn_from_input_fn(
    input_fn: InputFn, **input_fn_args: Any
) -> ReceiverFn:
    """Makes a receiver function with the features and labels of an `input_fn`.

    The counterpart of the function of this name in `tf.estimator.experimental`.

    Args:
        input_fn: Returns a `tf.data.Dataset`, or a pair of features and labels.
        **input_fn_args: Its arguments.

    Returns:
        A function without arguments for `experimental_export_all_saved_models`.

    Raises:
        ValueError: `input_fn` returns no labels.

    Example:

    >>> import numpy as np
    >>> import keras_tpu_estimator as kte
    >>> def input_fn(params):
    ...     size = params["batch_size"]
    ...     return {"x": np.zeros((size, 3))}, np.zeros((size, 1))
    >>> build = kte.export.build_supervised_input_receiver_fn_from_input_fn
    >>> receiver_fn = build(input_fn, params={"batch_size": 2})
    """
    data = input_fn(**input_fn_args)
    data = getattr(data, "element_spec", data)
    if not isinstance(data, tuple | list) or len(data) != 2:
        raise ValueError(
            "`input_fn` must return features and labels. Received: "
            f"{data!r}. Pass an `input_fn` for training, or use "
            "build_raw_supervised_input_receiver_fn."
        )
    return build_raw_supervised_input_receiver_fn(*data)


@dataclasses.dataclass(frozen=True)
class _Placeholder:
    """A placeholder like a value.

    Attributes:
        name: The name of its operation: that of a tensor of a graph, which programs
            feed by its name, or the key. `None` if TensorFlow does not allow the key.
        shape: Its shape, or `None` if it is unknown.
        dtype: Its dtype.
    """

    name: str | None
    shape: list[int | None] | None
    dtype: Any

    @classmethod
    def like(cls, key: object, value: Any, batch_size: int | None) -> "_Placeholder":
        """Makes the placeholder of a value, batch first."""
        name = getattr(getattr(value, "op", None), "name", None) or _op_name(key)
        shape = getattr(value, "shape", None)
        is_unknown = getattr(shape, "rank", 0) is None
        if is_unknown and batch_size is None:
            return cls(name, None, value.dtype)
        sizes = [] if shape is None or is_unknown else list(shape)
        if not sizes or not hasattr(value, "dtype"):
            raise ValueError(
                f"{key!r} must have a shape, batch first, and a dtype. "
                f"Received: {shown(value)}. Pass "
                "a tensor, an array or a tf.TensorSpec."
            )
        return cls(name, [batch_size, *sizes[1:]], value.dtype)

    def make(self) -> "tf.Tensor":
        """Adds the placeholder to the default graph."""
        import tensorflow as tf

        return tf.compat.v1.placeholder(self.dtype, self.shape, name=self.name)


def _raw_specs(
    tensors: PyTree, single: str, batch_size: int | None
) -> dict[str, _Placeholder]:
    """Returns the placeholders of these values, by their keys."""
    if not isinstance(tensors, Mapping):
        tensors = {single: tensors}
    return {
        name: _Placeholder.like(name, tensor, batch_size)
        for name, tensor in tensors.items()
    }


def _placeholders(specs: Mapping[str, _Placeholder]) -> dict[str, "tf.Tensor"]:
    _check_in_graph()
    return {name: placeholder.make() for name, placeholder in specs.items()}


def _op_name(key: object) -> str | None:
    """Returns the name of a placeholder if TensorFlow allows it, or `None`."""
    text = str(key)
    return text if text.isidentifier() and text[0] != "_" else None


def _check_in_graph() -> None:
    import tensorflow as tf

    if tf.executing_eagerly():
        raise RuntimeError(
            "The export must call the serving input receiver function, in a "
            "graph. Received: a call outside a graph. Pass the function itself: "
            "export_saved_model(path, receiver_fn)."
        )
