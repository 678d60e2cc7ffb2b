"""The parts of the state of callbacks and hooks: reading and restoring."""

import contextlib
import dataclasses
import inspect
import logging
import os
from collections.abc import Iterator, Mapping
from typing import Any, Protocol

import keras

from keras_tpu_estimator.api.hooks.callback_hook import CallbackHook
from keras_tpu_estimator.base.upstream import keras_callbacks
from keras_tpu_estimator.base.upstream.private_names import PrivateAttribute

_logger = logging.getLogger("keras_tpu_estimator")


class Source(Protocol):
    """A way to read one part of an object's state, and to restore it."""

    def get(self, subject: Any) -> Any:
        """Returns that part of the state."""

    def set(self, subject: Any, state: Any) -> None:
        """Restores that part of the state."""


@dataclasses.dataclass(frozen=True)
class Attributes:
    """Attributes that contain the state of a class of Keras: `public` and `private`.

    The class itself sets the `derived` ones.
    """

    public: tuple[str, ...] = ()
    derived: tuple[str, ...] = ()
    private: tuple[PrivateAttribute, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the attributes with state."""
        return (*self.public, *(attribute.name for attribute in self.private))

    def get(self, subject: Any) -> dict[str, Any]:
        """Returns the attributes that exist."""
        values = vars(subject)
        public = {name: values[name] for name in self.public if name in values}
        return public | keras_callbacks.state_of(subject, self.private)

    def set(self, subject: Any, state: Mapping[str, Any]) -> None:
        """Sets the saved attributes."""
        for name in self.public:
            if name in state:
                setattr(subject, name, state[name])
        keras_callbacks.restore_state(subject, self.private, state)


class CsvLength:
    """The length of a `CSVLogger`'s file."""

    def get(self, subject: Any) -> int | None:
        """Returns the file's size; `None` for a URL."""
        try:
            return os.path.getsize(subject.filename)
        except OSError:
            return None

    def set(self, subject: Any, state: int | None) -> None:
        """Removes the rows of steps that are repeated."""
        # With `append=True`, other processes may have added rows.
        if state is None or subject.append:
            return
        size = self.get(subject)
        if size is not None and size > state:
            subject.csv_file.truncate(state)
            subject.append_header = state == 0


class EpochOfHook:
    """The current epoch of a `CallbackHook`."""

    def get(self, subject: CallbackHook) -> Any:
        """Returns the state of its epochs."""
        return subject.epochs_state()

    def set(self, subject: CallbackHook, state: Any) -> None:
        """Does nothing, because `resume` sets the epoch earlier."""


@dataclasses.dataclass(frozen=True)
class Methods:
    """Two methods of a user's object that read and set its state."""

    getter: str
    setter: str

    def are_in(self, subject: Any) -> bool:
        """Returns whether an object has both, with the expected arguments."""
        getter = getattr(subject, self.getter, None)
        setter = getattr(subject, self.setter, None)
        return _can_be_called(getter) and _can_be_called(setter, "state")

    def get(self, subject: Any) -> Any:
        """Calls the getter."""
        return getattr(subject, self.getter)()

    def set(self, subject: Any, state: Any) -> None:
        """Calls the setter."""
        getattr(subject, self.setter)(state)


def _can_be_called(method: Any, *arguments: object) -> bool:
    """Returns whether a method takes arguments: the name may have another meaning."""
    try:
        inspect.signature(method).bind(*arguments)
    except (TypeError, ValueError):
        return False
    return True


_OFFERS = (
    Methods("get_state", "set_state"),
    Methods("state_dict", "load_state_dict"),
)
# Attributes that Keras sets in every callback.
OF_EVERY_CALLBACK = (
    keras_callbacks.MODEL.name,
    "model",
    "params",
    "validation_data",
)
_MONITOR = ("monitor_op", "min_delta")
# All callbacks of Keras. Attributes that a class derives from its arguments, or
# opens when training begins, are not state.
_OF_KERAS: Mapping[type, Attributes] = {
    keras.callbacks.BackupAndRestore: Attributes(
        private=keras_callbacks.BACKUP_AND_RESTORE
    ),
    keras.callbacks.Callback: Attributes(),
    keras.callbacks.CallbackList: Attributes(),
    keras.callbacks.CSVLogger: Attributes(
        derived=("writer", "keys", "append_header", "csv_file")
    ),
    keras.callbacks.EarlyStopping: Attributes(
        ("wait", "stopped_epoch", "best", "best_weights", "best_epoch"),
        _MONITOR,
    ),
    keras.callbacks.History: Attributes(("epoch", "history")),
    keras.callbacks.LambdaCallback: Attributes(),
    keras.callbacks.LearningRateScheduler: Attributes(),
    keras.callbacks.ModelCheckpoint: Attributes(
        ("best",), _MONITOR, keras_callbacks.MODEL_CHECKPOINT
    ),
    keras.callbacks.OrbaxCheckpoint: Attributes(
        ("best",), _MONITOR, keras_callbacks.ORBAX_CHECKPOINT
    ),
    keras.callbacks.ProgbarLogger: Attributes(
        derived=("seen", "progbar", "target", "verbose", "epochs")
    ),
    keras.callbacks.ReduceLROnPlateau: Attributes(
        ("best", "wait", "cooldown_counter"), _MONITOR
    ),
    keras.callbacks.RemoteMonitor: Attributes(),
    keras.callbacks.SwapEMAWeights: Attributes(
        private=keras_callbacks.SWAP_EMA_WEIGHTS
    ),
    keras.callbacks.TensorBoard: Attributes(private=keras_callbacks.TENSORBOARD),
    keras.callbacks.TerminateOnNaN: Attributes(),
}


def known_attributes(subject: Any) -> Attributes:
    """Returns the attributes that are known for a callback's class."""
    for base in type(subject).__mro__:
        if base in _OF_KERAS:
            return _OF_KERAS[base]
    return Attributes()


def sources_of(subject: Any) -> dict[str, Source]:
    """Returns the parts of a callback's or a hook's state by name."""
    sources: dict[str, Source] = {}
    attributes = known_attributes(subject)
    if attributes.names:
        sources["attributes"] = attributes
    if isinstance(subject, keras.callbacks.CSVLogger):
        sources["csv_length"] = CsvLength()
    if isinstance(subject, CallbackHook):
        sources["epochs"] = EpochOfHook()
    for offer in _OFFERS:
        if offer.are_in(subject):
            sources["offered"] = offer
            break
    return sources


@contextlib.contextmanager
def beginning(subject: Any, is_resumed: bool, has_checkpoint: bool) -> Iterator[None]:
    """Keeps `on_train_begin` from undoing a resume in the `with` block."""
    if isinstance(subject, keras.callbacks.CSVLogger) and not subject.append:
        # Earlier rows stay, and only a new file receives a header.
        subject.append, subject.append_header = is_resumed, True
        try:
            yield
        finally:
            subject.append = False
    elif isinstance(subject, keras.callbacks.BackupAndRestore) and has_checkpoint:
        _logger.warning(
            "BackupAndRestore does not load its backup: training continues "
            "from the checkpoint in `model_dir`. Leave this callback out."
        )
        with keras_callbacks.without_backup(subject):
            yield
    else:
        yield
