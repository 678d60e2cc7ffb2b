"""Tests that supplied names of `tf.contrib` match TensorFlow 1.15.

`golden/make_contrib.py` made the expected results with TensorFlow 1.15.5.
"""

import tf1_golden  # isort: skip

import importlib
import pkgutil
import sys

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
import tf_slim
from contrib_calls.calling import outcome
from contrib_calls.table import ALIASES, CALLS, LARGE

from keras_tpu_estimator.tf1.names.catalogue import catalogue

# Warnings of TensorFlow, tf-keras and tf_slim about each other.
pytestmark = pytest.mark.filterwarnings("ignore:.* is deprecated and will be")
EXPECTED = tf1_golden.golden("contrib_calls")
# Clusters, exports, hooks and constants have separate tests.
TESTED_ELSEWHERE = {
    "cluster_resolver.TPUClusterResolver",
    "eager.list_devices",
    "feature_column.sequence_input_layer",
    "learn.TaskType",
    "learn.monitors.replace_monitors_with_hooks",
    "predictor.from_saved_model",
}
_UTILS = "layers.python.layers.utils"
# The modules of TensorFlow 1.15 by their counterparts here.
PLACES = {
    f"tf_slim.{module}": place
    for module, place in {
        "evaluation": "slim.evaluation",
        "layers.bucketization_op": "layers",
        "layers.initializers": "layers",
        "layers.layers": "layers",
        "layers.normalization": "layers",
        "layers.optimizers": "layers",
        "layers.regularizers": "layers",
        "layers.rev_block_lib": "layers",
        "layers.sparse_ops": "layers.python.ops.sparse_ops",
        "layers.summaries": "layers",
        "layers.utils": _UTILS,
        "learning": "slim.learning",
        "losses.loss_ops": "losses",
        "losses.metric_learning": "metric_loss_ops",
        "metrics.classification": "metrics",
        "metrics.histogram_ops": "metrics",
        "metrics.metric_ops": "metrics",
        "model_analyzer": "slim.model_analyzer",
        "ops.arg_scope": "framework",
        "ops.framework_ops": "framework.python.ops.ops",
        "ops.variables": "framework",
        "queues": "slim.queues",
        "summaries": "slim.summaries",
        "training.evaluation": "training",
        "training.training": "training",
        **{
            f"data.{name}": f"slim.{name}"
            for name in (
                "data_decoder data_provider dataset dataset_data_provider "
                "parallel_reader prefetch_queue tfexample_decoder"
            ).split()
        },
        **{
            f"nets.{name}": f"slim.nets.{name}"
            for name in (
                "alexnet inception_v1 inception_v2 inception_v3 overfeat "
                "resnet_utils resnet_v1 resnet_v2 vgg"
            ).split()
        },
    }.items()
}
# Names of other libraries, test data, and unused code.
NOT_PUBLIC = {"tf_slim.data.test_utils", "tf_slim.nets.inception"}
# tf_slim contains them since then.
NOT_IN_TF1 = {
    "slim.tfexample_decoder.BoundingBoxSequence",
    "slim.tfexample_decoder.KeypointsSequence",
    "slim.tfexample_decoder.NumBoxesSequence",
    "slim.tfexample_decoder.TFSequenceExampleDecoder",
}


@pytest.mark.rows(65)
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.slow] * (name in LARGE))
        for name in sorted(CALLS)
    ],
)
def test_function_gives_the_same_results(name):
    found = outcome(CALLS[name], tf.contrib)
    expected = EXPECTED[name]
    if "error" in expected:
        # TF1 had it only in a module.
        assert "has no attribute" in expected["error"]
        return
    assert found["variables"] == expected["variables"]
    assert len(found["values"]) == len(expected["values"])
    for ours, theirs in zip(found["values"], expected["values"], strict=True):
        if np.asarray(theirs).dtype.kind == "f":
            largest = np.abs(theirs).max(initial=1.0)
            np.testing.assert_allclose(ours, theirs, 0, 1e-6 * largest)
        else:
            assert ours == theirs


def test_each_function_of_tf_slim_is_called():
    names = {
        f"{PLACES[module]}.{name}"
        for module in modules_of(tf_slim)
        if module in PLACES
        for name in public(importlib.import_module(module))
    }
    assert sorted(names - {*CALLS, *ALIASES} - NOT_IN_TF1) == []


def test_each_module_of_tf_slim_has_a_counterpart():
    assert sorted(modules_of(tf_slim) - {*PLACES} - NOT_PUBLIC) == []


@pytest.mark.parametrize(
    "module",
    [
        "framework.python.ops.ops",
        "layers.python.layers.rev_block_lib",
        "layers.python.layers.summaries",
        "layers.python.ops.sparse_ops",
        "losses.python.losses.loss_ops",
        "losses.python.metric_learning.metric_loss_ops",
        "metrics.python.metrics.classification",
        "metrics.python.ops.histogram_ops",
        "slim.python.slim.data.data_decoder",
        "slim.python.slim.data.data_provider",
        "slim.python.slim.data.dataset",
        "slim.python.slim.data.dataset_data_provider",
        "slim.python.slim.data.parallel_reader",
        "slim.python.slim.data.prefetch_queue",
        "slim.python.slim.data.tfexample_decoder",
        "slim.python.slim.model_analyzer",
    ],
)
def test_module_of_tf_slim_has_its_long_name(module):
    found = importlib.import_module(f"tensorflow.contrib.{module}")
    assert public(sys.modules[found.__name__])


def test_each_reimplemented_function_is_called():
    names = {
        entry.path.removeprefix("contrib.")
        for entry in catalogue().entries.values()
        if ".reimplemented." in entry.source
        and ":" in entry.source
        and entry.path.startswith("contrib.")
    }
    assert sorted(names - {*CALLS, *ALIASES} - TESTED_ELSEWHERE) == []


def modules_of(package):
    """The names of all modules of a package except tests."""
    found = pkgutil.walk_packages(package.__path__, f"{package.__name__}.")
    return {
        each.name
        for each in found
        if not each.ispkg and not each.name.endswith("_test")
    }


def public(module):
    """The functions and classes that a module of tf_slim defines."""
    return {
        name
        for name, value in vars(module).items()
        if not name.startswith("_")
        and callable(value)
        and getattr(value, "__module__", "") == module.__name__
    }
