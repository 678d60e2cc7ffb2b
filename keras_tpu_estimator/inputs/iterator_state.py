"""The state of a user's input, by whichever protocol it has.

* `tf.data`: what `tf.train.Checkpoint(iterator=...)` writes.
* `state_dict()` and `load_state_dict(state)`, as in PyTorch's
  `StatefulDataLoader`.
* `get_state()` and `set_state(state)`, as in Grain.

The methods are looked for in the iterator, and then in what it is made of.
"""

import os
import sys
import tempfile
from collections.abc import Iterator
from typing import Any

from keras_tpu_estimator.inputs.forms import is_dataset

_TF_DATA = "tf.data"
_METHODS = (("state_dict", "load_state_dict"), ("get_state", "set_state"))
_NAME = "iterator"


def has_state(value: Any, iterator: Iterator[Any]) -> bool:
    """Whether the state of an iterator can be asked for.

    Args:
        value: What `input_fn` returned.
        iterator: An iterator over it.
    """
    return is_dataset(value) or _stateful(value, iterator) is not None


def state_of(value: Any, iterator: Iterator[Any]) -> dict[str, Any]:
    """The state of an iterator that has one.

    Args:
        value: What `input_fn` returned.
        iterator: An iterator over it.

    Returns:
        The name of its protocol, and the state.

    Raises:
        Exception: Whatever the user's code or `tf.data` raises.
    """
    if is_dataset(value):
        return {_TF_DATA: _written(iterator)}
    owner, save, _ = _stateful(value, iterator)
    return {save: getattr(owner, save)()}


def opened(value: Any, state: dict[str, Any] | None = None) -> Iterator[Any]:
    """An iterator over a value, in a state if one is given.

    Args:
        value: A dataset or an iterable.
        state: What `state_of` returned. Defaults to none.

    Raises:
        Exception: The state does not fit the value.

    Example:

    >>> class Numbers:
    ...     start = 0
    ...     def __iter__(self):
    ...         for self.start in range(self.start + 1, 5):
    ...             yield self.start
    ...     def state_dict(self):
    ...         return {"start": self.start}
    ...     def load_state_dict(self, state):
    ...         self.start = state["start"]
    >>> numbers = Numbers()
    >>> iterator = opened(numbers)
    >>> next(iterator), next(iterator)
    (1, 2)
    >>> next(opened(Numbers(), state_of(numbers, iterator)))
    3
    """
    if state is None:
        return iter(value)
    ((protocol, saved),) = state.items()
    if protocol == _TF_DATA:
        return _restored(value, saved)
    load = dict(_METHODS)[protocol]
    if hasattr(value, load):
        # Before it is iterated over, for that is when it takes effect.
        getattr(value, load)(saved)
        return iter(value)
    iterator = iter(value)
    getattr(iterator, load)(saved)
    return iterator


def _stateful(value: Any, iterator: Any) -> tuple[Any, str, str] | None:
    """What has the state, and the names of its methods."""
    for owner in (value, iterator):
        for save, load in _METHODS:
            if hasattr(owner, save) and hasattr(owner, load):
                return owner, save, load
    return None


def _written(iterator: Any) -> dict[str, bytes]:
    """The files of a `tf.data` iterator's checkpoint by suffix."""
    tensorflow = sys.modules["tensorflow"]
    with tempfile.TemporaryDirectory() as directory:
        prefix = os.path.join(directory, _NAME)
        tensorflow.train.Checkpoint(iterator=iterator).write(prefix)
        files = {}
        for name in sorted(os.listdir(directory)):
            with open(os.path.join(directory, name), "rb") as file:
                files[name.removeprefix(_NAME)] = file.read()
        return files


def _restored(dataset: Any, files: dict[str, bytes]) -> Any:
    """An iterator of `tf.data` in the state of a checkpoint's files."""
    tensorflow = sys.modules["tensorflow"]
    iterator = iter(dataset)
    with tempfile.TemporaryDirectory() as directory:
        prefix = os.path.join(directory, _NAME)
        for suffix, content in files.items():
            with open(prefix + suffix, "wb") as file:
                file.write(content)
        status = tensorflow.train.Checkpoint(iterator=iterator).read(prefix)
        status.assert_consumed()
    return iterator
