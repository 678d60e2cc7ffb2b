"""Tests of the public names, and of the effects of importing them."""

import ast
import copy
import doctest
import importlib
import inspect
import os
import pathlib
import pickle
import pydoc
import re
import subprocess
import sys
import types
import typing
from importlib import metadata

import cloudpickle
import pytest

import keras_tpu_estimator as kte
from keras_tpu_estimator import parts
from keras_tpu_estimator.base.common import registry

ROOT = pathlib.Path(__file__).parents[1]
PACKAGE = ROOT / "keras_tpu_estimator"
MODULES = {
    "checkpoints",
    "errors",
    "experimental",
    "export",
    "front_ends",
    "hooks",
    "metrics",
    "optimizers",
    "summary",
    "tf1",
    "typing",
}


def test_names_are_sorted_and_exist_once() -> None:
    assert kte.__all__ == sorted(set(kte.__all__))
    assert all(hasattr(kte, name) for name in kte.__all__)


def test_names_are_exactly_the_exposed_ones() -> None:
    # Names are imported when they are first used, and importing a module makes it an
    # attribute of its package, public or not.
    assert [getattr(kte, name) for name in kte.__all__]
    exposed = {
        name
        for name, value in vars(kte).items()
        if not name.startswith("_") and not isinstance(value, types.ModuleType)
    }
    assert exposed | MODULES == set(kte.__all__)


def test_dir_shows_the_public_names() -> None:
    shown = [name for name in dir(kte) if not name.startswith("_")]
    assert shown == kte.__all__


LAZY = [kte, kte.errors, kte.typing]


@pytest.mark.parametrize("module", LAZY, ids=lambda module: module.__name__)
def test_names_are_imported_as_type_checkers_read(module) -> None:
    imported = {
        alias.name: node.module
        for block in ast.parse(inspect.getsource(module)).body
        if isinstance(block, ast.If)
        for node in block.body
        for alias in node.names
    }
    assert {*imported} <= {*module.__all__} == {*dir(module)} - _OWN
    for name, source in imported.items():
        value = getattr(module, name)
        assert value is getattr(importlib.import_module(source), name)


_OWN = {"__all__", "__doc__", "__version__"}


def test_importing_loads_few_modules() -> None:
    done = run_python(
        "import sys, keras_tpu_estimator\n"
        "print(sum(m.startswith('keras_tpu_estimator') for m in sys.modules))"
    )
    assert int(done.stdout) < 20, done.stderr


def test_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'TPUEstimatr'"):
        _ = kte.TPUEstimatr


@pytest.mark.parametrize("name", parts.PARTS)
def test_parts_that_the_core_finds_exist(name) -> None:
    assert registry.part(name) is not None


def test_functions_do_not_hide_their_modules() -> None:
    assert isinstance(kte.identity, types.FunctionType)


def test_every_name_has_a_docstring() -> None:
    first_lines = {
        name: (getattr(kte, name).__doc__ or "").partition("\n")[0]
        for name in kte.__all__
    }
    wrong = {
        name: line
        for name, line in first_lines.items()
        if not re.fullmatch(r"[A-Z`].*[.]", line)
    }
    assert not wrong


def test_arguments_without_effect_are_documented_last() -> None:
    lists = [
        re.findall(r"(?m)^ {8}(?:    )?([\w*]+): (Accepted)?", arguments)
        for path in (ROOT / "keras_tpu_estimator").rglob("*.py")
        for arguments in re.findall(r"(?m)^ +Args:\n((?: {8}.*\n)+)", path.read_text())
        if "tf1" not in path.parts and ": Accepted" in arguments
    ]
    assert len(lists) > 10
    orders = [[bool(accepted) for _, accepted in each] for each in lists]
    assert [each for each in orders if each != sorted(each)] == []


