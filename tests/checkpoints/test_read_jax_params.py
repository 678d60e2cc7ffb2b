"""Tests that weights of JAX models are read into their structure."""

import collections
import dataclasses
import pathlib

import jax
import jax.numpy as jnp
import keras
import ml_dtypes
import numpy as np
import pytest
from helpers import estimator_of, regression_data, repeated, squared_error
from jax.sharding import NamedSharding, PartitionSpec

import keras_tpu_estimator as kte
from keras_tpu_estimator import checkpoints
from keras_tpu_estimator.base.tracing.array_trees import leaves_of
from keras_tpu_estimator.checkpoints import read_jax_params

pytestmark = pytest.mark.usefixtures("forked_trials")

X, Y = regression_data(16)
Pair = collections.namedtuple("Pair", "left right")  # noqa: PYI024


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class Layer:
    """A registered dataclass with a static field."""

    kernel: jax.Array
    units: int = dataclasses.field(metadata={"static": True}, default=1)


def nnx_model():
    """A module with a list, shared weights, a state and a generator."""
    nnx = pytest.importorskip("flax.nnx", reason="flax is not installed")

    class Net(nnx.Module):
        def __init__(self, rngs):
            self.blocks = nnx.List([nnx.Linear(3, 3, rngs=rngs) for _ in range(2)])
            self.tied = self.blocks[0].kernel
            self.norm = nnx.BatchNorm(3, rngs=rngs)
            self.drop = nnx.Dropout(0.5, rngs=rngs)
            self.out = nnx.Linear(3, 1, rngs=rngs)

        def __call__(self, x):
            for block in self.blocks:
                x = block(x)
            return self.out(self.drop(self.norm(x @ self.tied[...])))

    def network(net, x, is_training):
        net.train() if is_training else net.eval()
        return net(x), net

    return lambda key: Net(nnx.Rngs(key)), network


def linen_model():
    """Parameters and statistics in a dict."""
    nn = pytest.importorskip("flax.linen", reason="flax is not installed")

    class Net(nn.Module):
        @nn.compact
        def __call__(self, x, is_training):
            init = nn.with_partitioning(nn.initializers.ones, ("in", "out"))
            x = nn.Dense(4, kernel_init=init)(x)
            x = nn.BatchNorm(use_running_average=not is_training)(x)
            return nn.Dense(1)(x)

    net = Net()

    def network(variables, x, is_training):
        return net.apply(variables, x, is_training, mutable=["batch_stats"])

    return lambda key: net.init(key, X, True), network


def equinox_model():
    """A module whose activation and sizes are no arrays."""
    eqx = pytest.importorskip("equinox", reason="equinox is not installed")

    def init(key):
        return eqx.nn.MLP(3, 1, 4, 1, jnp.tanh, key=key)

    return init, lambda net, x, is_training: (jax.vmap(net)(x), ())


def haiku_model():
    """Parameters in haiku's structure: names with slashes, then names."""

    def init(key):
        shape = {"w": jax.random.normal(key, (3, 1)), "b": jnp.zeros(1)}
        return {"mlp/~/linear_0": shape}

    def network(params, x, is_training):
        del is_training
        layer = params["mlp/~/linear_0"]
        return x @ layer["w"] + layer["b"], ()

    return init, network


def plain_model():
    """Pytrees of plain JAX."""

    def init(key):
        kernel = jax.random.normal(key, (3, 1))
        return {
            "numbers": {3: Pair([kernel, None], (jnp.zeros(1), 2))},
            "layer": Layer(jnp.ones((1, 1), "bfloat16"), 7),
            "seen": jnp.zeros((), "int32"),
        }

    def network(params, x, is_training):
        del is_training
        left, right = params["numbers"][3]
        y = x @ left[0] + right[0]
        scale = params["layer"].kernel.astype("float32")
        return y @ scale, {"seen": params["seen"] + 1}

    return init, network


MODELS = [nnx_model, linen_model, equinox_model, haiku_model, plain_model]


