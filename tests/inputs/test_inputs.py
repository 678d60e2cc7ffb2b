"""Tests the ways of calling `input_fn`, end to end."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tensorflow as tf  # noqa: TID253 - one test uses tf.data
from helpers import estimator_of, linear, model_fn_of, regression_data

import keras_tpu_estimator as kte
from keras_tpu_estimator.engine.device import mode_devices
from keras_tpu_estimator.engine.device.device_loop import DeviceLoop
from keras_tpu_estimator.engine.inputs.batch import Batch
from keras_tpu_estimator.engine.inputs.request import source_of
from keras_tpu_estimator.engine.inputs.stacking import Stack, Stacker, StackSize


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


def stacker_of(steps, stack_size):
    """A stacker of a number of steps of 12 bytes."""
    example = Batch(np.ones((1, 3), "float32"), None)
    return Stacker((Stack.from_batch(example) for _ in range(steps)), stack_size)


@pytest.mark.parametrize(
    ("wanted", "stack_size", "expected"),
    [
        (18, StackSize(9 * 12), [9, 9, 2]),
        (18, StackSize(11), [1] * 20),
        (18, StackSize(7 * 12), [1] * 20),  # So few steps are not worth a copy.
        (12, StackSize(11 * 12), [6, 6, 6, 2]),  # Twelve steps in equal stacks.
        (30, StackSize(1e9), [20]),
        # At least eight, unless these are too large.
        (18, StackSize(7 * 12, most=8 * 12), [6, 6, 6, 2]),
    ],
)
def test_large_loops_are_divided_into_equal_stacks(wanted, stack_size, expected):
    source = stacker_of(20, stack_size)
    taken = list(iter(lambda: source.take(wanted), None))
    assert [batch.steps for batch in taken] == expected
    assert source.take(9) is None


def test_a_loop_larger_than_the_limit_is_one_loop(tmp_path, monkeypatch):
    x, y = regression_data(examples=64)
    losses = []

    class Losses(kte.hooks.SessionRunHook):
        def before_run(self, context):
            return kte.hooks.SessionRunArgs(["loss", "global_step"])

        def after_run(self, context, values):
            losses.append([float(value) for value in values.results])

    # Stacks of all steps of x and y, of eight, and of one.
    for limit in (2**23, 8 * 16 * 4 * 4, 3 * 16 * 4 * 4):
        monkeypatch.setattr(mode_devices, "_ON_CPU", StackSize(limit))
        estimator = estimator_of(
            model_fn_of(linear), tmp_path / str(limit), iterations=9, batch=16
        )
        data = tf.data.Dataset.from_tensor_slices((x, y)).batch(16).repeat()
        estimator.train(lambda params, d=data: d, steps=16, hooks=[Losses()])
    np.testing.assert_allclose(losses[:2], losses[2:4], rtol=1e-6)
    np.testing.assert_allclose(losses[:2], losses[4:], rtol=1e-6)
    assert [step for _, step in losses] == [9, 16] * 3


def training_steps(input_fn, model_dir, **settings):
    """Returns the arguments of model_fn in two steps, from a host_call."""

    def model_fn(features, labels, mode, params):
        spec = model_fn_of(linear)(features, labels, mode, params)
        return kte.TPUEstimatorSpec(
            mode,
            loss=spec.loss,
            train_op=spec.train_op,
            host_call=(lambda x, y: seen.append((x, y)), [features, labels]),
        )

    seen = []
    estimator = estimator_of(model_fn, model_dir, iterations=2, **settings)
    estimator.train(input_fn, steps=2)
    return seen


def test_stream_may_refill_the_same_arrays(tmp_path):
    def input_fn(params):
        x, y = np.zeros((4, 3), "float32"), np.zeros((4, 1), "float32")
        for number in range(2):
            x[:] = number
            yield x, y

    seen = training_steps(input_fn, tmp_path)
    assert [x.max() for x, _ in seen] == [0, 1]


def test_loader_may_yield_pairs_as_lists(tmp_path):
    x, y = regression_data(examples=4)
    seen = training_steps(lambda params: iter([[x, y], [x, y]]), tmp_path)
    np.testing.assert_array_equal(seen[1][1], y)


BATCH_X, BATCH_Y = regression_data(examples=4)
PAIR = (BATCH_X, BATCH_Y)
FEATURES = {"x": BATCH_X}


@pytest.mark.parametrize(
    "batches",
    [[PAIR, PAIR], [PAIR] * 3, [FEATURES, FEATURES], [BATCH_X], []],
    ids=["two pairs", "three pairs", "two dicts", "one array", "nothing"],
)
def test_list_of_batches_is_refused(tmp_path, batches):
    with pytest.raises(
        ValueError,
        match=r"must have length 2.* length \d.* Return iter\(batches\)",
    ):
        training_steps(lambda params: batches, tmp_path)


@pytest.mark.parametrize(
    "pair",
    [
        [BATCH_X, BATCH_Y],
        [FEATURES, {"y": BATCH_Y}],
        [FEATURES, BATCH_Y],
        [(BATCH_X, BATCH_X), BATCH_Y],
    ],
    ids=["arrays", "dicts", "a dict", "a tuple"],
)
def test_list_of_two_is_a_pair(pair):
    (item,) = source_of(pair).items()
    example = Batch.from_value(item)
    assert jax.tree.structure(example.features) == jax.tree.structure(pair[0])
    assert jax.tree.structure(example.labels) == jax.tree.structure(pair[1])


def test_first_batch_of_an_iterator_is_not_repeated(tmp_path):
    make_iterator = tf.compat.v1.data.make_one_shot_iterator
    data = tf.data.Dataset.from_tensor_slices(regression_data(examples=8))

    def input_fn(params):
        return make_iterator(data.batch(4)).get_next()

    estimator = estimator_of(model_fn_of(linear), tmp_path, batch=4)
    for repeating in estimator.train, estimator.evaluate:
        with pytest.raises(TypeError, match="Return the dataset itself"):
            repeating(input_fn, steps=2)
    assert estimator.evaluate(input_fn)["global_step"] == 0


def test_predict_fills_up_every_smaller_batch(tmp_path):
    x, _ = regression_data(examples=20)

    def model_fn(features, labels, mode, params):
        return kte.TPUEstimatorSpec(mode, predictions={"x": features})

    estimator = estimator_of(model_fn, tmp_path, use_tpu=True, batch=8)
    stream = [x[:3], x[3:11], x[11:12], x[12:]]
    rows = list(estimator.predict(lambda params: iter(stream)))
    np.testing.assert_array_equal(np.stack([row["x"] for row in rows]), x)


def test_every_batch_on_another_axis_is_divided_evenly(tmp_path):
    x, y = regression_data(examples=12)
    estimator = estimator_of(model_fn_of(linear), tmp_path, True, batch_axis=[1, 0])
    with pytest.raises(ValueError, match="along axis 1 of `batch_axis`"):
        estimator.train(lambda params: (x.T, y), steps=1)


@pytest.mark.parametrize("mode", ["train", "evaluate"])
def test_few_stacks_of_a_loop_wait_for_the_devices(tmp_path, monkeypatch, mode):
    waiting, losses = [], []
    run = DeviceLoop.run

    def spy(*args, **kwargs):
        waiting.append(sum(not each.rows.is_ready() for each in losses))
        outputs = run(*args, **kwargs)
        losses.append(outputs[2])
        return outputs

    def slow(features, is_training):
        busy = jax.lax.fori_loop(
            0, 20, lambda _, x: jnp.tanh(x @ x), jnp.ones((300, 300))
        )
        return linear(features, is_training) + 0 * busy[0, 0]

    x, y = regression_data(examples=12)
    monkeypatch.setattr(mode_devices, "_ON_CPU", StackSize(4 * 4 * 4))
    monkeypatch.setattr(DeviceLoop, "run", spy)
    estimator = estimator_of(model_fn_of(slow), tmp_path, iterations=6, batch=2)
    getattr(estimator, mode)(
        lambda params: tf.data.Dataset.from_tensor_slices((x, y)).repeat(5).batch(2)
    )
    assert len(waiting) == 30
    assert max(waiting) <= 1
