"""Tests stored executables that run instead of compiling."""

import dataclasses
import logging
import os
import pickle
import platform
import re
import subprocess
import sys

import jax
import keras
import numpy as np
import pytest
from helpers import (
    batches_of,
    estimator_of,
    model_fn_of,
    regression_data,
    repeated,
    slow,
)
from stored_programs import ran, store

from keras_tpu_estimator.engine.device import executables
from keras_tpu_estimator.engine.device.executables import ExecutableKey, Executables
from keras_tpu_estimator.planning.compiling import without_cache

X, Y = regression_data(examples=64)
INPUTS = {
    "train": repeated(X, Y),
    "eval": repeated(X, Y),
    "infer": batches_of(X),
}
LAYOUTS = {
    "one core": {"use_tpu": False},
    "eight": {"use_tpu": True},
    "shared slots": {"use_tpu": True, "config": {"shard_optimizer": True}},
    "micro-batches": {"use_tpu": False, "config": {"micro_batches": 2}},
}


def network(features, is_training):
    x = keras.layers.Dense(8, activation="relu")(features)
    x = keras.layers.BatchNormalization()(x, training=is_training)
    x = keras.layers.Dropout(0.1)(x, training=is_training)
    return keras.layers.Dense(1)(x)


MODEL_FN = model_fn_of(network, lambda: keras.optimizers.Adam(0.01))


def estimator(model_dir, executables=None, model_fn=MODEL_FN, **settings):
    settings["config"] = {
        **settings.get("config", {}),
        "executables": executables,
    }
    return estimator_of(model_fn, model_dir, **settings)


@pytest.fixture
def log(caplog):
    """The lines of this package."""
    caplog.set_level(logging.INFO, "keras_tpu_estimator")
    return caplog


@pytest.fixture
def folder(tmp_path):
    return str(tmp_path / "compiled")


def compiled(records):
    """The device loops that XLA has compiled, according to JAX's log."""
    names = ("train_steps", "evaluate_steps", "predict_step")
    lines = [record.getMessage() for record in records]
    return [
        name
        for line in lines
        for name in names
        if line.startswith("Finished XLA compilation") and name in line
    ]


def calls(own):
    """Trains, evaluates and predicts in two rounds; returns the results."""
    results = []
    for _ in range(2):
        own.train(INPUTS["train"], steps=8)
        results.append(own.evaluate(INPUTS["eval"], steps=32))
        results += [row["y"] for row in own.predict(INPUTS["infer"])]
    names = own.get_variable_names()
    return results, own.get_variable_value(names)


@pytest.mark.rows(1)
@pytest.mark.parametrize(
    "layout",
    [
        *("one core", "shared slots"),
        *(slow("eight"), slow("micro-batches")),
    ],
)
def test_stored_executables_give_the_same_results(tmp_path, folder, log, layout):
    settings = LAYOUTS[layout]
    with jax.log_compiles():
        want = calls(estimator(tmp_path / "jit", **settings))
    # The compiled loops may be those of another layout.
    assert "train_steps" in compiled(log.records)
    files = [
        store(estimator(tmp_path / "plan", **settings), input_fn, folder, mode)
        for mode, input_fn in INPUTS.items()
    ]
    log.clear()
    with jax.log_compiles():
        found = calls(estimator(tmp_path / "stored", folder, **settings))
    jax.tree.map(np.testing.assert_array_equal, found, want)
    assert ran(log.records) == files
    assert compiled(log.records) == []


def test_assigned_values_are_donated(tmp_path, folder, log):
    store(estimator(tmp_path), INPUTS["train"], folder, "train")
    runtime = estimator(tmp_path, folder)._context.runtime
    steps = X[None, :16].repeat(4, 0), Y[None, :16].repeat(4, 0)
    step = runtime.prepare("train", X[:16], Y[:16])
    with runtime.values.borrowed(step, None) as borrowed:
        values = jax.tree.map(jax.numpy.copy, dict(borrowed))
    assigned, others = step.split(values)
    metrics = runtime.program.metrics_state()
    data = runtime.loop.put("train", *steps)
    runtime.loop.run(step, values, metrics, data, range(4))
    assert len(ran(log.records)) == 1
    assert assigned and all(each.is_deleted() for each in assigned.values())
    assert not any(each.is_deleted() for each in others.values())


def test_missing_programs_are_compiled(tmp_path, folder, log):
    path = store(estimator(tmp_path), INPUTS["train"], folder, "train")
    own = estimator(tmp_path / "run", folder)
    own.train(INPUTS["train"], steps=6)
    assert ran(log.records) == [path]
    # A batch with another dtype needs another program.
    other = repeated(X.astype("float16"), Y)
    own.train(other, steps=6)
    assert (
        f"No executable for mode 'train' exists in {folder} (1 with other keys: the "
        "nearest has another program): compiling." in log.text
    )
    own.evaluate(INPUTS["eval"], steps=2)
    assert f"for mode 'eval' exists in {folder}: compiling." in log.text
    # Each executable is searched once.
    log.clear()
    own.train(other, steps=6)
    assert "executable" not in log.text


