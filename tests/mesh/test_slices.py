"""Tests that training on several TPU slices equals training on one device."""

import jax
import keras
import numpy as np
import pytest
from keras import layers, ops

import keras_tpu_estimator as kte
from keras_tpu_estimator.base.common.machine import Machine
from keras_tpu_estimator.base.mesh.all_cores import all_cores

STEPS, BATCH, SIZE = 8, 16, 128
RNG = np.random.default_rng(0)
X = RNG.normal(size=(40, SIZE)).astype("float32")
Y = RNG.integers(0, 8, 40).astype("int32")


@pytest.fixture(autouse=True)
def slices(monkeypatch):
    """Makes the simulated devices two slices of four."""
    monkeypatch.setattr(
        Machine, "slices", property(lambda self: tuple(d.id // 4 for d in self.devices))
    )


def input_fn(params):
    size = params["batch_size"]
    for start in range(0, 32 * STEPS, size):
        rows = np.arange(start, start + size) % 32
        yield X[rows], Y[rows]


def rest_of_examples(params):
    """Yields 27 examples, with a smaller last batch."""
    for start in range(0, 27, params["batch_size"]):
        rows = slice(start, min(start + params["batch_size"], 27))
        yield X[rows], Y[rows]


def model_fn(features, labels, mode, params):
    hidden = layers.Dense(SIZE, "tanh", name="up")(features)
    hidden = layers.LayerNormalization()(hidden)
    logits = layers.Dense(8, name="out")(hidden)
    if mode == kte.ModeKeys.PREDICT:
        return kte.TPUEstimatorSpec(mode, predictions={"y": logits})
    losses = keras.losses.sparse_categorical_crossentropy(
        labels, logits, from_logits=True
    )
    # With the usual epsilon, Adam divides rounding errors by themselves.
    adam = keras.optimizers.Adam(0.01, epsilon=1e-3, global_clipnorm=0.5)
    loss = ops.mean(losses)
    train_op = None
    if mode == kte.ModeKeys.TRAIN:
        train_op = kte.CrossShardOptimizer(adam).minimize(loss)
    return kte.TPUEstimatorSpec(
        mode, loss=loss, train_op=train_op, eval_metrics=(metric_fn, [losses])
    )


def metric_fn(losses):
    return {"mean": kte.metrics.mean(losses)}


def estimator_of(model_dir, use_tpu=True, tpu=None, **config):
    return kte.TPUEstimator(
        model_fn,
        config=kte.RunConfig(
            model_dir=str(model_dir),
            tpu_config=kte.TPUConfig(4, **(tpu or {})),
            tf_random_seed=1,
            **config,
        ),
        use_tpu=use_tpu,
        train_batch_size=BATCH,
        eval_batch_size=BATCH,
        predict_batch_size=BATCH,
    )


def results(estimator):
    """Returns the variables, the evaluation and the predictions after training."""
    estimator.train(input_fn, steps=STEPS)
    names = estimator.get_variable_names()
    found = dict(zip(names, estimator.get_variable_value(names), strict=True))
    evaluation = estimator.evaluate(rest_of_examples)
    found |= {f"evaluation/{name}": value for name, value in evaluation.items()}
    rows = estimator.predict(lambda params: (x for x, _ in rest_of_examples(params)))
    return found | {"predictions": np.stack([row["y"] for row in rows])}


@pytest.fixture(scope="module")
def one(tmp_path_factory):
    return results(estimator_of(tmp_path_factory.mktemp("one"), use_tpu=False))


@pytest.mark.parametrize(
    ("config", "spec"),
    [
        ({}, (None,)),
        ({"fsdp": True}, ("batch",)),
        ({"fsdp": True, "micro_batches": 2, "remat": "full"}, ("batch",)),
        ({"shard_optimizer": True}, (None,)),
        ({"fsdp": True, "tpu": {"num_cores_per_replica": 2}}, ("batch", "model_0")),
    ],
    ids=str,
)
def test_results_are_those_of_one_device(config, spec, one, tmp_path):
    estimator = estimator_of(tmp_path, **config)
    found = results(estimator)
    assert found.keys() == one.keys()
    for name, value in one.items():
        np.testing.assert_allclose(
            found[name], value, rtol=1e-5, atol=1e-5, err_msg=name
        )
    kernel = estimator._context.runtime.values._cached._values["up/kernel"]
    assert kernel.sharding.mesh.axis_names[:2] == ("slice", "batch")
    assert tuple(kernel.sharding.spec) in (spec, () if spec == (None,) else spec)


def test_variables_of_another_number_of_slices_are_restored(monkeypatch, tmp_path):
    first = estimator_of(tmp_path, fsdp=True)
    first.train(input_fn, steps=4)
    monkeypatch.setattr(Machine, "slices", property(lambda self: (0,) * 8))
    second = estimator_of(tmp_path, fsdp=True).train(input_fn, max_steps=STEPS)
    assert second.get_variable_value("global_step") == STEPS


def test_replicas_are_summed_over_slices():
    cores = all_cores()
    assert cores.axis_sizes == (("slice", 2), ("batch", 4))
    total = cores.per_core(lambda x: cores.sum(x), (True,), False)
    assert jax.jit(total)(np.arange(8.0)).tolist() == [28.0]
    index = cores.per_core(lambda: cores.core_index()[None], (), True)
    assert jax.jit(index)().tolist() == [*range(8)]


@pytest.mark.parametrize(
    ("of_devices", "per_replica"),
    [((0, 0, 0, 1, 1), 1), ((1, 1, 0, 0), 1), ((0, 1, 0, 1), 1), ((0, 0, 1, 1), 4)],
)
def test_unequal_slices_are_refused(monkeypatch, of_devices, per_replica):
    monkeypatch.setattr(Machine, "slices", property(lambda self: of_devices))
    machine = Machine(tuple(jax.devices()[: len(of_devices)]))
    with pytest.raises(ValueError, match="equal numbers of devices, in their order"):
        all_cores(per_replica, machine=machine)
