"""Tests of an `input_fn` that uses Grain, and of resuming it."""

import keras
import numpy as np
import pytest
from absl import flags
from helpers import estimator_of, model_fn_of, regression_data

from keras_tpu_estimator.api.hooks.session_run_hook import LoopHook
from keras_tpu_estimator.engine.inputs import pipeline
from keras_tpu_estimator.engine.inputs.request import Stream, source_of

grain = pytest.importorskip(
    "grain", reason="Grain, which the extra `[test]` installs, is missing"
)

EXAMPLES, STEPS, CRASH = 40, 24, 12
X, Y = regression_data(EXAMPLES)


@pytest.fixture(autouse=True)
def states_from_the_start(monkeypatch):
    """Makes calls of less than a second also save iterator states."""
    monkeypatch.setattr(pipeline, "_DELAY_SECS", 0.0)


class Crash(Exception):
    """An error that interrupts training."""


class CrashAt(LoopHook):
    """Raises an error after the checkpoint of a step."""

    acts_last = True

    def after_run(self, run_context, run_values):
        if run_context.session.run("global_step") == CRASH:
            raise Crash


class Rows:
    """Examples with the interface that Grain's loaders need."""

    def __len__(self):
        return EXAMPLES

    def __getitem__(self, index):
        return X[index], Y[index]

    def __repr__(self):
        # Grain saves it with the state and compares it when restoring.
        return "Rows()"


class Noise(grain.transforms.RandomMap):
    """Features that differ in each epoch."""

    def random_map(self, element, rng):
        x, y = element
        return x + rng.normal(size=x.shape).astype(x.dtype), y


def loader(size):
    sampler = grain.samplers.IndexSampler(EXAMPLES, shuffle=True, seed=3)
    operations = [Noise(), grain.transforms.Batch(size, drop_remainder=True)]
    return grain.DataLoader(data_source=Rows(), sampler=sampler, operations=operations)


def map_dataset(size):
    """A dataset that is shuffled differently in each epoch."""
    data = grain.MapDataset.source(Rows()).seed(3).shuffle().repeat(10)
    return data.random_map(Noise()).batch(size, drop_remainder=True)


def window_shuffled(size):
    data = grain.MapDataset.source(Rows()).repeat(None).to_iter_dataset()
    data = grain.experimental.WindowShuffleIterDataset(data, window_size=12, seed=3)
    return data.batch(size, drop_remainder=True)


def mixed(size):
    """Two of three examples from one dataset, and one from another."""
    one, other = (
        grain.MapDataset.source(Rows()).shuffle(seed).repeat(None) for seed in (3, 4)
    )
    data = grain.MapDataset.mix([one, other], weights=[2, 1])
    return data.to_iter_dataset().batch(size, drop_remainder=True)


INPUTS = {
    "loader": loader,
    "map dataset": map_dataset,
    "iter dataset": lambda size: map_dataset(size).to_iter_dataset(),
    "an iterator": lambda size: iter(map_dataset(size).to_iter_dataset()),
    "window shuffled": window_shuffled,
    "mixed": mixed,
}


def network(features, is_training):
    del is_training
    hidden = keras.layers.Dense(4, "tanh", name="hidden")(features)
    return keras.layers.Dense(1, name="last")(hidden)


def new_estimator(model_dir, **settings):
    config = {"save_checkpoints_steps": 4, "keep_checkpoint_max": 1}
    return estimator_of(
        model_fn_of(network),
        model_dir,
        use_tpu=True,
        config=config,
        **settings,
    )


def variables(estimator):
    names = estimator.get_variable_names()
    return {name: estimator.get_variable_value(name) for name in names}


def input_fn_of(name):
    return lambda params: INPUTS[name](params["batch_size"])


@pytest.mark.rows(3)
@pytest.mark.parametrize("name", INPUTS)
def test_interrupted_training_resumes_equally(name, tmp_path, caplog):
    caplog.set_level("INFO", "keras_tpu_estimator")
    whole, parts = (new_estimator(tmp_path / str(n)) for n in range(2))
    whole.train(input_fn_of(name), max_steps=STEPS)
    with pytest.raises(Crash):
        parts.train(input_fn_of(name), hooks=[CrashAt()], max_steps=STEPS)
    resumed = new_estimator(tmp_path / "1")
    resumed.train(input_fn_of(name), max_steps=STEPS)
    assert f"continues after {CRASH} steps, from its saved state" in caplog.text
    expected = variables(whole)
    assert variables(resumed).keys() == expected.keys()
    for path, value in variables(resumed).items():
        np.testing.assert_array_equal(value, expected[path], err_msg=path)


