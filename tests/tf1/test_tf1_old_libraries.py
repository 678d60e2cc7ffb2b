"""Tests old names of Python and NumPy that are supplied to TF1 scripts."""

import collections
import importlib
import inspect
import sys
import unittest.mock

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
import tf_keras

from keras_tpu_estimator.tf1.shims import importing, old_libraries
from keras_tpu_estimator.tf1.shims.importing import tf1_for
from keras_tpu_estimator.tf1.shims.resolving import resolve

IMPORTS = """
import base64
import collections
import collections.abc
import copy
import importlib
import inspect
import os
import pickle
import time
import types
import unittest.mock
import numpy
import numpy as np
import numpy.linalg as la
from collections import Iterable, OrderedDict
from fractions import gcd
from unittest import mock
from numpy import float_
import tensorflow
"""


def program(code):
    """Runs code in a script and returns its names."""
    names = {"__builtins__": importing.BUILTINS, "__name__": "program"}
    exec(IMPORTS + code, names)  # noqa: S102
    return names


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("isinstance({}, collections.Mapping)", True),
        ("isinstance([], Iterable)", True),
        ("collections.OrderedDict is OrderedDict", True),
        ("inspect.getargspec(lambda a, b=1, *c: 0).args", ["a", "b"]),
        ("inspect.getargspec(lambda a, **b: 0)[2]", "b"),
        ("inspect.isfunction(len)", False),
        ("gcd(4, 6)", 2),
        ("base64.decodestring(base64.encodestring(b'a'))", b"a"),
        ("time.clock() <= time.clock()", True),
        ("np.float, np.int, np.bool", (float, int, bool)),
        ("np.object, np.str, np.complex", (object, str, complex)),
        ("np.zeros(2, np.float).dtype", np.dtype("float64")),
        ("isinstance(True, np.bool)", True),
        ("float_, np.float_", (np.float64, np.float64)),
        ("np.string_, np.unicode_", (np.bytes_, np.str_)),
        ("np.Inf == -np.NINF, np.NaN != np.NaN", (True, True)),
        ("np.sum(i for i in range(4))", 6),
        ("np.sum([[1, 2], [3, 4]], axis=0).tolist()", [4, 6]),
        ("np.product([2, 3]), np.trapz([1, 2])", (6, 1.5)),
        ("np.fromstring(b'ab', np.uint8).tolist()", [97, 98]),
        ("np.fromstring('1 2', sep=' ').tolist()", [1, 2]),
        ("np.array(np.arange(2), float, copy=False).tolist()", [0, 1]),
        ("np.array(np.arange(2)).tolist()", [0, 1]),
        ("np.asscalar(np.ones(1)), np.alen([1, 2])", (1, 2)),
        ("np.in1d([[1], [2]], [2]).tolist()", [False, True]),
        ("np.random.__name__, la.__name__", ("numpy.random", "numpy.linalg")),
        ("numpy is np and np.float32", np.float32),
        ("importlib.import_module('numpy') is np", True),
        ("importlib.import_module('tensorflow').contrib.tpu", None),
        ("importlib.import_module('tensorflow_estimator').estimator", None),
        ("importlib.import_module('tensorflow.contrib.gan')", None),
        ("importlib.util.find_spec('nothing')", None),
        ("type(time).__name__, isinstance(np, types.ModuleType)", ("module", True)),
        ("vars(np)['sort'] is np.sort, 'clock' in vars(time)", (True, True)),
        ("'nothing' in vars(time), len(vars(time)) == len(dir(time))", (False, True)),
        ("inspect.getmodule(np.linalg.norm), inspect.getmodule(la)", (np.linalg,) * 2),
        ("inspect.getmodule(OrderedDict) is collections", True),
        ("importlib.reload(time) is time", True),
        ("importlib.reload(tensorflow) is tensorflow", True),
        ("pickle.loads(pickle.dumps((np, np.sum))) == (np, np.sum)", True),
        ("copy.deepcopy(tensorflow.contrib.opt) is tensorflow.contrib.opt", True),
        ("os.path.basename(tensorflow.__file__)", "__init__.py"),
    ],
)
def test_script_has_old_names(code, expected):
    found = program(f"result = {code}")["result"]
    assert found == expected if expected is not None else found is not False


def test_other_code_does_not_have_old_names():
    program("np.float, collections.Mapping")
    assert not hasattr(collections, "Mapping")
    assert not hasattr(np, "float_") and np.bool is np.bool_
    assert not hasattr(inspect, "getargspec") or sys.version_info < (3, 11)
    with pytest.raises(ImportError):
        importlib.import_module("tensorflow.contrib.gan.nothing")


def test_every_old_name_exists():
    for name, names in old_libraries._NAMES.items():
        module = old_libraries.as_in_2018(importlib.import_module(name))
        assert {*names()} <= {*dir(module)}
        assert old_libraries.as_in_2018(module) is module


def test_assignments_of_a_script_are_global(monkeypatch):
    monkeypatch.setattr(np, "sort", np.sort)
    names = program("np.sort = len\nresult = np.sort")
    assert names["result"] is len and np.sort is len


