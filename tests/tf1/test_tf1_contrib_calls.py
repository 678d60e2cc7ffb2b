"""What is supplied of `tf.contrib` gives the numbers of TensorFlow 1.15.

`golden/make_contrib.py` made these with TensorFlow 1.15.5.
"""

import tf1_golden  # isort: skip

import inspect

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
import tf_slim
from contrib_calls.calling import outcome
from contrib_calls.table import ALIASES
from contrib_calls.table import CALLS
from tf_slim.ops import arg_scope
from tf_slim.ops import variables
from tf_slim.training import training

from keras_tpu_estimator.tf1.names.catalogue import catalogue

# Of TensorFlow, tf-keras and tf_slim, about one another.
pytestmark = pytest.mark.filterwarnings("ignore:.* is deprecated and will be")
EXPECTED = tf1_golden.golden("contrib_calls")
# They read clusters and exports, which have tests of their own.
OF_FILES = {"cluster_resolver.TPUClusterResolver", "predictor.from_saved_model"}
# What modules have beside their own functions, one of which is of all scopes.
NOT_OWN = {"absolute_import", "add_arg_scope", "division", "print_function"}


@pytest.mark.parametrize("name", sorted(CALLS))
def test_a_function_gives_the_same_numbers(name):
    found = outcome(CALLS[name], tf.contrib)
    expected = EXPECTED[name]
    if "error" in expected:
        # TF1 had it in a module alone.
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
    areas = {
        "framework": (arg_scope, variables),
        "layers": (tf_slim.layers,),
        "losses": (tf_slim.losses,),
        "metrics": (tf_slim.metrics,),
        "slim.evaluation": (tf_slim.evaluation,),
        "slim.learning": (tf_slim.learning,),
        "training": (training,),
    }
    names = {
        f"{area}.{name}"
        for area, modules in areas.items()
        for module in modules
        for name in public(module)
    }
    assert sorted(names - {*CALLS, *ALIASES}) == []


def test_each_function_that_was_written_anew_is_called():
    names = {
        entry.path.removeprefix("contrib.")
        for entry in catalogue().entries.values()
        if ".reimplemented." in entry.source
        and ":" in entry.source
        and entry.path.startswith("contrib.")
    }
    assert sorted(names - {*CALLS, *ALIASES} - OF_FILES) == []


def public(module):
    """The functions and classes of a module of tf_slim."""
    return {
        name
        for name, value in vars(module).items()
        if not name.startswith(("_", "DATA_FORMAT"))
        and not inspect.ismodule(value)
        and name not in NOT_OWN
        and getattr(value, "__module__", "tf_slim").startswith("tf_slim")
    }