def test_every_name_is_in_the_reference() -> None:
    pages = "\n".join(page.read_text() for page in (ROOT / "docs" / "api").glob("*.md"))
    shown = re.findall(r"^::: keras_tpu_estimator\.(\w+)$", pages, re.MULTILINE)
    assert sorted(shown) == kte.__all__


PATHS = ["", *sorted(f".{name}" for name in MODULES), ".summary.experimental"]


def public_names():
    """Each public class or function with all its paths."""
    paths = {}
    for path in PATHS:
        module = importlib.import_module(f"{kte.__name__}{path}")
        for name in module.__all__:
            value = getattr(module, name)
            if not isinstance(value, types.ModuleType):
                key = id(value)
                paths.setdefault(key, (value, []))[1].append(
                    f"{module.__name__}.{name}"
                )
    return list(paths.values())


NAMES = public_names()
PLAIN = pydoc.plaintext
DEFINED = [
    (value, paths)
    for value, paths in NAMES
    if isinstance(value, type | types.FunctionType)
    and value is not typing.Any  # The type behind an alias of `kte.typing`.
]


@pytest.mark.parametrize("path", PATHS[1:])
def test_namespaces_are_imported_in_every_way(path):
    name = f"keras_tpu_estimator{path}"
    parent, _, last = name.rpartition(".")
    namespace = {}
    exec(f"import {name} as plain\nfrom {parent} import {last}", namespace)
    module = importlib.import_module(name)
    attribute = getattr(sys.modules[parent], last)
    assert namespace["plain"] is namespace[last] is module is attribute
    assert module.__all__ == sorted(module.__all__, key=_as_ruff_sorts)
    assert len(module.__all__) == len(set(module.__all__))
    assert name in sys.modules


def _as_ruff_sorts(name):
    """Sorts by constants, classes and other names."""
    return (not name.isupper(), not name[0].isupper(), name)


@pytest.mark.parametrize(
    ("path", "line"),
    [
        (".hooks", "class LoggingTensorHook("),
        (".metrics", "mean_absolute_error("),
        (".summary.experimental", "set_step(step"),
    ],
)
def test_help_is_found_by_path(path, line):
    shown = pydoc.render_doc(f"keras_tpu_estimator{path}", "%s", 0, PLAIN)
    assert f"NAME\n    keras_tpu_estimator{path}" in shown
    assert line in shown


@pytest.mark.parametrize("name", ["", *kte.__all__])
def test_help_is_shown(name):
    found = getattr(kte, name) if name else kte
    assert pydoc.render_doc(found)


def test_names_are_pickled_by_reference():
    for value, _ in DEFINED:
        assert pickle.loads(pickle.dumps(value)) is value
        assert cloudpickle.loads(cloudpickle.dumps(value)) is value
        assert copy.deepcopy(value) is value
    assert pickle.loads(pickle.dumps(kte.AUTO_REUSE)) is kte.AUTO_REUSE


def test_annotations_of_names_are_resolved():
    for value, _ in DEFINED:
        typing.get_type_hints(value)


def test_source_is_found():
    for value, _ in DEFINED:
        written = inspect.unwrap(value)
        if inspect.getsourcefile(written).startswith(str(PACKAGE)):
            kind = "class" if isinstance(written, type) else "def"
            assert f"{kind} {written.__name__}" in inspect.getsource(value)


def test_errors_are_in_one_namespace():
    errors = {
        value.__name__
        for value, _ in NAMES
        if isinstance(value, type) and issubclass(value, BaseException)
    }
    assert errors == set(kte.errors.__all__)


@pytest.mark.parametrize(
    "error",
    [
        kte.errors.CompileError("no", "eig", "model.py", 7),
        kte.errors.DoesNotFitError("v5e:2x2", 24, 16),
        kte.errors.HostError("gone"),
        kte.errors.LeakedTensorError(),
        kte.errors.MissingNameError("contrib.x", "Use y."),
        kte.errors.NanLossDuringTrainingError(),
        kte.errors.NoScopeError("gradients"),
        kte.errors.TwoUnderOnePathError("dense/kernel"),
        kte.errors.VariableNotFoundError("no 'kernel'"),
        kte.errors.WarmStartError(kte.checkpoints.WarmStartReport("", ())),
    ],
    ids=lambda error: type(error).__name__,
)
def test_errors_come_back_from_other_processes(error):
    copied = pickle.loads(pickle.dumps(error))
    assert type(copied) is type(error)
    assert str(copied) == str(error)
    assert vars(copied) == vars(error)


