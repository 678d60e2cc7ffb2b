"""Tests that training with sharded variables equals training on one device."""

import functools
import re

import jax
import keras
import numpy as np
import optax
import pytest
from helpers import slow, some_slow
from jax.sharding import Mesh, PartitionSpec
from keras import layers, ops

import keras_tpu_estimator as kte
from keras_tpu_estimator.base.mesh.replica_context import ReplicaShards
from keras_tpu_estimator.engine.device import shapes

STEPS, BATCH, SIZE = 10, 16, 128
RNG = np.random.default_rng(0)
X = RNG.normal(size=(32, SIZE)).astype("float32")
Y = RNG.integers(0, 8, 32).astype("int32")


def input_fn(params):
    size = params["batch_size"]
    while True:
        for start in range(0, len(X), size):
            yield X[start : start + size], Y[start : start + size]


def mlp(x, is_training):
    hidden = layers.Dense(SIZE, "tanh", name="up")(x)
    hidden = layers.Dense(SIZE, "gelu", name="down")(hidden)
    return layers.Dense(8, name="out")(hidden)


def adam(**settings):
    # With the usual epsilon, Adam divides rounding errors by themselves.
    return keras.optimizers.Adam(0.01, epsilon=1e-3, **settings)


def minimized(loss, optimizer):
    return kte.CrossShardOptimizer(optimizer).minimize(loss)


def clipped(loss, optimizer):
    """A train op of gradients that `model_fn` computes and scales."""
    optimizer = kte.CrossShardOptimizer(optimizer)
    pairs = optimizer.compute_gradients(loss)
    return optimizer.apply_gradients([(0.5 * g, v) for g, v in pairs])


def penalized(loss, optimizer):
    """A train op of a loss that contains gradients."""
    gradients = kte.gradients(loss, kte.trainable_variables())
    gradients = kte.cross_replica_mean(gradients)
    return minimized(loss + 0.1 * sum(ops.sum(g**2) for g in gradients), optimizer)


def averaged(loss, optimizer):
    return [minimized(loss, optimizer), kte.ExponentialMovingAverage(0.9).apply()]


def model_fn_of(network=mlp, make=adam, train_op=minimized):
    def model_fn(features, labels, mode, params):
        logits = ops.cast(network(features, mode == "train"), "float32")
        if mode == kte.ModeKeys.PREDICT:
            return kte.TPUEstimatorSpec(mode, predictions={"y": logits})
        losses = keras.losses.sparse_categorical_crossentropy(
            labels, logits, from_logits=True
        )
        loss = ops.mean(losses)
        op = train_op(loss, make()) if mode == kte.ModeKeys.TRAIN else None
        return kte.TPUEstimatorSpec(mode, loss=loss, train_op=op)

    return model_fn


def estimator_of(model_dir, use_tpu=True, tpu=None, model_fn=None, **config):
    return kte.TPUEstimator(
        model_fn or model_fn_of(),
        config=kte.RunConfig(
            model_dir=str(model_dir),
            tpu_config=kte.TPUConfig(STEPS, **(tpu or {})),
            tf_random_seed=1,
            save_summary_steps=None,
            log_step_count_steps=None,
            **config,
        ),
        use_tpu=use_tpu,
        train_batch_size=BATCH,
        eval_batch_size=BATCH,
        predict_batch_size=BATCH,
    )


def values_of(estimator):
    names = estimator.get_variable_names()
    return dict(zip(names, estimator.get_variable_value(names), strict=True))


def assert_equal(found, expected, tolerance=1e-5):
    assert found.keys() == expected.keys()
    for path, value in expected.items():
        np.testing.assert_allclose(
            found[path], value, rtol=tolerance, atol=tolerance, err_msg=path
        )


def share(estimator, path):
    """Returns the share of a variable that one device holds."""
    value = estimator._context.runtime.values._cached._values[path]
    return value.addressable_shards[0].data.nbytes / value.nbytes


