"""The states of all callbacks and hooks of one `train`."""

import collections
import contextlib
import dataclasses
import logging
from collections.abc import Hashable, Iterable, Iterator, Sequence
from typing import Any

import keras

from keras_tpu_estimator.api.hooks.callback_hook import CallbackHook
from keras_tpu_estimator.api.hooks.fingerprints import changed_names, fingerprints
from keras_tpu_estimator.api.hooks.session_run_hook import LoopHook, SessionRunHook
from keras_tpu_estimator.api.hooks.state_sources import (
    OF_EVERY_CALLBACK,
    beginning,
    known_attributes,
    sources_of,
)
from keras_tpu_estimator.base.common.shown import shown

_logger = logging.getLogger("keras_tpu_estimator")
# All classes of these packages that have a state are known.
_KNOWN_PACKAGES = ("keras_tpu_estimator", "keras", "tensorflow")
# Classes of these packages that have no state.
_BASES = ("SessionRunHook", "LoopHook", "Callback")


@dataclasses.dataclass(frozen=True)
class SavedState:
    """The state of one callback or hook in a checkpoint, with its class and monitored
    metric (`kind`), its index among those of this kind, and the names of changed
    attributes that are not in `state`.
    """

    kind: str
    number: int
    state: Any
    changed: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        # A file may contain anything.
        if not isinstance(self.kind, str) or not isinstance(self.number, int):
            raise TypeError(
                "A state must be that of a class, with a number. Received: "
                f"{shown(self.kind)} and {shown(self.number)}. Save it again."
            )

    @property
    def key(self) -> tuple[str, int]:
        """The key by which this state is found."""
        return self.kind, self.number

    @property
    def has_any(self) -> bool:
        """Whether a state exists or existed."""
        return self.state is not None or bool(self.changed)


class Holder:
    """A callback or hook that may have a state."""

    def __init__(self, subject: Any, kind: str, number: int):
        self.subject = subject
        self.key = kind, number
        self._sources = sources_of(subject)
        attributes = known_attributes(subject)
        self._own = {
            *attributes.names,
            *attributes.derived,
            *OF_EVERY_CALLBACK,
        }
        self._has_known_base = any(map(_keeps_something, type(subject).__mro__))
        self._before: dict[str, Hashable] | None = None
        self._changed_before: tuple[str, ...] = ()

    @property
    def has_begun(self) -> bool:
        """Whether it has begun, so that its own state counts and not a saved one."""
        return self._before is not None

    def begin(self, saved: SavedState | None) -> None:
        """Restores a state, unless it is `None`, and fingerprints the attributes."""
        if saved is not None and saved.state is not None:
            for name, state in saved.state.items():
                if name in self._sources:
                    self._sources[name].set(self.subject, state)
        self._changed_before = () if saved is None else saved.changed
        self._before = self._fingerprints()

    def saved(self) -> SavedState:
        """Returns its current state."""
        state = {
            name: source.get(self.subject) for name, source in self._sources.items()
        }
        changed: tuple[str, ...] = ()
        if "offered" not in state:
            now = changed_names(self._before or {}, self._fingerprints())
            changed = tuple(sorted({*now, *self._changed_before}))
        return SavedState(*self.key, state or None, changed)

    def _fingerprints(self) -> dict[str, Hashable]:
        if _is_known(type(self.subject)):
            return {}
        attributes = fingerprints(self.subject, self._own)
        if not self._has_known_base:
            return attributes
        return {n: value for n, value in attributes.items() if n[0] != "_"}


