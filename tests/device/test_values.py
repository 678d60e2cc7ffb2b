"""Tests every kind of state in every mode, with callbacks that access it."""

import dataclasses
import functools
import itertools

import keras
import numpy as np
import pytest
from helpers import batches_of, each_once, estimator_of
from keras import ops

import keras_tpu_estimator as kte

TRAIN, EVAL, PREDICT = "train", "eval", "infer"
BATCH = 8
STEPS = {TRAIN: 4, EVAL: 34, PREDICT: 4}
X = np.random.default_rng(0).normal(size=(BATCH * 34, 3)).astype("float32")
Y = X.sum(1, keepdims=True)
ASSIGNED = {"count": 100.0, "flag": True, "whole": 50}
SEED = "seed_generator/seed_generator_state"


class Noise(keras.layers.Layer):
    """A layer that adds zero, and draws one number per row."""

    def __init__(self):
        super().__init__(name="noise")
        self.generator = keras.random.SeedGenerator(3)

    def call(self, x):
        return keras.random.uniform((x.shape[0],), seed=self.generator)


def rows(value, x):
    return ops.broadcast_to(ops.convert_to_tensor(value), (x.shape[0],))


def model_fn_with(seen):
    """A model_fn with every kind of state, which passes each step's state to `seen`."""

    def note(mode, **tensors):
        told = {name: np.array(t) for name, t in tensors.items()}
        seen.append((mode, told))

    def model_fn(features, labels, mode, params):
        training = mode == TRAIN
        count = keras.Variable(0.0, trainable=False, name="count")
        flag = keras.Variable(False, dtype="bool", trainable=False, name="flag")
        whole = keras.Variable(0, dtype="int32", trainable=False, name="whole")
        count.assign(count + 1)
        flag.assign(ops.logical_not(flag))
        whole.assign(whole + 2)
        mean = keras.metrics.Mean(name="seen")
        mean.update_state(count)
        normal = keras.layers.BatchNormalization(name="bn", momentum=0.5)
        hidden = normal(features, training=training)
        y = keras.layers.Dense(1, name="dense")(hidden)
        tensors = {
            "count": rows(count, features),
            "flag": rows(flag, features),
            "whole": rows(whole, features),
            "metric": rows(mean.result(), features),
            "noise": Noise()(features),
        }
        host_call = (functools.partial(note, mode), tensors)
        if mode == PREDICT:
            return kte.TPUEstimatorSpec(mode, {"y": y, **tensors}, host_call=host_call)
        loss = ops.mean((y - labels) ** 2)
        train_op = None
        if training:
            optimizer = keras.optimizers.SGD(0.01, momentum=0.9)
            train_op = kte.CrossShardOptimizer(optimizer).minimize(loss)
        return kte.TPUEstimatorSpec(
            mode, loss=loss, train_op=train_op, host_call=host_call
        )

    return model_fn


@dataclasses.dataclass
class Subject:
    """An estimator with a checkpoint, and the states that its steps report."""

    estimator: kte.TPUEstimator
    seen: list
    use_tpu: bool

    def call(self, mode, callback=None):
        """Makes the steps of a mode; returns the state that each reported."""
        self.seen.clear()
        hooks = [] if callback is None else [callback]
        x, y = X[: BATCH * STEPS[mode]], Y[: BATCH * STEPS[mode]]
        if mode == TRAIN:
            steps = STEPS[mode]
            self.estimator.train(batches_of(x, y), hooks=hooks, steps=steps)
        elif mode == EVAL:
            self.estimator.evaluate(batches_of(x, y), hooks=hooks)
        else:
            # Only the first call draws from the seeds of the checkpoint.
            self.estimator._context.__dict__["prediction_numbers"] = itertools.count()
            assert len(list(self.estimator.predict(batches_of(x), hooks=hooks)))
        steps = self.told(mode)
        assert len(steps) == STEPS[mode]
        return {name: np.stack([step[name] for step in steps]) for name in steps[0]}

    def told(self, mode):
        return [step for of, step in self.seen if of == mode]

    def saved(self, path):
        return self.estimator.get_variable_value(path)


