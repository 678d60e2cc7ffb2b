"""The shapes of features, with open dimensions as symbols or as samples."""

import dataclasses
from collections.abc import Iterator, Sequence

import jax
import numpy as np

# Sizes of open dimensions in samples: the batch is odd, so that messages show it,
# and the length is large enough for a few strides.
_SAMPLE_BATCH = 3
_SAMPLE_LENGTH = 16
# A feature with one number in each row has the first of these.
_UNUSUAL = (100_003, -1, 3, -300, 0, -2)
_SCALES = (300.0, 1.0)


@dataclasses.dataclass(frozen=True)
class FeatureSpec:
    """A feature in JAX, with a name for messages; an open dimension is `None`."""

    name: str
    shape: tuple[int | None, ...]
    dtype: np.dtype


def feature_spec(name: str, tensor: object) -> FeatureSpec:
    """Returns a tensor's spec, or raises `ValueError` if JAX does not support it."""
    import tensorflow as tf

    if not isinstance(tensor, tf.Tensor):
        raise ValueError(
            f"The feature {name} must be a dense tensor. Received: "
            f"{type(tensor).__name__}. Make it dense in the receiver function, "
            "with tf.sparse.to_dense or .to_tensor()."
        )
    if tensor.dtype in (tf.string, tf.resource, tf.variant):
        raise ValueError(
            f"The feature {name} must consist of numbers. Received: "
            f"{tensor.dtype.name}. Convert it in the receiver function "
            "(tf.io.decode_png, tf.lookup, ...), or omit it from `features`."
        )
    if tensor.shape.rank is None:
        raise ValueError(
            f"The feature {name} must have a known number of dimensions. "
            "Received: a tensor of unknown rank. Call tf.ensure_shape(tensor, "
            "[None, ...]) in the receiver function."
        )
    if tensor.shape.rank == 0:
        raise ValueError(
            f"The feature {name} must have the batch as its first dimension. "
            "Received: a scalar. Add the dimension in the receiver function."
        )
    dtype = jax.dtypes.canonicalize_dtype(tensor.dtype.as_numpy_dtype)
    return FeatureSpec(name, tuple(tensor.shape), np.dtype(dtype))


def samples(specs: Sequence[FeatureSpec]) -> list[list[np.ndarray]]:
    """Returns arrays for testing a model, which are equal for equal specs.

    The first set has small numbers that every model accepts. The second has negative
    and large numbers, and ids that are in no vocabulary.
    """
    rng = np.random.default_rng(0)
    return [[draw(rng, spec) for spec in specs] for draw in (_sample, _extremes)]


def symbolic(
    specs: Sequence[FeatureSpec],
) -> Iterator[list[jax.ShapeDtypeStruct]]:
    """Yields shapes with symbols for open dimensions, the most general ones first.

    All features share the batch. Other open dimensions are first independent, and then
    the same for all features on one axis.
    """
    yield _symbolic(specs, "d{axis}_{feature}")
    if sum(None in spec.shape[1:] for spec in specs) > 1:
        yield _symbolic(specs, "d{axis}")


def _symbolic(specs: Sequence[FeatureSpec], pattern: str) -> list[jax.ShapeDtypeStruct]:
    scope = jax.export.SymbolicScope()
    result = []
    for feature, spec in enumerate(specs):
        names = [
            str(size)
            if size is not None
            else pattern.format(axis=axis, feature=feature)
            if axis
            else "batch"
            for axis, size in enumerate(spec.shape)
        ]
        shape = jax.export.symbolic_shape(",".join(names), scope=scope)
        result.append(jax.ShapeDtypeStruct(shape, spec.dtype))
    return result


def _extremes(rng: np.random.Generator, spec: FeatureSpec) -> np.ndarray:
    shape, dtype = _sizes(spec), spec.dtype
    if dtype.kind == "b":
        return rng.integers(0, 2, shape).astype(dtype)
    if np.issubdtype(dtype, np.integer):
        bounds = np.iinfo(dtype)
        numbers = np.clip(_UNUSUAL, bounds.min, bounds.max)
        return np.resize(numbers, shape).astype(dtype)
    # Only some rows are large, so that others still show small errors.
    scale = np.resize(_SCALES, (*shape[:1], *(1 for _ in shape[1:])))
    result = rng.normal(size=shape) * scale
    # A feature with few numbers also has both signs.
    result.flat[:1], result.flat[1:2] = -abs(result.flat[:1]), abs(result.flat[1:2])
    return result.astype(dtype)


def _sizes(spec: FeatureSpec) -> list[int]:
    return [
        size if size is not None else (_SAMPLE_LENGTH if axis else _SAMPLE_BATCH)
        for axis, size in enumerate(spec.shape)
    ]


def _sample(rng: np.random.Generator, spec: FeatureSpec) -> np.ndarray:
    shape = _sizes(spec)
    if np.issubdtype(spec.dtype, np.integer) or spec.dtype == bool:
        # These numbers are in every vocabulary.
        return rng.integers(0, 2, shape).astype(spec.dtype)
    return rng.uniform(size=shape).astype(spec.dtype)
