"""Tests errors of `train`, `evaluate` and `predict`, and the state after them."""

import json
import math
import re

import keras
import numpy as np
import pytest
from helpers import (
    batches_of,
    linear,
    model_fn_of,
    refused,
    regression_data,
    repeated,
)
from keras import ops

import keras_tpu_estimator as kte
from keras_tpu_estimator.api.config import validation
from keras_tpu_estimator.base.common.topology import Topology
from keras_tpu_estimator.files.summary.run_times import FILE_NAME

X, Y = regression_data(examples=16)
TRAIN, EVAL, PREDICT = "train", "eval", "infer"
SIZES = {
    TRAIN: "train_batch_size",
    EVAL: "eval_batch_size",
    PREDICT: "predict_batch_size",
}
FINISHED = re.compile(
    r"checkpoint|metrics\.jsonl|model\.ckpt-\d+\.(h5|input\.zip)|"
    r"(eval/)?events\.out\.tfevents\.\d+\..*"
)


def make(model_fn, model_dir, use_tpu=True, config=None, **changes):
    """Returns an estimator with batches of 16 and loops of one step."""
    config = {"tpu_config": kte.TPUConfig(1)} | (config or {})
    sizes = dict.fromkeys(SIZES.values(), 16)
    return kte.TPUEstimator(
        model_fn,
        config=kte.RunConfig(model_dir=str(model_dir), **config),
        use_tpu=use_tpu,
        **sizes | changes,
    )


def call(estimator, mode, input_fn, **arguments):
    """Runs a mode to its end; `train` makes two steps by default."""
    if mode == TRAIN:
        if "max_steps" not in arguments:
            arguments.setdefault("steps", 2)
        return estimator.train(input_fn, **arguments)
    if mode == EVAL:
        return estimator.evaluate(input_fn, **arguments)
    return list(estimator.predict(input_fn, **arguments))


def never(params):
    raise AssertionError("input_fn should not be called")


def files_in(directory):
    """Returns the sizes and times of all files by path."""
    return {
        str(path.relative_to(directory)): (stat.st_size, stat.st_mtime_ns)
        for path in directory.rglob("*")
        # Failed calls also take time.
        if path.name != FILE_NAME and path.is_file() and (stat := path.stat())
    }


def assert_finished(directory):
    """Checks that no file is unfinished and the latest checkpoint is readable."""
    names = files_in(directory)
    assert not [name for name in names if not FINISHED.fullmatch(name)]
    if any(name.endswith(".h5") for name in names):
        kte.checkpoints.read(directory)


@pytest.fixture(scope="module")
def trained_dir(tmp_path_factory):
    return tmp_path_factory.mktemp("trained")


@pytest.fixture(scope="module")
def trained_once(trained_dir):
    estimator = make(model_fn_of(linear), trained_dir)
    return estimator.train(batches_of(X, Y), steps=1)


@pytest.fixture
def trained(trained_once, trained_dir):
    """An estimator on eight cores whose directory must not change."""
    before = files_in(trained_dir)
    yield trained_once
    assert files_in(trained_dir) == before


@pytest.fixture
def model_dir(tmp_path):
    """A directory that must be empty at the end."""
    path = tmp_path / "model"
    yield path
    assert not path.exists()


class Hook(kte.hooks.SessionRunHook):
    pass


class Listener(kte.hooks.CheckpointSaverListener):
    pass


# An estimator on cores needs a positive number, and others also accept fractions.
BAD_STEPS = [
    *((value, ValueError, f"> 0 {value} Pass") for value in (0, -3)),
    *(
        (value, TypeError, f"int {value!r} {type(value).__name__}")
        for value in (2.0, "2")
    ),
    (True, TypeError, "int True bool"),
]


@pytest.mark.parametrize(("value", "exception", "words"), BAD_STEPS)
def test_steps(value, exception, words, trained):
    for argument in ("steps", "max_steps"):
        with refused(exception, words) as caught:
            trained.train(never, **{argument: value})
        assert argument in str(caught.value)
    with refused(exception, f"steps {words}"):
        trained.evaluate(never, steps=value)


