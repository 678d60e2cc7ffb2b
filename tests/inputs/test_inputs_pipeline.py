"""Tests the results of `input_fn`, and their stacks of steps."""

import collections
import dataclasses
import functools
import itertools

import numpy as np
import pytest
import tensorflow as tf  # noqa: TID253 - most tests use tf.data
from helpers import batches_of, estimator_of, linear, model_fn_of, regression_data

import keras_tpu_estimator as kte
from keras_tpu_estimator.base.common.params import with_additional
from keras_tpu_estimator.base.common.topology import Topology
from keras_tpu_estimator.base.upstream.tensorflow_names import (
    without_prefetch,
)
from keras_tpu_estimator.engine.inputs import datasets
from keras_tpu_estimator.engine.inputs.deployment import input_plan, undivided
from keras_tpu_estimator.engine.inputs.pipeline import Pipeline
from keras_tpu_estimator.engine.inputs.request import InputRequest
from keras_tpu_estimator.engine.inputs.stacking import StackSize

TRAIN, EVAL, PREDICT = (
    kte.ModeKeys.TRAIN,
    kte.ModeKeys.EVAL,
    kte.ModeKeys.PREDICT,
)
X = np.arange(36, dtype="float32").reshape(12, 3)
Y = np.arange(12, dtype="int32")

Pair = collections.namedtuple("Pair", ["first", "second"])
Three = collections.namedtuple("Three", ["first", "second", "third"])


def pipeline(returned, size=4, mode=TRAIN, plan=None, **settings):
    """A pipeline over the result of one input_fn call."""
    request = InputRequest(
        mode=mode,
        plan=plan or undivided(size),
        params_for=functools.partial(with_additional, {}),
        **{"capacity": 100} | settings,
    )
    return Pipeline(lambda params: returned, request)


def split(size):
    """The plan of a call whose batches are divided between two cores."""
    way = kte.InputPipelineConfig.PER_HOST_V1
    return input_plan(TRAIN, way, Topology(2), size)


def taken(pipe, steps=2):
    """Returns all stacks until the end of the input."""
    with pipe:
        return list(iter(lambda: pipe.take(steps), None))


def rows(batches, of=lambda batch: batch.features):
    """The examples of stacks in order."""
    parts = [step for batch in batches for step in of(batch)]
    return np.concatenate(parts)


def generator(x=X, y=Y, size=4):
    for start in range(0, len(x), size):
        yield x[start : start + size], y[start : start + size]


def dataset(size=4, drop=False, x=X, y=Y):
    return tf.data.Dataset.from_tensor_slices((x, y)).batch(size, drop)


class OwnTensor:
    """A tensor of another library that implements NumPy's protocol."""

    def __init__(self, value):
        self._value = value

    def __array__(self, dtype=None, copy=None):
        return np.array(self._value, dtype)


class OwnLoader:
    """An iterable that is not an iterator, like data loaders."""

    def __iter__(self):
        for x, y in generator():
            yield OwnTensor(x), OwnTensor(y)


class OldSequence:
    """An iterator written by hand."""

    def __init__(self):
        self._batches = list(generator())

    def __iter__(self):
        return self

    def __next__(self):
        if not self._batches:
            raise StopIteration
        return self._batches.pop(0)


STREAMS = {
    "dataset, sizes unknown": dataset,
    "dataset, fixed shapes": lambda: dataset(drop=True),
    "dataset of version 1": lambda: tf.compat.v1.data.Dataset.from_tensor_slices(
        (X, Y)
    ).batch(4),
    "dataset of version 1, fixed shapes": lambda: (
        tf.compat.v1.data.Dataset.from_tensor_slices((X, Y)).batch(4, True)
    ),
    "generator": generator,
    "map": lambda: map(lambda pair: pair, generator()),
    "iterable": OwnLoader,
    "iterator": OldSequence,
}


@pytest.mark.parametrize("chunk", [1, 2])
@pytest.mark.parametrize("make", STREAMS.values(), ids=STREAMS)
def test_streams_keep_their_order_and_lose_nothing(make, chunk):
    batches = taken(pipeline(make(), chunk=chunk))
    assert [batch.steps for batch in batches] == [2, 1]
    assert [batch.examples for batch in batches] == [4, 4]
    np.testing.assert_array_equal(rows(batches), X)
    labels = rows(batches, lambda batch: batch.labels)
    np.testing.assert_array_equal(labels, Y)
    assert labels.dtype == np.int32