def test_calls_of_few_steps(tmp_path, folder, log):
    files = [
        store(estimator(tmp_path), INPUTS[mode], folder, mode)
        for mode in ("train", "eval")
    ]
    own = estimator(tmp_path / "run", folder)
    # One program runs two loops, the second with two steps.
    own.train(INPUTS["train"], steps=6)
    own.evaluate(INPUTS["eval"], steps=3)
    assert ran(log.records) == files
    assert "compiling." not in log.text


def test_without_a_folder(tmp_path, folder, log):
    estimator(tmp_path / "run", folder).train(INPUTS["train"], steps=4)
    assert f"in {folder}, which is not a folder: compiling." in log.text
    assert not os.path.exists(folder)


def test_nothing_is_searched_unless_enabled(tmp_path, log):
    estimator(tmp_path / "run").train(INPUTS["train"], steps=4)
    assert "executable" not in log.text


@pytest.mark.slow
def test_nan_checks_are_compiled(tmp_path, folder, log):
    config = {"debug_nans": True}
    path = store(estimator(tmp_path, config=config), INPUTS["eval"], folder, "eval")
    own = estimator(tmp_path / "run", folder, config=config)
    own.train(INPUTS["train"], steps=4)
    assert "executable" not in log.text
    own.evaluate(INPUTS["eval"], steps=32)
    assert ran(log.records) == [path]


def test_python_callbacks_are_compiled(tmp_path, folder, log):
    seen = []

    def telling(features, is_training):
        jax.debug.callback(lambda x: seen.append(x.shape), features)
        return network(features, is_training)

    own = estimator(tmp_path / "run", folder, model_fn_of(telling))
    own.train(INPUTS["train"], steps=4)
    jax.effects_barrier()
    assert seen == [(16, 3)] * 4
    assert "executable" not in log.text


_STORES = """
import sys
sys.path.insert(0, {tests!r})
from device import test_executables as own
from stored_programs import store
made = own.estimator(sys.argv[1], use_tpu=True)
for mode in ("infer", "eval", "train"):
    print(store(made, own.INPUTS[mode], sys.argv[2], mode))
"""


@pytest.mark.usefixtures("forked_programs")
def test_executables_of_another_process_in_another_order(tmp_path, folder, log):
    tests = os.path.dirname(os.path.dirname(__file__))
    made = subprocess.run(
        [
            sys.executable,
            "-c",
            _STORES.format(tests=tests),
            str(tmp_path / "plan"),
            folder,
        ],
        stdout=subprocess.PIPE,
        check=True,
        text=True,
    )
    found = calls(estimator(tmp_path / "stored", folder, use_tpu=True))
    assert sorted(ran(log.records)) == sorted(made.stdout.split())
    want = calls(estimator(tmp_path / "jit", use_tpu=True))
    jax.tree.map(np.testing.assert_array_equal, found, want)


# Tests of single programs.


@pytest.fixture
def program():
    """A lowered program, its key, and where it runs."""
    devices = tuple(jax.devices()[:1])
    lowered = jax.jit(lambda x: 3 * x).lower(jax.ShapeDtypeStruct((), "f4"))
    return lowered, ExecutableKey.from_lowered("three", lowered, devices), devices


def saved(folder, program):
    lowered, key, _ = program
    # XLA cannot store a CPU program that was read from JAX's cache.
    with without_cache():
        return Executables(folder).save(key, lowered.compile())


def loaded(folder, program):
    lowered, key, devices = program
    return Executables(folder).load(key, lowered, devices)


def test_saved_executable_is_loaded(folder, program):
    assert loaded(folder, program) is None
    path = saved(folder, program)
    assert os.listdir(folder) == [os.path.basename(path)]
    assert loaded(folder, program)(2.0) == 6
    # A second save replaces it.
    assert saved(folder, program) == path
    assert os.listdir(folder) == [os.path.basename(path)]


@pytest.mark.parametrize("umask", [0o002, 0o077])
def test_only_the_owner_may_write_saved_executables(folder, program, umask):
    before = os.umask(umask)
    try:
        path = saved(folder, program)
    finally:
        os.umask(before)
    assert not os.stat(path).st_mode & 0o022
    assert not os.stat(folder).st_mode & 0o022
    assert loaded(folder, program)(2.0) == 6


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        ("compiler", "jaxlib 0.1", r"another compiler \(jaxlib 0.1\)"),
        ("devices", "2 of 2 v9", r"another devices \(2 of 2 v9\)"),
        ("program", "0f", "another program"),
        ("topology", "0f", "another topology"),
        ("settings", "--fast", r"another settings \(--fast\)"),
    ],
)
def test_error_names_the_difference_of_keys(folder, program, log, field, value, said):
    lowered, key, devices = program
    other = dataclasses.replace(key, **{field: value})
    saved(folder, (lowered, other, devices))
    assert loaded(folder, program) is None
    (message,) = log.messages
    assert re.search(said, message)


class Exploding:
    """An object that reports when it is unpickled."""

    unpickled = 0

    def __reduce__(self):
        return _unpickle, ()


