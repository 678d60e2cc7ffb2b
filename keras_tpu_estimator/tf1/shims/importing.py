"""The `import` of modules in some folders, which supplies the libraries of 2018.

These modules get a separate `import`, with TensorFlow 1 and the names that Python and
NumPy have removed since. Imports in other modules do not change.
"""

import builtins
import contextlib
import functools
import importlib
import importlib.abc
import importlib.machinery
import inspect
import pathlib
import runpy
import sys
import types
import unittest
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any
from unittest import mock

from keras_tpu_estimator.base.common.sources import current_folder
from keras_tpu_estimator.tf1.names.catalogue import path_of
from keras_tpu_estimator.tf1.shims.old_libraries import (
    OldModule,
    as_in_2018,
    installed,
)
from keras_tpu_estimator.tf1.shims.resolving import (
    LookAlike,
    MissingNameError,
    resolve,
    resolve_module,
)
from keras_tpu_estimator.tf1.shims.stand_ins import StandIn

# Libraries of that time, which get the same `import` as a script's modules.
_OLD_LIBRARIES = {"gin", "mesh_tensorflow", "tensor2tensor", "tensorflow_gan"}
_PACKAGE = pathlib.Path(__file__).parents[2]
# Folders of installed modules, even below a script's folder.
_OF_OTHERS = {"site-packages", "dist-packages"}


def tf1_import(
    name: str,
    globals: Mapping[str, object] | None = None,  # noqa: A002 - as `import` says
    locals: Mapping[str, object] | None = None,  # noqa: A002
    fromlist: Sequence[str] | None = (),
    level: int = 0,
) -> Any:
    """Imports a module like `__import__`, with TensorFlow 1 as `tensorflow`."""
    path = None if level else path_of(name)
    if path is None:
        module = builtins.__import__(name, globals, locals, fromlist or (), level)
        return module if level else _old(module)
    try:
        module = resolve_module(path)
        for member in fromlist or ():
            if member != "*" and not hasattr(module, member):
                resolve(f"{path}.{member}" if path else member)
    except MissingNameError as error:
        raise ModuleNotFoundError(str(error), name=name) from None
    if not isinstance(module, types.ModuleType):
        raise ModuleNotFoundError(
            f"`tf.{path}` is not a module. Write `from {name.rpartition('.')[0]} "
            f"import {name.rpartition('.')[2]}`.",
            name=name,
        )
    return module if fromlist else resolve("")


def _import_module(name: str, package: str | None = None) -> Any:
    """Imports a module for a script, as `importlib.import_module` does."""
    if path_of(name) is None:
        return _old(importlib.import_module(name, package))
    return tf1_import(name, fromlist=("__doc__",))


def _reload(module: types.ModuleType) -> types.ModuleType:
    """Runs a module again, as `importlib.reload` does, except TensorFlow's."""
    if not isinstance(module, LookAlike):
        importlib.reload(installed(module))
    return module


def _patch(target: str, *args: Any, **kwargs: Any) -> Any:
    """Replaces an attribute of a module, as `mock.patch` does, also of TensorFlow 1."""
    patcher = mock.patch(target, *args, **kwargs)
    module = path_of(target.rpartition(".")[0])
    if module is not None:
        patcher.getter = functools.partial(resolve, module)
    return patcher


def _run_as_tf1(run: Callable[..., dict[str, Any]]) -> Callable[..., dict[str, Any]]:
    """Returns a function of `runpy` that runs a script with TensorFlow 1."""

    signature = inspect.signature(run)

    @functools.wraps(run)
    def run_script(*args: Any, **kwargs: Any) -> dict[str, Any]:
        call = signature.bind(*args, **kwargs)
        names = call.arguments.get("init_globals") or {}
        call.arguments["init_globals"] = {"__builtins__": BUILTINS, **names}
        return run(*call.args, **call.kwargs)

    return run_script


# `mock.patch` has attributes, such as `mock.patch.object`.
vars(_patch).update(vars(mock.patch))
_MOCK = OldModule(mock, {"patch": _patch})
_MODULES: dict[str, types.ModuleType] = {
    "importlib": OldModule(
        importlib, {"import_module": _import_module, "reload": _reload}
    ),
    "runpy": OldModule(
        runpy,
        {
            name: _run_as_tf1(getattr(runpy, name))
            for name in ("run_module", "run_path")
        },
    ),
    "unittest": OldModule(unittest, {"mock": _MOCK}),
    "unittest.mock": _MOCK,
}


def _old(module: Any) -> Any:
    """Returns a module as scripts import it."""
    if isinstance(module, StandIn):
        return module
    return _MODULES.get(getattr(module, "__name__", "")) or as_in_2018(module)


BUILTINS = vars(builtins) | {"__import__": tf1_import}


@contextlib.contextmanager
def tf1_for(folders: Sequence[pathlib.Path]) -> Iterator[None]:
    """Supplies TensorFlow 1 to modules of some folders in a `with` block.

    Folders that are added to `sys.path` in the block are included, and the current one
    if Python searches it, as with `python -m`.
    """
    finder = _Finder([folder.resolve() for folder in folders])
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)


class _Finder(importlib.abc.MetaPathFinder):
    """Finds modules as Python does, and changes how some of them are loaded."""

    def __init__(self, folders: Sequence[pathlib.Path]):
        self._folders = folders
        self._before = {*sys.path}
        self._current = current_folder()

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None,
        target: types.ModuleType | None = None,
    ) -> importlib.machinery.ModuleSpec | None:
        """Returns the specification of a module in one of the folders."""
        find = importlib.machinery.PathFinder.find_spec
        spec = find(fullname, path, target)
        if spec is None or spec.origin is None:
            return None
        is_source = type(spec.loader) is importlib.machinery.SourceFileLoader
        is_old = fullname.partition(".")[0] in _OLD_LIBRARIES
        if not is_source or not (is_old or self._is_here(fullname, spec.origin)):
            return None
        spec.loader = _Loader(spec.name, spec.origin)
        return spec

    def _is_here(self, name: str, origin: str) -> bool:
        file = pathlib.Path(origin).resolve()
        if _PACKAGE in file.parents or _OF_OTHERS & {*file.parts}:
            return False
        if self._current is not None:
            # Other folders below the current one, such as Python's, do not count.
            top = (self._current / name.partition(".")[0]).resolve()
            if top in file.parents or file == top.with_suffix(".py"):
                return True
        added = (path for path in sys.path if path not in self._before)
        folders = (*self._folders, *(pathlib.Path(p).resolve() for p in added))
        return any(folder in file.parents for folder in folders)


class _Loader(importlib.machinery.SourceFileLoader):
    """Runs a module with a separate `import`."""

    def exec_module(self, module: types.ModuleType) -> None:
        """Runs the module."""
        module.__dict__["__builtins__"] = BUILTINS
        super().exec_module(module)
