"""State of Keras: automatic names, scopes, masks, and the distribution.

Keras numbers automatic names for the whole process, so that the same `model_fn` would
have other variables in its second trace. In a block of this package the numbers start
again, separately in each name scope.
"""

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

import keras

from keras_tpu_estimator.base.upstream.private_names import (
    PrivateAttribute,
    PrivateName,
    UnsupportedVersionError,
    run_once_apart,
)

_STATE = PrivateName(
    "holds the numbers of automatic names, variables without a value, and masks",
    ("keras.src.backend.common.global_state",),
)
_CURRENT_PATH = PrivateName(
    "returns the path of the open name scopes",
    ("keras.src.backend.common.name_scope.current_path",),
)
_NAME_COUNTS = "object_name_uids"
_UNINITIALIZED = "uninitialized_variables"
# The attribute of a tensor that is its mask.
MASK = "_keras_mask"


def name_path() -> str:
    """Returns the path of the current name scopes."""
    path: str = _CURRENT_PATH.value()
    return path


class _CountsByScope(dict[Any, int]):
    """The number of taken names by kind and name scope; Keras counts only by name."""

    def __init__(self, taken: Mapping[str, int]):
        super().__init__({("", name): count for name, count in taken.items()})

    def __contains__(self, name: object) -> bool:
        return super().__contains__((name_path(), name))

    def __getitem__(self, name: str) -> int:
        return self.get((name_path(), name), 0)

    def __setitem__(self, name: str, count: int) -> None:
        super().__setitem__((name_path(), name), count)

    def reset(self) -> None:
        """Forgets the counts in and below the current scope."""
        path = name_path()
        for scope, name in list(self):
            if scope == path or scope.startswith(f"{path}/"):
                del self[scope, name]


def restart_names() -> None:
    """Restarts automatic names in the current name scope, if each scope has counts."""
    counts = _STATE.value.get_global_attribute(_NAME_COUNTS)
    if isinstance(counts, _CountsByScope):
        counts.reset()


@contextlib.contextmanager
def fresh_names(taken: Mapping[str, int] | None = None) -> Iterator[None]:
    """Restarts Keras's automatic names in a `with` block, except taken ones.

    The first `Dense` of each name scope is called `dense` again, whatever the process
    built before. Uninitialized variables are forgotten at the end.
    """
    _verify()
    with _fresh_names(taken or {}):
        yield


def _fresh_names(
    taken: Mapping[str, int],
) -> contextlib.AbstractContextManager[None]:
    return _fresh({_NAME_COUNTS: _CountsByScope(taken), _UNINITIALIZED: []})


def fresh_masks() -> contextlib.AbstractContextManager[None]:
    """Hides the masks of traced tensors in a `with` block from those outside it.

    Keras finds them by the `id` of the tensor, per thread, and removes them with the
    tensor only if the same thread collects it.
    """
    return _fresh({f"{MASK}_dict": {}})


@contextlib.contextmanager
def _fresh(attributes: Mapping[str, Any]) -> Iterator[None]:
    """Replaces attributes of the state in a `with` block."""
    state = _STATE.value
    saved = {name: state.get_global_attribute(name) for name in attributes}
    for name, value in attributes.items():
        state.set_global_attribute(name, value)
    try:
        yield
    finally:
        for name, value in saved.items():
            state.set_global_attribute(name, value)


def _verify() -> None:
    """Checks once per process that Keras counts names in the replaced dict."""
    if run_once_apart(_first_names) != ["layer", "layer_1", "layer"]:
        raise UnsupportedVersionError("keras", _STATE.paths[0], _STATE.purpose)


def _first_names() -> list[str]:
    names: list[str] = []
    for count in (2, 1):
        with _fresh_names({}):
            names += [keras.layers.Layer().name for _ in range(count)]
    return names


_LAYOUT_MAP = PrivateAttribute(
    "holds the layouts of variables by patterns of their paths",
    "keras.distribution.ModelParallel._layout_map",
)


def current_layout_map() -> keras.distribution.LayoutMap | None:
    """Returns the layout map of the current distribution, if it has one."""
    distribution = keras.distribution.distribution()
    if not isinstance(distribution, keras.distribution.ModelParallel):
        return None
    return _LAYOUT_MAP.get(distribution)


@contextlib.contextmanager
def without_distribution() -> Iterator[None]:
    """Disables Keras's distribution in a `with` block.

    A distribution would put new variables on devices, and shard outputs of layers by
    the rules for variables.
    """
    before = keras.distribution.distribution()
    keras.distribution.set_distribution(None)
    try:
        yield
    finally:
        keras.distribution.set_distribution(before)