OPTIMIZERS = {
    "sgd": lambda: keras.optimizers.SGD(0.1, momentum=0.9),
    "adam": adam,
    "adamw": lambda: keras.optimizers.AdamW(0.01, epsilon=1e-3),
    "clipped": lambda: adam(global_clipnorm=0.5),
    "ema": lambda: adam(use_ema=True, ema_overwrite_frequency=4),
    "lamb": lambda: kte.optimizers.LAMB(0.02, epsilon=1e-3),
    "lars": lambda: kte.optimizers.LARS(0.1, eeta=0.2),
    "adafactor": lambda: keras.optimizers.Adafactor(0.01),
    "muon": lambda: keras.optimizers.Muon(0.01, adam_lr_ratio=1),
    "sm3": lambda: kte.optimizers.SM3(0.1),
    "optax": lambda: optax.chain(
        optax.clip_by_global_norm(0.5), optax.adamw(0.01, eps=1e-3)
    ),
}


@functools.cache
def on_one_device(folder, make=adam, network=mlp, train_op=minimized):
    estimator = estimator_of(
        folder / str(len(list(folder.iterdir()))),
        use_tpu=False,
        model_fn=model_fn_of(network, make, train_op),
    )
    return values_of(estimator.train(input_fn, steps=STEPS))


@pytest.fixture(scope="module")
def one(tmp_path_factory):
    return functools.partial(on_one_device, tmp_path_factory.mktemp("one"))


@pytest.mark.parametrize(
    "name", some_slow(OPTIMIZERS, OPTIMIZERS.keys() - {"lamb", "muon", "optax"})
)
def test_optimizers_match_one_device(name, one, tmp_path):
    make = OPTIMIZERS[name]
    estimator = estimator_of(tmp_path, model_fn=model_fn_of(make=make), fsdp=True)
    estimator.train(input_fn, steps=STEPS)
    assert share(estimator, "up/kernel") == 1 / 8
    assert share(estimator, "up/bias") == 1
    assert_equal(values_of(estimator), one(make))


@pytest.mark.parametrize(
    "config",
    [
        slow({"micro_batches": 2}),
        {"remat": "full"},
        {"remat": "activations", "micro_batches": 2},
        slow({"tpu": {"num_cores_per_replica": 2}}),
        {"tpu": {"num_cores_per_replica": 2}, "shard_optimizer": True},
        slow({"layout_map": {"up/kernel": (None, "batch")}}),
    ],
    ids=str,
)
def test_options_do_not_change_values(config, one, tmp_path):
    estimator = estimator_of(tmp_path, fsdp=True, **config)
    estimator.train(input_fn, steps=STEPS)
    assert share(estimator, "down/kernel") == 1 / 8
    assert_equal(values_of(estimator), one())


@pytest.mark.parametrize("train_op", [slow(clipped), penalized, slow(averaged)])
@pytest.mark.parametrize("micro_batches", [1, slow(2)])
def test_gradients_in_model_fn_match_one_device(train_op, micro_batches, one, tmp_path):
    model_fn = model_fn_of(train_op=train_op)
    estimator = estimator_of(
        tmp_path, model_fn=model_fn, fsdp=True, micro_batches=micro_batches
    )
    estimator.train(input_fn, steps=STEPS)
    assert_equal(values_of(estimator), one(train_op=train_op))


def with_state(x, is_training):
    """A network with a large variable that `model_fn` assigns."""
    hidden = layers.Dense(SIZE, "tanh", name="up")(x)
    hidden = layers.BatchNormalization()(hidden, training=is_training)
    hidden = layers.Dropout(0.3)(hidden, training=is_training)
    memory = keras.Variable(
        "zeros", (BATCH * SIZE, SIZE), trainable=False, name="memory"
    )
    if is_training:
        mean = ops.cast(ops.mean(hidden), memory.dtype)
        memory.assign(0.9 * memory + mean)
    return layers.Dense(8, name="out")(hidden) + ops.cast(memory[0, 0], x.dtype)


def jitted(x, is_training):
    """A network in JAX, inside `jax.jit`."""

    def init(key):
        keys = jax.random.split(key, 3)
        return [0.1 * jax.random.normal(k, (SIZE, SIZE)) for k in keys]

    @jax.jit
    def apply(weights, x):
        for w in weights:
            x = jax.nn.gelu(x @ w)
        return x[:, :8]

    return apply(kte.jax_params("net", init), x)


