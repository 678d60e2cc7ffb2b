"""Checks of hooks and listeners."""

from collections.abc import Iterable
from typing import Any

from keras_tpu_estimator.api.hooks.checkpoint_saver import (
    CheckpointSaverListener,
    check_listeners,
)
from keras_tpu_estimator.api.hooks.session_run_hook import Hook
from keras_tpu_estimator.api.hooks.tensorflow_hook import adopted, adopted_listener
from keras_tpu_estimator.base.common.field_checks import tuple_of
from keras_tpu_estimator.base.common.shown import shown


def validate_hooks(
    hooks: Iterable[Hook] | None, argument: str = "hooks"
) -> tuple[Hook, ...]:
    """Returns hooks as a tuple.

    Args:
        hooks: `SessionRunHook`s, those of TensorFlow included, and
            `keras.callbacks.Callback`s, or `None`.
        argument: The name of the argument, for errors. Defaults to `'hooks'`.

    Raises:
        TypeError: They are not a list, or one of them has another class.
    """
    given = tuple_of(argument, hooks, Hook, "hook")
    checked = tuple(adopted(hook) for hook in given)
    for hook in checked:
        if not isinstance(hook, Hook):
            raise TypeError(
                f"All `{argument}` must be SessionRunHook instances. Received: "
                f"{shown(hook)}. Derive it from "
                "keras_tpu_estimator.hooks.SessionRunHook or "
                "keras.callbacks.Callback."
            )
    return checked


def validate_listeners(
    listeners: Iterable[Any] | None, argument: str = "saving_listeners"
) -> tuple[CheckpointSaverListener, ...]:
    """Returns listeners as a tuple.

    Args:
        listeners: `CheckpointSaverListener`s, those of TensorFlow included, or
            `None`.
        argument: The name of the argument, for errors. Defaults to
            `'saving_listeners'`.

    Raises:
        TypeError: They are not a list, or not all `CheckpointSaverListener`s.
    """
    kind = CheckpointSaverListener
    given = tuple_of(argument, listeners, kind, "listener")
    return check_listeners(map(adopted_listener, given), argument)
