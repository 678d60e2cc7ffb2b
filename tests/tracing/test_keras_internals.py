"""Tests of the private parts of Keras on which this package relies.

A failure here shows which function of `keras_internals` a new Keras release breaks.
"""

import functools
import inspect
import random
import sys
import threading
import types

import jax
import keras
import numpy as np
import pytest
from keras.src.backend.common import global_state
from keras.src.backend.jax import nn as keras_nn

from keras_tpu_estimator.base.tracing import keras_internals, keras_patches
from keras_tpu_estimator.base.tracing.keras_internals import fresh_names, stored_dtype


def dense_name():
    return keras.layers.Dense(1).name


def uninitialised():
    return global_state.get_global_attribute("uninitialized_variables") or []


def made_without_value():
    with keras.StatelessScope(initialize_variables=False):
        return keras.Variable("zeros", shape=(2,))


def number_of(name):
    return int(name.rpartition("_")[2])


def test_names_are_reset():
    dense_name()
    with fresh_names():
        assert [dense_name(), dense_name()] == ["dense", "dense_1"]
        assert keras.Variable(0.0).name == "variable"
        assert keras.optimizers.SGD().name == "sgd"
    with fresh_names():
        assert dense_name() == "dense"


def test_names_continue_afterwards():
    dense_name()
    before = dense_name()
    with fresh_names():
        for _ in range(5):
            dense_name()
    assert number_of(dense_name()) == number_of(before) + 1


def test_names_continue_after_an_error():
    dense_name()
    before = dense_name()
    with pytest.raises(ZeroDivisionError):
        with fresh_names():
            dense_name()
            raise ZeroDivisionError
    assert number_of(dense_name()) == number_of(before) + 1


def test_name_resets_can_be_nested():
    with fresh_names():
        dense_name()
        with fresh_names():
            assert dense_name() == "dense"
        assert dense_name() == "dense_1"


def test_names_are_reset_in_a_cleared_session():
    with fresh_names():
        keras.backend.clear_session(free_memory=False)
        with fresh_names():
            assert dense_name() == "dense"
        assert dense_name() == "dense"


@pytest.mark.parametrize(
    "taken, names",
    [
        ({}, ["dense", "dense_1"]),
        ({"dense": 1}, ["dense_1", "dense_2"]),
        ({"dense": 3}, ["dense_3", "dense_4"]),
        ({"conv2d": 3}, ["dense", "dense_1"]),
    ],
)
def test_used_names_are_skipped(taken, names):
    given = dict(taken)
    with fresh_names(given):
        assert [dense_name(), dense_name()] == names
    assert given == taken


def test_uninitialised_variables_are_discarded():
    before = list(uninitialised())
    with fresh_names():
        assert uninitialised() == []
        variable = made_without_value()
        assert [id(each) for each in uninitialised()] == [id(variable)]
    assert list(map(id, uninitialised())) == list(map(id, before))


def test_earlier_uninitialised_variables_are_kept():
    with fresh_names():
        outer = made_without_value()
        with fresh_names():
            made_without_value()
        assert [id(each) for each in uninitialised()] == [id(outer)]


def test_uninitialised_variables_of_a_block_stay_uninitialised():
    with fresh_names():
        variable = made_without_value()
    with keras.StatelessScope():
        pass
    assert variable._value is None


class Peeking(keras.layers.Layer):
    """Records the dtypes of its weight during calls."""

    def build(self, shape):
        self.weight = self.add_weight(shape=(shape[-1],), name="weight")

    def call(self, x):
        self.seen = (str(self.weight.dtype), stored_dtype(self.weight))
        return x * self.weight


@pytest.mark.parametrize(
    "policy, seen",
    [
        ("float32", ("float32", "float32")),
        ("mixed_bfloat16", ("bfloat16", "float32")),
        ("mixed_float16", ("float16", "float32")),
        ("bfloat16", ("bfloat16", "bfloat16")),
    ],
)
def test_stored_dtype_ignores_autocast(policy, seen):
    layer = Peeking(dtype=policy)
    layer(np.ones((2, 3), "float32"))
    assert layer.seen == seen
    assert stored_dtype(layer.weight) == str(layer.weight.value.dtype)