@pytest.mark.parametrize(
    ("network", "config"),
    [
        slow(with_state, {}),
        (with_state, {"micro_batches": 2}),
        (mlp, {"dtype_policy": "mixed_bfloat16"}),
        (jitted, {}),
    ],
)
def test_states_and_dtypes_match_data_parallel_training(network, config, tmp_path):
    def trained(name, **fsdp):
        estimator = estimator_of(
            tmp_path / name, model_fn=model_fn_of(network), **config, **fsdp
        )
        return estimator.train(input_fn, steps=STEPS)

    sharded = trained("sharded", fsdp=True)
    shares = {share(sharded, path) for path in sharded.get_variable_names()}
    assert 1 / 8 in shares
    assert_equal(values_of(sharded), values_of(trained("whole")))


def some(x, y=None):
    """An input_fn of 27 examples, with a smaller last batch."""

    def input_fn(params):
        for start in range(0, 27, params["batch_size"]):
            rows = slice(start, min(start + params["batch_size"], 27))
            yield x[rows] if y is None else (x[rows], y[rows])

    return input_fn


def test_evaluation_prediction_export_and_resumption(one, tmp_path):
    def results(estimator):
        loss = estimator.evaluate(some(X, Y))["loss"]
        return loss, np.stack([row["y"] for row in estimator.predict(some(X))])

    read = []

    class Reads(kte.hooks.SessionRunHook):
        def before_run(self, run_context):
            return kte.hooks.SessionRunArgs("up/kernel")

        def after_run(self, run_context, run_values):
            read.append(run_values.results)

    class Assigns(keras.callbacks.Callback):
        def on_train_end(self, logs=None):
            kernel = {v.path: v for v in self.model.variables}["up/kernel"]
            read.append(np.asarray(kernel))
            kernel.assign(2 * kernel)
            kernel.assign(kernel / 2)

    estimator = estimator_of(tmp_path, fsdp=True)
    estimator.train(input_fn, steps=4, hooks=[Reads(), Assigns()])
    unsharded = estimator_of(tmp_path, use_tpu=False)
    for kernel in read[-2:]:
        np.testing.assert_array_equal(kernel, unsharded.get_variable_value("up/kernel"))
    loss, rows = results(estimator)
    expected_loss, expected_rows = results(unsharded)
    np.testing.assert_allclose(loss, expected_loss, rtol=1e-5)
    np.testing.assert_allclose(rows, expected_rows, atol=1e-5)
    # Training continues on one device, and then on all.
    unsharded.train(input_fn, steps=2)
    estimator_of(tmp_path, fsdp=True).train(input_fn, max_steps=STEPS)
    assert_equal(values_of(unsharded), one())


def test_compiled_keras_model_matches_unsharded_training(tmp_path):
    def trained(name, use_tpu, **fsdp):
        keras.utils.set_random_seed(3)
        model = keras.Sequential(
            [
                keras.Input((SIZE,)),
                layers.Dense(SIZE, "tanh", name="up"),
                layers.BatchNormalization(name="norm"),
                layers.Dense(8, name="out"),
            ],
            name="net",
        )
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(adam(), loss, metrics=["accuracy"])
        estimator = kte.from_keras(
            model,
            config=kte.RunConfig(model_dir=str(tmp_path / name), **fsdp),
            use_tpu=use_tpu,
            train_batch_size=BATCH,
            eval_batch_size=BATCH,
        )
        return estimator.train(input_fn, steps=STEPS)

    sharded, whole = trained("sharded", True, fsdp=True), trained("whole", True)
    (kernel,) = {n for n in sharded.get_variable_names() if n.endswith("up/kernel")}
    assert share(sharded, kernel) == 1 / 8
    assert_equal(values_of(sharded), values_of(whole))
    found, expected = (each.evaluate(some(X, Y)) for each in (sharded, whole))
    assert found["accuracy"] == expected["accuracy"]


def test_embedding_tables_are_also_supported(tmp_path):
    tables = kte.experimental
    ids = RNG.integers(0, 40, (32, 3))

    def batches(params):
        size = params["batch_size"]
        while True:
            for start in range(0, len(X), size):
                rows = slice(start, start + size)
                yield {"x": X[rows], "ids": ids[rows]}, Y[rows]

    def network(features, is_training):
        x = ops.concatenate([features["x"], features["ids"]], 1)
        return layers.Dense(8, name="out")(layers.Dense(SIZE, "tanh", name="up")(x))

    def trained(name, **fsdp):
        spec = tables.EmbeddingConfigSpec(
            table_to_config_dict={"table": tables.TableConfig(40, 8)},
            feature_to_config_dict={"ids": tables.FeatureConfig("table")},
            optimization_parameters=tables.AdagradParameters(0.1),
        )
        estimator = kte.TPUEstimator(
            model_fn_of(network),
            config=kte.RunConfig(
                model_dir=str(tmp_path / name), tf_random_seed=1, **fsdp
            ),
            train_batch_size=BATCH,
            embedding_config_spec=spec,
        )
        return estimator.train(batches, steps=STEPS)

    sharded, whole = trained("sharded", fsdp=True), trained("whole")
    assert share(sharded, "up/kernel") == 1 / 8
    assert_equal(values_of(sharded), values_of(whole))


