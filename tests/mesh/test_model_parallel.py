"""Tests that a model on several cores equals the model on one core."""

import contextlib
import functools
import re

import jax
import keras
import numpy as np
import pytest
from helpers import batches_of, repeated, slow
from keras import layers, ops
from spread_networks import (
    CLASSES,
    NETWORKS,
    RULES,
    convolutions,
    mlp,
    transformer,
    with_state,
)

import keras_tpu_estimator as kte

BATCH, STEPS, LOOP = 16, 8, 2
V2 = kte.InputPipelineConfig.PER_HOST_V2


def data_for(network):
    rng = np.random.default_rng(0)
    labels = rng.integers(0, CLASSES, 64).astype("int32")
    if network is transformer:
        return rng.integers(0, 96, (64, 12)).astype("int32"), labels
    shape = (16, 12, 3) if network is convolutions else (32,)
    return rng.normal(size=(64, *shape)).astype("float32"), labels


def dense(x, is_training):
    return layers.Dense(CLASSES)(x)


def model_fn_of(network):
    def model_fn(features, labels, mode, params):
        logits = network(features, mode == kte.ModeKeys.TRAIN)
        if mode == kte.ModeKeys.PREDICT:
            return kte.TPUEstimatorSpec(mode, predictions={"y": logits})
        losses = keras.losses.sparse_categorical_crossentropy(
            labels, logits, from_logits=True
        )
        loss = ops.mean(losses)
        if mode == kte.ModeKeys.EVAL:
            metrics = (accuracy, [labels, logits])
            return kte.TPUEstimatorSpec(mode, loss=loss, eval_metrics=metrics)
        optimizer = optimizer_of(network)
        train_op = kte.CrossShardOptimizer(optimizer).minimize(loss)
        return kte.TPUEstimatorSpec(mode, loss=loss, train_op=train_op)

    return model_fn


def optimizer_of(network):
    if network in LARGE:
        return keras.optimizers.SGD(0.1, momentum=0.9)
    # With the usual epsilon, Adam divides rounding errors by themselves.
    return keras.optimizers.Adam(0.01, epsilon=1e-3)


def accuracy(labels, logits):
    classes = ops.argmax(logits, axis=-1)
    return {"accuracy": kte.metrics.accuracy(labels, classes)}


def estimator_of(network, model_dir, cores, tpu=None, **settings):
    """An estimator with a number of cores per replica; `None` for one core."""
    config = kte.RunConfig(
        tpu_config=kte.TPUConfig(LOOP, num_cores_per_replica=cores, **(tpu or {})),
        tf_random_seed=1,
        log_step_count_steps=None,
        save_summary_steps=None,
        model_dir=str(model_dir),
        **settings,
    )
    return kte.TPUEstimator(
        model_fn_of(network),
        config=config,
        use_tpu=cores is not None,
        train_batch_size=BATCH,
        eval_batch_size=BATCH,
        predict_batch_size=BATCH,
    )


def trained(network, model_dir, cores, data=None, hooks=(), named=None, **settings):
    """The estimator after training, its metrics and its predictions.

    The network receives each batch after the function `named`, if it is given.
    """

    def fed(input_fn):
        if named is None:
            return input_fn
        return lambda params: (
            (named(each[0]), each[1]) if isinstance(each, tuple) else named(each)
            for each in input_fn(params)
        )

    x, y = data_for(network) if data is None else data
    estimator = estimator_of(network, model_dir, cores, **settings)
    estimator.train(fed(repeated(x, y)), hooks=list(hooks), steps=STEPS)
    some = 16 if network in LARGE else 27
    metrics = estimator.evaluate(fed(batches_of(x[:some], y[:some])))
    rows = estimator.predict(fed(batches_of(x[:19])))
    return estimator, metrics, np.stack([row["y"] for row in rows])


def assert_equal(trained, other, atol=1e-6):
    first, second = trained[0], other[0]
    names = first.get_variable_names()
    assert names == second.get_variable_names()
    for name, value, expected in zip(
        names,
        first.get_variable_value(names),
        second.get_variable_value(names),
        strict=True,
    ):
        np.testing.assert_allclose(value, expected, atol=atol, err_msg=name)
    for name, value in trained[1].items():
        np.testing.assert_allclose(value, other[1][name], rtol=1e-5)
    np.testing.assert_allclose(trained[2], other[2], atol=2e-5)


@contextlib.contextmanager
def replicas(number):
    """Makes replicas of one core each."""
    devices = keras.distribution.list_devices()[:number]
    keras.distribution.set_distribution(
        keras.distribution.DataParallel(devices=devices, auto_shard_dataset=False)
    )
    try:
        yield
    finally:
        keras.distribution.set_distribution(None)


