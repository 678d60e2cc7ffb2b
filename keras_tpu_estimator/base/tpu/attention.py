"""Attention on TPU cores, which never stores its scores.

The memory of plain scores grows with the square of the length. JAX's splash attention
kernel computes them block by block, and omits blocks that no query sees.
Source: https://arxiv.org/abs/2205.14135 and `jax.experimental.pallas.ops.tpu`.
"""

import contextlib
import contextvars
import dataclasses
import math
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec

from keras_tpu_estimator.base.mesh.cores import Cores

# Shorter sequences have small scores.
MIN_LENGTH = 1024
_BLOCK = 512
# The name of the kernel's operations: how many of all blocks it computes.
BLOCKS = "attention_of_{}_of_{}_blocks"
_DTYPES = (jnp.float32, jnp.bfloat16)


@dataclasses.dataclass(frozen=True)
class Visibility:
    """The keys that each query sees.

    Args:
        is_causal: Whether a query sees no later keys. Defaults to `False`.
        window: How far a query sees to earlier and to later keys. Defaults to all.
        queries: Whether a query sees any key, as booleans of shape `[batch, length]`.
            Defaults to all.
        keys: Whether a key is seen by any query, likewise. Defaults to all.
    """

    is_causal: bool = False
    window: tuple[int, int] | None = None
    queries: jax.Array | None = None
    keys: jax.Array | None = None

    def bounds(self, queries: int, keys: int) -> tuple[np.ndarray, np.ndarray]:
        """Returns the first key of each query, and the one after its last."""
        number = np.arange(queries)
        first, end = np.zeros(queries, int), np.full(queries, keys)
        if self.is_causal:
            end = number + 1
        if self.window is not None:
            earlier, later = self.window
            first = number - earlier
            end = np.minimum(end, number + later + 1)
        return first.clip(0, keys), end.clip(0, keys)

    def see_keys(self, queries: int, keys: int) -> jax.Array | None:
        """Returns which queries see any key, `[batch, queries]`; `None` if all do."""
        first, end = self.bounds(queries, keys)
        if self.keys is None and self.queries is None and (first < end).all():
            return None
        sees = jnp.asarray(first < end)[None]
        if self.keys is not None:
            counts = jnp.cumsum(self.keys, axis=1, dtype="int32")
            counts = jnp.pad(counts, ((0, 0), (1, 0)))
            sees = counts[:, end] > counts[:, first]
        return sees if self.queries is None else sees & self.queries


_cores: contextvars.ContextVar[Cores | None] = contextvars.ContextVar(
    "cores", default=None
)


@contextlib.contextmanager
def on_cores(cores: Cores) -> Iterator[None]:
    """Sets the cores that compute the attentions of a `with` block."""
    token = _cores.set(cores)
    try:
        yield
    finally:
        _cores.reset(token)


def current_cores() -> Cores | None:
    """Returns the cores of `on_cores`, or `None` outside."""
    return _cores.get()


def unsuitable(
    query: jax.Array, key: jax.Array, value: jax.Array, cores: Cores
) -> str | None:
    """Returns why the kernel cannot compute an attention; `None` if it can.

    Args:
        query: `[batch, length, heads, size]`; the others likewise.
        cores: The cores that compute it.
    """
    if not cores.are_known or cores.platform != "tpu":
        return "the program does not run only on a TPU"
    if not query.dtype == key.dtype == value.dtype or query.dtype not in _DTYPES:
        return f"its dtype {query.dtype} is neither float32 nor bfloat16"
    heads = key.shape[2]
    if query.shape[2] % heads or heads % _model_cores(cores):
        return f"{heads} heads are not divisible by the cores of a replica"
    return None


def is_long(query: jax.Array, key: jax.Array) -> bool:
    """Returns whether the scores of an attention are large."""
    return min(query.shape[1], key.shape[1]) >= MIN_LENGTH