@pytest.fixture(autouse=True)
def stack_short_datasets(monkeypatch):
    """Makes short datasets be read like long ones."""
    monkeypatch.setattr(datasets, "_WORTH_STACKING", 0)


@pytest.mark.parametrize(
    ("make", "stackable"),
    [
        (lambda: dataset(drop=True), True),
        (dataset, True),
        (lambda: dataset(drop=True).repeat(), True),
        (lambda: dataset(drop=True, x=Y.astype(str)), False),
        (lambda: tf.data.Dataset.from_tensors((X, np.float32(0))), False),
        (lambda: tf.data.Dataset.from_tensors((X, Y[:3])), False),
        (lambda: tf.data.Dataset.from_tensors((X, None)), False),
    ],
)
def test_batches_that_differ_only_in_size_are_stacked(make, stackable):
    assert datasets.can_be_stacked(make()) == stackable


def test_short_dataset_is_not_stacked_by_tensorflow(monkeypatch):
    monkeypatch.setattr(datasets, "_WORTH_STACKING", 4)
    assert not datasets.can_be_stacked(dataset())
    assert datasets.can_be_stacked(dataset().repeat(2))
    assert datasets.can_be_stacked(dataset().repeat())


@pytest.mark.parametrize("chunk", [2, 3, 7])
@pytest.mark.parametrize("sizes", [[4, 4, 4], [5, 5, 2], [2, 4, 4, 1, 1], [1] * 11])
def test_batches_of_any_sizes_are_stacked(sizes, chunk):
    bounds = np.cumsum([0, *sizes])
    data = tf.data.Dataset.from_generator(
        lambda: ((X[a:b], Y[a:b]) for a, b in itertools.pairwise(bounds)),
        output_signature=(
            tf.TensorSpec((None, 3), tf.float32),
            tf.TensorSpec((None,), tf.int32),
        ),
    )
    assert datasets.can_be_stacked(data)
    batches = taken(pipeline(data, None, chunk=chunk, checks_size=False), chunk)
    examples = [b.examples for b in batches for _ in range(b.steps)]
    assert examples == sizes
    np.testing.assert_array_equal(rows(batches), X[: sum(sizes)])
    labels = rows(batches, lambda batch: batch.labels)
    np.testing.assert_array_equal(labels, Y[: sum(sizes)])


def test_batches_of_a_known_size_are_not_copied_from_tensorflow():
    data = dataset(drop=True).repeat(8).take(22)
    batches = taken(pipeline(data, chunk=5, repeat=False), 5)
    assert [batch.steps for batch in batches] == [5, 5, 5, 5, 2]
    np.testing.assert_array_equal(rows(batches), np.tile(X, (8, 1))[: 22 * 4])
    for batch in batches:
        assert batch.may_stay
        assert not batch.features.flags.writeable


@pytest.mark.parametrize(("columns", "stacked"), [(2**14, True), (2**14 + 1, False)])
def test_tensorflow_stacks_no_large_batches(columns, stacked):
    x = np.zeros((16, columns), "float32")
    source = datasets.Dataset(tf.data.Dataset.from_tensor_slices(x).batch(4))
    assert bool(source.stacked_for(2, 4, StackSize())) == stacked


def test_batches_of_a_stack_are_not_prefetched_separately():
    data = dataset(drop=True).prefetch(3).prefetch(tf.data.AUTOTUNE)
    ahead = taken(pipeline(data, chunk=2, repeat=False))
    at_once = taken(pipeline(dataset(drop=True), chunk=2, repeat=False))
    np.testing.assert_array_equal(rows(ahead), rows(at_once))
    variant = tf.data.experimental.to_variant(datasets._stack(data, 2))
    graph = tf.raw_ops.DatasetToGraphV2(input_dataset=variant).numpy()
    assert b"BatchDataset" in graph and b"PrefetchDataset" not in graph


def test_only_the_end_of_a_dataset_is_inspected():
    plain = dataset()
    assert without_prefetch(plain) is plain
    assert without_prefetch(plain.prefetch(1).prefetch(2)) is plain
    mapped = plain.prefetch(1).map(lambda x, y: (x, y))
    assert without_prefetch(mapped) is mapped


