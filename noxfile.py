"""Runs the suite on each Python and JAX version that `pyproject.toml` allows.

    nox                         # The core tests in all environments.
    nox -s newest-3.13 -- tests # All tests in one environment.
    nox -s next                 # Prereleases of Keras, JAX and TensorFlow.
    nox -s serving              # Model servers load exports.
    nox -s ecosystem            # KerasHub models.
    nox -s without_tools        # The package without TF1 and plans.
    nox -s keras_tests -- PATH  # Keras's own tests, from a checkout at PATH.
    nox -s starters -- torchrun # Starters of processes, or those with these names.
    nox -s arm64                # Digits and some tests on emulated 64-bit ARM.

`.ci/run` runs the whole suite on one Python, and then `newest-3.13` and
`lowest`, if their Pythons are installed.
"""

import os
import re

import nox

nox.options.default_venv_backend = "uv|virtualenv"
nox.options.download_python = "never"
# If a Python is missing, nox reports that and continues.
nox.options.error_on_missing_interpreters = False

# The core tests: they depend on the versions of other packages, and fail early.
CORE = (
    "tests/test_golden.py",
    "tests/test_examples.py::test_digits",
    "tests/test_examples.py::test_tf1_mnist",
    "tests/upstream",
    "tests/tracing/test_analyses.py",
    "tests/cpu/test_rewriting.py",
    "tests/formats/test_other_formats.py",
    "tests/formats/test_orbax_saves.py::test_shards_are_written_while_training_continues",
    "tests/device/test_executables.py",
    "tests/export/test_export_ops.py",
    "tests/export/test_export_saved_model.py"
    "::test_another_folder_of_sources_makes_the_same_graphs",
    "tests/export/test_other_versions.py",
)
# JAX releases, each with a Python that it supports. JAX 0.11 needs Python 3.12.
RELEASES = {
    "0.9.2": "3.11",
    "0.10.2": "3.12",
    "0.11.2": "3.13",
    "0.12.0.1": "3.12",
}
# Tests that depend on the processor. Emulated, they take half an hour.
EMULATED = (
    "tests/test_golden.py",
    "tests/cpu/test_rewriting.py",
    "tests/formats/test_tensorflow_bundle.py",
    "tests/atomic/test_checksum.py",
)


def run(session: nox.Session, *requirements: str) -> None:
    """Installs the dependencies of the tests, and runs the tests."""
    session.install("-e", ".[test]", *requirements)
    session.run("pytest", *(session.posargs or CORE))


@nox.session(python=["3.11", "3.12", "3.13"])
def newest(session: nox.Session) -> None:
    """Runs tests with the newest releases for a Python version."""
    run(session)


@nox.session(python="3.13", venv_backend="uv")
def next(session: nox.Session) -> None:
    """Runs tests with Keras's nightly, and prereleases of JAX and TensorFlow."""
    session.install("-e", ".[test]")
    # The first installs the dependencies of the prereleases, and the second restores
    # the files that `tensorflow` and `tensorflow-cpu` share.
    prerelease = ("--prerelease", "allow", "--upgrade")
    session.install(*prerelease, "jax", "tensorflow-cpu", "tensorflow")
    session.install(
        *("--prerelease", "allow", "--reinstall", "--no-deps"), "tensorflow-cpu"
    )
    # TensorFlow may require either distribution of Keras. Both have the same files.
    session.run_install("uv", "pip", "uninstall", "keras", "keras-nightly", silent=True)
    session.install("--prerelease", "allow", "--no-deps", "keras-nightly")
    session.run(
        "python",
        "-c",
        "import jax, keras, tensorflow as tf\n"
        "print('next:', *(each.__version__ for each in (keras, jax, tf)))",
        env={"KERAS_BACKEND": "jax", "TF_CPP_MIN_LOG_LEVEL": "3"},
    )
    session.run("pytest", *(session.posargs or CORE))


