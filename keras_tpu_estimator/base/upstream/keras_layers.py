"""Layers of Keras: their calls, their masks, and layers of JAX functions."""

import contextlib
import contextvars
import re
import types
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import keras
import numpy as np

from keras_tpu_estimator.base.upstream import keras_random, keras_state
from keras_tpu_estimator.base.upstream.keras_variables import set_path
from keras_tpu_estimator.base.upstream.private_names import PrivateName
from keras_tpu_estimator.base.upstream.replacements import (
    ModuleReplacement,
    Replacement,
)


def _row() -> np.ndarray:
    return np.zeros((1, 1), "float32")


CALL = Replacement(
    PrivateName(
        "calls every layer and model; Keras does not report calls",
        ("keras.layers.Layer.__call__",),
    ),
    lambda: keras.layers.Identity()(_row()),
)
BATCH_MOMENTS = Replacement(
    PrivateName(
        "computes the moments of a batch; Keras on JAX does not synchronize them",
        ("keras.layers.BatchNormalization._moments",),
    ),
    lambda: keras.layers.BatchNormalization()(_row(), training=True),
)
MASKED_ATTENTION = Replacement(
    PrivateName(
        "deletes the masks of its inputs, so that a later layer would not see a mask "
        "on these tensors",
        ("keras.layers.MultiHeadAttention.call",),
    ),
)
ATTENTION_MASKS = tuple(
    Replacement(
        PrivateName(
            "computes the mask of an attention, of which the kernel of a TPU needs the "
            "parts",
            (f"keras.layers.{name}._compute_attention_mask",),
        )
    )
    for name in ("MultiHeadAttention", "GroupQueryAttention")
)
_GET_MASK = PrivateName(
    "returns the mask of a tensor",
    ("keras.src.backend.common.masking.get_keras_mask",),
)
_STORE_MASK = Replacement(
    PrivateName(
        "stores the mask of a traced tensor by the `id` of the tensor, under which "
        "another tensor finds it if another thread collects the first one",
        ("keras.src.backend.common.masking.set_tensor_attr",),
    ),
    lambda: keras.layers.Masking()(keras.Input((1, 1))),
)
OPERATION = Replacement(
    PrivateName(
        "makes every operation; Keras does not record the lines that make them",
        ("keras.Operation.__init__",),
    ),
)
JAX_WEIGHTS = Replacement(
    PrivateName(
        "makes the weights of a JAX function; Keras names each `variable` with a "
        "number that depends on earlier layers",
        ("keras.layers.JaxLayer._create_variables",),
    ),
    lambda: keras.layers.JaxLayer(lambda params, inputs: inputs, params={"w": _row()}),
)
JAX_CALL = Replacement(
    PrivateName(
        "runs a JAX function, whose weights may have been made outside a trace",
        ("keras.layers.JaxLayer.call",),
    ),
)
JAX_SEED = Replacement(
    PrivateName(
        "draws the seed of a JAX function's weights; Keras's global generator would "
        "advance in every step",
        ("keras.layers.JaxLayer._get_init_seed",),
    ),
)
JAX_UTILS = ModuleReplacement(
    PrivateName(
        "detects traces, in which Keras makes no layers of JAX functions",
        ("keras.src.utils.jax_layer.jax_utils",),
    ),
)

_layers: contextvars.ContextVar[tuple[keras.layers.Layer, ...]] = (
    contextvars.ContextVar("layers", default=())
)


def called_layer() -> keras.layers.Layer | None:
    """Returns the innermost layer that is being called in a `calls_watched` block."""
    layers = _layers.get()
    return layers[-1] if layers else None


@contextlib.contextmanager
def calls_watched(
    watch: Callable[[keras.layers.Layer, tuple[Any, ...], dict[str, Any]], None],
) -> Iterator[None]:
    """Calls `watch` with each layer and its arguments before the layer, in a block."""

    def behaviour(
        call: Callable[..., Any], layer: keras.layers.Layer, *args: Any, **kwargs: Any
    ) -> Any:
        watch(layer, args, kwargs)
        token = _layers.set((*_layers.get(), layer))
        try:
            return call(layer, *args, **kwargs)
        finally:
            _layers.reset(token)

    with CALL.block(behaviour):
        yield


