"""A cache of converted modules in the directory of JAX's compilation cache.

A restarted process reads its modules from there.
"""

import contextlib
import dataclasses
import hashlib
import json
import os
from collections.abc import Callable, Sequence

import jax

from keras_tpu_estimator.files.atomic import commit
from keras_tpu_estimator.ground.storage.urls import is_url
from keras_tpu_estimator.tf1 import jax_internals


@dataclasses.dataclass(frozen=True)
class Module:
    """A module, and its variables.

    Attributes:
        code: The StableHLO module.
        variables: The names of the variables that it takes.
    """

    code: bytes
    variables: tuple[str, ...]


def cached(parts: Sequence[bytes | str], lift: Callable[[], Module]) -> Module:
    """Returns a module from the cache, or makes it and adds it to the cache.

    Args:
        parts: All data on which the module depends.
        lift: The function that makes the module.
    """
    directory = jax.config.values["jax_compilation_cache_dir"]
    if not directory or is_url(directory):
        return lift()
    form = f"form {jax_internals.FORM}"
    path = os.path.join(directory, f"tf1-{_digest([form, *parts])}")
    module = _read(path)
    if module is not None:
        return module
    module = lift()
    # A process without write permission does not use the cache.
    with contextlib.suppress(OSError):
        _write(path, module)
    return module


def _digest(parts: Sequence[bytes | str]) -> str:
    digest = hashlib.sha256()
    for part in parts:
        content = part.encode() if isinstance(part, str) else part
        # Lengths keep the parts distinct.
        digest.update(f"{len(content)}:".encode() + content)
    return digest.hexdigest()


def _read(path: str) -> Module | None:
    """Reads a module, unless its file is missing, corrupt or not readable."""
    try:
        with open(path, "rb") as file:
            header = json.loads(file.readline())
            code = file.read()
        if header["digest"] != _digest([code]):
            return None
        return Module(code, tuple(header["variables"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _write(path: str, module: Module) -> None:
    """Writes a file that other users of the directory can read."""
    header = {"variables": module.variables, "digest": _digest([module.code])}
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with (
        commit.replacing(path) as partial,
        open(partial, "wb") as file,
    ):
        file.write(json.dumps(header).encode() + b"\n")
        file.write(module.code)
