"""Tests the private modules `tf.contrib.*.python` that scripts import.

`golden/make_contrib_modules.py` made their list with TensorFlow 1.15.5.
"""

import tf1_golden  # isort: skip

import importlib
import importlib.util
import sys
import types

import pytest
import tensorflow.compat.v1 as tf

import keras_tpu_estimator as kte
from keras_tpu_estimator.tf1.names import porting
from keras_tpu_estimator.tf1.names.catalogue import catalogue
from keras_tpu_estimator.tf1.shims import Status, importing, lookup
from keras_tpu_estimator.tf1.shims.resolving import resolve

MODULES = tf1_golden.golden("contrib_modules")
# Import lines from scripts of 2018 and 2019.
IMPORTS = """
from tensorflow.contrib.crf.python.ops import crf
assert crf.crf_log_likelihood is tf.contrib.crf.crf_log_likelihood
from tensorflow.contrib.crf.python.ops.crf import viterbi_decode
from tensorflow.contrib.data.python.ops import batching, grouping
assert batching.map_and_batch is tf.data.experimental.map_and_batch
from tensorflow.contrib.data.python.ops.batching import map_and_batch
from tensorflow.contrib.data.python.ops.shuffle_ops import shuffle_and_repeat
from tensorflow.contrib.data.python.ops.unique import unique
from tensorflow.contrib.framework.python.framework import checkpoint_utils
from tensorflow.contrib.framework.python.framework import tensor_util
assert tensor_util.is_tensor is tf.is_tensor
from tensorflow.contrib.framework.python.framework.tensor_util import is_tensor
from tensorflow.contrib.framework.python.ops import audio_ops
assert callable(audio_ops.mfcc) and callable(audio_ops.decode_wav)
from tensorflow.contrib.framework.python.ops import get_variables
from tensorflow.contrib.image.python.ops import image_ops
import tensorflow.contrib.image.python.ops.image_ops as same_image_ops
assert same_image_ops is image_ops
assert image_ops.rotate is tf.contrib.image.rotate
from tensorflow.contrib.layers.python.layers import embedding_ops, encoders
assert encoders.embed_sequence is tf.contrib.layers.embed_sequence
from tensorflow.contrib.layers.python.layers.encoders import bow_encoder
from tensorflow.contrib.layers.python.layers import batch_norm
from tensorflow.contrib.learn.python.learn import learn_runner
from tensorflow.contrib.rnn.python.ops import core_rnn_cell, rnn, rnn_cell
assert core_rnn_cell.RNNCell is tf.nn.rnn_cell.RNNCell
assert rnn_cell.LayerNormBasicLSTMCell is tf.contrib.rnn.LayerNormBasicLSTMCell
from tensorflow.contrib.rnn.python.ops.core_rnn_cell import _linear, _Linear
from tensorflow.contrib.rnn.python.ops.lstm_ops import LSTMBlockFusedCell
from tensorflow.contrib.seq2seq.python.ops import attention_wrapper, helper
from tensorflow.contrib.seq2seq.python.ops.loss import sequence_loss
assert sequence_loss is tf.contrib.seq2seq.sequence_loss
from tensorflow.contrib.tpu.python.tpu import tpu_config, tpu_estimator
assert tpu_config.TPUConfig is tpu_estimator.TPUConfig
from tensorflow.contrib.training.python.training import hparam
"""

# The names that a module defines itself.
PYTHONS = {"__builtins__", "__name__"}


@pytest.fixture(scope="module", autouse=True)
def installed():
    kte.tf1.install()


def found(name):
    """The object with a name below `tf.contrib`, or the advice for a missing one."""
    looked_up = lookup(f"tf.contrib.{name}")
    if looked_up.status is Status.MISSING:
        return looked_up.advice
    return resolve(f"contrib.{name}")


def is_served_whole(module):
    """Whether an entry covers a module, or the module or its parent is supplied."""
    return f"contrib.{module}" not in catalogue().public


def test_modules_are_imported_as_in_python():
    # Separate lines, so that an error names its line.
    for builtins in (vars(importing.builtins), importing.BUILTINS):
        names = {"__builtins__": builtins, "__name__": "program", "tf": tf}
        for line in IMPORTS.strip().splitlines():
            exec(line, names)  # noqa: S102


def test_all_modules_of_tensorflow_exist():
    assert len(MODULES) > 400
    for module in MODULES:
        assert importlib.import_module(f"tensorflow.contrib.{module}")


@pytest.mark.parametrize("part", sorted({m.split(".")[0] for m in MODULES}))
def test_name_is_the_public_one(part):
    for module, names in MODULES.items():
        if module.split(".")[0] == part and not is_served_whole(module):
            for name in names["same"]:
                public = found(f"{part}.{name}")
                assert found(f"{module}.{name}") is public, (module, name)


def test_private_name_is_not_a_public_name_of_the_same_spelling():
    for module, names in MODULES.items():
        part = module.split(".")[0]
        for name in names["other"]:
            public = lookup(f"tf.contrib.{part}.{name}")
            assert is_served_whole(module) or public.status is Status.MISSING, (
                module,
                name,
            )


