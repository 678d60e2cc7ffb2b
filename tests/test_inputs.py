"""The ways of calling `input_fn`, end to end."""

import pytest
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
