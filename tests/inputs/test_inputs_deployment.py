"""Tests the number, arguments and cores of the calls of `input_fn`."""

import dataclasses
import functools

import keras
import numpy as np
import pytest
from helpers import (
    estimator_of,
    linear,
    model_fn_of,
    regression_data,
    repeated,
    squared_error,
)

import keras_tpu_estimator as kte
from keras_tpu_estimator.base.common.topology import Topology
from keras_tpu_estimator.base.mesh.all_cores import all_cores
from keras_tpu_estimator.engine.device import mode_devices as mode_devices_module
from keras_tpu_estimator.engine.device.mode_devices import ModeDevices
from keras_tpu_estimator.engine.inputs.batch import Batch
from keras_tpu_estimator.engine.inputs.deployment import Deployment, TPUContext
from keras_tpu_estimator.engine.inputs.input_shapes import BatchAxes
from keras_tpu_estimator.engine.inputs.pipeline import Pipeline

TRAIN, EVAL, PREDICT = (
    kte.ModeKeys.TRAIN,
    kte.ModeKeys.EVAL,
    kte.ModeKeys.PREDICT,
)
PER_SHARD, PER_HOST_1, PER_HOST_2, BROADCAST, SLICED = list(kte.InputPipelineConfig)
SIZE = 64
ONE_HOST = Topology(8, 1)
SECOND_OF_TWO = Topology(8, 2, 1)
THIRD_OF_FOUR = Topology(32, 4, 2)
X, Y = regression_data(examples=64)


@pytest.fixture
def on(monkeypatch):
    """Makes placements on simulated cores."""

    def made(topology, way=PER_HOST_1, sliced=False, **settings):
        cores = dataclasses.replace(all_cores(), topology=topology)
        monkeypatch.setattr(mode_devices_module, "all_cores", lambda *_: cores)
        config = kte.TPUConfig(
            per_host_input_for_training=way,
            eval_training_input_configuration=SLICED if sliced else PER_HOST_1,
        )
        defaults = {
            "use_tpu": True,
            "eval_on_tpu": True,
            "batch_sizes": dict.fromkeys((TRAIN, EVAL, PREDICT), SIZE),
            "batch_axis": None,
        }
        config = kte.RunConfig(tpu_config=config)
        return ModeDevices(config, **(defaults | settings))

    return made


def params_of_calls(mode_devices, mode, user_params=None):
    """The params of all input_fn calls in a mode."""
    seen = []

    def input_fn(params):
        seen.append(params)
        return iter(())

    request = mode_devices.request(mode, user_params or {}, repeat=True, chunk=1)
    with Pipeline(input_fn, request):
        return seen


def host_calls(index, total, replicas, size):
    return [(size, index, total, replicas)]


def shard_calls(first, count, total, size):
    return [(size, first + i, total, 1) for i in range(count)]


# The calls, as (batch size, index, total, cores fed).
CALLS = [
    (PER_SHARD, TRAIN, ONE_HOST, shard_calls(0, 8, 8, 8)),
    (PER_SHARD, TRAIN, SECOND_OF_TWO, shard_calls(4, 4, 8, 8)),
    (PER_SHARD, TRAIN, THIRD_OF_FOUR, shard_calls(16, 8, 32, 2)),
    (PER_SHARD, EVAL, ONE_HOST, host_calls(0, 1, 8, 64)),
    (PER_SHARD, EVAL, SECOND_OF_TWO, host_calls(1, 2, 4, 32)),
    (PER_SHARD, EVAL, THIRD_OF_FOUR, host_calls(2, 4, 8, 16)),
    (PER_SHARD, PREDICT, ONE_HOST, host_calls(0, 1, 8, 64)),
    (PER_SHARD, PREDICT, THIRD_OF_FOUR, host_calls(2, 4, 8, 16)),
    *[
        (way, mode, topology, calls)
        for mode in (TRAIN, EVAL, PREDICT)
        for way, topology, calls in (
            (PER_HOST_1, ONE_HOST, host_calls(0, 1, 8, 64)),
            (PER_HOST_1, SECOND_OF_TWO, host_calls(1, 2, 4, 32)),
            (PER_HOST_1, THIRD_OF_FOUR, host_calls(2, 4, 8, 16)),
            (PER_HOST_2, ONE_HOST, host_calls(0, 1, 8, 8)),
            (PER_HOST_2, SECOND_OF_TWO, host_calls(1, 2, 4, 8)),
            (PER_HOST_2, THIRD_OF_FOUR, host_calls(2, 4, 8, 2)),
            (BROADCAST, ONE_HOST, host_calls(0, 1, 8, 64)),
            (BROADCAST, SECOND_OF_TWO, host_calls(0, 1, 8, 64)),
            (BROADCAST, THIRD_OF_FOUR, host_calls(0, 1, 32, 64)),
        )
    ],
]


