"""The attention kernel of a TPU, interpreted, against JAX's plain attention."""

import dataclasses
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh

from keras_tpu_estimator.base.common.topology import Topology
from keras_tpu_estimator.base.mesh.cores import ONE_CORE
from keras_tpu_estimator.base.tpu import attention as kernel
from keras_tpu_estimator.base.tpu.attention import Visibility
from keras_tpu_estimator.typing import Cores

BATCH = 2
TPU = dataclasses.replace(ONE_CORE, device=types.SimpleNamespace(platform="tpu"))


def tensors(queries, keys, heads, key_heads, dtype="float32", size=8):
    rng = np.random.default_rng(0)
    shapes = (queries, heads), (keys, key_heads), (keys, key_heads), (queries, heads)
    return [
        jnp.asarray(rng.normal(size=(BATCH, length, count, size)), dtype)
        for length, count in shapes
    ]


def plain(q, k, v, visibility):
    """JAX's attention with the complete mask."""
    row, column = np.arange(q.shape[1])[:, None], np.arange(k.shape[1])[None]
    mask = np.ones((q.shape[1], k.shape[1]), bool)
    if visibility.is_causal:
        mask &= row >= column
    if visibility.window:
        earlier, later = visibility.window
        mask &= (column >= row - earlier) & (column <= row + later)
    mask = jnp.asarray(mask)[None, None]
    if visibility.queries is not None:
        mask = mask & visibility.queries[:, None, :, None]
    if visibility.keys is not None:
        mask = mask & visibility.keys[:, None, None, :]
    mask = jnp.broadcast_to(mask, (BATCH, 1, *mask.shape[2:]))
    return jax.nn.dot_product_attention(q, k, v, mask=mask)


def results(attention, q, k, v, weights):
    """The output and all gradients."""

    def loss(q, k, v):
        out = attention(q, k, v)
        return jnp.sum((out * weights).astype("float32")), out

    (_, out), gradients = jax.jit(jax.value_and_grad(loss, (0, 1, 2), has_aux=True))(
        q, k, v
    )
    return [np.asarray(x, "float32") for x in (out, *gradients)]


LATER_PADDING = np.arange(520)[None] < np.array([[520], [300]])
EARLIER_PADDING = np.arange(520)[None] >= np.array([[0], [300]])


@pytest.mark.rows(4)
@pytest.mark.parametrize(
    ("lengths", "heads", "visibility", "dtype"),
    [
        ((520, 520), (4, 2), Visibility(is_causal=True), "float32"),
        ((520, 520), (2, 2), Visibility(keys=LATER_PADDING), "float32"),
        (
            (520, 520),
            (2, 2),
            # Early queries of the second example see no key.
            Visibility(True, None, EARLIER_PADDING, EARLIER_PADDING),
            "float32",
        ),
        ((520, 520), (2, 1), Visibility(True, keys=LATER_PADDING), "bfloat16"),
        ((200, 700), (2, 2), Visibility(), "float32"),
        ((700, 200), (2, 2), Visibility(is_causal=True), "float32"),
        ((520, 520), (2, 2), Visibility(window=(50, 50)), "float32"),
        ((520, 520), (2, 2), Visibility(True, (50, 50), keys=LATER_PADDING), "float32"),
        # The last queries see no key.
        ((700, 200), (2, 2), Visibility(window=(50, 3)), "float32"),
        ((512, 512), (2, 2), Visibility(), "bfloat16"),
    ],
)
def test_numbers_are_those_of_plain_attention(lengths, heads, visibility, dtype):
    q, k, v, weights = tensors(*lengths, *heads, dtype)

    def attention(q, k, v):
        return kernel.attention(q, k, v, visibility, ONE_CORE, interpret=True)

    def expected(q, k, v):
        return plain(q, k, v, visibility)

    tolerance = 1e-5 if dtype == "float32" else 0.02
    for value, reference in zip(
        results(attention, q, k, v, weights),
        results(expected, q, k, v, weights),
        strict=True,
    ):
        scale = np.abs(reference).max()
        np.testing.assert_allclose(value, reference, atol=tolerance * scale)


def test_gradients_under_rematerialisation():
    q, k, v, weights = tensors(520, 520, 2, 2)

    def attention(q, k, v):
        return kernel.attention(
            q, k, v[..., :5], Visibility(is_causal=True), ONE_CORE, interpret=True
        )

    def expected(q, k, v):
        return jax.nn.dot_product_attention(q, k, v, is_causal=True)[..., :5]

    weights = weights[..., :5]
    for value, reference in zip(
        results(jax.checkpoint(attention), q, k, v, weights),
        results(expected, q, k, v, weights),
        strict=True,
    ):
        np.testing.assert_allclose(value, reference, atol=1e-4)


def test_scale_is_applied():
    q, k, v, _ = tensors(64, 64, 2, 2)
    value = kernel.attention(q, k, v, Visibility(), ONE_CORE, 0.7, interpret=True)
    expected = jax.nn.dot_product_attention(q, k, v, scale=0.7)
    np.testing.assert_allclose(value, expected, atol=1e-5)


@pytest.mark.parametrize("axes", [("data",), ()])
def test_cores_of_a_replica_share_heads(axes):
    """With and without several replicas, which have their own slices of the batch."""
    shape = (2, 2) if axes else (2,)
    mesh = Mesh(np.array(jax.devices()[: 2 * len(shape)]).reshape(shape), (*axes, "m"))
    cores = Cores(
        Topology(2 if axes else 1, cores_per_replica=2),
        mesh=mesh,
        axes=axes,
        model_axes=("m",),
    )
    q, k, v, _ = tensors(64, 64, 4, 2)
    visibility = Visibility(is_causal=True)
    attention = cores.per_core(
        lambda q, k, v: kernel.attention(q, k, v, visibility, cores, interpret=True),
        split=(bool(axes),) * 3,
        outputs_split=bool(axes),
    )
    expected = jax.nn.dot_product_attention(q, k, v, is_causal=True)
    np.testing.assert_allclose(jax.jit(attention)(q, k, v), expected, atol=1e-5)


def test_reasons_for_plain_attention():
    q, k, v, _ = tensors(64, 64, 4, 2)
    assert kernel.unsuitable(q, k, v, TPU) is None
    for cores in (ONE_CORE, dataclasses.replace(ONE_CORE, device=jax.devices()[0])):
        assert "only on a TPU" in kernel.unsuitable(q, k, v, cores)
    half = [x.astype("float16") for x in (q, k, v)]
    assert "float16" in kernel.unsuitable(*half, TPU)
    assert "3 heads" in kernel.unsuitable(q, k[:, :, [0, 0, 0]], v, TPU)
