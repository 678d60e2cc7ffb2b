"""Tests that batches without examples are not steps."""

import functools
import itertools

import numpy as np
import pytest
import tensorflow as tf  # noqa: TID253 - one of the kinds of input

import keras_tpu_estimator as kte
from keras_tpu_estimator.base.common.params import with_additional
from keras_tpu_estimator.base.common.topology import Topology
from keras_tpu_estimator.engine.inputs import checks, datasets
from keras_tpu_estimator.engine.inputs import pipeline as pipeline_module
from keras_tpu_estimator.engine.inputs.deployment import input_plan, undivided
from keras_tpu_estimator.engine.inputs.input_shapes import BatchAxes
from keras_tpu_estimator.engine.inputs.pipeline import Pipeline
from keras_tpu_estimator.engine.inputs.request import InputRequest

TRAIN, EVAL, PREDICT = (
    kte.ModeKeys.TRAIN,
    kte.ModeKeys.EVAL,
    kte.ModeKeys.PREDICT,
)
X = np.arange(40, dtype="float32").reshape(20, 2)
Y = np.arange(20, dtype="int32")
TABLE = np.ones((7, 2), "float32")
SIZES = [
    [4, 2, 0, 0],
    [0, 0, 0, 4, 0, 0, 4, 4, 0, 3],
]


@pytest.fixture(autouse=True)
def stack_short_datasets(monkeypatch):
    """Makes short datasets be read like long ones."""
    monkeypatch.setattr(datasets, "_WORTH_STACKING", 0)


def opened(input_fn, mode=TRAIN, size=4, start=None, plan=None, **settings):
    request = InputRequest(
        mode=mode,
        plan=plan or undivided(size),
        params_for=functools.partial(with_additional, {}),
        **settings,
    )
    return Pipeline(lambda params: input_fn(), request, start, is_kept=True)


def taken(pipe, steps=2):
    """Returns all stacks until the end of the input."""
    with pipe:
        return list(iter(lambda: pipe.take(steps), None))


def sizes_of(batches):
    return [batch.examples for batch in batches for _ in range(batch.steps)]


def stream(sizes):
    bounds = np.cumsum([0, *sizes])
    for start, stop in itertools.pairwise(bounds):
        yield X[start:stop], Y[start:stop]


def dataset(sizes):
    return tf.data.Dataset.from_generator(
        lambda: stream(sizes),
        output_signature=(
            tf.TensorSpec((None, 2), tf.float32),
            tf.TensorSpec((None,), tf.int32),
        ),
    )


FORMS = {
    "pairs": stream,
    "dicts": lambda sizes: ({"x": x, "y": y} for x, y in stream(sizes)),
    "features alone": lambda sizes: (x for x, _ in stream(sizes)),
    "dataset": dataset,
    "dataset of dicts": lambda sizes: dataset(sizes).map(
        lambda x, y: ({"x": x}, {"y": y})
    ),
    "dataset of features": lambda sizes: dataset(sizes).map(lambda x, y: x),
}


@pytest.mark.parametrize("chunk", [1, 2, 5])
@pytest.mark.parametrize("make", FORMS.values(), ids=FORMS)
@pytest.mark.parametrize("sizes", SIZES)
def test_empty_batches_are_skipped(sizes, make, chunk):
    batches = taken(opened(lambda: make(sizes), EVAL, chunk=chunk), chunk)
    assert sizes_of(batches) == [size for size in sizes if size]


@pytest.mark.parametrize("make", FORMS.values(), ids=FORMS)
def test_input_of_empty_batches_is_empty(make):
    assert taken(opened(lambda: make([0, 0, 0]), TRAIN, chunk=2)) == []


@pytest.mark.parametrize("repeat", [False, True])
@pytest.mark.parametrize(
    "arrays", [X[:0], {"x": X[:0]}, (X[:0], Y[:0]), ({"x": X[:0]}, None)]
)
def test_empty_arrays_are_not_a_batch(arrays, repeat):
    assert taken(opened(lambda: arrays, repeat=repeat)) == []


def test_empty_batch_of_fixed_shape_is_skipped():
    data = tf.data.Dataset.from_tensors((X[:0], Y[:0])).repeat(5)
    assert taken(opened(lambda: data, chunk=2)) == []