def test_training_ends_with_the_loader(tmp_path):
    sampler = grain.samplers.SequentialSampler(EXAMPLES)
    estimator = new_estimator(tmp_path, batch=8)
    estimator.train(
        lambda params: grain.DataLoader(
            data_source=Rows(),
            sampler=sampler,
            operations=[grain.transforms.Batch(params["batch_size"])],
        ),
        max_steps=STEPS,
    )
    assert estimator.get_variable_value("global_step") == EXAMPLES // 8


def test_evaluation_and_prediction_keep_the_order(tmp_path):
    def input_fn(params):
        size = params["batch_size"]
        return grain.MapDataset.source(Rows()).batch(size).to_iter_dataset()

    estimator = new_estimator(tmp_path, batch=8)
    estimator.train(input_fn, steps=1)
    rows = [each["y"] for each in estimator.predict(input_fn)]
    loss = estimator.evaluate(input_fn, steps=EXAMPLES // 8)["loss"]
    np.testing.assert_allclose(loss, np.mean((rows - Y) ** 2), 1e-5)


def test_state_of_another_loader_is_ignored():
    stream = Stream(loader(8))
    items = stream.items()
    next(items)
    state = stream.state_of(items)
    other = grain.DataLoader(
        data_source=Rows(), sampler=grain.samplers.SequentialSampler(EXAMPLES)
    )
    with pytest.raises(ValueError, match="[Ss]ampler"):
        Stream(other).items(state)


def examples():
    return grain.MapDataset.source(Rows())


def examples_of_loader():
    sampler = grain.samplers.SequentialSampler(EXAMPLES)
    return grain.DataLoader(data_source=Rows(), sampler=sampler)


@pytest.mark.parametrize(
    ("make", "way"),
    [
        (examples, r"dataset\.batch\(params\[\"batch_size\"\]\)"),
        (lambda: examples().shuffle(3).repeat(2), r"dataset\.batch\("),
        (lambda: grain.MapDataset.range(9), r"dataset\.batch\("),
        (lambda: examples().to_iter_dataset(), r"dataset\.batch\("),
        (lambda: grain.MapDataset.mix([examples()] * 2), r"dataset\.batch\("),
        (examples_of_loader, r"grain\.transforms\.Batch\("),
    ],
)
def test_single_examples_are_refused(make, way):
    with pytest.raises(TypeError, match=f"yields single examples.*{way}"):
        source_of(make())
    # The fix that the message gives.
    assert isinstance(source_of(iter(make())), Stream)


class Pairs(grain.IterDataset):
    """Batches of a class that Grain does not define."""

    def __iter__(self):
        return iter([(X[:8], Y[:8])])


@pytest.mark.parametrize(
    "make",
    [
        *(lambda make=make: make(8) for make in INPUTS.values()),
        lambda: examples().batch(8).map(lambda batch: batch),
        lambda: examples().batch(8).to_iter_dataset().filter(len),
        lambda: grain.MapDataset.mix([examples().batch(8), examples()]),
        lambda: prefetched(8),
        lambda: loader_with_worker(8),
        Pairs,
    ],
)
def test_objects_that_may_be_batches_are_accepted(make):
    assert isinstance(source_of(make()), Stream)


@pytest.fixture
def unparsed():
    """Makes absl's flags unparsed, as in a script or a notebook."""
    was_parsed = flags.FLAGS.is_parsed()
    flags.FLAGS.unparse_flags()
    yield
    if was_parsed:
        flags.FLAGS.mark_as_parsed()
    else:
        flags.FLAGS.unparse_flags()


@pytest.mark.parametrize("name", INPUTS)
def test_only_grain_inputs_parse_flags(name, unparsed):
    source_of(iter([1]))
    assert not flags.FLAGS.is_parsed()
    source_of(INPUTS[name](8))
    assert flags.FLAGS.is_parsed()


def loader_with_worker(size):
    return grain.DataLoader(
        data_source=Rows(),
        sampler=grain.samplers.SequentialSampler(EXAMPLES),
        operations=[grain.transforms.Batch(size)],
        worker_count=1,
    )


def prefetched(size):
    options = grain.MultiprocessingOptions(num_workers=1)
    return examples().batch(size).to_iter_dataset().mp_prefetch(options)


@pytest.mark.slow
@pytest.mark.parametrize("make", [loader_with_worker, prefetched])
def test_workers_start_in_a_script(make, unparsed):
    first, _ = next(source_of(make(8)).items())
    np.testing.assert_array_equal(first, X[:8])
