"""Tests train, evaluate, predict and export on a simulated Windows.

`tests/windows.py` lists what is simulated. Nothing here was run on Windows.
"""

import os
import subprocess
import sys

import pytest
from helpers import slow

_PROGRAM = """
from tests import windows

windows.install()

import os, signal, sys, warnings

import keras
import numpy as np
import pytest
from helpers import (
    batches_of, estimator_of, model_fn_of, regression_data, repeated)

import keras_tpu_estimator as kte
from keras_tpu_estimator.__main__ import main

warnings.filterwarnings(
    "error", category=EncodingWarning, module="keras_tpu_estimator")
model_dir, format_name, exports = sys.argv[1:]
arrays = regression_data(64)
X, Y = {"x": arrays[0]}, arrays[1]


def input_fn(params):
    for x, y in batches_of(*arrays)(params):
        yield {"x": x}, y


def endless(params):
    while True:
        yield from input_fn(params)


def network(features, is_training):
    # Names that differ in case only.
    features = keras.layers.Dense(4, name="hidden")(features["x"])
    return keras.layers.Dense(1, name="Hidden")(features)


def new_estimator():
    return estimator_of(
        model_fn_of(network), model_dir, save_summary_steps=2,
        config=dict(
            keep_checkpoint_max=2, save_checkpoints_steps=4,
            checkpoint_format=format_name,
            keep_best=kte.checkpoints.KeepBest(),
        ),
    )


class Twice(kte.hooks.SessionRunHook):
    "Tries to train where that is done already, and stops by Ctrl-Break."

    def after_run(self, run_context, run_values):
        with pytest.raises(RuntimeError, match="Another training writes"):
            new_estimator().train(endless, steps=1)
        signal.raise_signal(signal.SIGBREAK)


estimator = new_estimator()
estimator.train(endless, steps=16)
with pytest.raises(SystemExit):
    estimator.train(endless, steps=16, hooks=[Twice()])
assert estimator.get_variable_value("global_step") == 20
estimator = new_estimator().train(endless, max_steps=32)
first = estimator.evaluate(input_fn)
assert first["global_step"] == 32
assert estimator.evaluate(input_fn, name="test") == first
(expected,) = {len([*estimator.predict(input_fn)]) for _ in range(2)}
assert expected == 64
values = {n: estimator.get_variable_value(n)
          for n in estimator.get_variable_names()}
assert {"hidden/kernel", "Hidden/kernel"} <= values.keys(), values.keys()
other = kte.checkpoints.read(kte.checkpoints.latest(model_dir))
for name, value in values.items():
    np.testing.assert_array_equal(other[name], value)
assert main(["verify", model_dir]) == 0

with pytest.raises(ValueError, match="Windows allows"):
    estimator.evaluate(input_fn, name="a:b")
with pytest.raises(NotImplementedError, match="`launch` is not supported on W"):
    main(["launch", "--processes", "2", "script.py"])
with pytest.raises(NotImplementedError, match="Omit it"):
    kte.RunConfig(executables=model_dir)

if exports == "exports":
    receiver_fn = kte.export.build_raw_serving_input_receiver_fn(
        {"x": arrays[0][:1]})
    exporter = kte.LatestExporter("latest", receiver_fn, exports_to_keep=1)
    for steps in (40, 48):
        kte.train_and_evaluate(
            estimator, kte.TrainSpec(endless, max_steps=steps),
            kte.EvalSpec(input_fn, steps=2, exporters=[exporter]))
    (folder,) = os.listdir(os.path.join(model_dir, "export", "latest"))
    assert folder.isdigit()

left = [
    os.path.join(folder, name)
    for folder, folders, files in os.walk(model_dir)
    for name in folders + files
]
for path in left:
    windows.check_name(path)
assert not [path for path in left if "kte-" in path]
with open(os.path.join(model_dir, "checkpoint"), "rb") as file:
    assert b"\\r" not in file.read()
print("done")
"""


@pytest.mark.parametrize(
    ("format_name", "exports"),
    [
        ("hdf5", ""),
        slow("orbax", ""),
        slow("tensorflow", "exports"),
    ],
)
def test_windows_trains_and_serves(tmp_path, format_name, exports):
    here = os.path.dirname(os.path.dirname(__file__))
    done = subprocess.run(
        [
            *(sys.executable, "-X", "warn_default_encoding", "-c", _PROGRAM),
            *(str(tmp_path / "run"), format_name, exports),
        ],
        env=os.environ
        | {
            "PYTHONPATH": os.pathsep.join([os.path.dirname(here), here]),
            "KERAS_BACKEND": "jax",
        },
        capture_output=True,
        encoding="utf-8",
        check=False,
    )
    assert done.stdout.endswith("done\n"), done.stderr[-3000:]
