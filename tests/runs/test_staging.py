"""Tests steps on the host and the shapes that programs are prepared for."""

import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from keras_tpu_estimator.engine.inputs.stacking import Stack
from keras_tpu_estimator.runs.staging import StagedStack


@pytest.mark.parametrize(("is_part", "size"), [(False, 4), (True, 8)])
def test_program_accepts_wider_host_inputs(is_part, size):
    seen = []
    runtime = types.SimpleNamespace(prepare=lambda *args: seen.append(args))
    features, labels = {"id": np.zeros((2, 4), "int64")}, np.zeros((2, 4, 1))
    stack = Stack(features, labels, is_part=is_part)
    # The dtype of the devices, and the batch of two hosts.
    whole = {"id": jnp.zeros((2, 8), "int32")}, jnp.zeros((2, 8, 1))
    staged = StagedStack("train", stack, whole, range(2), ends_loop=True)
    staged.prepare(runtime)
    shapes = jax.tree.map(
        lambda x: x if isinstance(x, str) else (x.shape, x.dtype.name), seen
    )
    features = {"id": ((size,), "int64")}
    assert shapes == [("train", features, ((size, 1), "float64"))]