@pytest.mark.parametrize("steps", [np.int64(1), np.int32(1), 1])
def test_numpy_integers_are_steps(steps, trained):
    assert trained.train(never, max_steps=steps) is trained
    with pytest.raises(UserError):
        trained.evaluate(lambda params: fail(), steps=steps)


def test_fractions_of_steps_are_rounded_up_without_a_tpu(tmp_path):
    estimator = make(model_fn_of(linear), tmp_path, use_tpu=False)
    done = 0
    for value, steps in [(2.0, 2), (1.5, 2), (0.1, 1), (np.float32(3), 3)]:
        done += steps
        estimator.train(ENDLESS, steps=value)
        assert estimator.get_variable_value("global_step") == done
        estimator.train(never, max_steps=done - 0.5)
    batches = [(X, Y), (2 * X, Y), (3 * X, Y)]
    one, rounded, two = (
        estimator.evaluate(lambda params: iter(batches), steps=steps)["loss"]
        for steps in (1, 1.5, 2)
    )
    assert one != rounded == two


@pytest.mark.parametrize("value", [math.inf, math.nan, "2", True, -0.5, 0.0])
def test_other_numbers_of_steps_are_refused_without_a_tpu(value, trained_once):
    estimator = make(model_fn_of(linear), trained_once.model_dir, use_tpu=False)
    with pytest.raises(
        ValueError if value in (-0.5, 0.0) else TypeError, match="steps"
    ):
        estimator.evaluate(never, steps=value)


# Each mistake is checked in this order. The estimator's batch size is also wrong.
TRAIN_REFUSED = {
    "1 both": (
        {"steps": 1, "max_steps": 2},
        ValueError,
        "one of `steps` `max_steps` steps=1, max_steps=2 last checkpoint",
    ),
    "2 steps": ({"steps": -1}, ValueError, "steps > 0 -1"),
    "2 max_steps": ({"max_steps": -1}, ValueError, "max_steps > 0 -1"),
    "3 hook": ({"hooks": [Hook(), Listener()]}, TypeError, "SessionRunHook Listener"),
    "4 batch size": ({}, ValueError, "`train_batch_size` cores, 8 12 8 or 16"),
}
BAD_LISTENERS = {"saving_listeners": [Hook()]}


@pytest.mark.parametrize("name", TRAIN_REFUSED)
def test_first_mistake_in_train_is_reported(name, model_dir):
    estimator = make(model_fn_of(linear), model_dir, train_batch_size=12)
    changes, exception, words = TRAIN_REFUSED[name]
    later = [case[0] for o, case in TRAIN_REFUSED.items() if o[0] > name[0]]
    for more in ({}, BAD_LISTENERS, *later):
        if not changes.keys() & more.keys():
            with refused(exception, words):
                estimator.train(never, **changes | more)


@pytest.mark.parametrize(
    ("changes", "exception", "words"),
    [
        ({}, ValueError, "`steps` `max_steps` None"),
        (BAD_LISTENERS, ValueError, "`steps` `max_steps` None"),
        (
            {"steps": 1, **BAD_LISTENERS},
            TypeError,
            "CheckpointSaverListener Hook keras_tpu_estimator.hooks",
        ),
    ],
)
def test_errors_of_train_on_cores(changes, exception, words, trained):
    with refused(exception, words):
        trained.train(never, **changes)


def test_completed_training_checks_nothing(trained):
    arguments = {"hooks": ["hook"], "saving_listeners": ["listener"]}
    assert trained.train(never, max_steps=1, **arguments) is trained
    with pytest.raises(TypeError, match="SessionRunHook"):
        trained.train(never, max_steps=2, **arguments)


def test_listeners_without_saving(model_dir):
    estimator = make(
        model_fn_of(linear), model_dir, config={"save_checkpoints_secs": None}
    )
    words = "`saving_listeners` save_checkpoints_steps save_checkpoints_secs RunConfig"
    with refused(ValueError, words):
        estimator.train(ENDLESS, steps=1, saving_listeners=[Listener()])