def test_dataset_of_large_batches_is_not_copied():
    data = dataset(drop=True).repeat(3)
    # The limit is less than two batches of 4 rows of 3 floats and an integer.
    request = {"chunk": 4, "stack_size": StackSize(100), "repeat": False}
    batches = taken(pipeline(data, **request), 4)
    assert [batch.steps for batch in batches] == [1] * len(batches)
    np.testing.assert_array_equal(rows(batches), np.tile(X, (3, 1)))
    assert not any(batch.features.flags.writeable for batch in batches)


@pytest.mark.parametrize("chunk", [1, 4])
def test_user_arrays_are_copied_before_the_next_batch(chunk):
    def filled():
        x, y = np.empty((4, 3), "float32"), np.empty(4, "int32")
        for number in range(6):
            x[...] = y[...] = number
            yield x, y

    batches = taken(pipeline(filled(), chunk=chunk, repeat=False), chunk)
    numbers = rows(batches, lambda batch: batch.labels)
    np.testing.assert_array_equal(numbers, np.repeat(np.arange(6), 4))
    np.testing.assert_array_equal(rows(batches)[:, 0], numbers)


def test_one_batch_is_stacked_once():
    with pipeline((X[:4], Y[:4]), chunk=6) as pipe:
        first, second = pipe.take(6), pipe.take(6)
    assert first.features.ctypes.data == second.features.ctypes.data
    np.testing.assert_array_equal(rows([first]), np.tile(X[:4], (6, 1)))


def test_stacked_batches_of_different_lengths_are_named():
    data = tf.data.Dataset.from_generator(
        lambda: iter([(X[:4], Y[:4]), (X[:4], Y[:3]), (X[:4], Y[:5])]),
        output_signature=(
            tf.TensorSpec((None, 3), tf.float32),
            tf.TensorSpec((None,), tf.int32),
        ),
    )
    with pipeline(data, chunk=3) as pipe:
        with pytest.raises(ValueError, match="4 for features, but 3 for label"):
            taken(pipe, 3)


@pytest.mark.parametrize("drop", [False, True])
@pytest.mark.parametrize("chunk", [2, 3, 5, 20])
def test_any_number_of_steps_can_be_taken(drop, chunk):
    wanted = [1, 4, 2, 5]
    with pipeline(dataset(size=1, drop=drop), size=1, chunk=chunk) as pipe:
        batches = [pipe.take(steps) for steps in wanted]
        assert [batch.steps for batch in batches] == wanted
        assert pipe.take(1) is None
        assert pipe.take(3) is None
    np.testing.assert_array_equal(rows(batches), X)


@pytest.mark.parametrize("make", [generator, dataset])
def test_smaller_last_batch_is_a_separate_stack(make):
    batches = taken(pipeline(make(size=5), size=5, chunk=4), steps=4)
    shapes = [batch.features.shape for batch in batches]
    assert shapes == [(2, 5, 3), (1, 2, 3)]
    np.testing.assert_array_equal(rows(batches), X)


def test_bytes_of_a_stack_are_limited():
    # Eight batches of 3 floats and an integer.
    limited = pipeline(
        generator(size=1), size=1, chunk=12, stack_size=StackSize(8 * 16)
    )
    assert [batch.steps for batch in taken(limited, steps=12)] == [6, 6]
    limited = pipeline(generator(), chunk=3, stack_size=StackSize(2 * 4 * 16))
    assert [batch.steps for batch in taken(limited, steps=3)] == [1, 1, 1]


@pytest.mark.parametrize(
    ("features", "labels"),
    [
        ({"b": X, "a": {"c": Y}}, Y),
        (X, {"one": Y, "two": (X, Y)}),
        ((X, (Y, X)), None),
        (Pair(X, {"inner": Pair(Y, X)}), Pair(Y, Y)),
        ([X, Y], (Y,)),
    ],
)
def test_pytrees_keep_their_structure(features, labels):
    with pipeline((features, labels), size=12) as pipe:
        batch = pipe.take(1)
    assert_same_pytree(batch.features, features)
    assert_same_pytree(batch.labels, labels)


def assert_same_pytree(stacked, nest):
    assert type(stacked) is type(nest)
    if isinstance(nest, dict):
        assert list(stacked) == sorted(nest)
        nest, stacked = (
            [each[name] for name in sorted(nest)] for each in (nest, stacked)
        )
    if isinstance(nest, tuple | list):
        assert len(stacked) == len(nest)
        for left, right in zip(stacked, nest, strict=True):
            assert_same_pytree(left, right)
    elif nest is not None:
        np.testing.assert_array_equal(stacked, nest[None])