@pytest.mark.parametrize(("way", "mode", "topology", "expected"), CALLS)
def test_calls_and_batch_sizes(on, way, mode, topology, expected):
    calls = []
    for params in params_of_calls(on(topology, way), mode):
        assert sorted(params) == ["batch_size", "context"]
        device, *call = params["context"].current_input_fn_deployment()
        assert device == f"/replica:0/task:{topology.host_index}/device:CPU:0"
        calls.append((params["batch_size"], *call))
    assert calls == expected


@pytest.mark.parametrize("way", [PER_SHARD, PER_HOST_1, PER_HOST_2, BROADCAST])
def test_sliced_is_for_evaluation_and_prediction(on, way):
    mode_devices = on(ONE_HOST, way, sliced=True)
    for mode in (EVAL, PREDICT):
        (params,) = params_of_calls(mode_devices, mode)
        assert params["batch_size"] == SIZE
        call = params["context"].current_input_fn_deployment()
        assert call[1:] == (0, 1, 8)
        assert mode_devices.layout(mode).is_split
    # The setting does not apply to training.
    plain = params_of_calls(on(ONE_HOST, way), TRAIN)
    sliced = params_of_calls(mode_devices, TRAIN)
    assert [each["batch_size"] for each in sliced] == [
        each["batch_size"] for each in plain
    ]
    assert mode_devices.layout(TRAIN).is_split == (way != BROADCAST)


@pytest.mark.parametrize(
    ("mode", "settings"),
    [
        (TRAIN, {"use_tpu": False}),
        (EVAL, {"use_tpu": False}),
        (PREDICT, {"use_tpu": False}),
        (EVAL, {"eval_on_tpu": False}),
    ],
)
@pytest.mark.parametrize("way", [PER_SHARD, PER_HOST_2, BROADCAST])
def test_one_core_is_called_once_without_a_context(on, mode, settings, way):
    mode_devices = on(ONE_HOST, way, **settings)
    assert params_of_calls(mode_devices, mode) == [{"batch_size": SIZE}]


def test_params_have_no_batch_size_without_one(on):
    mode_devices = on(ONE_HOST, use_tpu=False, batch_sizes=dict.fromkeys((EVAL,), None))
    assert params_of_calls(mode_devices, EVAL, {"rate": 1}) == [{"rate": 1}]


@pytest.mark.parametrize(
    ("mode", "settings"),
    [
        (EVAL, {"use_tpu": False}),
        (PREDICT, {"use_tpu": False}),
        (EVAL, {"eval_on_tpu": False}),
    ],
)
def test_sliced_without_cores_is_an_error(on, mode, settings):
    mode_devices = on(ONE_HOST, sliced=True, **settings)
    with pytest.raises(ValueError, match="only works with use_tpu=True"):
        mode_devices.check(mode)
    mode_devices.check(TRAIN)


@pytest.mark.parametrize("mode", [EVAL, PREDICT])
def test_sliced_batches_are_divisible_by_the_cores(on, mode):
    sizes = dict.fromkeys((EVAL, PREDICT), 12)
    with pytest.raises(ValueError, match="divisible by the number of cores, 8"):
        on(ONE_HOST, sliced=True, batch_sizes=sizes).check(mode)


def test_context_in_input_fn():
    call = Deployment(index=2, total=4, replicas=8, batch_size=16)
    context = TPUContext(THIRD_OF_FOUR, call)
    assert context.num_replicas == 32
    assert context.num_hosts == 4
    assert context.num_of_replicas_per_host == 8
    assert context.current_host == 2
    host = "/replica:0/task:2/device:CPU:0"
    assert context.current_input_fn_deployment() == (host, 2, 4, 8)
    with pytest.raises(RuntimeError, match="must be read in model_fn"):
        _ = context.device_assignment