def per_core(estimator, are_slots):
    """The share of the values that one core holds."""
    values = estimator._context.runtime.values._cached._values
    chosen = [
        value
        for path, value in values.items()
        if value.ndim and path.startswith("adam/") == are_slots
    ]
    own = sum(value.addressable_shards[0].data.nbytes for value in chosen)
    return own / sum(value.nbytes for value in chosen)


@pytest.fixture(scope="module")
def on_one_core(tmp_path_factory):
    """The results of a network on one core."""

    @functools.cache
    def run(network):
        return trained(network, tmp_path_factory.mktemp("one"), None)

    return run


@pytest.fixture(scope="module")
def on_replicas(tmp_path_factory):
    """The results of a network on a number of replicas of one core."""

    @functools.cache
    def run(network, number):
        with replicas(number):
            return trained(network, tmp_path_factory.mktemp("single"), 1)

    return run


@pytest.fixture(scope="module")
def on_cores(tmp_path_factory):
    """The results of a network on replicas of a number of cores."""

    @functools.cache
    def run(network, cores, **settings):
        return trained(
            network,
            tmp_path_factory.mktemp("spread"),
            cores,
            layout_map=NETWORKS[network],
            **settings,
        )

    return run


# With all eight cores there is only one replica.
@pytest.mark.rows(2)
@pytest.mark.parametrize(
    ("network", "cores"),
    [
        *(slow(mlp, 2), (mlp, 4), slow(mlp, 8)),
        *(slow(transformer, cores) for cores in (2, 4)),
        (transformer, 8),
        (convolutions, 2),
        *(slow(convolutions, cores) for cores in (4, 8)),
    ],
)
def test_results_match_one_core(network, cores, on_one_core, on_cores):
    assert_equal(on_cores(network, cores), on_one_core(network))