@pytest.mark.parametrize("task_type", ["evaluator", "ps"])
def test_train_is_refused_for_other_roles(task_type, model_dir, monkeypatch):
    tf_config = {
        "cluster": {"chief": ["a:1"], "ps": ["b:1"]},
        "task": {"type": task_type, "index": 0},
    }
    monkeypatch.setenv("TF_CONFIG", json.dumps(tf_config))
    estimator = make(model_fn_of(linear), model_dir)
    words = f"`train` chief master worker TF_CONFIG '{task_type}' `evaluate` unset"
    with refused(ValueError, words):
        estimator.train(never, steps=0, max_steps=0)


@pytest.mark.parametrize("mode", [TRAIN, EVAL, PREDICT])
def test_hook_of_wrong_type(mode, trained):
    words = "SessionRunHook 'hook' str keras_tpu_estimator.hooks.SessionRunHook"
    with refused(TypeError, words):
        call(trained, mode, never, hooks=[Hook(), "hook"])


@pytest.mark.parametrize("mode", [EVAL, PREDICT])
@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("nowhere/model.ckpt-1", "nowhere' does not exist"),
        ("model.ckpt-7", "Checkpoints in model.ckpt-1"),
        ("empty", "no other checkpoint empty'"),
    ],
)
def test_invalid_checkpoint_path(path, words, mode, trained, trained_dir, tmp_path):
    (tmp_path / "empty").mkdir()
    checkpoint = (tmp_path if path == "empty" else trained_dir) / path
    with refused(ValueError, f"'{checkpoint}' not a valid checkpoint {words}"):
        call(trained, mode, never, checkpoint_path=checkpoint)
    with refused(ValueError, "checkpoint must be a path 3 int"):
        call(trained, mode, never, checkpoint_path=3)


@pytest.mark.parametrize("mode", [TRAIN, EVAL, PREDICT])
@pytest.mark.parametrize(
    ("tpu_config", "size", "words"),
    [
        ({"num_shards": 4}, 16, "num_shards replicas, 8 4 None"),
        (
            {"num_cores_per_replica": 16, "num_shards": 4},
            12,
            "num_cores_per_replica larger 8 cores 16 smaller",
        ),
        (
            {"num_cores_per_replica": 2, "num_shards": 8},
            12,
            "num_shards replicas, 4 8 None",
        ),
        ({}, 12, "`SIZE` divisible cores, 8 12 8 or 16"),
        ({}, np.int64(3), "`SIZE` divisible cores, 8 3 8."),
        ({"num_shards": 4}, 12, "num_shards"),
        ({}, None, "`SIZE` None 'MODE' use_tpu=True None over all cores multiple 8"),
    ],
)
def test_mismatched_systems_are_refused(tpu_config, size, words, mode, model_dir):
    if size is None and mode == TRAIN:
        # The constructor raises the error.
        with refused(ValueError, "`train_batch_size` None"):
            make(model_fn_of(linear), model_dir, **{SIZES[mode]: size})
        return
    config = {"tpu_config": kte.TPUConfig(**tpu_config)}
    sizes = {SIZES[mode]: size}
    estimator = make(model_fn_of(linear), model_dir, config=config, **sizes)
    with refused(ValueError, words.replace("SIZE", SIZES[mode]).replace("MODE", mode)):
        call(estimator, mode, never)


SLICED = kte.InputPipelineConfig.SLICED
PER_SHARD, PER_HOST_1, PER_HOST_2, BROADCAST = list(kte.InputPipelineConfig)[:4]


@pytest.mark.parametrize("mode", [TRAIN, EVAL, PREDICT])
@pytest.mark.parametrize("way", [PER_SHARD, PER_HOST_1, PER_HOST_2, BROADCAST])
def test_several_hosts(mode, way):
    topology = Topology(num_replicas=8, num_hosts=2)
    tpu_config = kte.TPUConfig(per_host_input_for_training=way)
    validation.check_system(mode, topology, tpu_config, 16)