@pytest.fixture(scope="module", params=[False, True], ids=["one", "eight"])
def subject(request, tmp_path_factory):
    seen = []
    estimator = estimator_of(
        model_fn_with(seen),
        tmp_path_factory.mktemp("values"),
        use_tpu=request.param,
        batch=BATCH,
        iterations=2,
    )
    made = Subject(estimator, seen, request.param)
    made.call(TRAIN)
    return made


def first_run(subject, mode):
    """The number of steps before the first call of the callback."""
    if mode == EVAL and not subject.use_tpu:
        return 1  # Without a TPU, the callback runs for each batch.
    return {TRAIN: 2, EVAL: 32, PREDICT: 1}[mode]


class Reads(keras.callbacks.Callback):
    """Reads variables after each run."""

    def __init__(self):
        super().__init__()
        self.values = []

    def look(self, *args):
        variables = {v.path: v for v in self.model.variables}
        self.values.append(
            {path: np.array(variables[path]) for path in (*ASSIGNED, SEED)}
        )

    on_train_batch_end = on_test_batch_end = on_predict_batch_end = look


class Predicts(Reads):
    """Lets Keras predict between two runs."""

    def look(self, *args):
        whole = self.model.predict(X[:24], batch_size=BATCH, verbose=0)["y"]
        batch = self.model.predict_on_batch(X[:BATCH])["y"]
        np.testing.assert_allclose(whole[:BATCH], batch, rtol=1e-6)

    on_train_batch_end = on_test_batch_end = on_predict_batch_end = look


class Evaluates(Reads):
    """Lets Keras evaluate between two runs."""

    def look(self, *args):
        loss = self.model.evaluate(X[:24], Y[:24], batch_size=BATCH, verbose=0)
        by_hand = [
            self.model.test_on_batch(X[i : i + BATCH], Y[i : i + BATCH])
            for i in (0, BATCH, 2 * BATCH)
        ]
        assert np.isfinite([loss, *by_hand]).all()

    on_train_batch_end = on_test_batch_end = on_predict_batch_end = look


class Assigns(Reads):
    """Assigns variables after the first run."""

    def look(self, *args):
        if self.values:
            return
        super().look()
        for variable in self.model.variables:
            if variable.path in ASSIGNED:
                variable.assign(ASSIGNED[variable.path])
            if variable.path == SEED:
                variable.assign([7, 7])

    on_train_batch_end = on_test_batch_end = on_predict_batch_end = look


def draws(state, steps):
    """The numbers that Keras itself draws from a state, and the next state."""
    generator = keras.random.SeedGenerator(0)
    generator.state.assign(state)
    numbers = [
        np.array(keras.random.uniform((BATCH,), seed=generator)) for _ in range(steps)
    ]
    return np.stack(numbers), np.array(generator.state)


def expected(start, steps):
    """Computes each step's values from the initial ones."""
    count = start["count"] + np.arange(1, steps + 1)
    flags = (start["flag"] + np.arange(1, steps + 1)) % 2 == 1
    whole = start["whole"] + 2 * np.arange(1, steps + 1)
    return {"count": count, "flag": flags, "whole": whole}


def check(subject, told, start, steps=slice(None)):
    """Compares the reported states with the expected ones."""
    told = {name: values[steps] for name, values in told.items()}
    for name, values in expected(start, len(told["count"])).items():
        assert told[name].dtype == values.dtype or name != "flag"
        np.testing.assert_array_equal(told[name], np.repeat(values[:, None], BATCH, 1))
    drawn, _ = draws(start[SEED], len(told["noise"]))
    if subject.use_tpu:
        assert len(np.unique(told["noise"])) == told["noise"].size
    else:
        np.testing.assert_array_equal(told["noise"], drawn)


