"""The inputs of a served model."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from keras_tpu_estimator.base.common.named_tuple_like import NamedTupleLike
from keras_tpu_estimator.base.common.shown import shown
from keras_tpu_estimator.base.common.types import Features, Labels, PyTree

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