@pytest.mark.parametrize("mode", [TRAIN, EVAL, PREDICT])
@pytest.mark.parametrize(
    ("tpu_config", "topology", "size"),
    [
        ({"num_shards": 8}, Topology(8), 16),
        ({"num_shards": 1, "num_cores_per_replica": 1}, Topology(1), 3),
        ({"per_host_input_for_training": BROADCAST}, Topology(8), 3),
        ({"per_host_input_for_training": PER_HOST_2}, Topology(1), 3),
    ],
)
def test_matching_systems_are_accepted(tpu_config, topology, size, mode):
    validation.check_system(mode, topology, kte.TPUConfig(**tpu_config), size)


@pytest.mark.parametrize("mode", [EVAL, PREDICT])
def test_sliced_input_on_one_core(mode, model_dir):
    sliced = kte.TPUConfig(eval_training_input_configuration=SLICED)
    estimator = make(model_fn_of(linear), model_dir, False, {"tpu_config": sliced})
    with refused(ValueError, "SLICED use_tpu=True mode one core PER_HOST_V1"):
        call(estimator, mode, never)


@pytest.mark.parametrize("mode", [EVAL, PREDICT])
def test_prediction_and_evaluation_check_cores_before_checkpoints(mode, model_dir):
    estimator = make(model_fn_of(linear), model_dir, **{SIZES[mode]: 12})
    with pytest.raises(ValueError, match="divisible"):
        call(estimator, mode, never, checkpoint_path="nowhere")


@pytest.mark.parametrize(
    ("mode", "settings"),
    [
        (TRAIN, {"use_tpu": False}),
        (EVAL, {"use_tpu": False}),
        (PREDICT, {"use_tpu": False}),
        (EVAL, {"eval_on_tpu": False}),
    ],
)
def test_one_core_needs_no_batch_size(mode, settings, tmp_path):
    def input_fn(params):
        seen.append("batch_size" in params)
        yield X[:3], Y[:3]

    seen = []
    sizes = {SIZES[mode]: None}
    estimator = make(model_fn_of(linear), tmp_path, **settings, **sizes)
    assert call(estimator, mode, input_fn)
    assert seen == [False]


def test_prediction_is_checked_when_it_begins(trained):
    predictions = trained.predict(never, hooks=["hook"])
    with pytest.raises(TypeError, match="SessionRunHook"):
        next(predictions)


@pytest.mark.parametrize("keys", ["z", ["z"], ("zy", "yz")])
def test_unknown_predict_key_is_refused(keys, trained):
    names = [keys] if isinstance(keys, str) else list(keys)
    with refused(ValueError, f"`predict_keys` ['y'] {names}"):
        call(trained, PREDICT, batches_of(X), predict_keys=keys)


def predicted(model_dir, predictions_of, **arguments):
    """Predicts a function of the features on one core."""

    def model_fn(features, labels, mode, params):
        return kte.EstimatorSpec(mode, predictions=predictions_of(features))

    estimator = make(model_fn, model_dir, use_tpu=False)
    return call(estimator, PREDICT, batches_of(X), **arguments)


def test_predict_keys_of_a_tensor_are_refused(model_dir):
    with refused(ValueError, "`predict_keys` dict ['y'] ndarray"):
        predicted(model_dir, lambda features: features, predict_keys=["y"])


@pytest.mark.parametrize("shape", [(5,), (17, 2), ()])
def test_predictions_of_another_length_are_refused(shape, model_dir):
    with refused(ValueError, f"prediction 'z' 16 examples same rows {shape} Keep"):
        predicted(model_dir, lambda features: {"y": features, "z": ops.ones(shape)})


def test_empty_evaluation_is_refused(model_dir):
    with refused(ValueError, "evaluate at least one batch"):
        make(model_fn_of(linear), model_dir).evaluate(batches_of(X[:0], Y[:0]))