class HookStates:
    """The states of all callbacks and hooks of one `train`.

    States of a checkpoint are found by class, monitored metric, and order among equal
    ones. `saved` is `None` if the checkpoint has none because an earlier call ended
    with it.
    """

    def __init__(
        self,
        hooks: Iterable[SessionRunHook],
        saved: Sequence[SavedState] | None,
        has_checkpoint: bool,
        warns: bool = True,
    ):
        self._holders: dict[int, list[Holder]] = {}
        counts: collections.Counter[str] = collections.Counter()
        # An object may be among the hooks of both `train` and the spec.
        for hook in {id(hook): hook for hook in hooks}.values():
            self._holders[id(hook)] = []
            for subject in filter(_may_have_state, _subjects_of(hook)):
                kind = _kind_of(subject)
                holder = Holder(subject, kind, counts[kind])
                self._holders[id(hook)].append(holder)
                counts[kind] += 1
        before = collections.Counter(state.kind for state in saved or ())
        self._pending = {
            state.key: state
            for state in saved or ()
            if before[state.kind] == counts[state.kind]
        }
        self._has_checkpoint = has_checkpoint
        if warns:
            _warn_of_lost(
                state
                for state in saved or ()
                if state.has_any and state.key not in self._pending
            )
            _warn_of_unknown(self._pending.values())

    @contextlib.contextmanager
    def resuming(self, hook: SessionRunHook) -> Iterator[None]:
        """Restores a hook's states after the `with` block where it begins."""
        holders = self._holders[id(hook)]
        saved = [self._pending.get(holder.key) for holder in holders]
        if isinstance(hook, CallbackHook):
            # The first state is that of the hook itself.
            hook.resume(_epochs_in(saved[0]))
        with contextlib.ExitStack() as stack:
            for holder, its_own in zip(holders, saved, strict=True):
                stack.enter_context(
                    beginning(
                        holder.subject,
                        is_resumed=its_own is not None,
                        has_checkpoint=self._has_checkpoint,
                    )
                )
            yield
        for holder, its_own in zip(holders, saved, strict=True):
            holder.begin(its_own)

    def now(self) -> list[SavedState]:
        """Returns all current states to save in a checkpoint."""
        states = [
            holder.saved() if holder.has_begun else self._pending.get(holder.key)
            for holders in self._holders.values()
            for holder in holders
        ]
        return [state for state in states if state is not None]


def _subjects_of(hook: SessionRunHook) -> Iterator[Any]:
    """Yields a hook and its callbacks, which may have a state."""
    yield hook.adopted if isinstance(hook, LoopHook) else hook
    if isinstance(hook, CallbackHook):
        for callback in hook.callbacks:
            yield from _callbacks_in(callback)


def _callbacks_in(callback: keras.callbacks.Callback) -> Iterator[Any]:
    yield callback
    if isinstance(callback, keras.callbacks.CallbackList):
        for inner in callback.callbacks:
            yield from _callbacks_in(inner)


def _may_have_state(subject: Any) -> bool:
    """Returns whether a class is a user's, or is known to have a state."""
    return not _is_known(type(subject)) or bool(sources_of(subject))


def _is_known(kind: type) -> bool:
    return kind.__module__.split(".")[0] in _KNOWN_PACKAGES


def _kind_of(subject: Any) -> str:
    """Returns the class of a callback or hook, with its monitored metric."""
    module = type(subject).__module__
    if _is_known(type(subject)):
        # Checkpoints contain this name, and libraries move their inner modules.
        module = module.partition(".")[0]
    kind = f"{module}.{type(subject).__qualname__}"
    monitor = getattr(subject, "monitor", None)
    is_callback = isinstance(subject, keras.callbacks.Callback)
    if is_callback and isinstance(monitor, str):
        return f"{kind}({monitor!r})"
    return kind


def _keeps_something(base: type) -> bool:
    """Returns whether a class of a known package sets attributes."""
    return _is_known(base) and base.__name__ not in _BASES


def _epochs_in(saved: SavedState | None) -> Any:
    state = None if saved is None else saved.state
    return None if state is None else state.get("epochs")


def _short(kind: str) -> str:
    """Returns a kind without the module of its class."""
    name, parenthesis, monitor = kind.partition("(")
    return name.rsplit(".", 1)[-1] + parenthesis + monitor


def _warn_of_lost(lost: Iterable[SavedState]) -> None:
    names = sorted({_short(state.kind) for state in lost})
    if names:
        _logger.warning(
            "The callbacks or hooks with a state in the checkpoint differ "
            "from those of this call of `train`. These start without a "
            "state, or are missing: %s. Pass the same ones in the same order "
            "to resume them.",
            ", ".join(names),
        )


def _warn_of_unknown(restored: Iterable[SavedState]) -> None:
    changed: dict[str, set[str]] = {}
    for state in restored:
        if state.changed:
            changed.setdefault(_short(state.kind), set()).update(state.changed)
    for name, attributes in changed.items():
        _logger.warning(
            "%s starts without its state in this resumed call of `train`: "
            "its attributes %s had changed, and a checkpoint cannot contain "
            "them. Give the class `get_state(self)`, which returns numbers, "
            "strings and arrays in dicts and lists, and `set_state(self, "
            "state)`.",
            name,
            ", ".join(sorted(attributes)),
        )