def adapted(init, network):
    """A model_fn with averages of all trained variables."""

    def model_fn(features, labels, mode, params):
        is_training = mode == kte.ModeKeys.TRAIN
        params = kte.jax_params("net", init)
        y, changed = network(params, features, is_training)
        averages = kte.ExponentialMovingAverage(0.5)
        if is_training:
            kte.assign_jax_params("net", changed)
        if mode == kte.ModeKeys.PREDICT:
            return kte.TPUEstimatorSpec(mode, predictions={"y": y})
        optimizer = kte.CrossShardOptimizer(keras.optimizers.SGD(0.1))
        loss = squared_error(y, labels)
        train_op = [optimizer.minimize(loss), averages.apply()]
        return kte.TPUEstimatorSpec(mode, loss=loss, train_op=train_op)

    return model_fn


@pytest.fixture(scope="module", params=MODELS, ids=lambda f: f.__name__)
def trained(request, tmp_path_factory):
    """A model's functions, and its trained estimator."""
    init, network = request.param()
    estimator = estimator_of(
        adapted(init, network),
        tmp_path_factory.mktemp("trained"),
        config={"checkpoint_format": "orbax"},
    )
    estimator.train(repeated(X, Y), steps=4)
    return init, network, estimator


def test_trained_model_predicts_without_the_estimator(trained):
    init, network, estimator = trained
    (expected,) = estimator.predict(
        lambda params: iter([X]), yield_single_examples=False
    )
    given = init(jax.random.key(3))
    for like in (init, given, init(jax.random.key(4))):
        read = read_jax_params(estimator.model_dir, "net", like)
        assert jax.tree.structure(read) == jax.tree.structure(given)
        y, _ = network(read, X, False)
        np.testing.assert_allclose(y, expected["y"], rtol=1e-5, atol=1e-5)


def test_averages_replace_the_averaged_variables(trained):
    init, _, estimator = trained
    raw, averages = (
        jax.tree.leaves(
            read_jax_params(estimator.model_dir, "net", init, averages=kind)
        )
        for kind in (False, "ExponentialMovingAverage")
    )
    by_default = read_jax_params(estimator.model_dir, "net", init, averages=True)
    differ = 0
    for one, other, third in zip(
        raw, averages, jax.tree.leaves(by_default), strict=True
    ):
        if isinstance(one, jax.Array):
            differ += not jnp.array_equal(one, other)
            assert jnp.array_equal(other, third)
    assert differ >= 2


def test_plain_orbax_reads_the_same_paths(trained):
    ocp = pytest.importorskip("orbax.checkpoint", reason="no Orbax")
    init, _, estimator = trained
    (folder,) = pathlib.Path(estimator.model_dir).glob("*-4.orbax.*")
    with ocp.StandardCheckpointer() as checkpointer:
        tree = checkpointer.restore(folder)
    read, expected = (
        read_jax_params(source, "net", init) for source in (folder, estimator.model_dir)
    )
    same = read_jax_params(tree, "net", init)
    for leaves in zip(*map(jax.tree.leaves, (read, same, expected)), strict=True):
        first, *others = leaves
        if isinstance(first, jax.Array):
            assert all(jnp.array_equal(first, each) for each in others)


def test_parts_of_nnx_modules():
    init, _ = nnx_model()
    from flax import nnx

    net = init(jax.random.key(0))
    stored = {
        "net": {
            "/".join(map(str, path)): np.full_like(variable[...], 3.0)
            for path, variable in nnx.to_flat_state(nnx.state(net))
            if not isinstance(variable, nnx.RngState)
        }
    }
    graph, weights, others = nnx.split(net, nnx.Param, ...)
    read = read_jax_params(stored, "net", weights, partial=True)
    assert isinstance(read, nnx.State)
    merged = nnx.merge(graph, read, others)
    assert merged.blocks[1].kernel[0, 0] == 3.0
    assert merged.tied is merged.blocks[0].kernel
    abstract = nnx.state(nnx.eval_shape(lambda: init(jax.random.key(0))))
    norm = read_jax_params(
        stored, "net", nnx.filter_state(abstract, nnx.BatchStat), partial=True
    )
    nnx.update(net, norm)
    assert net.norm.mean[0] == 3.0