class Measured:
    """An estimator whose `metric_fn` a test sets."""

    def __init__(self, model_dir, use_tpu):
        self.metric_fn = dict
        self.estimator = make(self._model_fn, model_dir, use_tpu)

    def _model_fn(self, features, labels, mode, params):
        return kte.TPUEstimatorSpec(
            mode,
            loss=ops.mean(features),
            eval_metrics=(lambda rows: self.metric_fn(rows), [features]),
        )

    def evaluate(self, metric_fn):
        self.metric_fn = metric_fn
        return self.estimator.evaluate(batches_of(X))


@pytest.fixture(scope="module", params=[False, True], ids=["one", "cores"])
def measured(request, tmp_path_factory):
    directory = tmp_path_factory.mktemp("measured")
    yield Measured(directory, use_tpu=request.param)
    assert not files_in(directory)


PAIR = (np.float32(1), None)


@pytest.mark.parametrize(
    ("returned", "exception", "words"),
    [
        ({"m": PAIR, "loss": PAIR}, ValueError, "'loss' evaluate 'global_step' Give"),
        ({"global_step": PAIR}, ValueError, "'global_step' another name"),
        ([PAIR], TypeError, "dict names (value, update) list"),
        (3, TypeError, "dict names 3"),
        ({"m": 0.5}, TypeError, "'m' keras.metrics.Metric (value, update) 0.5 float"),
        ({"m": list(PAIR)}, TypeError, "'m' list"),
        ({"m": (1, 2, 3)}, TypeError, "'m' tuple"),
        ({"m": keras.metrics.Mean}, TypeError, "'m' type type"),
    ],
)
def test_invalid_metrics_are_refused(returned, exception, words, measured):
    with refused(exception, words):
        measured.evaluate(lambda rows: returned)


class UserError(Exception):
    """An exception that no library handles."""


ERRORS = [
    ValueError("value"),
    RuntimeError("runtime"),
    TypeError("type"),
    KeyError("key"),
    UserError("mine"),
]


def test_errors_of_metric_fn_are_raised_unchanged(measured):
    def metric_fn(rows):
        raise error

    for error in ERRORS:
        with pytest.raises(type(error)) as raised:
            measured.evaluate(metric_fn)
        assert raised.value is error


def test_errors_of_metric_fn_on_values_are_raised_unchanged(measured):
    def metric_fn(rows):
        raise UserError(f"the first is {float(rows[0, 0]):.3f}")

    with pytest.raises(UserError, match=f"the first is {X[0, 0]:.3f}"):
        measured.evaluate(metric_fn)


@pytest.mark.parametrize("mode", [TRAIN, EVAL, PREDICT])
def test_errors_of_input_fn_are_raised_unchanged(mode, trained):
    def input_fn(params):
        raise error

    def generator(params):
        raise error
        yield

    for error in ERRORS:
        for failing in (input_fn, generator):
            with pytest.raises(type(error)) as raised:
                call(trained, mode, failing)
            assert raised.value is error


@pytest.mark.parametrize("mode", [EVAL, PREDICT])
def test_late_errors_of_input_fn_are_raised_unchanged(mode, trained):
    def input_fn(params):
        yield X, Y
        raise UserError("after a batch")

    with pytest.raises(UserError, match="after a batch"):
        call(trained, mode, input_fn)


def fail(*args):
    raise UserError("at last")


def fails_in(base, phase):
    """Returns an instance of a user's class that fails in a phase."""
    return type("Failing", (base,), {phase: fail})()


PHASES = ["begin", "after_create_session", "before_run", "after_run", "end"]


@pytest.mark.parametrize("mode", [EVAL, PREDICT])
@pytest.mark.parametrize("phase", PHASES)
def test_errors_of_hooks_are_raised_unchanged(phase, mode, trained):
    with pytest.raises(UserError, match="at last"):
        call(trained, mode, batches_of(X, Y), hooks=[fails_in(Hook, phase)])


ENDLESS = repeated(X, Y)


