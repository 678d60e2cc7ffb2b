"""Callbacks of Keras: the private attributes that contain their state."""

import contextlib
import types
from collections.abc import Iterator, Mapping
from typing import Any

import keras

from keras_tpu_estimator.base.upstream.private_names import PrivateAttribute

# Every callback has its model in an attribute of this name.
MODEL = PrivateAttribute(
    "holds the model of a callback, which is no state",
    "keras.callbacks.Callback._model",
)


def _is_used(attribute: PrivateAttribute) -> bool:
    """Returns whether a method of the class still uses the attribute."""
    kind = getattr(keras.callbacks, attribute.path.split(".")[-2])
    return any(
        attribute.name in method.__code__.co_names
        for base in kind.__mro__
        for method in vars(base).values()
        if isinstance(method, types.FunctionType)
    )


def _state(kind: str, **purposes: str) -> tuple[PrivateAttribute, ...]:
    return tuple(
        PrivateAttribute(purpose, f"keras.callbacks.{kind}.{name}", _is_used)
        for name, purpose in purposes.items()
    )


_COUNTS = {
    "_batches_seen_since_last_saving": "counts batches until the next file",
    "_last_batch_seen": "holds the number of the last batch",
}
BACKUP_AND_RESTORE = _state(
    "BackupAndRestore", **_COUNTS, _current_epoch="holds the epoch"
)
MODEL_CHECKPOINT = _state(
    "ModelCheckpoint", **_COUNTS, _current_epoch="holds the epoch"
)
ORBAX_CHECKPOINT = _state(
    "OrbaxCheckpoint", **_COUNTS, _total_batches_seen="counts all batches"
)
SWAP_EMA_WEIGHTS = _state(
    "SwapEMAWeights",
    _ema_weights_in_model="is true while the model has the averages",
)
TENSORBOARD = _state(
    "TensorBoard",
    _global_train_batch="counts batches of training",
    _global_test_batch="counts batches of evaluation",
    _previous_epoch_iterations="holds the step at which the epoch began",
)
_LOAD_MODEL = PrivateAttribute(
    "loads a backup when training begins, which continues from a checkpoint",
    "keras.callbacks.BackupAndRestore._load_model",
)


def state_of(callback: Any, attributes: tuple[PrivateAttribute, ...]) -> dict[str, Any]:
    """Returns the attributes that a callback already has, by name."""
    return {
        attribute.name: attribute.get(callback)
        for attribute in attributes
        if attribute.is_set(callback)
    }


def restore_state(
    callback: Any, attributes: tuple[PrivateAttribute, ...], state: Mapping[str, Any]
) -> None:
    """Sets the attributes that a state contains."""
    for attribute in attributes:
        if attribute.name in state:
            # Some are first set when an epoch begins.
            setattr(callback, attribute.name, state[attribute.name])


@contextlib.contextmanager
def without_backup(callback: keras.callbacks.BackupAndRestore) -> Iterator[None]:
    """Prevents a callback from loading its backup in a `with` block."""
    _LOAD_MODEL.set(callback, lambda: None)
    try:
        yield
    finally:
        delattr(callback, _LOAD_MODEL.name)
