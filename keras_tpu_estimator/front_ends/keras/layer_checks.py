"""Checks of the layers and models that a `model_fn` calls."""

import contextlib
import contextvars
import functools
import inspect
import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax
import keras

_warns: contextvars.ContextVar[bool] = contextvars.ContextVar("warns", default=False)
# The classes that already caused the warning, as in Python's `warnings`.
_warned: dict[Any, Any] = {}
_called: contextvars.ContextVar[set[str] | None] = contextvars.ContextVar(
    "called", default=None
)
# The layers that only run on the host.
_HOST_LAYERS = (
    keras.layers.HashedCrossing,
    keras.layers.Hashing,
    keras.layers.IntegerLookup,
    keras.layers.StringLookup,
    keras.layers.TextVectorization,
)


@contextlib.contextmanager
def warning_of_train_step() -> Iterator[None]:
    """Warns about each class with a `train_step` that is called in a block."""
    _watch_calls()
    token = _warns.set(True)
    try:
        yield
    finally:
        _warns.reset(token)


@functools.cache
def _watch_calls() -> None:
    """Makes calls of Keras models observable; installs that once."""
    call = keras.Model.__call__

    @functools.wraps(call)
    def __call__(self: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N807
        own = type(self).train_step
        if _warns.get() and own is not keras.Model.train_step:
            _warn(type(self), inspect.unwrap(own))
        return call(self, *args, **kwargs)

    keras.Model.__call__ = __call__


def _warn(cls: type, train_step: Any) -> None:
    code = getattr(train_step, "__code__", None)
    warnings.warn_explicit(
        f"The class {cls.__name__} has a custom `train_step`, which an "
        "estimator does not call: the `train_op` of `model_fn` trains. "
        "Compute the loss in "
        "model_fn as `train_step` does, and gradients, if needed, with "
        "kte.gradients.",
        UserWarning,
        code.co_filename if code else __file__,
        code.co_firstlineno if code else 0,
        registry=_warned,
    )


@functools.cache
def reject_traced_inputs() -> None:
    """Makes layers of the host, which call TensorFlow, refuse traced tensors by an
    error with the layer's name; installs the check once.
    """
    for cls in _HOST_LAYERS:
        cls.__call__ = _refusing(cls.__call__)


def _refusing(call: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(call)
    def __call__(self: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N807
        leaves = jax.tree.leaves((args, kwargs))
        if any(isinstance(leaf, jax.core.Tracer) for leaf in leaves):
            kind = type(self).__name__
            raise ValueError(
                f"The layer keras.layers.{kind} must be called in `input_fn`, "
                "because it runs in TensorFlow on the host. Received a call "
                f"of {self.name!r} in `model_fn`. Call the layer in "
                "`dataset.map`, and pass its result as a feature."
            )
        return call(self, *args, **kwargs)

    return __call__


@contextlib.contextmanager
def noting_policies(policies: set[str]) -> Iterator[None]:
    """Adds the policy names of layers that are called in a `with` block to a set."""
    _watch_layers()
    token = _called.set(policies)
    try:
        yield
    finally:
        _called.reset(token)


def warn_of_unused_policy(policy: str, policies: set[str]) -> None:
    """Warns if no layer has the policy that `RunConfig.dtype_policy` names."""
    if policy in policies:
        return
    warnings.warn(
        "`RunConfig.dtype_policy` must be the policy of at least one Keras "
        f"layer that `model_fn` calls. Received {policy!r}, which has no "
        f"effect: {_policies_found(policies)}. Make layers in `model_fn`, or call "
        f"keras.config.set_dtype_policy({policy!r}) before you make them. In "
        "code without Keras layers, cast arrays and leave `dtype_policy` out.",
        UserWarning,
        stacklevel=2,
    )


def _policies_found(policies: set[str]) -> str:
    if not policies:
        return "`model_fn` calls no layers"
    names = ", ".join(map(repr, sorted(policies)))
    return f"the layers have {names}"


@functools.cache
def _watch_layers() -> None:
    """Makes the policies and inputs of called layers observable; installs that once."""
    call = keras.layers.Layer.__call__

    @functools.wraps(call)
    def __call__(self: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N807
        policies = _called.get()
        if policies is not None:
            _check_inputs(self, args[0] if args else kwargs.get("inputs"))
        result = call(self, *args, **kwargs)
        if policies is not None:
            policies.add(self.dtype_policy.name)
        return result

    keras.layers.Layer.__call__ = __call__


def _check_inputs(layer: keras.layers.Layer, inputs: Any) -> None:
    """Checks that a functional model with a dict of inputs reads the right ones.

    Keras reads tensors of a dict by their order, so that another key before an input
    would take its place.
    """
    if not isinstance(layer, keras.Model) or not isinstance(inputs, Mapping):
        return
    structure = getattr(layer, "input", None)
    if not isinstance(structure, Mapping):
        return
    expected = [path for path, _ in keras.tree.flatten_with_path(structure)]
    received = [path for path, _ in keras.tree.flatten_with_path(inputs)]
    is_complete = set(expected) <= set(received)
    if not is_complete or received[: len(expected)] == expected:
        return
    raise ValueError(
        f"The Keras model {layer.name!r} must be called with a dict of its inputs, "
        f"{_joined(expected)}, because Keras reads the tensors of a dict by their "
        f"order. Received: {_joined(received)}. "
        + _advice([path for path in received if path not in expected], structure)
    )


def _advice(additional: list[Any], structure: Mapping[str, Any]) -> str:
    if additional:
        return f"Remove {_joined(additional)} from the dict."
    return f"Pass the tensors in the model's order, in a {type(structure).__name__}."


def _joined(paths: list[Any]) -> str:
    return ", ".join(repr("/".join(map(str, path))) for path in paths)