def test_stored_dtype_of_variables_without_a_value():
    with fresh_names(), keras.StatelessScope(initialize_variables=False):
        variable = keras.Variable("zeros", shape=(2,), dtype="int32")
        assert stored_dtype(variable) == "int32"


@pytest.fixture
def plain_constructor(monkeypatch):
    """Removes the hooks of other tests for one test."""
    plain = inspect.unwrap(keras.Variable.__init__)
    monkeypatch.setattr(keras.Variable, "__init__", plain)
    return plain


def recorder(calls):
    def wrap(construct, variable, initializer, kwargs):
        calls.append((variable, initializer, kwargs))
        construct(variable, initializer, **kwargs)

    return wrap


def test_keras_constructor_accepts_the_forwarded_arguments(plain_constructor):
    names = list(inspect.signature(plain_constructor).parameters)
    assert names[:5] == ["self", "initializer", "shape", "dtype", "trainable"]


@pytest.mark.usefixtures("plain_constructor")
def test_every_creation_is_seen():
    calls = []
    keras_patches.around_creation(recorder(calls))
    variable = keras.Variable(1.0, name="here")
    layer = keras.layers.Dense(2)
    layer.build((None, 3))
    optimizer = keras.optimizers.SGD(0.1)
    seen = [id(each) for each, _, _ in calls]
    for made in (variable, layer.kernel, layer.bias, optimizer.iterations):
        assert seen.count(id(made)) == 1
    assert calls[0][1:] == (1.0, {"name": "here"})


@pytest.mark.usefixtures("plain_constructor")
def test_positional_arguments_are_named():
    calls = []
    keras_patches.around_creation(recorder(calls))
    variable = keras.Variable("ones", (2, 3), "int32", False, name="here")
    assert calls[0][1:] == (
        "ones",
        {
            "shape": (2, 3),
            "dtype": "int32",
            "trainable": False,
            "name": "here",
        },
    )
    assert variable.shape == (2, 3)
    assert variable.dtype == "int32"
    assert not variable.trainable
    by_name = keras.Variable(initializer="ones", shape=(1,))
    assert calls[-1][:2] == (by_name, "ones")


@pytest.mark.usefixtures("plain_constructor")
def test_creation_hook_is_installed_once():
    first, second = [], []
    keras_patches.around_creation(recorder(first))
    installed = keras.Variable.__init__
    keras_patches.around_creation(recorder(second))
    assert keras.Variable.__init__ is installed
    keras.Variable(1.0)
    assert (len(first), len(second)) == (1, 0)


def test_arguments_of_compile_are_the_same_objects():
    def own(y_true, y_pred):
        return keras.ops.mean(y_true - y_pred, -1)

    metric = keras.metrics.AUC(3)
    model = keras.Sequential([keras.layers.Dense(1)])
    model.compile(
        keras.optimizers.SGD(0.1),
        own,
        loss_weights=0.5,
        metrics=[own, metric],
        weighted_metrics={"y": "mae"},
    )
    said = keras_internals.compile_arguments(model)
    assert said["loss"] is own
    assert said["loss_weights"] == 0.5
    assert said["metrics"][0] is own
    assert said["metrics"][1] is metric
    assert said["weighted_metrics"] == {"y": "mae"}


def default_seed_of_keras():
    return keras.initializers.RandomNormal().seed


def expected_seeds(seed, count):
    generator = random.Random(seed)
    return [generator.randint(1, int(1e9)) for _ in range(count)]


def test_default_seeds_come_from_a_generator():
    with keras_internals.default_seeds(random.Random(3)):
        seeds = [
            default_seed_of_keras(),
            int(keras.random.SeedGenerator().state.value[0]),
            int(keras.layers.Dropout(0.5).seed_generator.state.value[0]),
            keras.initializers.get("glorot_uniform").seed,
        ]
    assert seeds == expected_seeds(3, 4)


