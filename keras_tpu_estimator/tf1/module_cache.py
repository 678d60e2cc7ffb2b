"""Modules that were lifted before, beside what JAX has compiled.

A program that is started again has them from there, if JAX has a directory for
its compile cache.
"""

import contextlib
import dataclasses
import hashlib
import json
import os
import tempfile
from collections.abc import Callable
from collections.abc import Sequence

import jax

from keras_tpu_estimator.ground.storage import shared_files
from keras_tpu_estimator.ground.storage.urls import is_url
from keras_tpu_estimator.tf1 import jax_internals


@dataclasses.dataclass(frozen=True)
class Module:
    """A module, and what it is to be given.

    Attributes:
        code: The module, as StableHLO.
        variables: The names of the variables that it takes.
    """

    code: bytes
    variables: tuple[str, ...]


def cached(parts: Sequence[bytes | str], lift: Callable[[], Module]) -> Module:
    """A module from the directory of the compile cache, or made for it.

    The parts are all that it depends on.
    """
    directory = jax.config.values["jax_compilation_cache_dir"]
    if not directory or is_url(directory):
        return lift()
    form = f"form {jax_internals.FORM}"
    path = os.path.join(directory, f"tf1-{_digest([form, *parts])}")
    if os.path.isfile(path):
        return _read(path)
    module = lift()
    # Who cannot write there goes without.
    with contextlib.suppress(OSError):
        _write(path, module)
    return module


def _digest(parts: Sequence[bytes | str]) -> str:
    digest = hashlib.sha256()
    for part in parts:
        content = part.encode() if isinstance(part, str) else part
        # With lengths, so that nothing moves from one part to the next.
        digest.update(f"{len(content)}:".encode() + content)
    return digest.hexdigest()


def _read(path: str) -> Module:
    with open(path, "rb") as file:
        variables = json.loads(file.readline())
        return Module(file.read(), tuple(variables))


def _write(path: str, module: Module) -> None:
    """Writes a file that is whole when it has its name."""
    directory = os.path.dirname(path)
    os.makedirs(directory, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=directory, delete=False) as file:
        file.write(json.dumps(module.variables).encode() + b"\n")
        file.write(module.code)
    shared_files.replace(file.name, path)
