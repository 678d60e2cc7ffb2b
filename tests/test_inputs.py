"""The ways of calling `input_fn`, end to end."""

import numpy as np
import pytest
from helpers import estimator_of
from helpers import linear
from helpers import model_fn_of
from helpers import regression_data

import keras_tpu_estimator as kte
from keras_tpu_estimator.inputs.batch import Example
from keras_tpu_estimator.inputs.sources import StepSource


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


def test_a_limit_of_bytes_ends_a_stack():
    x, _ = regression_data(examples=4)
    source = StepSource((Example(x, None) for _ in range(5)), 2 * x.nbytes)
    assert [source.take(9).steps for _ in range(3)] == [2, 2, 1]
    assert source.take(9) is None


def training_steps(input_fn, model_dir, **settings):
    """What model_fn is given, as a host_call sees it, for two steps."""

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


def test_a_stream_may_fill_the_same_arrays_again(tmp_path):
    def input_fn(params):
        x, y = np.zeros((4, 3), "float32"), np.zeros((4, 1), "float32")
        for number in range(2):
            x[:] = number
            yield x, y

    seen = training_steps(input_fn, tmp_path)
    assert [x.max() for x, _ in seen] == [0, 1]


def test_a_loader_may_make_lists_of_its_pairs(tmp_path):
    x, y = regression_data(examples=4)
    seen = training_steps(lambda params: iter([[x, y], [x, y]]), tmp_path)
    np.testing.assert_array_equal(seen[1][1], y)


def test_predict_fills_up_every_smaller_batch(tmp_path):
    x, _ = regression_data(examples=20)

    def model_fn(features, labels, mode, params):
        return kte.TPUEstimatorSpec(mode, predictions={"x": features})

    estimator = estimator_of(model_fn, tmp_path, use_tpu=True, batch=8)
    stream = [x[:3], x[3:11], x[11:12], x[12:]]
    rows = list(estimator.predict(lambda params: iter(stream)))
    np.testing.assert_array_equal(np.stack([row["x"] for row in rows]), x)


def test_every_batch_on_another_axis_is_shared_evenly(tmp_path):
    x, y = regression_data(examples=12)
    estimator = estimator_of(
        model_fn_of(linear), tmp_path, True, batch_axis=[1, 0]
    )
    with pytest.raises(ValueError, match="along axis 1 of `batch_axis`"):
        estimator.train(lambda params: (x.T, y), steps=1)