@pytest.mark.parametrize(
    "name",
    [
        "time.sleep",
        "time.clock",
        "inspect.getsource",
        "inspect.getargspec",
        "collections.OrderedDict",
        "numpy.sum",
        "numpy.float_",
        "importlib.import_module",
        "tensorflow.constant",
        "tensorflow.gfile.Exists",
        "tensorflow.contrib.framework.arg_scope",
    ],
)
def test_patches_of_modules_end(name):
    names = program(f"""
owner = {name.rpartition(".")[0]}
def read():
    return {name}
before = read()
with mock.patch.object(owner, {name.rpartition(".")[2]!r}) as fake:
    inside = read() is fake
after = read()
""")
    assert names["inside"] and names["after"] is names["before"]
    top, _, attribute = name.partition(".")
    if top != "tensorflow":
        module = importlib.import_module(top)
        assert not isinstance(getattr(module, attribute, None), unittest.mock.Mock)
    program("np.sum([1]), importlib.import_module('os')")


@pytest.mark.parametrize("name", ["time.sleep", "tensorflow.train.latest_checkpoint"])
@pytest.mark.parametrize("patch", ["mock.patch", "unittest.mock.patch"])
def test_patches_by_name_reach_the_script(name, patch):
    names = program(f"""
before = {name}
with {patch}({name!r}) as fake:
    {name}(1)
after = {name}
""")
    assert names["fake"].called and names["after"] is names["before"]


def test_deleted_names_are_missing_until_they_are_set():
    names = program("""
old = np.sum
del np.sum
missing = not hasattr(np, "sum"), "sum" not in vars(np)
np.sum = old
""")
    assert names["missing"] == (True, True)
    assert np.sum([1, 2]) == 3 and names["np"].sum(i for i in [1, 2]) == 3
    with pytest.raises(AttributeError):
        program("del time.nothing")


def test_arguments_of_functions_with_annotations_are_refused():
    with pytest.raises(ValueError, match="Call inspect.getfullargspec"):
        program("def f(a: int): pass\ninspect.getargspec(f)")


@pytest.mark.parametrize("library", ["gin", "tensorflow_gan", "others"])
def test_old_libraries_have_old_names(library, tmp_path, monkeypatch):
    folder = tmp_path / "env" / "site-packages"
    folder.joinpath(library).mkdir(parents=True)
    folder.joinpath(library, "__init__.py").write_text(
        "import collections\nimport tensorflow as tf\n"
        "found = hasattr(collections, 'Mapping'), hasattr(tf.train, 'Saver')\n"
    )
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.delitem(sys.modules, library, raising=False)
    with tf1_for([tmp_path]):
        module = importlib.import_module(library)
    monkeypatch.delitem(sys.modules, library)
    assert module.found == (library != "others",) * 2


@pytest.mark.parametrize("owner", ["layers", "keras.layers"])
def test_moments_are_overridden_without_a_mask(owner):
    class Own(resolve(f"{owner}.BatchNormalization")):
        def _moments(self, inputs, reduction_axes, keep_dims):
            mean, variance = super()._moments(
                inputs, reduction_axes, keep_dims=keep_dims
            )
            return mean + 1, variance

    x = np.array([[0, 1], [2, 3], [4, 5]], "float32")
    with tf.Graph().as_default(), tf.Session() as session:
        y = Own(fused=False)(tf.constant(x), training=True)
        session.run(tf.global_variables_initializer())
        found = session.run(y)
    # As TensorFlow 1.15 has it.
    expected = [[-1.8367729] * 2, [-0.6122576] * 2, [0.6122577] * 2]
    np.testing.assert_allclose(found, expected, 1e-5)


def test_mask_that_cannot_be_passed_is_an_error():
    class Own(resolve("keras.layers.BatchNormalization")):
        def _moments(self, inputs, reduction_axes, keep_dims):
            return inputs, inputs

    with pytest.raises(TypeError, match=r"Own._moments` must accept `mask`"):
        Own()._moments(1, [0], True, mask=2)


def test_override_with_a_mask_is_unchanged():
    class Own(resolve("keras.layers.BatchNormalization")):
        def _moments(self, inputs, reduction_axes, keep_dims, mask=None):
            return mask

    class Below(Own):
        pass

    assert Own()._moments(1, [0], True, mask=2) == 2
    assert "_moments" not in vars(Below)
    assert not hasattr(Own._moments, "__wrapped__")
    assert issubclass(Own, tf_keras.layers.Layer)


@pytest.mark.filterwarnings("ignore:`tf.layers:UserWarning")
@pytest.mark.parametrize(
    ("shape", "fused", "is_larger"),
    [
        ((2, 5, 4, 3), None, True),
        ((2, 5, 4, 3), False, False),
        ((2, 5, 2, 2, 3), None, False),
        ((2, 5, 2, 2, 3), True, False),
        ((10, 4, 3), None, False),
    ],
    ids=str,
)
def test_moving_variance_of_batch_normalization(shape, fused, is_larger):
    """TensorFlow 1.15 fuses rank 4 only; a fused variance is `n / (n - 1)` times as
    large.
    """
    x = np.random.default_rng(0).normal(size=shape).astype("float32")
    with tf.Graph().as_default(), tf.Session() as session:
        resolve("layers").batch_normalization(
            tf.constant(x), training=True, momentum=0.0, fused=fused
        )
        session.run(tf.global_variables_initializer())
        session.run(tf.get_collection(tf.GraphKeys.UPDATE_OPS))
        (variance,) = tf.global_variables("batch_normalization/moving_variance")
        actual = session.run(variance)
    expected = x.reshape(-1, 3).var(axis=0, ddof=int(is_larger))
    np.testing.assert_allclose(actual, expected, rtol=1e-5)