def test_device_assignment_of_replicas():
    topology = Topology(num_replicas=8, num_hosts=2, host_index=1, cores_per_replica=4)
    assigned = TPUContext(topology).device_assignment
    assert (assigned.num_replicas, assigned.num_cores_per_replica) == (8, 4)
    assert assigned.core_assignment.shape == (8, 4, 1)
    assert assigned.coordinates(replica=5, logical_core=2) == (22,)
    assert assigned.tpu_ordinal(replica=5, logical_core=2) == 6
    assert assigned.host_device(5, 2, job="worker") == (
        "/job:worker/task:1/device:CPU:0"
    )
    assert assigned.tpu_device(5, 2) == "/task:1/device:TPU:6"
    assert assigned.lookup_replicas(task_id=1, logical_core=3) == [4, 5, 6, 7]
    for task_id, core in ((2, 0), (0, 4)):
        with pytest.raises(ValueError, match=f"task_id={task_id}, logical_co"):
            assigned.lookup_replicas(task_id, core)
    assert assigned.topology == topology


def test_context_in_model_fn():
    context = TPUContext(THIRD_OF_FOUR)
    assert context.num_replicas == 32
    assert context.num_hosts == 4
    assert context.num_of_replicas_per_host == 8
    assert context.device_assignment is None
    with pytest.raises(RuntimeError, match="`current_host` must be used in input_fn"):
        _ = context.current_host
    with pytest.raises(RuntimeError, match="deployment` must be used in input_fn"):
        context.current_input_fn_deployment()


@pytest.mark.parametrize("call", [None, Deployment(2, 4, 8, 16)])
def test_devices_of_hosts_and_cores(call):
    context = TPUContext(THIRD_OF_FOUR, call)
    devices = [f"/task:{host}/device:CPU:0" for host in range(4)]
    assert context.device_for_replica(0) == (devices[0], 0)
    assert context.device_for_replica(7) == (devices[0], 7)
    assert context.device_for_replica(21) == (devices[2], 5)
    placed = context.tpu_host_placement_function
    assert placed(host_id=3) == f"/replica:0{devices[3]}"
    assert placed() == f"/replica:0{devices[0]}"


def dataset(size=8):
    import tensorflow as tf

    return tf.data.Dataset.from_tensor_slices((X, Y)).batch(size, True)


def forever(size):
    while True:
        yield X[:size], Y[:size]


def opened(mode_devices, mode, returned):
    request = mode_devices.request(mode, {}, repeat=mode == TRAIN, chunk=2)
    return Pipeline(lambda params: returned(params["batch_size"]), request)


@pytest.mark.parametrize(
    ("way", "mode", "returned", "message"),
    [
        (PER_SHARD, TRAIN, dataset, "PER_SHARD_V1 .*not a Dataset.*Use PER_"),
        *[
            (PER_HOST_2, mode, tensors, "PER_HOST_V2 .*Received: " + name)
            for mode in (TRAIN, EVAL, PREDICT)
            for name, tensors in (
                ("tuple", lambda size: (X[:size], Y[:size])),
                ("ndarray", lambda size: X[:size]),
                ("dict", lambda size: {"x": X[:size]}),
            )
        ],
    ],
)
def test_invalid_results_of_each_setting_are_refused(on, way, mode, returned, message):
    with pytest.raises(TypeError, match=message):
        opened(on(ONE_HOST, way), mode, returned)


@pytest.mark.parametrize(
    ("way", "mode", "returned"),
    [
        (PER_SHARD, TRAIN, lambda size: (X[:size], Y[:size])),
        (PER_SHARD, EVAL, dataset),
        (PER_HOST_1, TRAIN, lambda size: (X[:size], Y[:size])),
        (PER_HOST_1, PREDICT, dataset),
        (PER_HOST_2, TRAIN, dataset),
        (PER_HOST_2, EVAL, lambda size: iter([(X[:size], Y[:size])] * 8)),
        (BROADCAST, EVAL, lambda size: (X[:size], Y[:size])),
        (BROADCAST, TRAIN, dataset),
    ],
)
def test_valid_results_of_each_setting(on, way, mode, returned):
    with opened(on(ONE_HOST, way), mode, returned) as pipe:
        batch = pipe.take(1)
    assert (batch.steps, batch.examples) == (1, 64)


def test_batches_of_a_host_are_distributed_to_its_cores_in_turn(on):
    with opened(on(ONE_HOST, PER_HOST_2), EVAL, dataset) as pipe:
        np.testing.assert_array_equal(pipe.take(2).features, X[None])
        assert pipe.take(2) is None
    # This host has four cores; the two remaining batches form a smaller step.
    half = on(SECOND_OF_TWO, PER_HOST_2)
    batches = [X[start : start + 8] for start in range(0, 48, 8)]
    with opened(half, EVAL, lambda size: iter(batches)) as pipe:
        np.testing.assert_array_equal(pipe.take(9).features[0], X[:32])
        np.testing.assert_array_equal(pipe.take(9).features[0], X[32:48])
        assert pipe.take(9) is None