def test_default_seeds_come_from_python_otherwise():
    with keras_internals.default_seeds(random.Random(3)):
        pass
    random.seed(5)
    seeds = [default_seed_of_keras() for _ in range(3)]
    assert seeds == expected_seeds(5, 3)


def test_default_seeds_do_not_affect_python_and_other_threads():
    random.seed(5)
    seen = []
    thread = threading.Thread(target=lambda: seen.append(default_seed_of_keras()))
    with keras_internals.default_seeds(random.Random(3)):
        first = default_seed_of_keras()
        thread.start()
        thread.join()
        second = default_seed_of_keras()
    assert [first, second] == expected_seeds(3, 2)
    assert [*seen, default_seed_of_keras()] == expected_seeds(5, 2)


def test_default_seeds_nest_and_end_after_an_error():
    random.seed(5)
    with keras_internals.default_seeds(random.Random(3)):
        with pytest.raises(ZeroDivisionError):
            with keras_internals.default_seeds(random.Random(4)):
                assert default_seed_of_keras() == expected_seeds(4, 1)[0]
                raise ZeroDivisionError
        assert default_seed_of_keras() == expected_seeds(3, 1)[0]
    assert default_seed_of_keras() == expected_seeds(5, 1)[0]


def test_variables_that_an_optimizer_updates():
    variables = [keras.Variable(1.0), keras.Variable(2.0)]
    optimizer = keras.optimizers.Adam()
    assert keras_internals.updated_variables(optimizer) == []
    optimizer.build(variables)
    found = keras_internals.updated_variables(optimizer)
    assert [id(each) for each in found] == [id(each) for each in variables]


def test_masks():
    ids = np.array([[3, 0], [0, 2]])
    embedded = keras.layers.Embedding(4, 2, mask_zero=True)(ids)
    mask = keras_internals.mask_of(embedded)
    np.testing.assert_array_equal(mask, ids != 0)
    assert keras_internals.mask_of(ids) is None
    ones, zeros = np.ones((2, 2), "float32"), np.zeros((2, 2), "float32")
    masked = keras_internals.with_mask(ones * [[9, 0], [0, 1]], mask)
    metric = keras.metrics.MeanAbsoluteError()
    metric.update_state(zeros[..., None], masked[..., None])
    assert float(metric.result()) == 2.5
    metric.reset_state()
    masked = keras_internals.with_mask(masked[..., None], mask)
    metric.update_state(zeros[..., None], masked)
    assert float(metric.result()) == 5.0
    unmasked = keras_internals.with_mask(masked, None)
    assert keras_internals.mask_of(unmasked) is None


def test_assigned_path_is_the_variables_path():
    variable = keras.Variable(1.0, name="before")
    keras_internals.set_path(variable, "after/it")
    assert variable.path == "after/it"
    assert variable.name == "before"


def test_class_can_be_registered_as_a_pytree_node():
    class Pair:
        def __init__(self, *values):
            self.values = values

        def tree_flatten(self):
            return self.values, None

        @classmethod
        def tree_unflatten(cls, metadata, values):
            return tuple(values)

    keras_internals.register_node(Pair)
    assert keras.tree.map_structure(abs, Pair(-1, -2)) == (1, 2)


def test_layout_map_of_a_distribution():
    assert keras_internals.current_layout_map() is None
    devices = keras.distribution.list_devices()
    mesh = keras.distribution.DeviceMesh((2, 4), ["batch", "model"], devices)
    rules = keras.distribution.LayoutMap(mesh)
    keras.distribution.set_distribution(
        keras.distribution.ModelParallel(layout_map=rules)
    )
    try:
        assert keras_internals.current_layout_map() is rules
    finally:
        keras.distribution.set_distribution(None)