@pytest.mark.parametrize("chunk", [1, 2])
def test_pytrees_of_a_dataset_keep_their_structure(chunk):
    nest = ({"pair": Pair(X, Y), "x": X}, {"label": Y})
    data = tf.data.Dataset.from_tensor_slices(nest).batch(12, True)
    with pipeline(data, size=12, chunk=chunk) as pipe:
        batch = pipe.take(1)
    assert_same_pytree(batch.features, nest[0])
    assert_same_pytree(batch.labels, nest[1])


FEATURES_ONLY = {
    "array": X,
    "dict": {"x": X},
    "generator": (x for x in [X]),
    "dataset": tf.data.Dataset.from_tensors(X),
    "dataset of dicts": tf.data.Dataset.from_tensors({"x": X}),
    "pair with None": (X, None),
    "dataset with None": tf.data.Dataset.from_tensors((X, None)),
}


@pytest.mark.parametrize("name", FEATURES_ONLY)
def test_only_features_mean_no_labels(name):
    returned = FEATURES_ONLY[name]
    with pipeline(returned, size=12) as pipe:
        batch = pipe.take(1)
    assert batch.labels is None


PAIRS = {
    "tuple": lambda: (X, Y),
    "list": lambda: [X, Y],
    "named tuple": lambda: Pair(X, Y),
    "generator of tuples": lambda: iter([(X, Y)]),
    "generator of lists": lambda: iter([[X, Y]]),
    "generator of named tuples": lambda: iter([Pair(X, Y)]),
    "dataset": lambda: tf.data.Dataset.from_tensors((X, Y)),
    "dataset of named tuples": lambda: tf.data.Dataset.from_tensors(Pair(X, Y)),
}


@pytest.mark.parametrize("chunk", [1, 2])
@pytest.mark.parametrize("make", PAIRS.values(), ids=PAIRS)
def test_pairs_are_features_and_labels(make, chunk):
    with pipeline(make(), size=12, chunk=chunk) as pipe:
        batch = pipe.take(1)
    np.testing.assert_array_equal(batch.features, X[None])
    np.testing.assert_array_equal(batch.labels, Y[None])


@pytest.mark.parametrize("chunk", [1, 2])
@pytest.mark.parametrize(
    ("make", "received"),
    [
        (lambda: (X, Y, Y), "tuple of length 3"),
        (lambda: [X, Y, Y], "list of length 3"),
        (lambda: Three(X, Y, Y), "Three of length 3"),
        (lambda: iter([(X, Y, Y)]), "tuple of length 3"),
        (lambda: iter([[X]]), "list of length 1"),
        (lambda: tf.data.Dataset.from_tensors((X, Y, Y)), "tuple of length 3"),
    ],
)
def test_tuples_of_one_or_three_are_an_error(make, received, chunk):
    expected = pytest.raises(ValueError, match=f"length 2.*Received a {received}")
    with expected, pipeline(make(), size=12, chunk=chunk) as pipe:
        pipe.take(1)


@pytest.mark.parametrize("empty", [{}, ([], Y), ({}, Y), None])
def test_missing_features_are_an_error(empty):
    with pipeline(empty) as pipe:
        with pytest.raises(ValueError, match="at least one feature"):
            pipe.take(1)


def test_arrays_are_repeated_on_request():
    with pipeline((X, Y), size=12, repeat=True) as pipe:
        for steps in (3, 2):
            batch = pipe.take(steps)
            assert batch.steps == steps
            np.testing.assert_array_equal(rows([batch]), np.tile(X, (steps, 1)))


def test_arrays_are_read_once_on_request():
    (batch,) = taken(pipeline((X, Y), size=12, repeat=False))
    assert batch.steps == 1
    np.testing.assert_array_equal(batch.features[0], X)


def test_streams_are_never_repeated():
    assert len(rows(taken(pipeline(generator(), repeat=True)))) == 12


def test_arrays_repeat_in_training_and_are_evaluated_once(tmp_path):
    x, y = regression_data(examples=16)
    estimator = estimator_of(model_fn_of(linear), tmp_path)
    estimator.train(lambda params: (x, y), steps=6)
    assert estimator.get_variable_value("global_step") == 6
    once = estimator.evaluate(lambda params: (x, y))
    thrice = estimator.evaluate(lambda params: (x, y), steps=3)
    np.testing.assert_allclose(once["loss"], thrice["loss"], rtol=1e-6)
    (predictions,) = [list(estimator.predict(lambda params: x))]
    assert len(predictions) == 16