def attention(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    visibility: Visibility,
    cores: Cores,
    scale: float | None = None,
    interpret: bool = False,
) -> jax.Array:
    """Returns the attention of queries over keys, as `jax.nn.dot_product_attention`.

    A query that sees no key receives the mean of all values, as it does there.

    Args:
        query: `[batch, length, heads, size]`.
        key: `[batch, length, heads, size]`. Its heads divide those of queries.
        value: `[batch, length, heads, size]`.
        visibility: The keys that each query sees.
        cores: The cores that compute it. Those of a replica share the heads.
        scale: A factor of the scores. By default, it is 1 / sqrt(size).
        interpret: Whether to interpret the kernel, which needs no TPU.
    """
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    lengths = query.shape[1], key.shape[1]
    # In bfloat16, the factor itself would be rounded.
    scaled = (query.astype("float32") * scale).astype(query.dtype)
    q, k, v = map(_padded, (scaled, key, value))
    mask = _mask(visibility, (q.shape[2], k.shape[2]))
    segments = _segments(visibility, lengths, q, k)

    def of_heads(q: jax.Array, k: jax.Array, v: jax.Array, segments: Any) -> jax.Array:
        return jax.vmap(_kernel(mask, q.shape[1], interpret))(q, k, v, segments)

    with jax.named_scope(_blocks(visibility, (q.shape[2], k.shape[2]))):
        out = _over_heads(of_heads, cores)(q, k, v, segments)
    out = out[:, :, : lengths[0]].transpose(0, 2, 1, 3).astype(query.dtype)
    sees = visibility.see_keys(*lengths)
    if sees is None:
        return out
    mean = jnp.mean(value, 1, dtype="float32", keepdims=True).astype(out.dtype)
    mean = jnp.repeat(mean, query.shape[2] // key.shape[2], axis=2)
    return jnp.where(sees[:, :, None, None], out, mean)


def _padded(x: jax.Array) -> jax.Array:
    """Returns `[batch, heads, length, size]` with a length that blocks fill."""
    x = x.transpose(0, 2, 1, 3)
    return jnp.pad(x, ((0, 0), (0, 0), (0, -x.shape[2] % _BLOCK), (0, 0)))


def _segments(
    visibility: Visibility, lengths: tuple[int, int], q: jax.Array, k: jax.Array
) -> Any:
    """Returns the segments of queries and keys, which see only their own segment."""
    from jax.experimental.pallas.ops.tpu.splash_attention import SegmentIds

    queries, keys = lengths
    _, end = visibility.bounds(q.shape[2], k.shape[2])
    is_padding_seen = end[:queries].max() > keys
    if visibility.keys is None and not is_padding_seen:
        return None
    visible = jnp.ones((1, keys), bool) if visibility.keys is None else visibility.keys
    visible = jnp.pad(visible, ((0, 0), (0, k.shape[2] - keys)))
    return SegmentIds(
        q=jnp.ones((len(q), q.shape[2]), "int32"),
        kv=jnp.broadcast_to(visible.astype("int32"), (len(k), k.shape[2])),
    )


def _mask(visibility: Visibility, lengths: tuple[int, int]) -> Any:
    """Returns the static part of what queries see."""
    from jax.experimental.pallas.ops.tpu.splash_attention import (
        splash_attention_mask as masks,
    )

    if visibility.window is not None:
        earlier, later = visibility.window
        later = 0 if visibility.is_causal else later
        return masks.LocalMask(lengths, (earlier, later), offset=0)
    if visibility.is_causal:
        return masks.CausalMask(lengths)
    return masks.FullMask(lengths)


def _kernel(mask: Any, heads: int, interpret: bool) -> Callable[..., jax.Array]:
    """Returns the kernel for one example."""
    from jax.experimental.pallas.ops.tpu import splash_attention as splash
    from jax.experimental.pallas.ops.tpu.splash_attention import (
        splash_attention_kernel as kernels,
    )

    kernel: Callable[..., jax.Array] = kernels.make_splash_mha(
        mask=splash.MultiHeadMask([mask] * heads),
        block_sizes=splash.BlockSizes(
            block_q=_BLOCK,
            block_kv=_BLOCK,
            block_q_dkv=_BLOCK,
            block_kv_dkv=_BLOCK,
            block_q_dq=_BLOCK,
            block_kv_dq=_BLOCK,
        ),
        head_shards=1,
        q_seq_shards=1,
        interpret=interpret,
    )
    return kernel


def _blocks(visibility: Visibility, lengths: tuple[int, int]) -> str:
    """Returns the name that tells how many blocks are computed."""
    queries, keys = lengths
    first, end = visibility.bounds(queries, keys)
    first = first.reshape(-1, _BLOCK).min(axis=1) // _BLOCK
    end = -(-end.reshape(-1, _BLOCK).max(axis=1) // _BLOCK)
    return BLOCKS.format(sum(end - first), queries * keys // _BLOCK**2)


def _model_cores(cores: Cores) -> int:
    if cores.mesh is None:
        return 1
    return math.prod(cores.mesh.shape[axis] for axis in cores.model_axes)


def _over_heads(
    function: Callable[..., jax.Array], cores: Cores
) -> Callable[..., jax.Array]:
    """Splits heads over the cores of a replica; XLA cannot divide a kernel."""
    if _model_cores(cores) == 1:
        return function
    heads = PartitionSpec(None, cores.model_axes)
    return jax.shard_map(
        function,
        # Inside `Cores.per_core`, JAX has a mesh whose batch axes are manual.
        mesh=jax.sharding.get_abstract_mesh() if cores.axes else cores.mesh,
        axis_names={*cores.model_axes},
        in_specs=(heads, heads, heads, PartitionSpec()),
        out_specs=heads,
        check_vma=False,
    )