@pytest.mark.usefixtures("forked_trials")
def test_export_contains_complete_variables(tmp_path):
    import tensorflow as tf

    def named(features, is_training):
        return mlp(features["x"], is_training)

    def batches(params):
        return (({"x": x}, y) for x, y in input_fn(params))

    model_fn = model_fn_of(named)
    estimator = estimator_of(tmp_path / "run", model_fn=model_fn, fsdp=True)
    estimator.train(batches, steps=2)
    receiver_fn = kte.export.build_raw_serving_input_receiver_fn(
        {"x": tf.TensorSpec([None, SIZE], tf.float32)}
    )
    path = estimator.export_saved_model(tmp_path / "exports", receiver_fn)
    serve = tf.saved_model.load(path, tags=["serve"]).signatures["serving_default"]
    served = serve(x=tf.constant(X[:5]))["y"].numpy()
    rows = [row["y"] for row in estimator.predict(lambda params: {"x": X[:5]})]
    np.testing.assert_allclose(served, rows, atol=1e-5)


def test_each_variable_is_gathered_twice_and_its_gradient_scattered(tmp_path):
    runtime = estimator_of(tmp_path, fsdp=True)._context.runtime
    stacked = X[None, :BATCH].repeat(STEPS, 0), Y[None, :BATCH].repeat(STEPS, 0)
    step = runtime.prepare("train", X[:BATCH], Y[:BATCH])
    batches = shapes.of_steps(runtime.program.layout("train"), "train", *stacked)
    lowered = runtime.loop.trace(step, batches).lower()
    # The backward pass does not need the first kernel.
    assert lowered.as_text().count('"stablehlo.all_gather"') == 3
    assert lowered.as_text().count('"stablehlo.reduce_scatter"') == 2
    compiled = lowered.compile().as_text()
    reduced = re.findall(r"= (.*) all-reduce\(", compiled)
    assert len(re.findall(r" reduce-scatter\(", compiled)) == 2
    assert reduced
    assert not [each for each in reduced if f"[{SIZE},{SIZE}]" in each]


# With 8 replicas, the shards of the first two are stacked.
GRADIENTS = [((800, 5, 8), 0), ((1008, 24), 0), ((16, 24), 0), ((1024, 24), 0)]
GRADIENTS += [((128,), 0), ((16, 24), 1), ((3, 64, 9), 1)]


@pytest.mark.parametrize(("shape", "dimension"), GRADIENTS)
def test_scatters_in_two_parts_give_the_same_shards(shape, dimension):
    mesh = Mesh(np.array(jax.devices()), ("batch",))
    gradients = np.random.default_rng(0).normal(size=(8, *shape)).astype("float32")

    def scattered(in_two):
        shards = ReplicaShards(("batch",), dimension, in_two=in_two)
        summed = jax.shard_map(
            lambda own: shards.summed(own[0]),
            mesh=mesh,
            in_specs=PartitionSpec("batch"),
            out_specs=shards.spec,
        )
        return jax.jit(summed)(gradients)

    np.testing.assert_allclose(scattered(True), gradients.sum(0), atol=1e-5)
    np.testing.assert_allclose(scattered(True), scattered(False), atol=1e-5)


def test_groups_are_refused(tmp_path):
    def grouped(loss, optimizer):
        groups = [[0, 1, 2, 3], [4, 5, 6, 7]]
        wrapped = kte.CrossShardOptimizer(optimizer, group_assignment=groups)
        return wrapped.minimize(loss)

    model_fn = model_fn_of(train_op=grouped)
    estimator = estimator_of(tmp_path, model_fn=model_fn, fsdp=True)
    with pytest.raises(ValueError, match=r"group_assignment.*fsdp=True"):
        estimator.train(input_fn, steps=1)
