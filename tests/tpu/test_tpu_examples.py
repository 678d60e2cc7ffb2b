"""The examples, compiled for a TPU."""

import keras_tpu_estimator as kte  # isort: skip

import collections
import contextlib
import importlib.util
import os
import pathlib

import pytest
import tensorflow.compat.v1 as tf  # noqa: TID253 - as examples do
from absl.flags import FLAGS as flags
from tpu_facts import facts_of
from tpu_lowering import job_on
from tpu_lowering import lowered

from keras_tpu_estimator.tf1.look_alikes.importing import BUILTINS

EXAMPLES = pathlib.Path(__file__).parents[2] / "examples"
# What each of them trains, one after the other, and on what.
PROGRAMS = {
    "bert_tiny": ("pretraining", "classifier"),
    "digits": ("digits",),
    "from_keras": ("digits",),
    "gan": ("gan",),
    "many_hosts": ("digits",),
    "ported_mnist": ("digits",),
    "recommender": ("recommender",),
    "resnet": ("resnet",),
    "tf1_bert_tiny": ("pretraining", "classifier"),
    "tf1_mnist": ("digits",),
}
TOPOLOGIES = {"many_hosts": "v5e:4x4"}
SIZES = {
    "bert_tiny": {"SENTENCES": 300, "HELD_OUT": 100, "LAYERS": 1},
    "recommender": {"BATCH": 256},
    "tf1_bert_tiny": {"LAYERS": 1},
}
ARGUMENTS = {"recommender": {"users": 203, "items": 101}}
# Of which each core has the variables whole.
DATA_PARALLEL = PROGRAMS.keys() - {"recommender"}
# Without programs of their own.
OTHERS = {"rest_server", "serve_digits"}


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


class PredictedError(Exception):
    """The last call was made."""


@pytest.fixture
def calls(monkeypatch, tmp_path):
    """Estimators, modes and input functions, in place of what they make."""
    calls = []

    def train(estimator, input_fn, **settings):
        # The first part of a training may be timed by itself.
        if (estimator, "train", input_fn) not in calls:
            calls.append((estimator, "train", input_fn))
        os.makedirs(estimator.model_dir, exist_ok=True)
        with tf.Graph().as_default(), tf.Session() as session:
            tf.get_variable("global_step", initializer=1)
            session.run(tf.global_variables_initializer())
            path = f"{estimator.model_dir}/model.ckpt"
            tf.train.Saver().save(session, path, 1)

    def evaluate(estimator, input_fn, **settings):
        calls.append((estimator, "eval", input_fn))
        return collections.defaultdict(float)

    def predict(estimator, input_fn, **settings):
        calls.append((estimator, "infer", input_fn))
        raise PredictedError

    def train_and_evaluate(estimator, train_spec, eval_spec):
        train(estimator, train_spec.input_fn)
        evaluate(estimator, eval_spec.input_fn)
        predict(estimator, eval_spec.input_fn)

    names = {
        "train": train,
        "evaluate": evaluate,
        "predict": predict,
        "get_variable_names": lambda estimator: ["global_step"],
        "get_variable_value": lambda estimator, name: 1,
    }
    for name, function in names.items():
        monkeypatch.setattr(kte.TPUEstimator, name, function)
    monkeypatch.setattr(kte, "train_and_evaluate", train_and_evaluate)
    monkeypatch.setattr(kte, "init_from_checkpoint", lambda *args: None)
    return calls


@contextlib.contextmanager
def run(name, tmp_path):
    """Runs an example until it has predicted, with its flags afterwards."""
    known = set(flags)
    verbosity = tf.logging.get_verbosity()
    module = example(name)
    try:
        with contextlib.suppress(PredictedError):
            if set(flags) == known:
                os.makedirs(tmp_path / "model" / "pretrained")
                settings = ARGUMENTS.get(name, {})
                module.main(model_dir=str(tmp_path / "model"), **settings)
            folder = "output_dir" if "output_dir" in flags else "model_dir"
            flags([name, f"--{folder}={tmp_path}/model", "--use_tpu"])
            module.main([name])
        yield
    finally:
        tf.logging.set_verbosity(verbosity)
        for flag in set(flags) - known:
            delattr(flags, flag)


def test_all_examples_are_compiled():
    names = {path.stem for path in EXAMPLES.glob("*.py")}
    assert names == PROGRAMS.keys() | OTHERS


@pytest.mark.filterwarnings("ignore:`tf.layers:UserWarning")
@pytest.mark.parametrize("name", PROGRAMS)
def test_an_example(name, calls, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(EXAMPLES)
    with run(name, tmp_path):
        expected = [*["train"] * len(PROGRAMS[name]), "eval", "infer"]
        assert [mode for _, mode, _ in calls] == expected
        jobs = {}
        for estimator, mode, input_fn in calls:
            topology = TOPOLOGIES.get(name, "v5e:2x2")
            job = jobs.setdefault(estimator, job_on(estimator, topology))
            facts = facts_of(lowered(job, mode, input_fn))
            facts.check()
            if name in DATA_PARALLEL:
                facts.check_data_parallel(mode)
