"""Configures JAX and pytest for the suite.

Each process simulates eight devices and compiles without optimizations, and each test
starts from the same random state. The environment variables are set before Keras and
JAX are imported.
"""

import datetime
import importlib.metadata
import logging
import os
import pathlib
import shutil
import sys
import tempfile

os.environ["KERAS_BACKEND"] = "jax"
os.environ["JAX_PLATFORMS"] = "cpu"
_AS_USERS = "--xla_force_host_platform_device_count=8"
# A test runs its code once or twice, so optimizing the code costs more than it saves.
# XLA compiles in less than half the time if it does not emit fusions through MLIR and
# does not split modules for parallel compilation. The workers already use all cores.
_FAST = "--xla_backend_optimization_level=0 --xla_cpu_parallel_codegen_split_count=1"


def _has_other_emitters():
    """Returns whether each XLA in this process knows the flag for emitters.

    Later releases always emit fusions through MLIR, and end the process if they read
    the flag. JAX and TensorFlow contain an XLA each.
    """
    version = importlib.metadata.version
    if not version("jaxlib").startswith(("0.8.", "0.9.", "0.10.")):
        return False
    try:
        return version("tensorflow-cpu").startswith("2.21.")
    except importlib.metadata.PackageNotFoundError:
        return version("tensorflow").startswith("2.21.")


if _has_other_emitters():
    _FAST += " --xla_cpu_use_fusion_emitters=false"
os.environ["XLA_FLAGS"] = f"{_AS_USERS} {_FAST}"
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
os.environ.pop("TF_CONFIG", None)

# Tests often flush small files, which is fast in memory. Set TMPDIR to see the files of
# a test.
_MEMORY = pathlib.Path("/dev/shm")
_ROOM_BYTES = 2**31
_made = []
if (
    "TMPDIR" not in os.environ
    and _MEMORY.is_dir()
    and shutil.disk_usage(_MEMORY).free > _ROOM_BYTES
):
    tempfile.tempdir = tempfile.mkdtemp(prefix="tests-", dir=_MEMORY)
    os.environ["TMPDIR"] = tempfile.tempdir
    _made.append(tempfile.tempdir)

# Most tests compile code that an earlier test or run has compiled. JAX's keys contain
# its version, the flags and the processor, so the cache can be kept. Each week starts
# with an empty one, so that it does not grow. Workers and their child processes inherit
# the variable.
_caches = pathlib.Path(__file__).parents[1] / ".xla_cache"
_year, _week, _ = datetime.date.today().isocalendar()
_this_week = _caches / f"{_year}-{_week}"
_this_week.mkdir(parents=True, exist_ok=True)
for _folder in _caches.iterdir():
    if _folder != _this_week:
        shutil.rmtree(_folder, ignore_errors=True)
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(_this_week))
# Many processes import the same modules. Without bytecode, most of their time is spent
# on compiling Python. If the environment wants none beside the sources, it is stored
# with the compiled code.
if sys.dont_write_bytecode:
    sys.dont_write_bytecode = False
    sys.pycache_prefix = str(_this_week / "bytecode")
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    os.environ["PYTHONPYCACHEPREFIX"] = sys.pycache_prefix
os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
os.environ["JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES"] = "-1"

import collections  # noqa: E402
import gc  # noqa: E402
import importlib.util  # noqa: E402
import math  # noqa: E402
import random  # noqa: E402

import numpy as np  # noqa: E402
import pytest  # noqa: E402

# Imports leave no garbage. `pytest_collection_finish` enables the collector.
gc.disable()

_PLUGINS = ("fake_hosts", "tests.forking.forks")
# The rooms where nearly every test compiles.
_COMPILING = (
    *("compiled", "cpu", "device", "export", "hooks", "keras_front_end", "mesh"),
    *("metrics", "model_fn", "optimizers", "program", "runs", "summary", "tables"),
    *("tf1", "tracing"),
)


@pytest.fixture(autouse=True)
def fixed_seed():
    """Gives every test the same random state."""
    random.seed(0)
    np.random.seed(0)


@pytest.fixture(autouse=True)
def own_logging():
    """Restores the logging handlers that a test changes."""
    own = logging.getLogger("keras_tpu_estimator")
    before = own.handlers, own.parent, own.propagate
    own.handlers = own.handlers[:]
    yield
    own.handlers, own.parent, own.propagate = before


