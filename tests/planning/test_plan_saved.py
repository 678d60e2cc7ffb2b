"""Plans save their programs for the topology."""

import io
import json
import logging
import os
import pathlib
import pickle
import subprocess
import sys

import jax
import keras
import pytest
from helpers import (
    batches_of,
    estimator_of,
    linear,
    model_fn_of,
    regression_data,
    repeated,
)

from keras_tpu_estimator.engine.device.executables import ExecutableKey, Executables
from keras_tpu_estimator.planning import topologies
from keras_tpu_estimator.planning.lowering import LoweredLoop

X, Y = regression_data(size=16)
INPUTS = {
    "train": repeated(X, Y),
    "eval": repeated(X, Y),
    "infer": batches_of(X),
}


def wide(features, is_training):
    x = keras.layers.Dense(32, activation="relu")(features)
    x = keras.layers.Dropout(0.1)(x, training=is_training)
    return keras.layers.Dense(1)(x)


def estimator(tmp_path, network=wide, **settings):
    return estimator_of(model_fn_of(network), tmp_path / "run", True, **settings)


def planned(own, mode, topology, folder):
    return own.plan(INPUTS[mode], topology, mode, print_fn=None, save=folder)


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "compiled"


def looked_for(own, mode, name):
    """The key that a call looks up on a topology of that name."""
    topology = topologies.parse(name)
    loop = LoweredLoop.from_call(own._context, INPUTS[mode], mode, topology.machine())
    return ExecutableKey.from_lowered(mode, loop.lowered, loop.devices), loop


@pytest.mark.parametrize("topology", ["v5e:2x2", "v4:2x2x2"])
def test_each_mode_has_a_file(tmp_path, folder, topology):
    own = estimator(tmp_path)
    paths = []
    for mode in INPUTS:
        plan = planned(own, mode, topology, folder)
        assert pathlib.Path(plan.saved).parent == folder
        assert plan.saved.endswith(".executable")
        paths.append(os.path.basename(plan.saved))
    assert sorted(os.listdir(folder)) == sorted(paths)
    assert [path.partition("-")[0] for path in paths] == [*INPUTS]
    stored = pathlib.Path(folder, paths[0]).read_bytes()
    header = json.loads(stored.partition(b"\n")[0])
    assert "libtpu Built on " in header["key"]["compiler"]
    assert "TPU v" in header["key"]["devices"]


def test_several_topologies_share_a_folder(tmp_path, folder, capsys):
    own = estimator(tmp_path)
    names = ["v5e:2x2", "v5e:2x4", "v6e:2x2"]
    plans = own.plan(INPUTS["train"], names, save=folder)
    out = capsys.readouterr().out
    for plan in plans:
        assert f"{plan.topology.name}: stored as {plan.saved}" in out
        key, _ = looked_for(own, "train", plan.topology.name)
        assert key.digest in plan.saved
    assert len({*os.listdir(folder)}) == 3


def test_nothing_is_saved_by_default(tmp_path, folder, capsys):
    plan = estimator(tmp_path).plan(INPUTS["train"], "v5e:2x2")
    assert plan.saved is None
    assert "stored" not in capsys.readouterr().out


class _Parts(pickle.Unpickler):
    """Unpickles without devices, and omits parts that need them."""

    def __init__(self, file, devices):
        super().__init__(file)
        self.programs = []
        self._devices = {device.id: device for device in devices}

    def persistent_load(self, pid):
        if pid[0] == "exec":
            self.programs.append(pid[1])
        return self._devices.get(pid[1]) if pid[0] == "device" else None