class OwnError(Exception):
    """An error of a user's pipeline."""


def test_errors_of_generators_are_raised_unchanged():
    error = OwnError("no such file")

    def failing():
        yield X[:4], Y[:4]
        yield X[4:8], Y[4:8]
        raise error

    with pipeline(failing(), mode=EVAL) as pipe:
        assert pipe.take(2).steps == 2
        with pytest.raises(OwnError, match="no such file") as info:
            pipe.take(2)
    assert info.value is error
    assert error.__notes__ == [
        "This happened while reading input_fn in mode 'eval', after 2 steps."
    ]


@pytest.mark.parametrize(("drop", "chunk"), [(False, 1), (True, 2)])
def test_errors_of_datasets_are_raised_unchanged(drop, chunk):
    x = np.where(X == X[-1], np.nan, X)
    checked = dataset(drop=drop, x=x).map(
        lambda x, y: (tf.debugging.check_numerics(x, "spoiled"), y)
    )
    with pipeline(checked, chunk=chunk) as pipe:
        assert pipe.take(2).steps == 2
        with pytest.raises(tf.errors.InvalidArgumentError, match="spoiled") as info:
            pipe.take(2)
    assert "mode 'train', after 2 steps" in info.value.__notes__[0]


def test_errors_of_input_fn_itself_are_raised_unchanged():
    def input_fn(params):
        raise OwnError("early")

    request = InputRequest(TRAIN, undivided(4), lambda additional: additional)
    with pytest.raises(OwnError, match="early"):
        Pipeline(input_fn, request)


def test_closing_closes_the_users_generator():
    closed = []

    def watched():
        try:
            yield from generator()
        finally:
            closed.append(True)

    pipe = pipeline(watched())
    pipe.take(1)
    assert not closed
    pipe.close()
    assert closed == [True]


def test_nothing_is_read_after_closing():
    for make in (generator, dataset, lambda: dataset(drop=True)):
        pipe = pipeline(make(), chunk=2)
        pipe.close()
        assert pipe.take(1) is None


TEXT = np.array(["a", "b"])

WRONG_TENSORS = {
    "strings": (
        lambda: ({"name": TEXT}, Y[:2]),
        r"features\['name'\] must contain numbers.*dtype <U1.*Encode strings",
    ),
    "strings of a dataset": (
        lambda: tf.data.Dataset.from_tensors({"name": TEXT}),
        r"features\['name'\] must contain numbers.*dtype object",
    ),
    "labels of strings": (
        lambda: (X[:2], (Y[:2], TEXT)),
        r"labels\[1\] must contain numbers",
    ),
    "scalars": (
        lambda: ({"rate": np.float32(0.5), "x": X[:2]}, Y[:2]),
        r"features\['rate'\] must have the batch as its first axis.*scalar",
    ),
    "scalars of a dataset": (
        lambda: tf.data.Dataset.from_tensors((X[:2], tf.constant(1))),
        "labels must have the batch as its first axis",
    ),
    "different lengths": (
        lambda: ({"a": X[:2], "b": X[:1]}, Y[:2]),
        r"2 for features\['a'\], but 1 for features\['b'\]",
    ),
    "different lengths of labels": (
        lambda: (X[:2], Y[:1]),
        "2 for features, but 1 for labels",
    ),
    "different lengths of a dataset": (
        lambda: tf.data.Dataset.from_tensors((X[:2], Y[:1])),
        "2 for features, but 1 for labels",
    ),
    "larger than asked": (
        lambda: (X[:3], Y[:3]),
        r"batches of at most 2 examples.*Received a batch of 3. Use\s+params",
    ),
    "dataset larger than asked": (
        lambda: dataset(size=3, drop=True),
        "batches of at most 2 examples.*Received a batch of 3",
    ),
}


@pytest.mark.parametrize("chunk", [1, 2])
@pytest.mark.parametrize("name", WRONG_TENSORS)
def test_invalid_tensors_are_named(name, chunk):
    make, message = WRONG_TENSORS[name]
    with pipeline(make(), plan=split(2), chunk=chunk) as pipe:
        with pytest.raises(ValueError, match=message):
            pipe.take(2)