@pytest.fixture
def attention_calls(monkeypatch):
    """Interprets the attention kernel of TPUs, also for short sequences.

    Returns the visibility of each call.
    """
    import functools

    from keras_tpu_estimator.base.tpu import attention as kernel

    visibilities = []
    interpreted = functools.partial(kernel.attention, interpret=True)

    def attention(*args):
        visibilities.append(args[3])
        return interpreted(*args)

    monkeypatch.setattr(kernel, "attention", attention)
    monkeypatch.setattr(kernel, "MIN_LENGTH", 8)
    return visibilities


def pytest_addoption(parser):
    parser.addoption(
        "--as-users",
        action="store_true",
        help="compile with the optimizations that XLA has for users",
    )


def pytest_configure(config):
    """Imports the plugins in processes that run tests.

    A process that starts workers runs no tests.
    """
    if config.getoption("as_users"):
        os.environ["XLA_FLAGS"] = _AS_USERS
    if hasattr(config, "workerinput") or not config.getoption("numprocesses"):
        for name in _PLUGINS:
            config.pluginmanager.import_plugin(name)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """Marks some rows of tables as `slow`.

    Of a table with the mark `rows`, normal runs use that number. Of a table that
    crosses several parameters, in a room where tests compile, they use each entry of
    each parameter at least once.
    """
    rows = collections.defaultdict(list)
    for item in items:
        if item.get_closest_marker("slow") is None and hasattr(item, "callspec"):
            rows[item.nodeid.partition("[")[0]].append(item)
    for all_rows in rows.values():
        mark = all_rows[0].get_closest_marker("rows")
        if mark is not None:
            (count,) = mark.args
            kept = {n * len(all_rows) // count for n in range(count)}
        elif _compiles(all_rows[0].path):
            kept = _each_once(all_rows)
        else:
            continue
        for number, item in enumerate(all_rows):
            if number not in kept:
                item.add_marker("slow")


def _compiles(path):
    """Returns whether the rows of a file's tables take long."""
    return path.parent.name in _COMPILING and "validation" not in path.stem


def _each_once(rows):
    """Returns the numbers of rows that contain each entry of crossed parameters."""
    columns = []
    for name in rows[0].callspec.params:
        known = {}
        entries = (id(row.callspec.params.get(name)) for row in rows)
        column = [known.setdefault(entry, len(known)) for entry in entries]
        # Parameters of one table change together.
        if len(known) > 1 and column not in columns:
            columns.append(column)
    sizes = [max(column) + 1 for column in columns]
    numbers = {row: n for n, row in enumerate(zip(*columns, strict=True))}
    if len(columns) < 2 or not math.prod(sizes) == len(numbers) == len(rows):
        return range(len(rows))
    diagonal = ([n % size for size in sizes] for n in range(max(sizes)))
    return {numbers[tuple(row)] for row in diagonal}


def pytest_collection_finish():
    """Creates the devices, and makes garbage collection rarer.

    The devices must not depend on what the first test sets. The imported modules have a
    million objects, which garbage collection must not visit.
    """
    import jax

    jax.devices()
    gc.freeze()
    gc.enable()
    gc.set_threshold(10_000, 10, 100)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup():
    return (yield from _skipped_without_libtpu())


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call():
    return (yield from _skipped_without_libtpu())


def _skipped_without_libtpu():
    """Skips a test that needs libtpu on a platform that has no wheels of it."""
    try:
        return (yield)
    except ModuleNotFoundError as error:
        if error.name != "libtpu" or importlib.util.find_spec("libtpu"):
            raise
        pytest.skip("libtpu, which has wheels for x86-64 Linux, is missing")


def pytest_unconfigure():
    """Deletes the temporary folder of this run."""
    # Pytest would collect garbage ten times.
    gc.collect()
    gc.freeze()
    for folder in _made:
        shutil.rmtree(folder, ignore_errors=True)


# These files run under the last TensorFlow with estimators, or in a server's
# environment.
collect_ignore = [
    "export/triton_server.py",
    "golden/make_golden.py",
    "golden/make_metrics.py",
    "starters/ray_job.py",
    "tf1/golden",
]
# Tests run these TF1 programs.
collect_ignore_glob = ["tf1/programs/*"]
