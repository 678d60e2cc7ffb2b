"""What a server receives, and what becomes of it: TensorFlow's tensors."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from keras_tpu_estimator.ground.base.named_tuple_like import NamedTupleLike
from keras_tpu_estimator.ground.base.shown import shown
from keras_tpu_estimator.ground.base.types import Features, Labels, Nest

if TYPE_CHECKING:
    import tensorflow as tf

SINGLE_FEATURE = "feature"
SINGLE_RECEIVER = "input"
SINGLE_LABEL = "label"


@dataclasses.dataclass(frozen=True)
class ServingInputReceiver(NamedTupleLike):
    """The inputs of a served model, and the features made of them.

    What a serving input receiver function returns. It is called in a
    TensorFlow graph: the receivers are placeholders
    (`tf.compat.v1.placeholder`), and all ops between them and the features
    become part of the SavedModel.

    Args:
        features: Dict of tensors, as `model_fn` reads them; a single tensor
            becomes `{"feature": tensor}`. They may be sparse or ragged where
            `model_fn` builds a TF1 graph; elsewhere sparse floats become dense.
        receiver_tensors: Dict from input names to placeholders, which may be
            sparse or ragged; a single one becomes `{"input": placeholder}`.
        receiver_tensors_alternatives: Dict from names to other sets of tensors
            that a request may give instead. Each adds signatures, named like
            'name:serving_default'. Defaults to none.

    Raises:
        ValueError: Something is missing, or is no tensor.

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
    receiver_tensors: Nest
    receiver_tensors_alternatives: Mapping[str, Nest] | None = None

    def __post_init__(self) -> None:
        _set(self, "features", _features(self.features))
        _normalize_receivers(self)

    @property
    def inputs(self) -> Nest:
        """What `model_fn` is given, as a nest of tensors."""
        return self.features


@dataclasses.dataclass(frozen=True)
class TensorServingInputReceiver(NamedTupleLike):
    """As `ServingInputReceiver`, for a `model_fn` whose features are a tensor.

    Args:
        features: The tensor.
        receiver_tensors: As in `ServingInputReceiver`.
        receiver_tensors_alternatives: As in `ServingInputReceiver`.

    Raises:
        ValueError: Something is missing, or is no tensor.

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
    receiver_tensors: Nest
    receiver_tensors_alternatives: Mapping[str, Nest] | None = None

    def __post_init__(self) -> None:
        if isinstance(self.features, Mapping):
            raise ValueError(
                "The features of TensorServingInputReceiver should be one "
                f"tensor. Received a dict of {sorted(self.features)}. Use "
                "ServingInputReceiver."
            )
        _check_tensor("features", SINGLE_FEATURE, self.features)
        _normalize_receivers(self)

    @property
    def inputs(self) -> Nest:
        """What `model_fn` is given, as a nest of tensors."""
        return self.features


@dataclasses.dataclass(frozen=True)
class SupervisedInputReceiver(NamedTupleLike):
    """Features and labels, for exporting a model in TRAIN or EVAL.

    Args:
        features: Tensor, or a dict of them.
        labels: The same.
        receiver_tensors: As in `ServingInputReceiver`.

    Raises:
        ValueError: Something is missing, or is no tensor.

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
    receiver_tensors: Nest

    def __post_init__(self) -> None:
        for name in ("features", "labels"):
            tensors = getattr(self, name)
            _check_tensors(name, tensors)
            _check_keys(name, tensors)
        _normalize_receivers(self)

    @property
    def receiver_tensors_alternatives(self) -> None:
        """There are none."""

    @property
    def inputs(self) -> Nest:
        """Features and labels, as a nest of tensors."""
        return {"features": self.features, "labels": self.labels}


Receiver = ServingInputReceiver | TensorServingInputReceiver | SupervisedInputReceiver
ReceiverFn = Callable[[], Receiver]


def _set(record: Receiver, name: str, value: object) -> None:
    """Normalises a field of a frozen record while it is made."""
    object.__setattr__(record, name, value)


def _normalize_receivers(record: Receiver) -> None:
    receivers = _receivers("receiver_tensors", record.receiver_tensors)
    _set(record, "receiver_tensors", receivers)
    alternatives = record.receiver_tensors_alternatives
    if alternatives is None:
        return
    if not isinstance(alternatives, Mapping):
        raise ValueError(
            "`receiver_tensors_alternatives` should be a dict from names to "
            f"receiver tensors. Received: {shown(alternatives)}"
        )
    _set(
        record,
        "receiver_tensors_alternatives",
        {
            name: _receivers(f"receiver_tensors_alternatives[{name!r}]", each)
            for name, each in alternatives.items()
        },
    )


def _features(features: Features) -> dict[str | int, "tf.Tensor"]:
    if features is not None and not isinstance(features, Mapping):
        features = {SINGLE_FEATURE: features}
    _check_tensors("features", features)
    _check_keys("features", features)
    return dict(features)


def _check_keys(name: str, tensors: Nest) -> None:
    for key in tensors if isinstance(tensors, Mapping) else ():
        if not isinstance(key, str | int):
            raise ValueError(
                f"The keys of `{name}` must be strings or integers. "
                f"Received: {shown(key)}. Rename that entry."
            )


def _receivers(name: str, tensors: Nest) -> dict[str, "tf.Tensor"]:
    if tensors is not None and not isinstance(tensors, Mapping):
        tensors = {SINGLE_RECEIVER: tensors}
    _check_tensors(name, tensors)
    for key in tensors:
        if not isinstance(key, str):
            raise ValueError(
                f"The keys of `{name}` should be strings. Received: {shown(key)}"
            )
    return dict(tensors)


def _check_tensors(name: str, tensors: Nest) -> None:
    if tensors is None or (isinstance(tensors, Mapping) and not tensors):
        raise ValueError(
            f"`{name}` should be a tensor or a dict of tensors. Received: "
            f"{tensors!r}. Pass what the receiver function made."
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
            f"{key!r} in `{name}` should be a tensor of TensorFlow. Received: "
            f"{shown(tensor)}. Make receivers with "
            "tf.compat.v1.placeholder, and features from these."
        )