def test_variable_can_hold_an_array_of_another_shape():
    variable = keras.Variable("zeros", shape=(3,))
    array = keras.ops.ones(4)
    keras_internals.hold(variable, array)
    assert variable.value is array
    assert variable.shape == (3,)


def jaxpr_of(function, *args):
    # JAX caches the traces of a function.
    return str(jax.make_jaxpr(lambda *args: function(*args))(*args))


def test_functions_are_traced_for_the_given_devices():
    logits = np.ones((2, 3), "float32")

    def argmax(x):
        return keras.ops.argmax(x, -1)

    own = jaxpr_of(argmax, logits)
    with keras_patches.on_platform("tpu"):
        told = jaxpr_of(argmax, logits)
        with keras_patches.on_platform("cpu"):
            assert jaxpr_of(argmax, logits) == own
    # Keras does this for CPUs, which ignore the sign of zero.
    assert "select_n" in own
    assert "select_n" not in told
    assert jaxpr_of(argmax, logits) == own


def test_cudnn_is_only_for_gpus(monkeypatch):
    gpu = types.SimpleNamespace(platform="gpu", process_index=0)
    monkeypatch.setattr(jax, "devices", lambda: [gpu])
    rnn = sys.modules["keras.src.backend.jax.rnn"]
    assert rnn._is_gpu_available()
    with keras_patches.on_platform("gpu"):
        assert rnn._is_gpu_available()
    with keras_patches.on_platform("tpu"):
        assert not rnn._is_gpu_available()


QUERY = np.ones((2, 128, 2, 128), "float32")


def attended(query, **settings):
    return keras.ops.dot_product_attention(query, query, query, **settings)


@pytest.fixture
def finds_a_tpu(monkeypatch):
    """Makes Keras's attention detect a TPU."""

    class Found:
        devices = staticmethod(lambda: [types.SimpleNamespace(platform="tpu")])

        def __getattr__(self, name):
            return getattr(jax, name)

    monkeypatch.setattr(keras_nn, "jax", Found())


def test_keras_flash_attention_is_wrong_on_a_tpu(finds_a_tpu, monkeypatch):
    """If this test fails, Keras's flash attention can be allowed again."""
    kernel = keras_nn.splash_attention_kernel
    make = functools.partial(kernel.make_splash_mha, interpret=True)
    monkeypatch.setattr(kernel, "make_splash_mha", make)
    query = np.random.default_rng(0).normal(size=QUERY.shape)
    query = query.astype("float32")[:1, :, :1]
    found = jax.jit(attended)(query)
    causal = jax.nn.dot_product_attention(
        query, query, query, is_causal=True, scale=1.0
    )
    np.testing.assert_allclose(found, causal, rtol=1e-5, atol=1e-6)


@pytest.mark.usefixtures("finds_a_tpu")
@pytest.mark.parametrize("settings", [{}, {"is_causal": True}, {"scale": 0.5}])
def test_attention_is_the_same_on_a_tpu(monkeypatch, settings):
    function = functools.partial(attended, **settings)
    with keras_patches.on_platform("tpu"):
        told = jaxpr_of(function, QUERY)
    assert "pallas_call" not in told
    monkeypatch.undo()
    assert told == jaxpr_of(function, QUERY)


@pytest.mark.parametrize(
    "settings", [{"flash_attention": True}, {"attn_logits_soft_cap": 5.0}]
)
def test_flash_attention_is_refused_on_a_tpu(finds_a_tpu, settings):
    attention = keras_nn.dot_product_attention
    with keras_patches.on_platform("tpu"):
        with pytest.raises(ValueError, match=f"{[*settings][0]}=.*Omit it"):
            attention(QUERY, QUERY, QUERY, **settings)


def test_block_has_no_distribution():
    devices = keras.distribution.list_devices()
    told = keras.distribution.DataParallel(devices=devices, auto_shard_dataset=False)
    with told.scope():
        with pytest.raises(ZeroDivisionError):
            with keras_internals.without_distribution():
                assert keras.distribution.distribution() is None
                assert keras.Variable(1.0)._layout is None
                raise ZeroDivisionError
        assert keras.distribution.distribution() is told