def test_batches_of_per_core_calls_are_in_order_of_the_cores(on):
    def input_fn(params):
        index = params["context"].current_input_fn_deployment()[1]
        while True:
            yield np.full((params["batch_size"], 1), index)

    request = on(SECOND_OF_TWO, PER_SHARD).request(TRAIN, {}, True, 2)
    request = dataclasses.replace(request, capacity=2)
    with Pipeline(input_fn, request) as pipe:
        features = pipe.take(2).features
    np.testing.assert_array_equal(features[..., 0], [np.repeat([4, 5, 6, 7], 8)] * 2)


def tpu_estimator(model_fn, model_dir, way=PER_HOST_1, sliced=False, **more):
    """An estimator on eight cores with batches of sixteen."""
    config = kte.TPUConfig(
        iterations_per_loop=2,
        per_host_input_for_training=way,
        eval_training_input_configuration=SLICED if sliced else PER_HOST_1,
    )
    return kte.TPUEstimator(
        model_fn,
        config=kte.RunConfig(tpu_config=config, model_dir=str(model_dir)),
        train_batch_size=16,
        eval_batch_size=16,
        predict_batch_size=16,
        **more,
    )


def endless(params):
    return forever(params["batch_size"])


@pytest.mark.parametrize(
    ("way", "sliced", "own"),
    [
        (PER_HOST_1, False, 2),
        (PER_HOST_2, False, 2),
        (BROADCAST, False, 16),
        (BROADCAST, True, 2),
    ],
)
def test_rows_that_model_fn_sees_in_evaluation(tmp_path, way, sliced, own):
    def model_fn(features, labels, mode, params):
        context = params["context"]
        if mode == EVAL:
            seen.append((features.shape[0], params["batch_size"]))
            assert params["use_tpu"] is True
            assert context.num_replicas == 8
            with pytest.raises(RuntimeError, match="must be used in input_fn"):
                context.current_input_fn_deployment()
        return model_fn_of(linear)(features, labels, mode, params)

    seen = []
    estimator = tpu_estimator(model_fn, tmp_path, way, sliced)
    estimator.train(endless, steps=1)
    result = estimator.evaluate(endless, steps=2)
    assert set(seen) == {(own, own)}
    # Each core evaluates the same rows or its own rows.
    rows = slice(2) if way == PER_HOST_2 else slice(16)
    weights = estimator.get_variable_value("dense/kernel")
    bias = estimator.get_variable_value("dense/bias")
    expected = np.mean((X[rows] @ weights + bias - Y[rows]) ** 2)
    np.testing.assert_allclose(result["loss"], expected, rtol=1e-4)


def transposed_model_fn(seen):
    """A model of features and weights with the batch on the last axis."""

    def model_fn(features, labels, mode, params):
        seen.append((features["w"].shape, features["x"].shape, labels.shape))
        x = features["x"].T * features["w"][:, None]
        outputs = keras.layers.Dense(1, kernel_initializer="zeros")(x)
        loss = squared_error(outputs, labels.T)
        train_op = None
        if mode == TRAIN:
            optimizer = kte.CrossShardOptimizer(keras.optimizers.SGD(0.05))
            train_op = optimizer.minimize(loss)
        return kte.TPUEstimatorSpec(mode, loss=loss, train_op=train_op)

    return model_fn


def transposed(params):
    weights = np.ones(16, "float32")
    return {"x": X[:16].T, "w": weights}, Y[:16].T


def test_batch_axes_are_restored_in_model_fn(tmp_path):
    seen = []
    estimator = tpu_estimator(
        transposed_model_fn(seen), tmp_path / "moved", batch_axis=[0, 1, 1]
    )
    estimator.train(transposed, steps=3)
    # Keys of dicts are sorted.
    assert set(seen) == {((2,), (3, 2), (1, 2))}
    plain = tpu_estimator(model_fn_of(linear), tmp_path / "plain")
    plain.train(lambda params: (X[:16], Y[:16]), steps=3)
    np.testing.assert_allclose(
        estimator.get_variable_value("dense/kernel"),
        plain.get_variable_value("dense/kernel"),
        rtol=1e-5,
    )
    np.testing.assert_allclose(
        estimator.evaluate(transposed, steps=1)["loss"],
        plain.evaluate(lambda params: (X[:16], Y[:16]), steps=1)["loss"],
        rtol=1e-4,
    )
    assert set(seen) == {((2,), (3, 2), (1, 2))}
    with pytest.raises(TypeError, match="`batch_axis` must be None for pred"):
        next(estimator.predict(transposed))