def test_every_example_in_a_docstring_is_tested():
    # Doctest skips objects with the `__module__` of another module.
    written, tested = set(), set()
    for path in PACKAGE.rglob("*.py"):
        if "reimplemented" in path.parts or path.stem == "__main__":
            continue
        written |= {
            docstring
            for node in ast.walk(ast.parse(path.read_text()))
            if isinstance(node, ast.Module | ast.FunctionDef | ast.ClassDef)
            and ">>>" in (docstring := ast.get_docstring(node) or "")
        }
        parts = path.relative_to(ROOT).with_suffix("").parts
        name = ".".join(parts).removesuffix(".__init__")
        module = importlib.import_module(name)
        for test in doctest.DocTestFinder().find(module, name):
            tested.add(inspect.cleandoc(test.docstring))
    assert written <= tested


def run_python(code: str, **environment: str) -> "subprocess.CompletedProcess[str]":
    """Runs code in a process without a selected Keras backend."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if name not in ("KERAS_BACKEND", "XLA_FLAGS")
    }
    return subprocess.run(
        [sys.executable, "-c", code],
        env={**kept, **environment},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )


def test_importing_selects_jax_and_no_tensorflow() -> None:
    done = run_python(
        "import sys, keras_tpu_estimator, keras\n"
        "print(keras.config.backend(), keras_tpu_estimator.__version__)\n"
        "print({'tensorflow', 'tensorboard'} & set(sys.modules))\n"
    )
    assert done.stdout == f"jax {kte.__version__}\nset()\n", done.stderr


def test_only_the_checksum_package_is_imported_besides_keras() -> None:
    done = run_python(
        "import sys, keras\n"
        "before = {name.partition('.')[0] for name in sys.modules}\n"
        "import keras_tpu_estimator\n"
        "keras_tpu_estimator.TPUEstimator\n"
        "after = {name.partition('.')[0] for name in sys.modules}\n"
        "print(sorted(after - before - sys.stdlib_module_names))\n",
        KERAS_BACKEND="jax",
    )
    # h5py comes with Keras.
    assert done.stdout == "['google_crc32c', 'keras_tpu_estimator']\n", done.stderr


def test_changelog_begins_with_this_version() -> None:
    versions = re.findall(r"(?m)^## (\S+)", (ROOT / "CHANGELOG.md").read_text())
    assert versions[0] == kte.__version__
    assert metadata.version("keras-tpu-estimator") == kte.__version__


def test_other_backend_in_the_environment_is_an_error() -> None:
    done = run_python("import keras_tpu_estimator", KERAS_BACKEND="tensorflow")
    assert done.returncode == 1
    *_, message = done.stderr.splitlines()
    assert message == (
        "RuntimeError: keras_tpu_estimator needs Keras on the JAX backend. "
        "Received: 'tensorflow'. Set the environment variable "
        "KERAS_BACKEND=jax, or unset KERAS_BACKEND."
    )


def test_keras_with_another_backend_is_an_error() -> None:
    done = run_python("import keras\nimport keras_tpu_estimator", KERAS_BACKEND="numpy")
    assert done.returncode == 1
    *_, message = done.stderr.splitlines()
    assert message == (
        "RuntimeError: keras_tpu_estimator needs Keras on the JAX backend. "
        "Received: 'numpy'. Set the environment variable KERAS_BACKEND=jax, or "
        "import keras_tpu_estimator before keras, and before tensorflow, which "
        "imports it."
    )
