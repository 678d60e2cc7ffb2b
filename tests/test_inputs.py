"""From `input_fn` to stacked steps: forms, batch sizes, calls, errors."""

import collections
import threading
import time

import numpy as np
import pytest
from helpers import estimator_of
from helpers import linear
from helpers import model_fn_of
from helpers import regression_data

import keras_tpu_estimator as kte
from keras_tpu_estimator.inputs.axes import BatchAxes
from keras_tpu_estimator.inputs.context import Deployment
from keras_tpu_estimator.inputs.context import TPUContext
from keras_tpu_estimator.inputs.deployment import input_plan
from keras_tpu_estimator.inputs.deployment import undivided
from keras_tpu_estimator.inputs.infeed import Infeed
from keras_tpu_estimator.inputs.pipeline import InputRequest
from keras_tpu_estimator.inputs.pipeline import Pipeline
from keras_tpu_estimator.topology import Topology

TRAIN, EVAL = kte.ModeKeys.TRAIN, kte.ModeKeys.EVAL
WAYS = kte.InputPipelineConfig
X = np.arange(20, dtype="float32").reshape(10, 2)
Y = np.arange(10, dtype="int32")
Point = collections.namedtuple("Point", ["x", "y"])


def pipeline_of(returned, mode=EVAL, plan=None, **request):
    """A pipeline over what an input_fn returned; `params` are noted."""
    seen = []

    def input_fn(params):
        seen.append(params)
        return returned() if callable(returned) else returned

    defaults = {"repeat": False, "params_for": lambda more: dict(more)}
    pipeline = Pipeline(
        input_fn,
        InputRequest(
            mode=mode, plan=plan or undivided(4), **(defaults | request)
        ),
    )
    pipeline.seen = seen
    return pipeline


def everything(pipeline, steps=3):
    """All batches of a pipeline: sizes, and the features in order."""
    batches = []
    while (batch := pipeline.take(steps)) is not None:
        batches.append(batch)
    sizes = [(b.steps, b.examples) for b in batches]
    rows = [b.features.reshape(-1, *b.features.shape[2:]) for b in batches]
    return sizes, np.concatenate(rows)


def generator():
    for start in range(0, 10, 4):
        yield X[start : start + 4], Y[start : start + 4]


class Loader:
    """Like a PyTorch DataLoader: iterable, without shape or dtype."""

    def __iter__(self):
        return generator()


def dataset(drop_remainder=False):
    import tensorflow as tf

    slices = tf.data.Dataset.from_tensor_slices((X, Y))
    return slices.batch(4, drop_remainder=drop_remainder)


def old_dataset():
    import tensorflow as tf

    slices = tf.compat.v1.data.Dataset.from_tensor_slices((X, Y))
    return slices.batch(4)


@pytest.mark.parametrize(
    "returned", [generator, Loader, lambda: list(generator()).__iter__()]
)
@pytest.mark.parametrize("make", [None, dataset, old_dataset])
def test_streams_keep_order_and_lose_nothing(returned, make):
    sizes, rows = everything(pipeline_of(make or returned, chunk=3))
    assert sizes == [(2, 4), (1, 2)]
    np.testing.assert_array_equal(rows, X)


@pytest.mark.parametrize("chunk", [1, 2, 3, 5])
@pytest.mark.parametrize("steps", [1, 2, 3, 7])
def test_chunks_of_any_size_serve_any_loop(chunk, steps):
    import tensorflow as tf

    x = np.arange(44, dtype="float32")
    data = tf.data.Dataset.from_tensor_slices(x).batch(4, drop_remainder=True)
    sizes, rows = everything(pipeline_of(data, chunk=chunk), steps)
    assert [s for s, _ in sizes] == [steps] * (11 // steps) + (
        [11 % steps] if 11 % steps else []
    )
    np.testing.assert_array_equal(rows, x)


@pytest.mark.parametrize(
    "data",
    [
        ((X, Y)),
        ({"a": X, "b": {"c": Y}}, (Y, Y)),
        [X, Y],
        Point(X, Y),
        {"a": X},
        X,
    ],
)
def test_arrays_are_one_batch(data):
    batch = pipeline_of(lambda: data, plan=undivided(None)).take(3)
    features, labels = data if type(data) is tuple else (data, None)
    got = [np.asarray(v)[0] for v in _leaves((batch.features, batch.labels))]
    for expected, value in zip(_leaves((features, labels)), got, strict=True):
        np.testing.assert_array_equal(value, expected)
    assert (batch.steps, batch.examples) == (1, 10)


def _leaves(nest):
    import jax

    return jax.tree.leaves(nest)


def test_arrays_are_repeated_if_asked_for():
    pipeline = pipeline_of((X, Y), plan=undivided(None), repeat=True)
    assert [pipeline.take(3).steps for _ in range(5)] == [3] * 5