def test_seed_for_layers():
    with keras_internals.default_seeds(random.Random(3)):
        first = keras_internals.default_seed()
    with keras_internals.default_seeds(random.Random(3)):
        assert keras.initializers.RandomNormal().seed == first


def test_path_of_open_name_scopes():
    with keras.name_scope("a"), keras.name_scope("b"):
        assert keras_internals.name_path() == "a/b"
        assert keras.Variable(0.0, name="c").path == "a/b/c"
    assert keras_internals.name_path() == ""


def test_weights_of_jax_layers_are_named_by_their_leaves():
    params = {"w": np.ones(2), "more": [1.0, "text"]}
    layer = keras.layers.JaxLayer(
        lambda params, state, inputs: (inputs, state),
        params=params,
        state={"w": 0},
    )
    names = [weight.name for weight in layer.weights]
    assert sorted(names) == ["more.0", "state.w", "w"]
    # Outside our traces, Keras still refuses to build one.
    with pytest.raises(ValueError, match="cannot be built in a tracing scope"):
        jax.make_jaxpr(
            lambda x: keras.layers.JaxLayer(
                lambda params, inputs: inputs, lambda rng, inputs: {"w": 0.0}
            )(x)
        )(np.ones((1, 2)))


class Holding(keras.layers.Layer):
    """A layer that uses another layer from its config."""

    def __init__(self, held, **kwargs):
        super().__init__(**kwargs)
        self.held = held

    def call(self, x):
        return self.held(x)

    def get_config(self):
        held = keras.saving.serialize_keras_object(self.held)
        return {**super().get_config(), "held": held}

    @classmethod
    def from_config(cls, config):
        held = keras.saving.deserialize_keras_object(config.pop("held"))
        return cls(held, **config)


def test_model_of_the_same_config_shares_the_same_layers():
    rows = keras.Input((3,))
    dense = keras.layers.Dense(3, name="dense")
    model = keras.Model(rows, Holding(dense, name="holding")(dense(rows)))
    copy = keras_internals.from_own_config(model, {})
    names = [layer.name for layer in keras_internals.layers_of(copy)]
    assert names == [layer.name for layer in keras_internals.layers_of(model)]
    assert {"dense", "holding"} < {*names}
    assert len(copy.variables) == len(model.variables) == 2
    kernel, bias = copy.variables
    assert kernel is not model.variables[0]
    kernel.assign(2 * np.eye(3))
    np.testing.assert_array_equal(
        copy(np.ones((1, 3), "float32")), np.full((1, 3), 4.0)
    )


def test_directions_of_metrics_are_set_for_callbacks():
    metrics = {
        "error": keras.metrics.MeanSquaredError(),
        "fit": keras.metrics.R2Score(),
        "mean": keras.metrics.Mean(),
        "pair": (1.0, 1.0),
    }
    directions = keras_internals.directions_of(metrics)
    assert directions == {"error": "down", "fit": "up"}
    own = keras_internals.directed(directions)
    assert (own.variables, own.result(), own.reset_state()) == ([], {}, None)

    class Watched(keras.Model):
        metrics = [own]

    for name, better in (("error", keras.ops.less), ("fit", keras.ops.greater)):
        stopping = keras.callbacks.EarlyStopping(f"val_{name}")
        stopping.set_model(Watched())
        stopping.on_epoch_end(0, {f"val_{name}": 1.0})
        assert stopping.monitor_op is better


def test_metrics_of_compile_have_their_names():
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse", metrics=["mae"], weighted_metrics=["r2_score"])
    assert keras_internals.metrics_of(model) == {}
    model.fit(np.ones((2, 1)), np.ones((2, 1)), verbose=0)
    assert keras_internals.metrics_of(model).keys() == {"mae", "r2_score"}