def test_shared_variable_stays_shared():
    init, _ = nnx_model()
    from flax import nnx

    net = init(jax.random.key(0))
    state = nnx.to_flat_state(nnx.state(net))
    flat = {
        "/".join(("net", *map(str, path))): variable[...] for path, variable in state
    }
    flat["net/drop/rngs/key"] = jax.random.key_data(flat["net/drop/rngs/key"])
    read = read_jax_params(flat, "net", init)
    assert read.tied is read.blocks[0].kernel
    assert read.tied is not net.tied
    assert jax.random.key_impl(read.drop.rngs.key[...]) == (
        jax.random.key_impl(jax.random.key(0))
    )


def test_frozen_dicts():
    flax = pytest.importorskip("flax.core", reason="flax is not installed")
    like = flax.freeze({"params": {"w": jnp.zeros(2)}})
    read = read_jax_params({"net/params/w": np.ones(2)}, "net", like)
    assert isinstance(read, flax.FrozenDict)
    assert read["params"]["w"][0] == 1.0


def test_modules_of_equinox_with_a_state():
    eqx = pytest.importorskip("equinox", reason="equinox is not installed")

    def init(key):
        del key
        return eqx.nn.make_with_state(eqx.nn.BatchNorm)(3, "b", mode="batch")

    norm, state = init(None)
    values = {
        "/".join(("net", *leaf.parts)): np.full(leaf.value.shape, 2)
        for leaf in leaves_of((norm, state))
        if leaf.is_array
    }
    read, changed = read_jax_params(values, "net", init)
    assert read.axis_name == "b"
    given, own = jax.tree.map(
        lambda leaf: jnp.full_like(leaf, 2) if eqx.is_array(leaf) else leaf,
        (norm, state),
    )
    y, expected = (
        jax.vmap(eqx.nn.inference_mode(each), (0, None), (0, None), "b")(
            jnp.ones((2, 3)), its_state
        )[0]
        for each, its_state in ((read, changed), (given, own))
    )
    np.testing.assert_array_equal(y, expected)


def saved(directory, file_format, values):
    """Writes values in one of the readable formats."""
    if file_format == "safetensors":
        numpy = pytest.importorskip("safetensors.numpy", reason="an extra")
        numpy.save_file(values, directory / "model.safetensors")
        return directory
    if file_format == "memory":
        return values
    if file_format == "orbax tree":
        ocp = pytest.importorskip("orbax.checkpoint", reason="an extra")
        tree = {"net": {"layers": [{"w": values["net/layers/0/w"]}]}}
        with ocp.StandardCheckpointer() as checkpointer:
            checkpointer.save(directory / "tree", tree)
        return directory / "tree"
    return checkpoints.save(directory, 20, values, format_name=file_format)


@pytest.mark.parametrize(
    "file_format",
    ["hdf5", "tensorflow", "orbax", "orbax tree", "safetensors", "memory"],
)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_formats(tmp_path, file_format, dtype):
    value = np.arange(6).reshape(3, 2).astype(np.dtype(dtype))
    path = saved(tmp_path, file_format, {"net/layers/0/w": value})
    like = {"layers": [{"w": jax.ShapeDtypeStruct((3, 2), dtype)}]}
    read = read_jax_params(path, "net", like)["layers"][0]["w"]
    assert isinstance(read, jax.Array)
    assert (read.dtype, read.tolist()) == (dtype, value.tolist())
    # The root of the tree, as in checkpoints of other libraries.
    read = read_jax_params(path, "", {"net": like})
    assert read["net"]["layers"][0]["w"].tolist() == value.tolist()


