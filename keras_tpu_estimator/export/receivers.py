"""The inputs of a served model, and functions that make them."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from keras_tpu_estimator.base.common.named_tuple_like import NamedTupleLike
from keras_tpu_estimator.base.common.shown import shown
from keras_tpu_estimator.base.common.types import Features, InputFn, Labels, PyTree

if TYPE_CHECKING:
    import tensorflow as tf

SINGLE_FEATURE = "feature"
SINGLE_RECEIVER = "input"
SINGLE_LABEL = "label"


@dataclasses.dataclass(frozen=True)
class ServingInputReceiver(NamedTupleLike):
    """The inputs of a served model, and the features made from them.

    The return type of a serving input receiver function, which is called in a
    TensorFlow graph. The receivers are placeholders (`tf.compat.v1.placeholder`), and
    all operations between them and the features become part of the SavedModel.

    Args:
        features: A dict of tensors, as `model_fn` reads them; a single tensor becomes
            `{"feature": tensor}`. Tensors may be sparse or ragged if `model_fn` builds
            a TensorFlow graph; otherwise sparse floats become dense.
        receiver_tensors: A dict from input names to placeholders, which may be sparse
            or ragged; a single placeholder becomes `{"input": placeholder}`.
        receiver_tensors_alternatives: A dict from names to other sets of tensors that a
            request may contain instead. Each adds signatures, named like
            'name:serving_default'. Defaults to none.

    Raises:
        ValueError: A value is missing, or is not a tensor.

    Example:

    >>> import tensorflow as tf
    >>> import keras_tpu_estimator as kte
    >>> def receiver_fn():
    ...     png = tf.compat.v1.placeholder(tf.string, [None], name="png")
    ...     image = tf.map_fn(
    ...         lambda each: tf.io.decode_png(each, channels=1), png,
    ...         fn_output_signature=tf.uint8)
    ...     image = tf.ensure_shape(image, [None, 28, 28, 1])
    ...     features = {"image": tf.cast(image, tf.float32) / 255}
    ...     return kte.export.ServingInputReceiver(features, {"png": png})
    >>> with tf.Graph().as_default():
    ...     sorted(receiver_fn().features)
    ['image']
    """

    features: Features
    receiver_tensors: PyTree
    receiver_tensors_alternatives: Mapping[str, PyTree] | None = None

    def __post_init__(self) -> None:
        _set(self, "features", _features(self.features))
        _normalize_receivers(self)

    @property
    def inputs(self) -> PyTree:
        """The inputs of `model_fn`, as a pytree of tensors."""
        return self.features


@dataclasses.dataclass(frozen=True)
class TensorServingInputReceiver(NamedTupleLike):
    """A `ServingInputReceiver` for a `model_fn` whose features are a single tensor.

    Args:
        features: The tensor.
        receiver_tensors: As in `ServingInputReceiver`.
        receiver_tensors_alternatives: As in `ServingInputReceiver`.

    Raises:
        ValueError: A value is missing, or is not a tensor.

    Example:

    >>> import tensorflow as tf
    >>> import keras_tpu_estimator as kte
    >>> with tf.Graph().as_default():
    ...     x = tf.compat.v1.placeholder(tf.float32, [None, 3])
    ...     receiver = kte.export.TensorServingInputReceiver(x, x)
    >>> receiver.receiver_tensors
    {'input': <tf.Tensor 'Placeholder:0' shape=(None, 3) dtype=float32>}
    """

    features: Features
    receiver_tensors: PyTree
    receiver_tensors_alternatives: Mapping[str, PyTree] | None = None

    def __post_init__(self) -> None:
        if isinstance(self.features, Mapping):
            raise ValueError(
                "The features of TensorServingInputReceiver must be one "
                f"tensor. Received: a dict of {sorted(self.features)}. Use "
                "ServingInputReceiver."
            )
        _check_tensor("features", SINGLE_FEATURE, self.features)
        _normalize_receivers(self)

    @property
    def inputs(self) -> PyTree:
        """The inputs of `model_fn`, as a pytree of tensors."""
        return self.features


@dataclasses.dataclass(frozen=True)
class SupervisedInputReceiver(NamedTupleLike):
    """Features and labels for exporting a model in TRAIN or EVAL.

    Args:
        features: A tensor, or a dict of tensors.
        labels: A tensor, or a dict of tensors.
        receiver_tensors: As in `ServingInputReceiver`.

    Raises:
        ValueError: A value is missing, or is not a tensor.

    Example:

    >>> import tensorflow as tf
    >>> import keras_tpu_estimator as kte
    >>> with tf.Graph().as_default():
    ...     x = tf.compat.v1.placeholder(tf.float32, [None, 3])
    ...     y = tf.compat.v1.placeholder(tf.float32, [None, 1])
    ...     receiver = kte.export.SupervisedInputReceiver(
    ...         {"x": x}, y, {"x": x, "y": y})
    >>> sorted(receiver.receiver_tensors)
    ['x', 'y']
    """

    features: Features
    labels: Labels
    receiver_tensors: PyTree

    def __post_init__(self) -> None:
        for name in ("features", "labels"):
            tensors = getattr(self, name)
            _check_tensors(name, tensors)
            _check_keys(name, tensors)
        _normalize_receivers(self)

    @property
    def receiver_tensors_alternatives(self) -> None:
        """Always `None`."""

    @property
    def inputs(self) -> PyTree:
        """Features and labels, as a pytree of tensors."""
        return {"features": self.features, "labels": self.labels}


@dataclasses.dataclass(frozen=True)
class UnsupervisedInputReceiver(NamedTupleLike):
    """Features for exporting a model without labels in TRAIN or EVAL.

    Args:
        features: A tensor, or a dict of tensors.
        receiver_tensors: As in `ServingInputReceiver`.

    Raises:
        ValueError: A value is missing, or is not a tensor.

    Example:

    >>> import tensorflow as tf
    >>> with tf.Graph().as_default():
    ...     x = tf.compat.v1.placeholder(tf.float32, [None, 3])
    ...     receiver = UnsupervisedInputReceiver({"x": x}, x)
    >>> sorted(receiver.receiver_tensors)
    ['input']
    """

    features: Features
    receiver_tensors: PyTree

    def __post_init__(self) -> None:
        _check_tensors("features", self.features)
        _check_keys("features", self.features)
        _normalize_receivers(self)

    @property
    def receiver_tensors_alternatives(self) -> None:
        """Always `None`."""

    @property
    def inputs(self) -> PyTree:
        """Features, as a pytree of tensors."""
        return {"features": self.features}


Receiver = (
    ServingInputReceiver
    | TensorServingInputReceiver
    | SupervisedInputReceiver
    | UnsupervisedInputReceiver
)
ReceiverFn = Callable[[], Receiver]


def _set(record: Receiver, name: str, value: object) -> None:
    """Normalizes a field of a frozen record during its construction."""
    object.__setattr__(record, name, value)


def _normalize_receivers(record: Receiver) -> None:
    receivers = _receivers("receiver_tensors", record.receiver_tensors)
    _set(record, "receiver_tensors", receivers)
    alternatives = record.receiver_tensors_alternatives
    if alternatives is None:
        return
    if not isinstance(alternatives, Mapping):
        raise ValueError(
            "`receiver_tensors_alternatives` must be a dict from names to "
            f"receiver tensors. Received: {shown(alternatives)}. Pass a dict."
        )
    _set(
        record,
        "receiver_tensors_alternatives",
        {
            name: _receivers(f"receiver_tensors_alternatives[{name!r}]", receiver)
            for name, receiver in alternatives.items()
        },
    )


def _features(features: Features) -> dict[str | int, "tf.Tensor"]:
    if features is not None and not isinstance(features, Mapping):
        features = {SINGLE_FEATURE: features}
    _check_tensors("features", features)
    _check_keys("features", features)
    return dict(features)


def _check_keys(name: str, tensors: PyTree) -> None:
    for key in tensors if isinstance(tensors, Mapping) else ():
        if not isinstance(key, str | int):
            raise ValueError(
                f"The keys of `{name}` must be strings or integers. "
                f"Received: {shown(key)}. Rename that entry."
            )


def _receivers(name: str, tensors: PyTree) -> dict[str, "tf.Tensor"]:
    if tensors is not None and not isinstance(tensors, Mapping):
        tensors = {SINGLE_RECEIVER: tensors}
    _check_tensors(name, tensors)
    for key in tensors:
        if not isinstance(key, str):
            raise ValueError(
                f"The keys of `{name}` must be strings. Received: {shown(key)}. "
                "Rename that entry."
            )
    return dict(tensors)


def _check_tensors(name: str, tensors: PyTree) -> None:
    if tensors is None or (isinstance(tensors, Mapping) and not tensors):
        raise ValueError(
            f"`{name}` must be a tensor or a dict of tensors. Received: "
            f"{tensors!r}. Pass the tensors that the receiver function made."
        )
    if not isinstance(tensors, Mapping):
        _check_tensor(name, name, tensors)
        return
    for key, tensor in tensors.items():
        _check_tensor(name, key, tensor)


def _check_tensor(name: str, key: object, tensor: object) -> None:
    import tensorflow as tf

    if not tf.is_tensor(tensor):
        raise ValueError(
            f"{key!r} in `{name}` must be a TensorFlow tensor. Received: "
            f"{shown(tensor)}. Make receivers with "
            "tf.compat.v1.placeholder, and features from these."
        )


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


def _raw_specs(
    tensors: PyTree, single: str, batch_size: int | None
) -> dict[str, tuple[list[int | None] | None, Any]]:
    """Returns the shapes and dtypes of placeholders like these tensors."""
    if not isinstance(tensors, Mapping):
        tensors = {single: tensors}
    specs: dict[str, tuple[list[int | None] | None, Any]] = {}
    for name, tensor in tensors.items():
        shape = getattr(tensor, "shape", None)
        is_unknown = getattr(shape, "rank", 0) is None
        if is_unknown and batch_size is None:
            specs[name] = (None, tensor.dtype)
            continue
        sizes = [] if shape is None or is_unknown else list(shape)
        if not sizes or not hasattr(tensor, "dtype"):
            raise ValueError(
                f"{name!r} must have a shape, batch first, and a dtype. "
                f"Received: {shown(tensor)}. Pass "
                "a tensor, an array or a tf.TensorSpec."
            )
        specs[name] = ([batch_size, *sizes[1:]], tensor.dtype)
    return specs


def _placeholders(
    specs: Mapping[str, tuple[list[int | None] | None, Any]],
) -> dict[str, "tf.Tensor"]:
    import tensorflow as tf

    _check_in_graph()
    return {
        name: tf.compat.v1.placeholder(dtype, shape, name=_op_name(name))
        for name, (shape, dtype) in specs.items()
    }


def _op_name(name: object) -> str | None:
    """Returns the name of a placeholder if TensorFlow allows it, or `None`."""
    text = str(name)
    return text if text.isidentifier() and text[0] != "_" else None


def _check_in_graph() -> None:
    import tensorflow as tf

    if tf.executing_eagerly():
        raise RuntimeError(
            "The export must call the serving input receiver function, in a "
            "graph. Received: a call outside a graph. Pass the function itself: "
            "export_saved_model(path, receiver_fn)."
        )