WRONG_AXES = {
    "too few": ([1], X.T, "one axis for each tensor.*Expected 2. Received 1"),
    "too many": ([1, 1, 1], X.T, "Expected 2. Received 3"),
    "no such axis": (
        [2, 1],
        X.T,
        r"features must have the axis.*shape \(3, 64\), without axis 2",
    ),
    "not divisible": (
        [1, 1],
        X[:12].T,
        r"features must be divisible by the number of cores, 8, along axis "
        r"1 of `batch_axis`. Received shape \(3, 12\)",
    ),
    "labels not divisible": (
        [0, 1],
        X,
        r"labels must be divisible by the number of cores.*\(3, 12\)",
    ),
}


@pytest.mark.parametrize("mode", [TRAIN, EVAL])
@pytest.mark.parametrize("name", WRONG_AXES)
def test_invalid_batch_axes_are_refused(on, mode, name):
    axes, features, message = WRONG_AXES[name]
    mode_devices = on(ONE_HOST, batch_axis=axes)
    returned = features, X[:12].T
    with opened(mode_devices, mode, lambda size: returned) as pipe:
        with pytest.raises(ValueError, match=message):
            pipe.take(1)


def test_a_host_divides_by_its_own_cores(on):
    mode_devices = on(SECOND_OF_TWO, batch_axis=[1])
    with opened(mode_devices, TRAIN, lambda size: X[:12].T) as pipe:
        assert pipe.take(1).features.shape == (1, 12, 3)


@pytest.mark.parametrize("way", [PER_SHARD, PER_HOST_2, BROADCAST])
def test_other_ways_ignore_batch_axes(on, way):
    # Even the number of axes is ignored.
    mode_devices = on(ONE_HOST, way, batch_axis=[1, 1, 1])
    for mode in (TRAIN, EVAL):
        with opened(mode_devices, mode, forever) as pipe:
            assert pipe.take(1).features.shape == (1, 64, 3)


@pytest.mark.parametrize("settings", [{"use_tpu": False}, {"eval_on_tpu": False}])
def test_one_core_keeps_the_axes(tmp_path, settings):
    def model_fn(features, labels, mode, params):
        seen.append((features["x"].shape, labels.shape, params["batch_size"]))
        return model(features, labels, mode, params)

    def with_rest(params):
        yield transposed(params)
        yield {"x": X[:5].T, "w": np.ones(5, "float32")}, Y[:5].T

    seen = []
    model = transposed_model_fn([])
    estimator = tpu_estimator(model_fn, tmp_path, batch_axis=[0, 1, 1], **settings)
    estimator.train(transposed, steps=1)
    seen.clear()
    loss = estimator.evaluate(with_rest)["loss"]
    assert sorted(set(seen)) == [
        ((3, 5), (1, 5), 5),
        ((3, 16), (1, 16), 16),
    ]
    weights = estimator.get_variable_value("dense/kernel")
    errors = (X @ weights + estimator.get_variable_value("dense/bias") - Y) ** 2
    expected = np.mean([*errors[:16], *errors[:5]])
    np.testing.assert_allclose(loss, expected, rtol=1e-4)


@pytest.mark.parametrize("has_labels", [False, True])
def test_one_core_predicts_with_other_axes(tmp_path, has_labels):
    def model_fn(features, labels, mode, params):
        assert features.shape == (3, 8)
        return kte.TPUEstimatorSpec(mode, {"sum": features.sum(axis=0)})

    def input_fn(params):
        for rows in (slice(8), slice(8, 11)):
            yield (X[rows].T, Y[rows]) if has_labels else X[rows].T

    estimator = estimator_of(model_fn, tmp_path, batch=8, batch_axis=[1, 0])
    rows = [row["sum"] for row in estimator.predict(input_fn)]
    np.testing.assert_allclose(rows, X[:11].sum(axis=1), rtol=1e-5)


def test_axes_are_moved_to_the_front_and_back():
    example = Batch({"a": X.T, "b": X}, Y)
    axes = BatchAxes([-1, 0, 0])
    moved = axes.to_front(example)
    np.testing.assert_array_equal(moved.features["a"], X)
    features, labels = axes.from_front(moved.features, moved.labels)
    np.testing.assert_array_equal(features["a"], X.T)
    np.testing.assert_array_equal(features["b"], X)
    np.testing.assert_array_equal(labels, Y)