def test_dtypes_are_those_of_like():
    stored = {"net": {"a": np.array([1.5], "float32"), "n": np.array([3])}}
    like = {"a": jnp.zeros(1, "bfloat16"), "n": np.zeros(1, "float64")}
    read = read_jax_params(stored, "net", like)
    assert read["a"].dtype == ml_dtypes.bfloat16
    # A NumPy array stays one, with all of its bits.
    assert isinstance(read["n"], np.ndarray)
    assert (read["n"].dtype, read["n"][0]) == (np.float64, 3.0)


def test_other_values_are_kept():
    like = (None, "relu", 3, np.tanh, {"w": np.zeros(1)})
    *others, read = read_jax_params({"net/4/w": np.ones(1)}, "net", like)
    assert (*others,) == like[:4]
    assert read["w"] == [1.0]


def test_single_array():
    assert read_jax_params({"net": np.ones(1)}, "net", np.zeros(1)) == [1.0]


@pytest.mark.parametrize("impl", ["threefry2x32", "rbg"])
@pytest.mark.parametrize("count", [(), (3,)])
def test_keys(impl, count):
    keys = jax.random.split(jax.random.key(7, impl=impl), count or 1)
    keys = keys if count else keys[0]
    stored = {"net/key": np.asarray(jax.random.key_data(keys))}
    for like in (keys, jax.ShapeDtypeStruct(keys.shape, keys.dtype)):
        read = read_jax_params(stored, "net", {"key": like})["key"]
        assert read.dtype == keys.dtype
        assert jnp.array_equal(jax.random.key_data(read), jax.random.key_data(keys))


def test_arrays_have_the_sharding_of_like(tmp_path):
    mesh = jax.make_mesh((4, 2), ("data", "model"))
    values = {
        name: np.arange(32.0, dtype="float32").reshape(8, 4)
        for name in ("net/split", "net/whole", "net/one", "net/free")
    }
    prefix = checkpoints.save(tmp_path, 20, values)
    split = NamedSharding(mesh, PartitionSpec("data", "model"))
    whole = NamedSharding(mesh, PartitionSpec())
    second = jax.devices()[1]
    like = {
        "split": jax.ShapeDtypeStruct((8, 4), "bfloat16", sharding=split),
        "whole": jax.device_put(values["net/whole"], whole),
        "one": jax.device_put(values["net/one"], second),
        "free": jnp.zeros((8, 4)),
    }
    read = read_jax_params(prefix, "net", like)
    for name, value in read.items():
        assert value.tolist() == values[f"net/{name}"].tolist()
    assert (read["split"].sharding, read["split"].dtype) == (split, "bfloat16")
    assert read["whole"].sharding == whole
    assert read["one"].devices() == {second}
    # It can be combined with arrays on any device.
    assert not read["free"].committed


def test_devices_of_like_may_be_missing():
    mesh = jax.sharding.AbstractMesh((2,), ("data",))
    rows = NamedSharding(mesh, PartitionSpec("data"))
    used_up = jnp.zeros(2)
    used_up.delete()
    for leaf in (
        jax.ShapeDtypeStruct((2,), "float32", sharding=rows),
        used_up,
        jax.ShapeDtypeStruct((2,), "float64"),
    ):
        read = read_jax_params({"net/w": np.ones(2)}, "net", {"w": leaf})["w"]
        assert (read.dtype, read.tolist()) == (np.float32, [1.0, 1.0])


def test_arrays_without_elements(tmp_path):
    prefix = checkpoints.save(tmp_path, 20, {"net/w": np.ones((0, 3))})
    read = read_jax_params(prefix, "net", {"w": jnp.zeros((0, 3))})
    assert read["w"].shape == (0, 3)


