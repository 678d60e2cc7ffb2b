"""Tests that errors suggest the closest known name."""

import inspect
import pickle

import pytest

import keras_tpu_estimator as kte


def model_fn(features, labels, mode, params):
    del features, labels, mode, params


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: kte.TPUConfig(iteration_per_loop=100),
            "arguments of TPUConfig must.*Received: 'iteration_per_loop'. "
            "Did you mean 'iterations_per_loop'?",
        ),
        (
            lambda: kte.RunConfig(save_checkpoint_steps=10),
            "arguments of RunConfig must.*Received: 'save_checkpoint_steps'. "
            "Did you mean 'save_checkpoints_steps'?",
        ),
        (
            lambda: kte.TPUEstimator(model_fn, batch_size=8),
            "arguments of TPUEstimator must.*Received: 'batch_size'. "
            "Did you mean 'eval_batch_size'?",
        ),
        (
            lambda: kte.TPUEstimatorSpec("eval", eval_metric=None),
            "arguments of TPUEstimatorSpec must.*Received: 'eval_metric'. "
            "Did you mean 'eval_metrics'?",
        ),
        (
            lambda: kte.EstimatorSpec("eval", zzz=None),
            r"arguments of EstimatorSpec must.*Received: 'zzz'. Use some of \['mode',",
        ),
        (
            lambda: kte.TrainSpec(model_fn, max_step=3),
            "TrainSpec must.*Received: 'max_step'. Did you mean 'max_steps'?",
        ),
        (
            lambda: kte.EvalSpec(model_fn, throttle_sec=3),
            "EvalSpec must.*'throttle_sec'. Did you mean 'throttle_secs'?",
        ),
    ],
)
def test_misspelt_argument(call, message):
    with pytest.raises(TypeError, match=message):
        call()


def test_misspelt_field():
    with pytest.raises(ValueError, match="Did you mean 'num_shards'"):
        kte.TPUConfig()._replace(num_shard=3)
    with pytest.raises(ValueError, match="Did you mean 'model_dir'"):
        kte.RunConfig().replace(model_di="x")


def test_classes_are_unchanged():
    config = kte.TPUConfig(100)
    assert pickle.loads(pickle.dumps(config)) == config
    assert list(inspect.signature(kte.TPUConfig).parameters)[0] == (
        "iterations_per_loop"
    )
