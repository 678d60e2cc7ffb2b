"""Tests the modules of `tensorflow_estimator` and their other names.

`golden/make_estimator_modules.py` made the lists with TensorFlow 1.15.5.
"""

import tf1_golden  # isort: skip

import importlib
import sys

import pytest
import tensorflow.compat.v1 as tf

import keras_tpu_estimator as kte
from keras_tpu_estimator.tf1.names.catalogue import catalogue
from keras_tpu_estimator.tf1.shims import Status, importing, lookup
from keras_tpu_estimator.tf1.shims.resolving import resolve

MODULES = tf1_golden.golden("estimator_modules")
# Import lines of scripts, and the class that each line imports.
E = "tensorflow_estimator.python.estimator"
IMPORTS = f"""
from tensorflow_estimator import estimator as e; C = e.Estimator
import tensorflow_estimator as tfe; C = tfe.estimator.Estimator
import tensorflow_estimator; C = tensorflow_estimator.estimator.Estimator
from {E}.estimator import Estimator as C
from {E} import estimator as e; C = e.Estimator
import {E}.estimator as e; C = e.Estimator
from tensorflow_estimator._api.v1.estimator import Estimator as C
from {E}.api._v1.estimator import Estimator as C
from {E}.api._v2 import estimator as e; C = e.Estimator
from tensorflow_core.estimator import Estimator as C
from tensorflow_core.python.estimator.estimator import Estimator as C
from tensorflow.python.estimator.estimator_lib import Estimator as C
from tensorflow.compat.v2.estimator import Estimator as C
from tensorflow.compat.v1.estimator import Estimator as C
"""


@pytest.fixture(scope="module", autouse=True)
def installed():
    kte.tf1.install()


def found(path):
    """Returns the object of a name, or the advice for a missing one."""
    looked_up = lookup(f"tf.{path}")
    if looked_up.status is Status.MISSING:
        return looked_up.advice
    return resolve(path)


@pytest.mark.parametrize("line", IMPORTS.strip().splitlines())
def test_estimators_are_imported_as_in_python(line):
    names = {"__builtins__": importing.BUILTINS, "__name__": "program"}
    exec(line, names)  # noqa: S102
    assert names["C"] is tf.estimator.Estimator


@pytest.mark.parametrize("line", IMPORTS.strip().splitlines()[:9])
def test_an_installed_name_is_the_same(line):
    names = {"__name__": "program"}
    exec(line, names)  # noqa: S102
    assert names["C"] is tf.estimator.Estimator


@pytest.mark.parametrize("root", ["tensorflow", "tensorflow_estimator"])
def test_every_module_is_imported(root):
    assert len(MODULES) > 60
    for module in MODULES:
        name = f"{root}.python.estimator.{module}"
        assert importlib.import_module(name) is sys.modules[name]
        given = importing.tf1_import(name, fromlist=("__doc__",))
        assert given is resolve(f"python.estimator.{module}")


def test_names_are_the_public_ones():
    for module, names in MODULES.items():
        for name, places in names.items():
            private = found(f"python.estimator.{module}.{name}")
            public = [found(f"{place}.{name}") for place in places]
            if isinstance(private, str):  # The advice may contain more.
                assert all(isinstance(each, str) for each in public), name
            else:
                assert private in public, (module, name)


def test_most_used_names_are_supplied():
    for name in (
        "estimator.Estimator",
        "export.export.build_raw_serving_input_receiver_fn",
        "export.export_output.PredictOutput",
        "inputs.numpy_io.numpy_input_fn",
        "model_fn.EstimatorSpec",
        "run_config.RunConfig",
        "tpu.tpu_config.TPUConfig",
        "tpu.tpu_estimator.TPUEstimator",
        "training.train_and_evaluate",
        "util.fn_args",
    ):
        looked_up = lookup(f"tensorflow_estimator.python.estimator.{name}")
        assert looked_up.status is Status.SUPPLIED, name
    keys = resolve("python.estimator.canned.metric_keys").MetricKeys
    assert keys.LOSS == resolve("python.estimator.model_fn").LOSS_METRIC_KEY


