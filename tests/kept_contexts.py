"""Has JAX keep what MLIR knows of its dialects, instead of asking anew.

It makes a context for each program that it lowers, and loads all dialects into
it: a sixth of the time of programs as small as those of tests. With this
imported, each thread has one.
"""

import threading

from jax._src.interpreters import mlir
from jax.interpreters import mlir as public_mlir

_make = mlir.make_ir_context
_kept = threading.local()


def _kept_context() -> object:
    if not hasattr(_kept, "context"):
        _kept.context = _make()
    return _kept.context


mlir.make_ir_context = public_mlir.make_ir_context = _kept_context
