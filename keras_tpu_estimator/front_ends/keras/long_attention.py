"""Keras's attention over long sequences, on the cores of a program."""

import contextlib
import contextvars
import dataclasses
import functools
import inspect
import logging
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import keras
import numpy as np

from keras_tpu_estimator.base.mesh.cores import Cores
from keras_tpu_estimator.base.tpu import attention as kernel
from keras_tpu_estimator.base.tpu.attention import Visibility
from keras_tpu_estimator.base.upstream import keras_devices, keras_layers

_logger = logging.getLogger("keras_tpu_estimator")


# Subclasses may change the mask.
_LAYERS = (keras.layers.MultiHeadAttention, keras.layers.GroupQueryAttention)
_RANK = 4


@dataclasses.dataclass(frozen=True)
class _LayerMask:
    """The rules of the mask that a layer has computed for its attention."""

    layer: keras.layers.Layer
    visibility: Visibility


_layer_mask: contextvars.ContextVar[_LayerMask | None] = contextvars.ContextVar(
    "layer_mask", default=None
)


@contextlib.contextmanager
def attention_on(cores: Cores) -> Iterator[None]:
    """Computes long attentions in a `with` block by the kernel of a TPU."""
    attention = _plain
    with contextlib.ExitStack() as stack:
        stack.enter_context(kernel.on_cores(cores))
        if cores.platform == "tpu":
            attention = functools.partial(_attention, cores)
            # A mask of the trace must not outlive it.
            stack.callback(_layer_mask.reset, _layer_mask.set(None))
            for replacement in keras_layers.ATTENTION_MASKS:
                stack.enter_context(replacement.block(_mask_of_layer))
        stack.enter_context(keras_devices.ATTENTION.block(attention))
        yield


def _plain(attention: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    return attention(*args, **kwargs)


def _mask_of_layer(compute: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Returns the mask of a layer, and remembers the rules that it consists of.

    The mask itself is an array of `[batch, queries, keys]`, which does not show them.
    """
    bound = inspect.signature(compute).bind(*args, **kwargs)
    bound.apply_defaults()
    layer, query, value = args[0], bound.arguments["query"], bound.arguments["value"]
    of_queries = bound.arguments["query_mask"]
    of_keys = [
        mask
        for mask in (bound.arguments["value_mask"], bound.arguments["key_mask"])
        if mask is not None
    ]
    of_pairs = bound.arguments["attention_mask"]
    is_simple = type(layer) in _LAYERS and query.ndim == value.ndim == _RANK - 1
    if of_pairs is not None and is_simple:
        # A mask of `[batch, 1, keys]` is the same for all queries.
        is_simple = of_pairs.shape[1:-1] == (1,)
        of_keys.append(of_pairs[:, 0])
    rules = None
    if is_simple:
        keys = [jnp.asarray(mask, bool) for mask in of_keys]
        visibility = Visibility(
            bool(bound.arguments["use_causal_mask"]),
            _window(compute, layer, value.shape[1]),
            None if of_queries is None else jnp.asarray(of_queries, bool),
            jnp.stack(jnp.broadcast_arrays(*keys)).all(axis=0) if keys else None,
        )
        rules = _LayerMask(layer, visibility)
    _layer_mask.set(rules)
    return compute(*args, **kwargs)


def _window(
    compute: Callable[..., Any], layer: keras.layers.Layer, keys: int
) -> tuple[int, int] | None:
    """Returns how far a layer looks, by the keys that its first query sees."""
    first, values = np.zeros((1, 1, 1), "float32"), np.zeros((1, keys, 1), "float32")
    with jax.ensure_compile_time_eval():
        row = compute(layer, first, values)
        if row is None:
            return None
        reach = int(jnp.sum(row)) - 1
    return reach, reach


def _visibility(arguments: Mapping[str, Any]) -> Visibility | None:
    """Returns the keys that each query sees; `None` if they follow no simple rule."""
    computed = _layer_mask.get()
    _layer_mask.set(None)
    is_causal, mask = bool(arguments["is_causal"]), arguments["mask"]
    if mask is None:
        return Visibility(is_causal)
    if computed is not None and computed.layer is keras_layers.called_layer():
        visibility = computed.visibility
        return dataclasses.replace(
            visibility, is_causal=is_causal or visibility.is_causal
        )
    mask = jnp.asarray(mask)
    if mask.ndim == _RANK and mask.shape[1:3] == (1, 1) and mask.dtype == bool:
        return Visibility(is_causal, keys=mask[:, 0, 0])
    return None


def _attention(
    cores: Cores, attention: Callable[..., Any], *args: Any, **kwargs: Any
) -> Any:
    """Returns attention on a TPU, without the flash attention of Keras."""
    bound = inspect.signature(attention).bind(*args, **kwargs)
    bound.apply_defaults()
    arguments = bound.arguments
    if arguments["attn_logits_soft_cap"]:
        raise ValueError(
            "Attention on a TPU must not cap its scores, because Keras computes wrong "
            "numbers there. Received: attn_logits_soft_cap="
            f"{arguments['attn_logits_soft_cap']}. Omit it."
        )
    # Exports also run elsewhere, where Keras computes attention.
    requested = arguments["flash_attention"] if cores.are_known else False
    query = jnp.asarray(arguments["query"])
    key, value = jnp.asarray(arguments["key"]), jnp.asarray(arguments["value"])
    visibility = _visibility(arguments)
    if requested is not False and (requested or kernel.is_long(query, key)):
        reason = kernel.unsuitable(query, key, value, cores)
        if arguments["bias"] is not None:
            reason = "it has a bias"
        elif visibility is None:
            reason = "its mask depends on both the query and the key"
        elif reason is None:
            scale = arguments["scale"]
            return kernel.attention(query, key, value, visibility, cores, scale)
        _refuse(requested, query, key, reason)
    return attention(**{**arguments, "flash_attention": False})


def _refuse(requested: bool, query: Any, key: Any, reason: str | None) -> None:
    """Raises an error for an attention that must use the kernel, or logs the reason."""
    if requested:
        raise ValueError(
            "Flash attention must be computed by the kernel of a TPU. Received: an "
            f"attention for which it is unsuitable, because {reason}. Omit "
            "flash_attention."
        )
    _logger.info(
        "An attention of %d queries over %d keys stores its scores, because %s.",
        query.shape[1],
        key.shape[1],
        reason,
    )