@pytest.mark.parametrize("value", [2**31, -(2**31) - 1, 2**63 - 1])
@pytest.mark.parametrize("make", ["dataset", "generator", "arrays"])
def test_integers_that_devices_would_truncate_are_named(make, value):
    ids = np.arange(8)
    ids[5] = value
    features = {"id": ids, "x": X[:8]}
    returned = {
        "dataset": lambda: (
            tf.data.Dataset.from_tensor_slices(features).repeat(80).batch(8)
        ),
        "generator": lambda: iter([features]),
        "arrays": lambda: features,
    }[make]()
    pipe = pipeline(returned, size=8, repeat=make == "arrays")
    with pytest.raises(ValueError, match=r"features\['id'\].*fit int32.*Hash"):
        taken(pipe)


def test_wide_integers_that_fit_are_accepted():
    ids = np.array([2**31 - 1, -(2**31), 0, 7])
    (batch,) = taken(pipeline(iter([ids, ids])))
    np.testing.assert_array_equal(batch.features, [ids, ids])


@pytest.mark.parametrize("chunk", [1, 2])
def test_lengths_are_also_compared_without_a_batch_size(chunk):
    data = tf.data.Dataset.from_tensors((X[:2], Y[:1]))
    plan = dataclasses.replace(split(2), calls=undivided(None).calls)
    with pipeline(data, plan=plan, chunk=chunk, checks_size=False) as pipe:
        message = r"2 for features, but 1 for label.*with batch\(params"
        with pytest.raises(ValueError, match=message):
            pipe.take(1)


WRONG_LATER_BATCHES = {
    "rank": (
        {"x": X[:4], "y": Y[:4, None]},
        r"features\['y'\] must have the same rank.*int32 of rank 1.*\(4,\) of "
        r"the first.*at step 1: int32 of shape \(4, 1\)\. Reshape it",
    ),
    "dtype": (
        {"x": X[:4].astype("float64"), "y": Y[:4]},
        r"features\['x'\] must have .*float32 of rank 2.*at step 1: float64"
        r".*\. Cast it to one dtype",
    ),
    "structure": (
        {"x": X[:4]},
        r"first: features\['y'\] missing. Yield the same keys",
    ),
    "many": (
        {name: X[:4] for name in "abcxyz"},
        r"features\['c'\] and 1 more in addition",
    ),
    "kind": (
        collections.OrderedDict(x=X[:4], y=Y[:4]),
        r"first: PyTreeDef\(.*\) of type PyTreeDef instead of",
    ),
    "labels": (
        ({"x": X[:4], "y": Y[:4]}, Y[:4]),
        "at step 1 another one",
    ),
    "size": (
        {"x": X[:5], "y": Y[:5]},
        "batches of at most 4 examples.*Received a batch of 5",
    ),
}


@pytest.mark.parametrize("name", WRONG_LATER_BATCHES)
def test_later_batches_must_match_the_first(name):
    later, message = WRONG_LATER_BATCHES[name]
    batches = [{"x": X[:4], "y": Y[:4]}, later]
    with pipeline(iter(batches)) as pipe:
        assert pipe.take(1).steps == 1
        with pytest.raises(ValueError, match=message):
            pipe.take(1)


LENGTHS = [3, 3, 3, 2, 2, 3, 1]


def of_lengths(make):
    """Batches of four rows with changing lengths."""
    batches = [X[:4, :length] + n for n, length in enumerate(LENGTHS)]
    if make == "generator":
        return iter(batches)
    return tf.data.Dataset.from_generator(
        lambda: iter(batches),
        output_signature=tf.TensorSpec((None, None), tf.float32),
    )


@pytest.mark.parametrize("make", ["dataset", "generator"])
@pytest.mark.parametrize("chunk", [1, 3, 5])
def test_batches_are_stacked_while_shapes_are_equal(make, chunk):
    pipe = pipeline(of_lengths(make), chunk=chunk)
    batches = taken(pipe, steps=chunk)
    rows = [batch.step(n) for batch in batches for n in range(batch.steps)]
    assert [row.features.shape for row in rows] == [(4, n) for n in LENGTHS]
    assert [row.features[0, 0] for row in rows] == [*range(len(LENGTHS))]
    runs = [batch.steps for batch in batches]
    alike = [len([*run]) for _, run in itertools.groupby(LENGTHS)]
    assert runs == [min(chunk, left) for n in alike for left in range(n, 0, -chunk)]


