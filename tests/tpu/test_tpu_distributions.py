"""Tests Keras distributions for TPUs that do not exist here."""

import contextlib

import keras
import pytest
from helpers import estimator_of, model_fn_of, regression_data, repeated
from tpu_programs import MODES

from keras_tpu_estimator.planning import topologies
from keras_tpu_estimator.planning.lowering import LoweredLoop

MACHINE = topologies.parse("v5e:2x2").machine()
DATA = repeated(*regression_data(size=16))


def network(features, is_training):
    """Two layers, the first with a layout rule."""
    x = keras.layers.Dense(32, name="up")(features)
    x = keras.layers.Dropout(0.1)(x, training=is_training)
    return keras.layers.Dense(1)(x)


@contextlib.contextmanager
def spread(devices, *rules):
    """Two replicas of two cores each."""
    tools = keras.distribution
    layout_map = tools.LayoutMap(tools.DeviceMesh((2, 2), ("batch", "model"), devices))
    for rule in rules:
        layout_map[rule] = (None, "model")
    told = tools.ModelParallel(layout_map=layout_map, auto_shard_dataset=False)
    with told.scope():
        yield


DEVICES = {
    "objects": lambda: MACHINE.devices,
    "names": lambda: [f"tpu:{n}" for n in range(4)],
    "others": lambda: keras.distribution.list_devices()[:4],
}


@pytest.mark.parametrize("kind", DEVICES)
def test_no_arrays_are_put_on_the_missing_tpus(tmp_path, kind):
    with spread(DEVICES[kind](), "up/kernel"):
        made = estimator_of(model_fn_of(network), tmp_path, use_tpu=True)
        for mode in MODES:
            loop = LoweredLoop.from_call(made._context, DATA, mode, MACHINE)
            text = loop.lowered.as_text()
            assert 'sdy.mesh @mesh = <["batch"=2, "model"=2]>' in text


def test_rules_apply_only_to_variables(tmp_path):
    # Keras would also shard the layer's output.
    with spread(DEVICES["others"](), "up.*kernel|^up"):
        made = estimator_of(model_fn_of(network), tmp_path, use_tpu=True)
        LoweredLoop.from_call(made._context, DATA, "infer", MACHINE)