@pytest.mark.parametrize(
    ("name", "advice"),
    [
        ("canned.rnn.RNNClassifier", "Write its model as a `model_fn`"),
        ("canned.head._binary_logistic_head", "Use the heads of tf.estimator"),
        ("estimator.nothing", "It is private to TensorFlow's estimators"),
        ("gc.largest_export_versions", "Exporters delete old exports"),
        ("head.base_head.create_estimator_spec_train_op", "Use the heads"),
        ("tpu.error_handling.ErrorRendezvous", "There is no session"),
        ("tpu.tpu_context.TPUContext", "Ask params['context']"),
        ("tpu.tpu_estimator._InputPipeline", "It drove a TPU"),
        ("tpu.util.parse_iterations_per_loop", "It is private to TensorFlow"),
        ("util.MultiHostDatasetInitializerHook", "It is private to TensorF"),
    ],
)
@pytest.mark.parametrize("root", ["tensorflow", "tensorflow_estimator"])
def test_private_names_have_advice(root, name, advice):
    looked_up = lookup(f"{root}.python.estimator.{name}")
    assert looked_up.status is Status.MISSING
    assert looked_up.advice.startswith(advice)
    module, _, last = f"{root}.python.estimator.{name}".rpartition(".")
    with pytest.raises(ImportError, match=f"`tf.python.estimator.{name}`"):
        importing.tf1_import(module, fromlist=(last,))


def test_unknown_module_is_not_imported():
    for name in ("nothing", "python.estimator.nothing", "python.nothing"):
        with pytest.raises(ImportError, match="nothing"):
            importlib.import_module(f"tensorflow_estimator.{name}")
        with pytest.raises(ImportError, match="nothing"):
            importing.tf1_import(f"tensorflow_estimator.{name}")


def test_every_package_of_contrib_is_imported():
    assert len(catalogue().modules) > 700
    for path in catalogue().modules:
        assert importlib.import_module(f"tensorflow.{path}")
        module = importing.tf1_import(f"tensorflow.{path}", fromlist=("a",) * 0)
        assert module is resolve("")
    series = "tensorflow.contrib.timeseries.python.timeseries"
    module = importing.tf1_import(series, fromlist=("__doc__",))
    with pytest.raises(AttributeError, match="timeseries.ARRegressor`"):
        _ = module.ARRegressor


@pytest.mark.parametrize("module", ["", "compat.", "compat.v1.compat."])
def test_names_of_version_2_are_supplied(module):
    name = f"tensorflow.{module}v2" if module else "tensorflow.compat.v2"
    v2 = importing.tf1_import(name, fromlist=("keras",))
    assert v2.keras.layers.Dense.__module__.startswith("tf_keras.")
    assert v2.estimator.Estimator is tf.estimator.Estimator
    assert v2.compat.v1 is resolve("")
    assert v2.compat.v1.layers.dense.__module__.startswith("tf_keras.")
    assert v2.compat.v2 is v2
    # Names of TensorFlow that differ in version 1.
    assert v2.random.normal.__name__ == "random_normal"
    assert not hasattr(v2, "placeholder")


@pytest.mark.parametrize(
    "name",
    [
        "preprocessing.sequence.pad_sequences",
        "preprocessing.image.ImageDataGenerator",
        "datasets.imdb.load_data",
        "applications.VGG16",
        "optimizers.Adam",
        "utils.to_categorical",
    ],
)
def test_private_keras_has_what_tensorflow_removed(name):
    # In 1.15.5, each is the object that `tf.keras` has.
    assert resolve(f"python.keras.{name}") is resolve(f"keras.{name}")


def test_private_keras_has_its_other_modules():
    module = resolve("python.keras.utils.tf_utils")
    assert module.__name__ == "tensorflow.python.keras.utils.tf_utils"


@pytest.mark.parametrize("name", ["GRU", "GRUCell", "LSTM", "LSTMCell"])
def test_recurrent_layers_below_python_are_those_of_tensorflow_1(name):
    kte.tf1.install()
    layer = resolve(f"python.keras.layers.{name}")
    assert layer.__module__ == "tensorflow.python.keras.layers.recurrent"
