"""The public names, and what importing them does to a process."""

import os
import pathlib
import re
import subprocess
import sys
import types
from importlib import metadata

import keras_tpu_estimator as kte

ROOT = pathlib.Path(__file__).parents[1]
MODULES = {
    "checkpoints",
    "experimental",
    "export",
    "hooks",
    "metrics",
    "optimizers",
    "summary",
    "tf1",
}


def test_names_are_sorted_and_exist_once() -> None:
    assert kte.__all__ == sorted(set(kte.__all__))
    assert all(hasattr(kte, name) for name in kte.__all__)


def test_names_are_exactly_what_is_exposed() -> None:
    # Importing a module makes it an attribute of its package, public or not.
    exposed = {
        name
        for name, value in vars(kte).items()
        if not name.startswith("_") and not isinstance(value, types.ModuleType)
    }
    assert exposed | MODULES == set(kte.__all__)


def test_dir_shows_the_public_names() -> None:
    shown = [name for name in dir(kte) if not name.startswith("_")]
    assert shown == kte.__all__


def test_a_function_is_not_the_module_that_it_is_in() -> None:
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
        for arguments in re.findall(
            r"(?m)^ +Args:\n((?: {8}.*\n)+)", path.read_text()
        )
        if "tf1" not in path.parts and ": Accepted" in arguments
    ]
    assert len(lists) > 10
    orders = [[bool(accepted) for _, accepted in each] for each in lists]
    assert [each for each in orders if each != sorted(each)] == []


def test_every_name_is_in_the_reference() -> None:
    pages = "\n".join(
        page.read_text() for page in (ROOT / "docs" / "api").glob("*.md")
    )
    shown = re.findall(r"^::: keras_tpu_estimator\.(\w+)$", pages, re.MULTILINE)
    assert sorted(shown) == kte.__all__


def run_python(
    code: str, **environment: str
) -> "subprocess.CompletedProcess[str]":
    """Runs code in a process that has chosen nothing yet."""
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


def test_importing_takes_a_checksum_beside_keras() -> None:
    done = run_python(
        "import sys, keras\n"
        "before = {name.partition('.')[0] for name in sys.modules}\n"
        "import keras_tpu_estimator\n"
        "after = {name.partition('.')[0] for name in sys.modules}\n"
        "print(sorted(after - before - sys.stdlib_module_names))\n",
        KERAS_BACKEND="jax",
    )
    # h5py comes with Keras.
    assert done.stdout == "['google_crc32c', 'keras_tpu_estimator']\n", (
        done.stderr
    )


def test_the_changelog_begins_with_this_version() -> None:
    versions = re.findall(r"(?m)^## (\S+)", (ROOT / "CHANGELOG.md").read_text())
    assert versions[0] == kte.__version__
    assert metadata.version("keras-tpu-estimator") == kte.__version__


def test_another_backend_in_the_environment_is_an_error() -> None:
    done = run_python("import keras_tpu_estimator", KERAS_BACKEND="tensorflow")
    assert done.returncode == 1
    *_, message = done.stderr.splitlines()
    assert message == (
        "RuntimeError: keras_tpu_estimator needs Keras on the JAX backend. "
        "Received: 'tensorflow'. Set the environment variable "
        "KERAS_BACKEND=jax, or unset KERAS_BACKEND."
    )


def test_keras_on_another_backend_is_an_error() -> None:
    done = run_python(
        "import keras\nimport keras_tpu_estimator", KERAS_BACKEND="numpy"
    )
    assert done.returncode == 1
    *_, message = done.stderr.splitlines()
    assert message == (
        "RuntimeError: keras_tpu_estimator needs Keras on the JAX backend. "
        "Received: 'numpy'. Set the environment variable KERAS_BACKEND=jax, or "
        "import keras_tpu_estimator before keras, and before tensorflow, which "
        "imports it."
    )