def test_max_bytes_limits_what_is_stacked():
    sizes, _ = everything(pipeline_of(generator, max_bytes=1))
    assert sizes == [(1, 4), (1, 4), (1, 2)]


BAD = [
    ((X, Y, Y), ValueError, "a tuple of length 2"),
    ({}, ValueError, "at least one feature"),
    ({"name": np.array(["a"] * 10)}, ValueError, r"\['name'\] should hold num"),
    ({"rate": 1.0}, ValueError, r"features\['rate'\].*scalar"),
    ((X, Y[:5]), ValueError, r"10 for features, but 5 for labels"),
    (iter([X[:4], X[:4, :1]]), ValueError, r"features must have a static sha"),
    (iter([X[:4], X[:4].astype("int32")]), ValueError, "Received at step 1"),
    (iter([X[:4], {"x": X[:4]}]), ValueError, "another structure"),
    (iter([X[:5]]), ValueError, "asked for batches of 4"),
    (iter([X[:3], X[:4]]), ValueError, "Only the last batch may be smaller"),
]


@pytest.mark.parametrize(("returned", "error", "message"), BAD)
def test_bad_batches_are_named(returned, error, message):
    size = 4 if hasattr(returned, "__next__") else None
    pipeline = pipeline_of(lambda: returned, plan=undivided(size))
    with pytest.raises(error, match=message):
        everything(pipeline)


def test_ragged_datasets_are_named():
    import tensorflow as tf

    ragged = tf.data.Dataset.from_tensors({"words": tf.ragged.constant([[1]])})
    with pytest.raises(TypeError, match=r"\['words'\] should be a dense"):
        pipeline_of(ragged).take(1)


def test_errors_of_the_users_pipeline_come_as_themselves():
    mine = KeyError("mine")

    def broken():
        yield X[:4]
        raise mine

    pipeline = pipeline_of(broken)
    with pytest.raises(KeyError) as caught:
        pipeline.take(5)
    assert caught.value is mine
    assert "while input_fn was read in mode 'eval'" in mine.__notes__[0]


def test_input_fn_takes_what_it_names_and_may_change_it():
    params = {"size": [1]}

    def input_fn(params, mode, config, input_context=1, other=2):
        assert mode == EVAL and config == "config"
        assert input_context is None and other == 2
        params["batch_size"] = 0
        return X

    request = InputRequest(EVAL, undivided(4), lambda more: params, "config")
    Pipeline(input_fn, request)
    with pytest.raises(ValueError, match="should take an argument `params`"):
        Pipeline(lambda mode: X, request)
    with pytest.raises(TypeError, match="Pass the function itself"):
        Pipeline(X, request)


@pytest.mark.parametrize(
    ("mode", "way", "topology", "calls"),
    [
        # Index, total, cores fed, batch size; 64 examples in all.
        (TRAIN, 1, Topology(8), [(i, 8, 1, 8) for i in range(8)]),
        (EVAL, 1, Topology(8), [(0, 1, 8, 64)]),
        (TRAIN, 2, Topology(8), [(0, 1, 8, 64)]),
        (TRAIN, 2, Topology(8, 2, 1), [(1, 2, 4, 32)]),
        (TRAIN, 3, Topology(8), [(0, 1, 8, 8)]),
        (EVAL, 3, Topology(8, 2, 1), [(1, 2, 4, 8)]),
        (TRAIN, 4, Topology(8), [(0, 1, 8, 64)]),
        (EVAL, 5, Topology(8), [(0, 1, 8, 64)]),
        (TRAIN, 1, Topology(32, 4, 2), [(i, 32, 1, 2) for i in range(16, 24)]),
    ],
)
def test_calls_and_batch_sizes(mode, way, topology, calls):
    plan = input_plan(mode, WAYS(way), topology, 64)
    assert [
        (c.index, c.total, c.replicas, c.batch_size) for c in plan.calls
    ] == calls
    assert plan.is_split == (way != 4)


def test_calls_of_all_cores_are_concatenated():
    plan = input_plan(TRAIN, WAYS.PER_SHARD_V1, Topology(4), 8)
    counter = iter(range(4))
    pipeline = pipeline_of(
        lambda: np.full((2, 1), next(counter)), TRAIN, plan, repeat=True
    )
    batch = pipeline.take(2)
    assert batch.features[..., 0].tolist() == [[0, 0, 1, 1, 2, 2, 3, 3]] * 2
    assert [p["batch_size"] for p in pipeline.seen] == [2] * 4
    contexts = [
        p["context"].current_input_fn_deployment() for p in pipeline.seen
    ]
    assert [c[1:] for c in contexts] == [(i, 4, 1) for i in range(4)]