def _unpickle():
    Exploding.unpickled += 1


def rewritten(path, payload, keeps_checksum):
    """Replaces the content after the header of a file."""
    with open(path, "rb") as file:
        line = file.readline()
    if not keeps_checksum:
        header = executables._Header.parse(line)
        line = executables._Header.from_payload(header.key, payload).as_line()
    with open(path, "wb") as file:
        file.write(line + payload)


@pytest.mark.parametrize("payload", [b"", b"\0" * 100, pickle.dumps(Exploding())])
@pytest.mark.parametrize("keeps_checksum", [True, False])
def test_unloadable_executables_are_compiled(
    folder, program, log, payload, keeps_checksum
):
    Exploding.unpickled = 0
    rewritten(saved(folder, program), payload, keeps_checksum)
    assert loaded(folder, program) is None
    (record,) = log.records
    assert record.levelname == "WARNING"
    assert "cannot be loaded" in record.getMessage()
    # Nothing of a changed file is read.
    assert Exploding.unpickled == (not keeps_checksum and payload[:1] == b"\x80")


def test_file_with_another_key_is_ignored(folder, program, log):
    lowered, key, devices = program
    other = dataclasses.replace(key, program="0f")
    path = saved(folder, program)
    os.replace(saved(folder, (lowered, other, devices)), path)
    assert loaded(folder, program) is None
    assert "it is not what was stored" in log.text


def test_file_that_others_may_write_is_an_error(folder, program):
    Exploding.unpickled = 0
    path = saved(folder, program)
    rewritten(path, pickle.dumps(Exploding()), keeps_checksum=False)
    for wrong in (path, folder):
        mode = os.stat(wrong).st_mode
        os.chmod(wrong, mode | 0o020)
        with pytest.raises(PermissionError, match=f"`chmod go-w {wrong}`"):
            loaded(folder, program)
        os.chmod(wrong, mode)
    assert not Exploding.unpickled
    os.chmod(folder, 0o777)
    with pytest.raises(PermissionError, match="chmod go-w"):
        saved(folder, program)


def test_training_raises_the_same_error(tmp_path, folder):
    path = store(estimator(tmp_path), INPUTS["train"], folder, "train")
    os.chmod(path, 0o666)
    with pytest.raises(PermissionError, match="Only this user"):
        estimator(tmp_path / "run", folder).train(INPUTS["train"], steps=4)


# Keys.


def test_flags_are_a_part_of_the_key(program, monkeypatch):
    lowered, key, devices = program

    def other(flags):
        monkeypatch.setenv("XLA_FLAGS", flags)
        return ExecutableKey.from_lowered("three", lowered, devices)

    own = os.environ["XLA_FLAGS"]
    assert other(own) == key
    assert other(f"{own} --xla_dump_to=/tmp/dumped") == key
    assert key.unlike(other(f"{own} --xla_gpu_autotune_level=0")) != []
    few = own.replace("device_count=8", "device_count=2")
    assert few != own
    assert other(few) == key


def test_the_processor_is_a_part_of_the_key(program, monkeypatch):
    lowered, own, devices = program
    assert f"processor {platform.machine()}" in own.compiler
    monkeypatch.setattr(executables, "_processor", lambda: "of another kind")
    other = ExecutableKey.from_lowered("three", lowered, devices)
    (found,) = own.unlike(other)
    assert found.startswith("compiler (") and "another kind" in found


def test_devices_are_a_part_of_the_key(program):
    lowered, key, _ = program
    one, two = jax.devices()[1:2], jax.devices()[:2]
    assert key.devices == "1 of 8 cpu on 1 host"
    of_next = ExecutableKey.from_lowered("three", lowered, one)
    assert key.unlike(of_next) == ["topology"]
    of_two = ExecutableKey.from_lowered("three", lowered, two)
    assert key.unlike(of_two) == [
        "devices (2 of 8 cpu on 1 host)",
        "topology",
    ]
    of_turned = ExecutableKey.from_lowered("three", lowered, two[::-1])
    assert of_two.unlike(of_turned) == ["topology"]


def test_large_constants_are_a_part_of_the_key(program):
    _, _, devices = program

    def key(last):
        rows = np.arange(50_000, dtype="float32")
        rows[-1] = last
        lowered = jax.jit(lambda x: x + rows).lower(
            jax.ShapeDtypeStruct(rows.shape, rows.dtype)
        )
        return ExecutableKey.from_lowered("rows", lowered, devices)

    assert key(1.0) == key(1.0)
    assert key(1.0).unlike(key(2.0)) == ["program"]


def test_files_that_are_no_executables_are_ignored(folder, program, log):
    path = saved(folder, program)
    os.remove(path)
    with open(os.path.join(folder, "three-0.executable"), "w") as file:
        file.write("[" * 10_000)
    os.mkfifo(os.path.join(folder, "three-1.executable"))
    os.mkfifo(path, 0o600)
    assert loaded(folder, program) is None
    assert "cannot be loaded" in log.text
    os.remove(path)
    assert loaded(folder, program) is None
