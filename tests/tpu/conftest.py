"""Fixtures of the TPU tests, which need the TPU compiler for Linux."""

import dataclasses
import importlib.util
import os
import re

import pytest
import tpu_table

# Otherwise libtpu queries the network, and allows only one process.
os.environ["TPU_SKIP_MDS_QUERY"] = "1"
os.environ["ALLOW_MULTIPLE_LIBTPU_LOAD"] = "1"
# It writes to standard error if it does not support them.
os.environ.setdefault("TPU_ACCELERATOR_TYPE", "v5litepod-4")
os.environ.setdefault("TPU_WORKER_HOSTNAMES", "localhost")

if importlib.util.find_spec("libtpu") is None:
    collect_ignore_glob = ["test_*.py"]

# Files whose code must not run on a TPU.
_OF_CPU = "keras_tpu_estimator/base/cpu/"


@pytest.fixture(autouse=True)
def nothing_of_cpus(monkeypatch):
    """Checks that compiled programs contain no rewrites for CPUs."""
    from keras_tpu_estimator.planning import compiling

    compiled = compiling.compiled

    def checked(lowered, *args):
        assert _OF_CPU not in lowered.as_text(debug_info=True)
        return compiled(lowered, *args)

    monkeypatch.setattr(compiling, "compiled", checked)


@pytest.fixture
def told(request, record_property):
    """Compares the result for a program with the table on the pages."""
    group = request.path.stem.removeprefix("test_tpu_")
    others = []

    def tell(name, mode, topology, found=tpu_table.COMPILES):
        if topology in tpu_table.GPUS:
            return
        row = tpu_table.Row(group, name, topology, mode, found)
        # Workers cannot send classes.
        record_property(tpu_table.PROPERTY, dataclasses.astuple(row))
        if tpu_table.stored().get(row.key) != found:
            others.append(row)

    yield tell
    assert not others, tpu_table.STALE


@pytest.fixture
def compiles(tmp_path, told):
    """Compiles a call of a program, and checks its requirements."""
    from keras_tpu_estimator.errors import CompileError

    def compile_(programs, name, mode, topology):
        program = programs[name]
        try:
            plan = program.plan(tmp_path, mode, topology)
        except (CompileError, ValueError) as error:
            if program.refusal is None and topology in program.own:
                raise
            # The table may contain errors of other topologies.
            assert re.search(program.refusal or "", str(error))
            told(name, mode, topology, tpu_table.refused(error))
            return None
        assert program.refusal is None
        program.check(plan)
        told(name, mode, topology)
        return plan

    return compile_