@pytest.mark.parametrize("sizes", [(2, 4), (2, 2), (4, 2, 2), (3, 4)])
def test_only_the_last_batch_may_be_smaller(sizes):
    with pytest.raises(ValueError, match="Only the last batch may be smaller"):
        taken(pipeline(X[:size] for size in sizes))


@pytest.mark.parametrize(
    ("mode", "sizes", "warns"),
    [
        (TRAIN, [3], True),
        (TRAIN, [4, 3], False),
        (EVAL, [3], False),
        (PREDICT, [3, 3], False),
    ],
)
def test_first_batch_of_training_that_is_smaller_warns(mode, sizes, warns, caplog):
    taken(pipeline((X[:size] for size in sizes), mode=mode))
    assert ("has 3 examples, fewer than" in caplog.text) is warns


def test_any_sizes_are_accepted_without_a_batch_size():
    sizes = [2, 4, 4, 1]
    made = pipeline((X[:size] for size in sizes), size=None, checks_size=False)
    batches = taken(made)
    shapes = [(batch.steps, batch.examples) for batch in batches]
    assert shapes == [(1, 2), (2, 4), (1, 1)]


@pytest.mark.parametrize(
    "sparse",
    [
        # Missing ids may have another value than zero.
        lambda: tf.sparse.from_dense(np.eye(4, dtype="int32")),
        lambda: tf.sparse.from_dense([["a", ""]] * 4),
        lambda: tf.ragged.constant([[1], [2, 3], [], [4]]),
    ],
)
@pytest.mark.parametrize("chunk", [1, 2])
def test_tensors_must_be_dense(sparse, chunk):
    data = tf.data.Dataset.from_tensors({"x": sparse()})
    with pytest.raises(TypeError, match=r"\['x'\] must be a dense tensor"):
        taken(pipeline(data, chunk=chunk))


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_sparse_floats_have_zeros(dtype):
    x = tf.cast(np.eye(4), dtype)
    # The order of the cells does not matter.
    sparse = tf.sparse.from_dense(x)
    cells, values = sparse.indices[::-1], sparse.values[::-1]
    sparse = tf.SparseTensor(cells, values, sparse.dense_shape)
    data = tf.data.Dataset.from_tensors(({"x": sparse}, [1, 2, 3, 4]))
    (batch,) = taken(pipeline(data))
    found = batch.step(0).features["x"]
    np.testing.assert_array_equal(found.astype("float32"), np.eye(4))


@pytest.mark.parametrize("use_tpu", [False, True])
def test_smaller_last_batch_is_predicted_without_padding(tmp_path, use_tpu):
    x, y = regression_data(examples=21)
    estimator = estimator_of(model_fn_of(linear), tmp_path, use_tpu, batch=8)
    estimator.train(batches_of(x[:16], y[:16]), max_steps=2)
    predictions = list(estimator.predict(batches_of(x)))
    weights, bias = (
        estimator.get_variable_value(f"dense/{name}") for name in ("kernel", "bias")
    )
    np.testing.assert_allclose(
        [each["y"] for each in predictions], x @ weights + bias, rtol=1e-4
    )


def test_one_core_accepts_batches_larger_than_the_batch_size(tmp_path):
    x, y = regression_data(examples=32)
    for use_tpu in (False, True):
        estimator = estimator_of(model_fn_of(linear), tmp_path, use_tpu)
        if use_tpu:
            with pytest.raises(ValueError, match="at most 16 examples"):
                estimator.train(lambda params: (x, y), steps=1)
        else:
            estimator.train(lambda params: (x, y), steps=1)
            assert estimator.get_variable_value("global_step") == 1


@pytest.mark.parametrize("is_generator", [False, True])
def test_missing_batch_size_is_named(is_generator):
    def read(params):
        return X[: params["batch_size"]]

    def generate(params):
        yield read(params)

    request = InputRequest(
        mode=EVAL,
        plan=undivided(None),
        params_for=functools.partial(with_additional, {}),
    )
    with pytest.raises(KeyError) as info:
        Pipeline(generate if is_generator else read, request).take(1)
    assert info.value.__notes__[-1] == (
        "`params` has no 'batch_size' because the estimator has no "
        "`eval_batch_size`. Pass it to the estimator, as in "
        "`eval_batch_size=64`."
    )