def state(subject):
    return {path: subject.saved(path) for path in (*ASSIGNED, SEED)}


CALLBACKS = [None, Reads, Predicts, Evaluates]


@pytest.mark.rows(5)
@pytest.mark.parametrize(
    ("mode", "callback"),
    [
        *((TRAIN, each) for each in CALLBACKS),
        *each_once([EVAL, PREDICT], CALLBACKS),
    ],
)
def test_state_continues_between_steps(subject, mode, callback):
    start = state(subject)
    made = callback and callback()
    told = subject.call(mode, made)
    check(subject, told, start)
    # A core sees the counts of all cores before the step, and its own.
    cores, seen = 8 if subject.use_tpu else 1, told["count"][:, 0]
    before = np.arange(len(seen)) * cores
    metric = (cores * (np.cumsum(seen) - seen) + seen) / (before + 1)
    np.testing.assert_allclose(told["metric"][:, 0], metric, rtol=1e-6)
    end = {name: values[-1] for name, values in expected(start, 4).items()}
    end[SEED] = draws(start[SEED], 4)[1]
    for path, value in end.items():
        kept = value if mode == TRAIN else start[path]
        np.testing.assert_array_equal(subject.saved(path), kept)
    if callback is Reads:
        for run, values in enumerate(made.values, start=1):
            steps = min(run * first_run(subject, mode), STEPS[mode])
            now = {n: v[-1] for n, v in expected(start, steps).items()}
            now[SEED] = draws(start[SEED], steps)[1]
            for path, value in now.items():
                np.testing.assert_array_equal(values[path], value)


@pytest.mark.parametrize("mode", [TRAIN, EVAL, PREDICT])
def test_values_assigned_by_a_callback_last_for_the_call(subject, mode):
    start, first = state(subject), first_run(subject, mode)
    told = subject.call(mode, Assigns())
    check(subject, told, start, slice(first))
    check(subject, told, {**ASSIGNED, SEED: [7, 7]}, slice(first, None))
    if mode != TRAIN:
        for path, value in start.items():
            np.testing.assert_array_equal(subject.saved(path), value)
        check(subject, subject.call(mode), start)


@pytest.mark.parametrize("callback", [Predicts, Evaluates])
def test_callback_does_not_change_training(subject, callback, tmp_path):
    paths = ["dense/kernel", "bn/moving_mean", "SGD/dense_kernel_momentum"]
    before = subject.estimator.latest_checkpoint()
    trained = []
    for number, made in enumerate([None, callback()]):
        estimator = estimator_of(
            model_fn_with(subject.seen),
            tmp_path / str(number),
            use_tpu=subject.use_tpu,
            batch=BATCH,
            iterations=2,
            warm_start_from=before,
        )
        Subject(estimator, subject.seen, subject.use_tpu).call(TRAIN, made)
        names = [
            next(n for n in estimator.get_variable_names() if n.lower() == p.lower())
            for p in paths
        ]
        trained.append([estimator.get_variable_value(n) for n in names])
    for plain, with_callback in zip(*trained, strict=True):
        np.testing.assert_array_equal(plain, with_callback)


class EvaluatesBetween(kte.hooks.SessionRunHook):
    """Evaluates the training values after each run."""

    def __init__(self, estimator):
        self.estimator = estimator

    def after_run(self, run_context, run_values):
        x, y = X[: 2 * BATCH], Y[: 2 * BATCH]
        run_context.session.evaluate(self.estimator, batches_of(x, y))


def test_evaluation_inside_training_has_its_own_state(subject):
    start = state(subject)
    hook = EvaluatesBetween(subject.estimator)
    check(subject, subject.call(TRAIN, hook), start)
    steps = subject.told(EVAL)
    counts = start["count"] + np.array([3, 4, 5, 6])
    assert [step["count"][0] for step in steps] == counts.tolist()
    assert [step["metric"][0] for step in steps[::2]] == counts[::2].tolist()