def test_saved_programs_are_complete(tmp_path, folder, caplog):
    own = estimator(tmp_path)
    saved = planned(own, "train", "v5e:2x2", folder).saved
    key, loop = looked_for(own, "train", "v5e:2x2")
    payload = pathlib.Path(saved).read_bytes().partition(b"\n")[2]
    parts = _Parts(io.BytesIO(payload), loop.devices)
    executable, arguments, _ = parts.load()
    (program,) = parts.programs
    assert len(program) > 10_000
    # The trees of arguments are not stored: lowering has them.
    found = loop.lowered.in_tree.unflatten(arguments)
    assert jax.tree.map(lambda each: each.shape, found) == jax.tree.map(
        lambda each: each.shape, loop.lowered.args_info
    )
    assert len(executable.output_avals) == loop.lowered.out_tree.num_leaves
    # Only the topology itself can do the rest.
    assert Executables(str(folder)).load(key, loop.lowered, loop.devices) is None
    (record,) = caplog.records
    assert record.levelname == "WARNING"
    assert saved in record.getMessage()
    assert "not what was stored" not in record.getMessage()


_LOOKS = """
import sys
sys.path.insert(0, {tests!r})
import pathlib
from planning import test_plan_saved as own
made = own.estimator(pathlib.Path(sys.argv[1]))
for mode in ("eval", "infer", "train"):
    print(own.looked_for(made, mode, "v5e:2x2")[0].digest)
"""


@pytest.mark.usefixtures("forked_programs")
def test_another_process_has_the_same_key(tmp_path, folder):
    own = estimator(tmp_path)
    saved = [planned(own, mode, "v5e:2x2", folder).saved for mode in INPUTS]
    tests = os.path.dirname(os.path.dirname(__file__))
    script = _LOOKS.format(tests=tests)
    looked = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path / "other")],
        stdout=subprocess.PIPE,
        check=True,
        text=True,
    )
    stored = {path.rpartition("-")[2].partition(".")[0] for path in saved}
    assert {*looked.stdout.split()} == stored


def test_key_depends_on_compiler_settings(tmp_path, folder, monkeypatch):
    own = estimator(tmp_path)
    before, _ = looked_for(own, "train", "v5e:2x2")
    monkeypatch.setenv(
        "XLA_FLAGS", f"{os.environ['XLA_FLAGS']} --xla_cpu_enable_fast_math=1"
    )
    after, _ = looked_for(own, "train", "v5e:2x2")
    # CPU settings do not change a TPU program.
    assert after == before
    flag = "--xla_tpu_enable_latency_hiding_scheduler=true"
    monkeypatch.setenv("LIBTPU_INIT_ARGS", flag)
    after, _ = looked_for(own, "train", "v5e:2x2")
    (difference,) = before.unlike(after)
    assert difference.startswith("settings (")
    assert flag in difference


def telling(features, is_training):
    jax.debug.callback(lambda x: None, features)
    return linear(features, is_training)


def test_programs_that_call_python_are_not_saved(tmp_path, folder, caplog):
    caplog.set_level(logging.WARNING, "keras_tpu_estimator")
    plan = planned(estimator(tmp_path, telling), "eval", "v5e:1x1", folder)
    assert plan.saved is None
    assert "is not saved because it calls Python" in caplog.text
    assert not os.listdir(folder)


def test_programs_that_check_for_nan_are_not_saved(tmp_path, folder, caplog):
    own = estimator(tmp_path, config={"debug_nans": True})
    caplog.set_level(logging.WARNING, "keras_tpu_estimator")
    plan = planned(own, "train", "v5e:1x1", folder)
    assert plan.saved is None
    assert "is not saved because it checks for NaN" in caplog.text
    assert planned(own, "eval", "v5e:1x1", folder).saved is not None


def test_nothing_is_compiled_for_an_unsafe_folder(tmp_path, folder):
    folder.mkdir()
    folder.chmod(0o777)

    def never(features, is_training):
        raise AssertionError

    own = estimator(tmp_path, never)
    with pytest.raises(PermissionError, match="`chmod go-w"):
        planned(own, "train", "v5e:2x2", folder)
    with pytest.raises(PermissionError, match="`chmod go-w"):
        planned(own, "train", ["v5e:2x2", "v5e:2x4"], folder)


def test_arguments(tmp_path):
    own = estimator(tmp_path)
    with pytest.raises(ValueError, match="`save` must be a local folder"):
        planned(own, "train", "v5e:2x2", "gs://bucket/compiled")
    with pytest.raises(TypeError, match="`save` must be a path"):
        planned(own, "train", "v5e:2x2", 3)