@pytest.mark.rows(2)
@pytest.mark.parametrize(
    ("cores", "shard_optimizer"),
    [
        *(slow(2, False), (2, True)),
        *((4, False), (4, True)),
        *((8, False), slow(8, True)),
    ],
)
def test_state_matches_the_same_number_of_one_core_replicas(
    cores, shard_optimizer, on_cores, on_replicas
):
    spread = on_cores(with_state, cores, shard_optimizer=shard_optimizer)
    assert_equal(spread, on_replicas(with_state, 8 // cores))


@pytest.mark.slow
def test_single_cores_share_slots(tmp_path, on_one_core):
    spread = trained(mlp, tmp_path, 1, shard_optimizer=True)
    assert_equal(spread, on_one_core(mlp))
    assert per_core(spread[0], are_slots=True) <= 0.14
    assert per_core(spread[0], are_slots=False) == 1


@pytest.mark.parametrize(("shared", "limit"), [(False, 0.27), (True, 0.14)])
def test_share_of_variables_on_one_core(shared, limit, on_cores):
    spread, *_ = on_cores(with_state, 4, shard_optimizer=shared)
    assert per_core(spread, are_slots=False) <= 0.28
    assert per_core(spread, are_slots=True) <= limit


def test_large_variables_are_split_by_default_and_named(tmp_path, caplog):
    def wide(x, is_training):
        return layers.Dense(CLASSES)(layers.Dense(512, name="up")(x))

    x, y = data_for(mlp)
    estimator = estimator_of(wide, tmp_path, 4)
    with caplog.at_level("INFO", "keras_tpu_estimator"):
        estimator.train(repeated(x, y), steps=4)
    split = "such as up/kernel of shape (32, 512) into shards of (32, 128)."
    (line,) = [message for message in caplog.messages if "are split over" in message]
    assert split in line
    assert "dense/kernel" not in caplog.text


def test_keras_distribution_is_used(tmp_path, on_cores):
    spread = on_cores(mlp, 4)
    devices = keras.distribution.list_devices()
    mesh = keras.distribution.DeviceMesh((2, 4), ["batch", "model"], devices)
    rules = keras.distribution.LayoutMap(mesh)
    for pattern, axes in RULES.items():
        rules[pattern] = axes
    keras.distribution.set_distribution(
        keras.distribution.ModelParallel(
            layout_map=rules, batch_dim_name="batch", auto_shard_dataset=False
        )
    )
    try:
        told = trained(mlp, tmp_path, 4)
    finally:
        keras.distribution.set_distribution(None)
    assert_equal(told, spread, atol=0)
    assert per_core(told[0], False) == per_core(spread[0], False) < 0.3


def test_clear_session_between_calls(on_cores):
    spread = on_cores(mlp, 4)
    keras.utils.clear_session()
    x, y = data_for(mlp)
    metrics = spread[0].evaluate(batches_of(x[:27], y[:27]))
    assert metrics == spread[1]


@pytest.mark.rows(1)
@pytest.mark.parametrize(
    "settings",
    [
        {"micro_batches": 2},
        slow({"remat": "full"}),
        {"remat": "activations"},
    ],
)
def test_results_match_one_core_with_options(settings, tmp_path, on_one_core):
    spread = trained(mlp, tmp_path, 4, layout_map=RULES, **settings)
    assert_equal(spread, on_one_core(mlp))


def test_callbacks_read_predict_and_assign(tmp_path):
    class Curious(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            self.model.predict(x[:BATCH], verbose=0)
            self.model.evaluate(x[:BATCH], y[:BATCH], verbose=0)
            if batch >= STEPS // 2:
                self.model.optimizer.learning_rate = 0.005

    x, y = data_for(mlp)
    one = trained(mlp, tmp_path / "one", None, hooks=[Curious()])
    spread = trained(mlp, tmp_path / "spread", 4, hooks=[Curious()], layout_map=RULES)
    assert_equal(spread, one)


def test_training_continues_on_other_numbers_of_cores(tmp_path, on_one_core):
    x, y = data_for(mlp)
    part = STEPS // 4
    for number, cores in enumerate((4, 8, None, 2), 1):
        rules = None if cores is None else RULES
        made = estimator_of(mlp, tmp_path, cores, layout_map=rules)
        made.train(repeated(x, y), max_steps=part * number)
        x, y = (np.roll(values, -part * BATCH, axis=0) for values in (x, y))
    one, *_ = on_one_core(mlp)
    names = one.get_variable_names()
    for value, expected in zip(
        made.get_variable_value(names),
        one.get_variable_value(names),
        strict=True,
    ):
        np.testing.assert_allclose(value, expected, atol=1e-6)


def test_topology_that_model_fn_receives(tmp_path):
    seen = []

    def model_fn(features, labels, mode, params):
        context = params["context"]
        with pytest.raises(RuntimeError, match="num_of_replicas_per_host"):
            _ = context.num_of_replicas_per_host
        assigned = context.device_assignment
        seen.append(
            (
                params["batch_size"],
                context.num_replicas,
                assigned.num_replicas,
                assigned.num_cores_per_replica,
            )
        )
        return model_fn_of(dense)(features, labels, mode, params)

    estimator = kte.TPUEstimator(
        model_fn,
        config=estimator_of(dense, tmp_path, 4).config,
        train_batch_size=BATCH,
    )
    estimator.train(repeated(*data_for(dense)), steps=LOOP)
    assert set(seen) == {(BATCH // 2, 2, 2, 4)}


def test_callbacks_into_python_are_refused(tmp_path):
    def calling(x, is_training):
        x = jax.pure_callback(np.asarray, jax.ShapeDtypeStruct(x.shape, x.dtype), x)
        return mlp(x, is_training)

    x, y = data_for(mlp)
    estimator = estimator_of(calling, tmp_path, 4)
    with pytest.raises(
        NotImplementedError, match=r"call back into Python.*'pure_callback'"
    ):
        estimator.train(repeated(x, y), steps=4)


def test_groups_are_refused(tmp_path):
    def optimizer():
        return keras.optimizers.SGD(0.1)

    def model_fn(features, labels, mode, params):
        loss = ops.mean(mlp(features, True))
        made = kte.CrossShardOptimizer(optimizer(), group_assignment=[[0], [1]])
        return kte.TPUEstimatorSpec(mode, loss=loss, train_op=made.minimize(loss))

    x, y = data_for(mlp)
    estimator = kte.TPUEstimator(
        model_fn,
        config=estimator_of(mlp, tmp_path, 4, layout_map=RULES).config,
        train_batch_size=BATCH,
    )
    with pytest.raises(ValueError, match=r"group_assignment.*replica=4"):
        estimator.train(repeated(x, y), steps=4)


@pytest.mark.parametrize(
    ("rules", "message"),
    [
        (
            {"up": ("model",)},
            r"none: \['up'\]. The paths are .*'up/bias', 'up/k",
        ),
        ({".*kernel": ("model",), "up.*": ()}, "At most one rule"),
        ({"out/bias": ("batch",)}, "must name the axes"),
    ],
)
def test_mismatched_rules_are_refused(rules, message, tmp_path):
    x, y = data_for(mlp)
    estimator = estimator_of(mlp, tmp_path, 4, layout_map=rules)
    with pytest.raises(ValueError, match=message):
        estimator.train(repeated(x, y), steps=4)


def test_rules_need_several_cores(tmp_path):
    x, y = data_for(mlp)
    estimator = estimator_of(mlp, tmp_path, 1, layout_map=RULES)
    with pytest.raises(ValueError, match="Set TPUConfig.num_cores_per_replica"):
        estimator.train(repeated(x, y), steps=4)


# By name, the height of images and the number of shards per dimension.
SHARED = {
    "rows": (32, [1, 4, 1, 1]),
    "uneven_rows": (30, [1, 4, 1, 1]),
    "odd_rows": (321, [1, 4, 1, 1]),
    "tiles": (32, [1, 2, 2, 1]),
}


def networks_of_images(images, is_training):
    """A network for each kind of image."""
    logits = []
    for name in SHARED:
        with keras.name_scope(name):
            logits.append(convolutions(images[name], is_training))
    return ops.stack(logits, axis=1)


# Slow cases are tested without Adam, and without a smaller batch.
LARGE = (transformer, convolutions, networks_of_images)


def shared_by(cores, dims):
    """The settings of cores that share features by the given numbers."""
    return {
        "cores": cores,
        "tpu": {
            "per_host_input_for_training": V2,
            "input_partition_dims": dims,
        },
    }


@pytest.mark.slow
def test_cores_share_inputs(tmp_path):
    rng = np.random.default_rng(0)
    images = {
        name: rng.normal(size=(64, height, 12, 3)).astype("float32")
        for name, (height, _) in SHARED.items()
    }
    labels = rng.integers(0, CLASSES, (64, len(SHARED))).astype("int32")
    dims = {name: dims for name, (_, dims) in SHARED.items()}
    one, shared = (
        trained(
            networks_of_images,
            tmp_path / str(settings["cores"]),
            data=(np.arange(64), labels),
            named=lambda rows: {n: images[n][rows] for n in images},
            **settings,
        )
        for settings in ({"cores": None}, shared_by(4, [dims, None]))
    )
    assert_equal(shared, one)


@pytest.mark.slow
def test_inputs_that_cores_do_not_share(tmp_path, on_one_core):
    def of_halves(halves, is_training):
        return mlp(halves["whole"] + halves["unsaid"], is_training)

    dims = {"whole": [1, 1], "unsaid": None}
    whole = trained(
        of_halves,
        tmp_path,
        data=data_for(mlp),
        named=lambda x: dict.fromkeys(dims, x / 2),
        layout_map=RULES,
        **shared_by(4, [dims, None]),
    )
    assert_equal(whole, on_one_core(mlp))


@pytest.mark.parametrize(
    ("dims", "message"),
    [
        ([{"y": [1, 4]}], "structure of the features"),
        ([[1, 4]], "structure of the features"),
        ([{"x": [1, 4]}, {"l": [1]}], r"Received: {'l': \[1\]} for labels"),
        ([{"x": [0, 4]}], r"1 or more, of each dimension. Received: \[0, 4\]"),
        ([{"x": 4}], r"Received: 4 for features\['x'\]"),
        ([{"x": [1, 2]}], "must be num_cores_per_replica=4, or 1"),
        ([{"x": [1, 4, 1]}], r"for each dimension.*of shape \(8, 32\)"),
    ],
)
def test_mismatched_dims_are_refused(dims, message, tmp_path):
    x, y = data_for(dense)
    estimator = estimator_of(
        lambda features, is_training: dense(features["x"], is_training),
        tmp_path,
        **shared_by(4, dims),
    )
    with pytest.raises(ValueError, match=message):
        estimator.train(
            lambda params: (({"x": a}, b) for a, b in repeated(x, y)(params)),
            steps=LOOP,
        )


def test_only_gradients_of_replicated_variables_are_gathered(tmp_path):
    # No other test has this size.
    def network(x, is_training):
        hidden = layers.Dense(72, name="up")(x)
        return layers.Dense(CLASSES)(layers.LayerNormalization()(hidden))

    rules = {".*up/kernel": (None, "model"), ".*up/bias": ("model",)}
    estimator = estimator_of(network, tmp_path, 8, layout_map=rules)
    estimator.train(repeated(*data_for(network)), max_steps=LOOP)
    programs = (
        executable.hlo_modules()[0]
        for executable in jax.devices()[0].client.live_executables()
    )
    texts = [p.to_string() for p in programs if p.name == "jit_train_steps"]
    (text,) = (each for each in texts if "f32[72]" in each)
    # Gamma and beta have two slots each.
    assert len(re.findall(r"\[72\]\S* all-gather\(", text)) == 2, text