@pytest.mark.parametrize(
    ("name", "advice"),
    [
        ("crf.python.ops.crf.CrfForwardRnnCell", "Use tf.contrib.crf.crf_log"),
        ("opt.python.training.ggt.GGTOptimizer", "Use tf.train.AdamOptimizer"),
        ("rnn.python.ops.rnn_cell.LayerNormLSTMCell", "Write it as a subclass of"),
        ("seq2seq.python.ops.decoder.Decoder", "Decoders and attention"),
        ("tpu.python.tpu.session_support.anything", "There is no session"),
        ("tpu.python.tpu.tpu_embedding.TPUEmbedding", "Make tables with"),
        ("tpu.python.tpu.unheard_of", "It drove a TPU"),
        ("rnn.python.ops.unheard_of", "Write it as a subclass of"),
    ],
)
def test_missing_name_has_the_advice_of_the_public_name(name, advice):
    looked_up = lookup(f"tf.contrib.{name}")
    assert looked_up.status is Status.MISSING
    assert looked_up.advice.startswith(advice)
    with pytest.raises(AttributeError, match=f"no `tf.contrib.{name}`"):
        resolve(f"contrib.{name}")


def test_unknown_module_is_not_imported():
    with pytest.raises(ImportError, match=r"`tf.contrib.rnn.python.ops.typo`"):
        from tensorflow.contrib.rnn.python.ops import typo  # noqa: F401
    with pytest.raises(ImportError, match=r"`tf.contrib.crf.python.typo`"):
        import tensorflow.contrib.crf.python.typo  # noqa: F401
    with pytest.raises(ImportError, match=r"`tf.contrib.crf.python.typo`"):
        importing.tf1_import("tensorflow.contrib.crf.python.typo")


def test_module_lists_its_names():
    module = importlib.import_module("tensorflow.contrib.crf.python.ops.crf")
    assert "crf_decode" in dir(module) and "python" not in dir(module)
    assert "ops" in dir(tf.contrib.crf.python)


@pytest.mark.parametrize("is_given", [False, True])
@pytest.mark.parametrize("module", ["layers", "layers.python.layers.encoders"])
def test_star_import_of_a_module(module, is_given):
    builtins = importing.BUILTINS if is_given else vars(importing.builtins)
    names = {"__builtins__": builtins, "__name__": "program"}
    exec(f"from tensorflow.contrib.{module} import *", names)  # noqa: S102
    assert names["conv2d"] is tf.contrib.layers.conv2d
    assert not any(name.startswith("_") for name in names.keys() - PYTHONS)


def test_counterparts_equal_those_of_the_public_names():
    for module, name in (
        ("contrib.rnn.python.ops.core_rnn_cell", "GRUCell"),
        ("contrib.opt.python.training.ggt", "GGTOptimizer"),
        ("contrib.tpu.python.tpu.tpu_config", "TPUConfig"),
    ):
        part = ".".join(module.split(".")[:2])
        private = porting.find(f"tf.{module}.{name}")
        public = porting.find(f"tf.{part}.{name}")
        assert (private.now, private.page) == (public.now, public.page)
    left_out = "agn_optimizer.AGNOptimizer"
    assert porting.find(f"tf.contrib.opt.python.training.{left_out}") is None


@pytest.mark.parametrize(
    ("package", "library"),
    [
        ("contrib.gan", "tensorflow_gan"),
        ("contrib.tensorboard.plugins.projector", "tensorboard.plugins.projector"),
    ],
)
def test_optional_library_supplies_a_package(package, library, tmp_path, monkeypatch):
    folder, top = tmp_path, library.partition(".")[0]
    for name in (*library.split("."), "python"):
        folder = folder / name
        folder.mkdir()
        folder.joinpath("__init__.py").write_text("def function(): pass\n")
    before = {name: sys.modules.pop(name) for name in _modules_of(top)}
    monkeypatch.syspath_prepend(str(tmp_path))
    found = [lookup(f"tf.{package}.{name}") for name in ("function", "nothing")]
    function = resolve(f"{package}.function")
    inner = resolve(f"{package}.python.function")
    for name in _modules_of(top):
        del sys.modules[name]
    sys.modules.update(before)
    monkeypatch.undo()
    assert [each.status for each in found] == [Status.SUPPLIED, Status.MISSING]
    assert function.__module__ == library
    assert inner.__module__ == f"{library}.python"


def _modules_of(library):
    return [each for each in sys.modules if each.partition(".")[0] == library]


@pytest.mark.parametrize(
    ("name", "advice"),
    [
        ("contrib.gan.gan_model", "Install tensorflow-gan"),
        ("contrib.tensorboard.plugins.projector.ProjectorConfig", "Install tensorb"),
    ],
)
def test_package_is_missing_without_its_optional_library(name, advice, monkeypatch):
    found_before = importlib.util.find_spec
    optional = {"tensorboard", "tensorflow_gan"}
    monkeypatch.setattr(
        importlib.util,
        "find_spec",
        lambda name, *given: None if name in optional else found_before(name, *given),
    )
    found = lookup(f"tf.{name}")
    assert found.status is Status.MISSING
    assert found.advice.startswith(advice)


def test_stub_of_an_optional_library_supplies_names(monkeypatch):
    stub = types.ModuleType("tensorflow_gan")
    stub.from_the_stub = 1
    monkeypatch.setitem(sys.modules, "tensorflow_gan", stub)
    assert lookup("tf.contrib.gan.from_the_stub").status is Status.SUPPLIED
