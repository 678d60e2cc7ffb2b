"""The golden programs under this package."""

import keras_tpu_estimator as kte  # isort: skip

import json
import os
import pathlib
import sys
import types

import pytest
import tensorflow.compat.v1 as tf

os.environ["TF_USE_LEGACY_KERAS"] = "1"

GOLDEN = pathlib.Path(__file__).parent / "golden"
# What TensorFlow says about its own layers.
DEPRECATED = pytest.mark.filterwarnings(
    "ignore:`tf.layers:UserWarning", "ignore:`tf.nn.rnn_cell:UserWarning"
)
# As for a script, beside which modules are found.
sys.path.append(str(GOLDEN))


def _spec(*args, host_call=None, **kwargs):
    del host_call
    return kte.tf1.TPUEstimatorSpec(*args, **kwargs)


def _estimator(model_fn, **kwargs):
    return kte.TPUEstimator(kte.tf1.model_fn(model_fn), **kwargs)


tf.estimator = types.SimpleNamespace(
    ModeKeys=kte.ModeKeys,
    export=types.SimpleNamespace(PredictOutput=lambda x: x),
    tpu=types.SimpleNamespace(
        TPUEstimatorSpec=_spec,
        TPUEstimator=_estimator,
        RunConfig=kte.RunConfig,
        TPUConfig=kte.TPUConfig,
    ),
)


def golden(name):
    """What a program gave under the original."""
    return json.loads((GOLDEN / f"{name}.json").read_text())