def test_variables_that_were_sharded(tmp_path):
    def network(params, x, is_training):
        del is_training
        return x @ params["layers"][0]["w"] @ params["layers"][1]["w"], ()

    def init(key):
        return {
            "layers": [
                {"w": jax.random.normal(key, (3, 8))},
                {"w": jax.random.normal(key, (8, 1))},
            ]
        }

    config = kte.RunConfig(
        model_dir=str(tmp_path),
        save_summary_steps=None,
        layout_map={"net/layers/0/w": (None, "model")},
        tpu_config=kte.TPUConfig(num_cores_per_replica=2),
    )
    estimator = kte.TPUEstimator(
        adapted(init, network), config=config, train_batch_size=16
    )
    estimator.train(repeated(X, Y), steps=2)
    assert [*tmp_path.glob("*.shard-0-*")]
    read = read_jax_params(tmp_path, "net", init, averages=True)
    for number, layer in enumerate(read["layers"]):
        name = f"net/layers/{number}/w/ExponentialMovingAverage"
        assert jnp.array_equal(layer["w"], kte.load_variable(tmp_path, name))


def test_averages_of_a_kind():
    stored = {
        "net": {"a": {"b": np.zeros(1)}, "c": np.zeros(1)},
        "sgd/net_a_b_average": np.ones(1),
        "net/c/Slow": np.full(1, 2.0),
    }
    like = {"a": {"b": np.zeros(1)}, "c": np.zeros(1)}
    read = read_jax_params(stored, "net", like, averages=True)
    assert (read["a"]["b"], read["c"]) == (1.0, 0.0)
    read = read_jax_params(stored, "net", like, averages="Slow")
    assert (read["a"]["b"], read["c"]) == (0.0, 2.0)


STORED = {
    "net": {"a": np.zeros((2, 3)), "b": [np.zeros(1)], "key": np.zeros(4)},
    "adam/iteration": np.zeros(()),
}


@pytest.mark.parametrize(
    ("name", "like", "settings", "message"),
    [
        (
            "net",
            {"a": np.zeros((3, 2)), "b": [np.zeros(1)] * 2},
            {},
            r"`like` must have the structure .* does not match 'net' in "
            r".*\n  like\['a'\] of shape \(3, 2\): the variable 'net/a' has "
            r"shape \(2, 3\)\n  like\['b'\]\[1\]: no variable 'net/b/1'. Did "
            r"you mean 'net/b/0'\?\n  no leaf for the variable 'net/key'\n"
            r"Make `like` .*partial=True.*",
        ),
        (
            "net",
            {"key": jax.eval_shape(lambda: jax.random.key(0))},
            {"partial": True},
            r"`like` must have .*like\['key'\] of shape \(2,\): .* 'net/key' "
            r"has shape \(4,\), the data of a key of another generator\nMake "
            r"`like` with the settings of the training\.",
        ),
        (
            "nets",
            {"a": np.zeros((2, 3))},
            {},
            r"`name` must be .* Received: 'nets', .* begin with 'adam', "
            r"'net': pass one of these names\.",
        ),
        (
            "net",
            {"a": np.zeros((2, 3), "int32")},
            {"partial": True},
            r"like\['a'\] must have a dtype that can hold .* 'net/a' .* which "
            r"are float64\. Received: int32 of shape \(2, 3\)\. Give it .*",
        ),
        (
            "net",
            {"a": np.zeros((2, 3))},
            {"partial": True, "averages": True},
            r"`averages` must be False .* Received: True, .* no name is "
            r"'net/a/ExponentialMovingAverage' or "
            r"'<optimizer>/net_a_average'\. Leave .*",
        ),
        (
            "net",
            {"a": 3.0},
            {},
            r"`like` must be a pytree with arrays .* Received: \{'a': 3.0\} "
            r"of type dict\. Pass .*",
        ),
    ],
)
def test_invalid_calls_are_errors(name, like, settings, message):
    with pytest.raises(ValueError, match=f"(?s)^{message}$"):
        read_jax_params(STORED, name, like, **settings)


def test_linen_module_is_refused():
    nn = pytest.importorskip("flax.linen", reason="flax is not installed")
    with pytest.raises(ValueError, match=r"lambda key: module\.init\(key"):
        read_jax_params(STORED, "net", nn.Dense(1))
