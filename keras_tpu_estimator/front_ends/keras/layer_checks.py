"""Checks of the layers and models that a `model_fn` calls."""

import contextlib
import inspect
import warnings
from collections.abc import Iterator, Mapping
from typing import Any

import jax
import keras

from keras_tpu_estimator.base.upstream import keras_layers

# The classes that already caused the warning, as in Python's `warnings`.
_warned: dict[Any, Any] = {}
# The layers that only run on the host.
_HOST_LAYERS = (
    keras.layers.HashedCrossing,
    keras.layers.Hashing,
    keras.layers.IntegerLookup,
    keras.layers.StringLookup,
    keras.layers.TextVectorization,
)


@contextlib.contextmanager
def layers_checked(policies: set[str], warns: bool) -> Iterator[None]:
    """Checks each layer and model that is called in a `with` block.

    Args:
        policies: Receives the names of the layers' dtype policies.
        warns: Whether to warn about each class with its own `train_step`.
    """

    def check(
        layer: keras.layers.Layer, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        if isinstance(layer, _HOST_LAYERS):
            _reject_traced_inputs(layer, (args, kwargs))
        if isinstance(layer, keras.Model):
            _check_inputs(layer, args[0] if args else kwargs.get("inputs"))
        policies.add(layer.dtype_policy.name)
        if warns and isinstance(layer, keras.Model):
            step = type(layer).train_step
            if step is not keras.Model.train_step:
                _warn(type(layer), inspect.unwrap(step))

    with keras_layers.calls_watched(check):
        yield


def _reject_traced_inputs(layer: keras.layers.Layer, inputs: Any) -> None:
    """Raises an error if a layer of the host, which calls TensorFlow, is traced."""
    if any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(inputs)):
        kind = type(layer).__name__
        raise ValueError(
            f"The layer keras.layers.{kind} must be called in `input_fn`, "
            "because it runs in TensorFlow on the host. Received a call "
            f"of {layer.name!r} in `model_fn`. Call the layer in "
            "`dataset.map`, and pass its result as a feature."
        )


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


def _check_inputs(layer: keras.Model, inputs: Any) -> None:
    """Checks that a functional model with a dict of inputs reads the right ones.

    Keras reads tensors of a dict by their order, so that another key before an input
    would take its place.
    """
    structure = getattr(layer, "input", None)
    if not isinstance(inputs, Mapping) or not isinstance(structure, Mapping):
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
