"""Tests that the examples compile for a TPU."""

import keras_tpu_estimator as kte  # isort: skip

import contextlib
import importlib.util
import os
import pathlib

import pytest
import tensorflow.compat.v1 as tf  # noqa: TID253 - the examples import it
import tpu_table
from absl.flags import FLAGS as flags
from helpers import some_slow
from tpu_programs import DATA_PARALLEL, check, topologies_of

from keras_tpu_estimator.planning import topologies
from keras_tpu_estimator.planning.dry_run import DryRun
from keras_tpu_estimator.planning.plans import PlanOptions
from keras_tpu_estimator.runs.call_receiver import receiving_calls
from keras_tpu_estimator.tf1.shims.importing import BUILTINS
from keras_tpu_estimator.typing import Refusal

EXAMPLES = pathlib.Path(__file__).parents[2] / "examples"
_ALL = ("train", "eval", "infer")
# The calls of each example.
PROGRAMS = {
    "bert_tiny": ("train", *_ALL),
    "digits": _ALL,
    "from_keras": ("train", "eval"),
    "gan": _ALL,
    "gpt": ("train",),
    "jax_model": _ALL,
    "many_hosts": _ALL,
    "ported_mnist": _ALL,
    "recommender": _ALL,
    "resnet": ("train", "eval"),
    "tf1_bert_tiny": ("train", *_ALL),
    "tf1_mnist": _ALL,
}
TOPOLOGIES_OF = {"many_hosts": ("v5e:4x4",)}
SIZES = {
    "bert_tiny": {
        **{"SENTENCES": 300, "HELD_OUT": 100, "WORDS": 500},
        **{"HIDDEN": 16, "HEADS": 2, "LAYERS": 1},
    },
    "gpt": {"LAYERS": 1, "WIDTH": 128, "HEADS": 2, "VOCABULARY": 256},
    "recommender": {"BATCH": 256},
    "tf1_bert_tiny": {"LAYERS": 1},
}
ARGUMENTS = {"recommender": {"users": 203, "items": 101}}
# Examples in which each core has complete variables.
ARE_DATA_PARALLEL = PROGRAMS.keys() - {"gpt", "recommender"}
# Each run compiles other programs of the same kind.
SELDOM = PROGRAMS.keys() - {"tf1_mnist"}
# These have no programs or load an export.
OTHERS = {"rest_server", "serve_digits", "wide_and_deep"}
# Optional libraries that some examples import.
LIBRARIES = {"jax_model": ("flax", "optax")}


def example(name):
    """An example as a module."""
    path = EXAMPLES / f"{name}.py"
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    if name.startswith("tf1"):
        vars(module)["__builtins__"] = BUILTINS
    spec.loader.exec_module(module)
    vars(module).update(SIZES.get(name, {}))
    return module


@pytest.fixture
def pretrained(tmp_path, monkeypatch):
    """The missing checkpoint of examples that continue training."""
    folder = tmp_path / "model" / "pretrained"
    os.makedirs(folder)
    with tf.Graph().as_default(), tf.Session() as session:
        tf.get_variable("global_step", initializer=1)
        session.run(tf.global_variables_initializer())
        tf.train.Saver().save(session, str(folder / "model.ckpt"), 1)
    estimator = kte.TPUEstimator
    monkeypatch.setattr(estimator, "get_variable_names", lambda self: ["x"])
    monkeypatch.setattr(estimator, "get_variable_value", lambda self, name: 1)
    monkeypatch.setattr(kte, "init_from_checkpoint", lambda *args: None)


@contextlib.contextmanager
def own_flags():
    """Discards the flags that a script has defined."""
    known, verbosity = set(flags), tf.logging.get_verbosity()
    try:
        yield known
    finally:
        tf.logging.set_verbosity(verbosity)
        for flag in set(flags) - known:
            delattr(flags, flag)


def run(name, model_dir):
    """Runs an example as from a command line."""
    with own_flags() as known:
        module = example(name)
        if set(flags) == known:
            module.main(model_dir=model_dir, **ARGUMENTS.get(name, {}))
            return
        folder = "output_dir" if "output_dir" in flags else "model_dir"
        flags([name, f"--{folder}={model_dir}", "--use_tpu"])
        module.main([name])


def test_all_examples_are_compiled():
    names = {path.stem for path in EXAMPLES.glob("*.py")}
    assert names == PROGRAMS.keys() | OTHERS


@pytest.mark.usefixtures("pretrained")
@pytest.mark.parametrize("name", some_slow(PROGRAMS, SELDOM))
def test_an_example(name, tmp_path, monkeypatch, told):
    for library in LIBRARIES.get(name, ()):
        pytest.importorskip(library, reason=f"{library} is not installed")
    monkeypatch.syspath_prepend(EXAMPLES)
    own = TOPOLOGIES_OF.get(name, ("v5e:2x2",))
    names = topologies_of(own)
    topologies_ = topologies.parse_each(names)
    options = PlanOptions(quick=True)
    dry_run = DryRun(topologies_, lambda text: None, options)
    calls = [mode for mode in PROGRAMS[name] for _ in topologies_]
    try:
        with receiving_calls(dry_run):
            run(name, str(tmp_path / "model"))
    except Exception:
        # After its last call it may read the results.
        if len(dry_run.plans) < len(calls):
            raise
    assert [plan.mode for plan in dry_run.plans] == calls
    expected = DATA_PARALLEL if name in ARE_DATA_PARALLEL else {}
    for number, plan in enumerate(dry_run.plans):
        topology = names[number % len(names)]
        if isinstance(plan, Refusal):
            assert topology not in own, plan.error
            told(name, plan.mode, topology, tpu_table.refused(plan.error))
            continue
        check(plan, expected.get(plan.mode))
        told(name, plan.mode, topology)