class Training:
    """An estimator whose inputs and host call a test sets."""

    def __init__(self, model_dir):
        self.model_dir = model_dir
        self.host_call = lambda rows: None
        self.estimator = make(
            self._model_fn,
            model_dir,
            config={"save_checkpoints_steps": 1, "resume_input": False},
        )

    def _model_fn(self, features, labels, mode, params):
        loss = ops.mean((linear(features, True) - labels) ** 2)
        optimizer = kte.CrossShardOptimizer(keras.optimizers.SGD())
        return kte.TPUEstimatorSpec(
            mode,
            loss=loss,
            train_op=optimizer.minimize(loss),
            host_call=(lambda rows: self.host_call(rows), [features]),
        )

    @property
    def step(self):
        path = self.estimator.latest_checkpoint()
        return kte.checkpoints.step_of(path) if path else None

    def fails(self, input_fn=ENDLESS, **arguments):
        """Trains until it fails; checks the files and returns the number of steps."""
        before = self.step or 0
        with pytest.raises(UserError, match="at last"):
            self.estimator.train(input_fn, steps=5, **arguments)
        assert_finished(self.model_dir)
        return self.step and self.step - before


@pytest.fixture(scope="module")
def training(tmp_path_factory):
    training = Training(tmp_path_factory.mktemp("training"))
    training.estimator.train(ENDLESS, steps=1)
    return training


@pytest.mark.parametrize("batches", [0, 1, 3])
def test_training_stops_where_the_input_fails(batches, training):
    def input_fn(params):
        yield from [(X, Y)] * batches
        fail()

    assert training.fails(input_fn) == batches


@pytest.mark.parametrize(
    ("phase", "steps"), [*zip(PHASES, [0, 0, 0, 0, 5], strict=True)]
)
def test_training_stops_where_a_hook_fails(phase, steps, training):
    assert training.fails(hooks=[fails_in(Hook, phase)]) == steps


@pytest.mark.parametrize(
    ("phase", "steps"),
    [("begin", 0), ("before_save", 0), ("after_save", 0), ("end", 5)],
)
def test_training_stops_where_a_listener_fails(phase, steps, training):
    listener = fails_in(Listener, phase)
    assert training.fails(saving_listeners=[listener]) == steps


def test_training_stops_where_the_host_call_fails(training, monkeypatch):
    monkeypatch.setattr(training, "host_call", fail)
    assert training.fails() <= 5


@pytest.mark.parametrize(
    ("base", "phase", "step"),
    [
        (Hook, "begin", None),
        (Hook, "after_create_session", 0),
        (Listener, "begin", None),
        (Listener, "before_save", None),
        (Listener, "after_save", 0),
    ],
)
def test_first_training_may_fail(base, phase, step, tmp_path):
    argument = "hooks" if base is Hook else "saving_listeners"
    training = Training(tmp_path)
    assert training.fails(**{argument: [fails_in(base, phase)]}) == step
    assert training.step == step


def test_training_continues_after_errors(training):
    done = training.step
    training.estimator.train(ENDLESS, steps=2)
    assert training.step == done + 2
    assert_finished(training.model_dir)


def test_variables_without_a_checkpoint_are_an_error(model_dir):
    estimator = make(model_fn_of(linear), model_dir)
    for call_without in (
        estimator.get_variable_names,
        lambda: estimator.get_variable_value("global_step"),
        lambda: estimator.get_variable_value(["global_step"]),
    ):
        with refused(ValueError, f"No checkpoint '{model_dir}' `train`"):
            call_without()
    assert estimator.latest_checkpoint() is None


@pytest.mark.parametrize("name", ["dense/kernl", ["dense/bias", "dense/kernl"]])
def test_unknown_variable_is_an_error(name, trained):
    with refused(KeyError, "model.ckpt-1 'dense/kernl' Similar 'dense/kernel'"):
        trained.get_variable_value(name)


def test_variables(trained):
    names = trained.get_variable_names()
    assert {"dense/kernel", "dense/bias", "global_step"} <= set(names)
    kernel, step = trained.get_variable_value(["dense/kernel", "global_step"])
    np.testing.assert_array_equal(trained.get_variable_value("dense/kernel"), kernel)
    assert kernel.shape == (3, 1) and step == 1