@pytest.mark.parametrize("use_tpu", [False, True])
@pytest.mark.parametrize("mode", [TRAIN, EVAL, PREDICT])
def test_input_fn_receives_params(on, use_tpu, mode):
    mode_devices = on(ONE_HOST, use_tpu=use_tpu)
    request = mode_devices.request(mode, {}, repeat=True, chunk=1)
    for input_fn in (
        lambda: X,
        lambda config: X,
        lambda features: X,
        functools.partial(lambda params: X, params={}),
    ):
        with pytest.raises(ValueError, match="must take an argument `params"):
            Pipeline(input_fn, request)


def test_input_fn_must_be_a_function(on):
    request = on(ONE_HOST).request(TRAIN, {}, repeat=True, chunk=1)
    with pytest.raises(TypeError, match="Pass the function itself"):
        Pipeline(X, request)


@pytest.mark.parametrize("use_tpu", [False, True])
@pytest.mark.parametrize("mode", [TRAIN, EVAL, PREDICT])
def test_input_fn_receives_the_arguments_that_it_names(on, use_tpu, mode):
    seen = []

    def input_fn(mode, config, params, input_context, other="default"):
        seen.append((mode, config.tpu_config, input_context, other))
        assert config is not mode_devices.config
        return X

    mode_devices = on(ONE_HOST, use_tpu=use_tpu)
    request = mode_devices.request(mode, {}, repeat=True, chunk=1)
    Pipeline(input_fn, request)
    assert seen == [(mode, mode_devices.config.tpu_config, None, "default")]


def test_unknown_required_argument_raises_pythons_error(on):
    request = on(ONE_HOST).request(TRAIN, {}, repeat=True, chunk=1)
    with pytest.raises(TypeError, match="missing 1 required.*'data_dir'"):
        Pipeline(lambda params, data_dir: X, request)


class Reader:
    """An input_fn that is an object or a method."""

    def __call__(self, params, mode):
        return self.read(params, mode)

    def read(self, params, mode):
        assert (params["batch_size"], mode) == (SIZE, EVAL)
        return X


def read(data, params, mode="unset"):
    assert (params["batch_size"], mode) == (SIZE, EVAL)
    return data


def read_in_own_mode(params, mode):
    assert mode == "own"
    return X


@pytest.mark.parametrize(
    "input_fn",
    [
        Reader(),
        Reader().read,
        functools.partial(read, X),
        functools.partial(read, data=X),
        # Bound arguments keep their values.
        functools.partial(read_in_own_mode, mode="own"),
    ],
)
def test_any_callable_is_accepted(on, input_fn):
    request = on(ONE_HOST).request(EVAL, {}, repeat=False, chunk=1)
    with Pipeline(input_fn, request) as pipe:
        np.testing.assert_array_equal(pipe.take(1).features, X[None])


def test_params_are_copied_deeply_for_each_call(on):
    user_params = {"layers": [1], "batch_size": "own"}

    def input_fn(params):
        assert params["layers"] == [1]
        params["layers"].append(2)
        params["new"] = True
        return X[: params["batch_size"]], Y[: params["batch_size"]]

    mode_devices = on(ONE_HOST, PER_SHARD)
    for mode in (TRAIN, EVAL):
        request = mode_devices.request(mode, user_params, repeat=True, chunk=1)
        Pipeline(input_fn, request)
    assert user_params == {"layers": [1], "batch_size": "own"}


@pytest.mark.parametrize("use_tpu", [False, True])
def test_changed_params_do_not_reach_model_fn(tmp_path, use_tpu):
    def input_fn(params):
        params["layers"].append(2)
        batches = repeated(X, Y)(dict(params))
        params["batch_size"] = 1
        return batches

    def model_fn(features, labels, mode, params):
        assert params["layers"] == [1]
        assert params["batch_size"] == (2 if use_tpu else 16)
        assert params["use_tpu"] is use_tpu
        assert ("context" in params) is use_tpu
        params["layers"].clear()
        return model_fn_of(linear)(features, labels, mode, params)

    estimator = estimator_of(model_fn, tmp_path, use_tpu, params={"layers": [1]})
    estimator.train(input_fn, steps=1)
    estimator.evaluate(input_fn, steps=1)
    assert estimator.params == {"layers": [1]}