def test_prediction_has_a_result_for_each_empty_batch():
    batches = taken(opened(lambda: stream([0, 4, 0, 2]), PREDICT), 1)
    assert sizes_of(batches) == [0, 4, 0, 2]


def test_empty_batches_need_no_dtype_and_shape():
    lists = iter([(X[:4], Y[:4]), (np.array([]), np.array([])), (X[4:6], Y[4:6])])
    assert sizes_of(taken(opened(lambda: lists))) == [4, 2]


def test_labels_without_features_are_an_error():
    for features, labels in ((X[:0], Y[:3]), (X[:3], Y[:0])):
        with pytest.raises(ValueError, match="must have the same batch size"):
            taken(opened(lambda f=features, y=labels: iter([(f, y)])))


@pytest.mark.parametrize("table", [TABLE, TABLE[:4]])
@pytest.mark.parametrize("size", [None, 4])
def test_shared_tensors_are_distinguished_from_empty_batches(table, size):
    def of(rows):
        return {"a": table, "x": X[rows]}, Y[rows]

    slices = [slice(0), slice(0, 4), slice(0), slice(4, 8), slice(8, 9)]
    batches = taken(opened(lambda: map(of, slices), EVAL, size))
    assert sizes_of(batches) == [4, 4, 1]


def test_empty_shared_tensor_does_not_make_a_batch_empty():
    features = {"none": TABLE[:0], "x": X[:4]}
    batches = taken(opened(lambda: iter([(features, Y[:4])] * 2), EVAL))
    assert sizes_of(batches) == [4, 4]


def test_tensors_without_columns_do_not_make_a_batch_empty():
    features = {"none": np.ones((4, 0), "float32")}
    assert sizes_of(taken(opened(lambda: iter([features] * 3)))) == [4, 4, 4]


def test_batch_may_be_on_another_axis():
    parts = [np.moveaxis(x, 0, 1) for x, _ in stream([4, 0, 4])]
    axes = BatchAxes((1,))
    batches = taken(opened(lambda: iter(parts), axes=axes))
    assert sizes_of(batches) == [4, 4]


@pytest.mark.parametrize("way", ["PER_SHARD_V1", "PER_HOST_V2"])
def test_cores_with_their_own_batches_skip_empty_ones(way):
    plan = input_plan(TRAIN, kte.InputPipelineConfig[way], Topology(2), batch_size=8)
    sizes = [4, 0, 0, 4, 4, 0, 4, 0]
    calls = len(plan.calls)
    batches = taken(opened(lambda: stream(sizes), plan=plan), 1)
    assert sizes_of(batches) == [8] * (2 * calls)


class Loader:
    """A loader whose state is the number of batches that were read."""

    sizes = [2, 0, 2, 0, 0, 2] * 3

    def __init__(self):
        self.next = 0

    def __iter__(self):
        rows = list(stream(self.sizes))
        while self.next < len(rows):
            self.next += 1
            yield rows[self.next - 1]

    def state_dict(self):
        return {"next": self.next}

    def load_state_dict(self, state):
        self.next = state["next"]


@pytest.mark.parametrize("used", [1, 2, 5, 8])
@pytest.mark.parametrize("chunk", [1, 4])
@pytest.mark.parametrize("make", [Loader, lambda: dataset(Loader.sizes)])
def test_resuming_reads_no_example_twice(make, chunk, used, monkeypatch):
    monkeypatch.setattr(pipeline_module, "_DELAY_SECS", 0.0)
    first = opened(make, size=2, chunk=chunk)
    read = 0
    with first:
        while read < used:
            read += first.take(min(chunk, used - read)).steps
            first.position(read)
        position = first.position(used)
    rest = taken(opened(make, size=2, chunk=chunk, start=position), chunk)
    labels = [batch.labels.ravel() for batch in rest]
    expected = Y[2 * used : 18]
    np.testing.assert_array_equal(np.concatenate([*labels, []]), expected)


def test_endless_empty_batches_are_an_error(monkeypatch):
    monkeypatch.setattr(checks, "_MOST_EMPTY", 10)
    with pytest.raises(ValueError, match="10 consecutive batches without examples"):
        taken(opened(lambda: itertools.repeat((X[:0], Y[:0]))))
    sizes = [0] * 9 + [4] + [0] * 9 + [4]
    assert sizes_of(taken(opened(lambda: stream(sizes)))) == [4, 4]