def test_batches_of_one_host_go_round_the_cores():
    plan = input_plan(EVAL, WAYS.PER_HOST_V2, Topology(4), 8)
    stream = (np.full((2, 1), n) for n in range(6))
    pipeline = pipeline_of(lambda: stream, EVAL, plan)
    assert pipeline.take(1).features[0, :, 0].tolist() == [
        0,
        0,
        1,
        1,
        2,
        2,
        3,
        3,
    ]
    assert pipeline.take(1).features[0, :, 0].tolist() == [4, 4, 5, 5]


def test_forms_that_a_way_forbids():
    per_shard = input_plan(TRAIN, WAYS.PER_SHARD_V1, Topology(4), 16)
    with pytest.raises(TypeError, match="not a Dataset"):
        pipeline_of(dataset, TRAIN, per_shard)
    per_host_v2 = input_plan(TRAIN, WAYS.PER_HOST_V2, Topology(4), 16)
    with pytest.raises(TypeError, match="Dataset or an iterable"):
        pipeline_of((X, Y), TRAIN, per_host_v2)
    with pytest.raises(TypeError, match="`batch_axis` should be None"):
        pipeline_of(X, kte.ModeKeys.PREDICT, axes=BatchAxes([0]))
    with pytest.raises(ValueError, match="one axis for each tensor"):
        pipeline_of((X, Y), axes=BatchAxes([0])).take(1)


def test_the_context_of_both_flavours():
    call = Deployment(index=1, total=2, replicas=4, batch_size=8)
    topology = Topology(8, num_hosts=2, host_index=1)
    outside, inside = TPUContext(topology), TPUContext(topology, call)
    for context in (outside, inside):
        assert (context.num_replicas, context.num_hosts) == (8, 2)
        assert context.num_of_replicas_per_host == 4
        assert context.device_for_replica(5) == (
            context.tpu_host_placement_function(1),
            1,
        )
    assert inside.current_host == 1
    assert inside.current_input_fn_deployment()[1:] == (1, 2, 4)
    assert outside.device_assignment is None
    for name in ("current_host", "current_input_fn_deployment"):
        with pytest.raises(RuntimeError, match="in input_fn only"):
            value = getattr(outside, name)
            value()
    with pytest.raises(RuntimeError, match="in model_fn only"):
        _ = inside.device_assignment


@pytest.mark.parametrize("way", [1, 2, 3, 4])
def test_every_way_trains_on_eight_cores(way, tmp_path):
    x, y = regression_data(examples=16)
    sizes, shapes = [], []

    def input_fn(params):
        size = params["batch_size"]
        sizes.append(size)
        while True:
            yield x[:size], y[:size]

    def model_fn(features, labels, mode, params):
        shapes.append((features.shape[0], params["batch_size"]))
        assert params["context"].num_replicas == 8
        return model_fn_of(linear)(features, labels, mode, params)

    config = kte.RunConfig(
        tpu_config=kte.TPUConfig(per_host_input_for_training=way),
        model_dir=str(tmp_path),
    )
    estimator = kte.TPUEstimator(model_fn, config=config, train_batch_size=16)
    estimator.train(input_fn, steps=2)
    assert sizes == {1: [2] * 8, 2: [16], 3: [2], 4: [16]}[way]
    assert shapes == [(16, 16) if way == 4 else (2, 2)]


def test_batches_on_another_axis(tmp_path):
    x, y = regression_data(examples=16)

    def model_fn(features, labels, mode, params):
        assert features.shape == (3, 2) and labels.shape == (2, 1)
        return model_fn_of(linear)(features.T, labels, mode, params)

    estimator = estimator_of(model_fn, tmp_path, True, batch_axis=[1, 0])
    estimator.train(lambda params: (x.T, y), steps=2)
    plain = estimator_of(model_fn_of(linear), tmp_path / "plain", True)
    plain.train(lambda params: (x, y), steps=2)
    np.testing.assert_allclose(
        estimator.get_variable_value("dense/kernel"),
        plain.get_variable_value("dense/kernel"),
        rtol=1e-6,
    )


def test_infeed_gives_items_before_an_error():
    items = iter([1, 2])
    error = OSError("mine")

    def produce():
        for item in items:
            return item
        raise error

    with Infeed(produce) as infeed:
        assert [next(infeed), next(infeed)] == [1, 2]
        with pytest.raises(OSError) as caught:
            next(infeed)
    assert caught.value is error


def test_infeed_stops_a_full_queue_and_leaves_no_thread():
    before = threading.active_count()
    infeed = Infeed(lambda: 1, depth=2)
    assert next(infeed) == 1
    start = time.monotonic()
    infeed.close()
    assert time.monotonic() - start < 1
    assert threading.active_count() == before
    with pytest.raises(StopIteration):
        next(infeed)