@nox.session
@nox.parametrize(("jax", "python"), list(RELEASES.items()), ids=list(RELEASES))
def released(session: nox.Session, jax: str) -> None:
    """Runs tests with one JAX release."""
    run(session, f"jax=={jax}")


@nox.session(python="3.11", venv_backend="uv")
def serving(session: nox.Session) -> None:
    """Runs tests of model servers, which have a separate environment."""
    folder = f"{session.create_tmp()}/servers"
    servers = f"{folder}/bin/python"
    session.run("uv", "venv", "--clear", folder, "--python", "3.11")
    session.run(*("uv", "pip", "install", "--python", servers, "--group", "serving"))
    session.install("-e", ".[test]")
    session.run(
        *("pytest", "-m", "", "-n", "0", "tests/export/test_export_served.py"),
        env={"SERVING_PYTHON": servers},
    )


@nox.session(python="3.11", venv_backend="uv")
def ecosystem(session: nox.Session) -> None:
    """Runs tests with libraries that are too large for the extra `[test]`."""
    session.install("-e", ".[test]", "--group", "ecosystem")
    session.run(
        *("pytest", "-m", "", "-n", "0"),
        *(session.posargs or ("tests/compiled/test_keras_hub.py",)),
    )


@nox.session(python="3.11", venv_backend="uv")
def without_tools(session: nox.Session) -> None:
    """Runs tests in a copy of the package without its TF1 rooms and its plans."""
    session.install("-e", ".[test]")
    session.run("python", "-m", "tests.without_tools", *session.posargs)


@nox.session(python="3.11", venv_backend="uv")
def keras_tests(session: nox.Session) -> None:
    """Compares the outcomes of Keras's own tests before and after this package runs.

    Args:
        session: Its arguments are the path of a checkout of Keras at the installed
            version, and optionally paths of tests in it.
    """
    if not session.posargs:
        session.error("A checkout of Keras must be given. Pass its path after `--`.")
    session.install("-e", ".[test]")
    session.run("python", "-m", "tests.upstream.keras_tests", *session.posargs)


@nox.session(python="3.11", venv_backend="uv")
def starters(session: nox.Session) -> None:
    """Trains in processes of Open MPI, MPICH, SLURM, torchrun and Ray.

    Debian's packages `openmpi-bin`, `mpich`, `slurmctld`, `slurmd` and `munge` have the
    commands. `munged` must run.

    Args:
        session: Its arguments are the names of starters. Defaults to all.
    """
    session.install("-e", ".[test]", "mpi4py", "ray[train]", "torch")
    session.run("python", "-m", "tests.starters", *session.posargs)


@nox.session(python="3.11", venv_backend="uv")
def arm64(session: nox.Session) -> None:
    """Runs the README's first command and some tests on emulated ARM Linux."""
    session.install("uv")
    folder = os.path.abspath(f"{session.create_tmp()}/arm64")
    session.run(".ci/emulate_arm64.sh", folder, external=True)
    python = f"{folder}/usr/bin/python"
    env = {"PYTHONPATH": os.getcwd(), "TF_CPP_MIN_LOG_LEVEL": "3"}
    shown = session.run(
        *(python, "examples/digits.py"), silent=True, external=True, env=env
    )
    accuracy = float(re.search(r"held-out images: ([\d.]+)", shown)[1])
    session.log(f"digits: {accuracy}")
    if accuracy < 0.97:
        session.error(f"Expected an accuracy of at least 0.97. Received: {accuracy}")
    session.run(
        *(python, "-m", "pytest", "--as-users", "-n", "0"),
        *(session.posargs or EMULATED),
        external=True,
        env=env,
    )


@nox.session(python="3.11", venv_backend="uv")
def lowest(session: nox.Session) -> None:
    """Runs tests with the lowest releases that `pyproject.toml` allows."""
    run(session, "--resolution", "lowest-direct")