@contextlib.contextmanager
def operations_watched(
    watch: Callable[[keras.Operation], None],
) -> Iterator[None]:
    """Calls `watch` with each operation that is made in a `with` block."""

    def behaviour(
        construct: Callable[..., None],
        operation: keras.Operation,
        name: str | None = None,
    ) -> None:
        construct(operation, name)
        watch(operation)

    with OPERATION.block(behaviour):
        yield


def mask_of(tensor: Any) -> Any:
    """Returns the mask of a tensor, or `None`."""
    return _GET_MASK.value(tensor)


def with_mask(tensor: Any, mask: Any) -> Any:
    """Returns a copy of a tensor with a mask, or without one for `None`."""
    tensor = keras.ops.copy(tensor)
    if mask is not None:
        _set_mask(tensor, mask)
    return tensor


def _set_mask(tensor: Any, mask: Any) -> None:
    _STORE_MASK.function(tensor, keras_state.MASK, mask)


@contextlib.contextmanager
def masks_kept() -> Iterator[None]:
    """Makes each tensor of a trace keep its mask, and no other, in a `with` block.

    Attention does not delete the masks of its inputs. Tensors with a mask stay alive
    until the end of the block, so that no other tensor has their `id`.
    """
    tensors: list[Any] = []

    def store(
        set_attribute: Callable[..., None], tensor: Any, name: str, mask: Any
    ) -> None:
        tensors.append(tensor)
        set_attribute(tensor, name, mask)

    with (
        keras_state.fresh_masks(),
        _STORE_MASK.block(store),
        MASKED_ATTENTION.block(_attention_with_masks),
    ):
        yield


def _attention_with_masks(
    call: Callable[..., Any],
    layer: keras.layers.Layer,
    query: Any,
    value: Any,
    key: Any = None,
    *args: Any,
    **kwargs: Any,
) -> Any:
    inputs = [tensor for tensor in (query, value, key) if tensor is not None]
    masks = [mask_of(tensor) for tensor in inputs]
    try:
        return call(layer, query, value, key, *args, **kwargs)
    finally:
        for tensor, mask in zip(inputs, masks, strict=True):
            _set_mask(tensor, mask)


@contextlib.contextmanager
def jax_functions_traced(name_leaves: Callable[[Any], list[str]]) -> Iterator[None]:
    """Makes layers of JAX functions work in a trace, in a `with` block.

    `name_leaves` returns the names of a pytree's leaves, in JAX's order. They become
    the names of the weights.
    """
    traces = types.SimpleNamespace(is_in_jax_tracing_scope=lambda x=None: False)

    def create_named(
        create: Callable[..., Any], layer: Any, values: Any, trainable: bool
    ) -> Any:
        prefix = "" if trainable else "state."
        names = iter(name_leaves(values))
        add = layer.add_weight

        def add_named(*args: Any, **kwargs: Any) -> Any:
            return add(*args, name=prefix + next(names), **kwargs)

        vars(layer)["add_weight"] = add_named
        try:
            return create(layer, values, trainable)
        finally:
            del vars(layer)["add_weight"]

    def call_named(
        call: Callable[..., Any], layer: Any, *args: Any, **kwargs: Any
    ) -> Any:
        for weights, prefix in ((layer.params, ""), (layer.state, "state.")):
            _name_weights(weights, prefix, name_leaves)
        return call(layer, *args, **kwargs)

    with (
        JAX_CALL.block(call_named),
        JAX_UTILS.block(lambda _: traces),
        JAX_WEIGHTS.block(create_named),
        JAX_SEED.block(lambda *_: jnp.uint32([keras_random.default_seed(), 0])),
    ):
        yield


def _name_weights(
    weights: Any, prefix: str, name_leaves: Callable[[Any], list[str]]
) -> None:
    """Names automatically named weights by their places in the pytree."""
    variables = [
        leaf for leaf in jax.tree.leaves(weights) if isinstance(leaf, keras.Variable)
    ]
    leaves = jax.tree.map(
        lambda leaf: _row() if isinstance(leaf, keras.Variable) else None, weights
    )
    for variable, name in zip(variables, name_leaves(leaves), strict=True):
        scope, _, automatic = variable.path.rpartition("/")
        if re.fullmatch(r"variable(_\d+)?", automatic):
            set_path(variable, "/".join(filter(None, (scope, prefix + name))))
