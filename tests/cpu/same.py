"""Comparisons of functions with their compiled CPU versions."""

import jax
import numpy as np

from keras_tpu_estimator.base.cpu.tuning import tuned

TOLERANCES = {"float32": 1e-5, "float64": 1e-12, "bfloat16": 2e-2}


def check_same(function, *args, exactly=False):
    """Checks that the compiled CPU version has the same results."""

    @jax.jit
    def both(*args):
        return function(*args), tuned(function)(*args)

    assert_same(*both(*args), exactly)


def assert_same(expected, received, exactly=False):
    """Checks that pytrees of arrays are close, relative to their largest number."""
    assert jax.tree.structure(expected) == jax.tree.structure(received)
    pairs = zip(jax.tree.leaves(expected), jax.tree.leaves(received), strict=True)
    for a, b in pairs:
        assert (a.shape, a.dtype) == (b.shape, b.dtype)
        if exactly:
            np.testing.assert_array_equal(a, b)
        else:
            tolerance = TOLERANCES.get(a.dtype.name, 0)
            a, b = np.asarray(a, "float64"), np.asarray(b, "float64")
            np.testing.assert_array_equal(np.isfinite(a), np.isfinite(b))
            np.testing.assert_allclose(
                b, a, rtol=tolerance, atol=tolerance * np.abs(a).max(initial=0)
            )


def operations(function, *args, tune=True):
    """The names of all operations of a function, including nested ones."""
    found = []

    def collect(value):
        jaxpr = getattr(value, "jaxpr", value)
        for equation in getattr(jaxpr, "eqns", ()):
            found.append(equation.primitive.name)
            for parameter in equation.params.values():
                each = parameter if isinstance(parameter, tuple) else (parameter,)
                for inner in each:
                    collect(inner)

    collect(jax.make_jaxpr(tuned(function) if tune else function)(*args))
    return found
