import h5py
import keras
import ml_dtypes
import numpy as np
import pytest
from helpers import linear, model_fn_of

import keras_tpu_estimator as kte
from keras_tpu_estimator.files.formats.keras_format import variable_names

IMAGE = (None, 8, 8, 3)
# Keras layers and the shapes of their inputs. Zeros need no compiler.
KERNEL = {"kernel_initializer": "zeros"}
RECURRENT = KERNEL | {"recurrent_initializer": "zeros"}
SEPARABLE = {
    "depthwise_initializer": "zeros",
    "pointwise_initializer": "zeros",
}
LAYERS = (
    (lambda: keras.layers.Dense(2, **KERNEL), (None, 3)),
    (lambda: keras.layers.Dense(2, **KERNEL, use_bias=False), (None, 3)),
    (
        lambda: keras.layers.EinsumDense("ab,bc->ac", 4, bias_axes="c", **KERNEL),
        (None, 3),
    ),
    (lambda: keras.layers.Conv1D(2, 3, **KERNEL), (None, 8, 3)),
    (lambda: keras.layers.Conv2D(2, 3, **KERNEL), IMAGE),
    (lambda: keras.layers.Conv3D(2, 3, **KERNEL), (None, 8, 8, 8, 3)),
    (lambda: keras.layers.Conv1DTranspose(2, 3, **KERNEL), (None, 8, 3)),
    (lambda: keras.layers.Conv2DTranspose(2, 3, **KERNEL), IMAGE),
    (lambda: keras.layers.Conv3DTranspose(2, 3, **KERNEL), (None, 8, 8, 8, 3)),
    (
        lambda: keras.layers.DepthwiseConv1D(3, depthwise_initializer="zeros"),
        (None, 8, 3),
    ),
    (
        lambda: keras.layers.DepthwiseConv2D(3, depthwise_initializer="zeros"),
        IMAGE,
    ),
    (lambda: keras.layers.SeparableConv1D(2, 3, **SEPARABLE), (None, 8, 3)),
    (
        lambda: keras.layers.SeparableConv2D(2, 3, **SEPARABLE, use_bias=False),
        IMAGE,
    ),
    (
        lambda: keras.layers.Embedding(5, 2, embeddings_initializer="zeros"),
        (None, 3),
    ),
    (lambda: keras.layers.BatchNormalization(), (None, 3)),
    (
        lambda: keras.layers.BatchNormalization(scale=False, center=False),
        (None, 3),
    ),
    (lambda: keras.layers.LayerNormalization(), (None, 3)),
    (lambda: keras.layers.GroupNormalization(1), (None, 3)),
    (lambda: keras.layers.RMSNormalization(), (None, 3)),
    (lambda: keras.layers.PReLU(), (None, 3)),
    (lambda: keras.layers.LSTM(2, **RECURRENT), (None, 4, 3)),
    (lambda: keras.layers.GRU(2, **RECURRENT, use_bias=False), (None, 4, 3)),
    (lambda: keras.layers.SimpleRNN(2, **RECURRENT), (None, 4, 3)),
    (
        lambda: keras.layers.Bidirectional(keras.layers.SimpleRNN(2, **RECURRENT)),
        (None, 4, 3),
    ),
    (
        lambda: keras.layers.TimeDistributed(keras.layers.Dense(2, **KERNEL)),
        (None, 4, 3),
    ),
)


class Shelf(keras.Model):
    """A model that contains layers without calling them."""

    def __init__(self, shelf):
        super().__init__()
        self.shelf = shelf

    def build(self):
        self.built = True


def values_of(model):
    """A model's values by path, without the model's name and random states."""
    return {
        variable.path.removeprefix(f"{model.name}/"): np.array(variable)
        for variable in model.variables
        if "seed_generator" not in variable.path
    }


def assert_reads(path, expected):
    reader = kte.load_checkpoint(path)
    assert reader.get_variable_to_shape_map() == {
        name: list(expected[name].shape) for name in sorted(expected)
    }
    for name, value in expected.items():
        read = reader.get_tensor(name)
        assert read.dtype == value.dtype
        np.testing.assert_array_equal(read, value)
    return reader


def test_variables_have_the_names_of_keras(tmp_path):
    keras.utils.clear_session(free_memory=False)
    layers = [make() for make, _ in LAYERS]
    for layer, (_, shape) in zip(layers, LAYERS, strict=True):
        layer.build(shape)
    model = Shelf(layers)
    model.build()
    for number, variable in enumerate(model.variables):
        variable.assign(np.full(variable.shape, number))
    model.save_weights(tmp_path / "a.weights.h5")

    expected = values_of(model)
    assert len(expected) == 55
    assert_reads(tmp_path / "a.weights.h5", expected)


@pytest.mark.parametrize("suffix", [".weights.h5", ".keras"])
def test_layers_have_their_own_names(tmp_path, suffix):
    keras.utils.clear_session(free_memory=False)
    inputs = keras.Input([4, 6])
    inner = keras.Sequential(
        [keras.layers.Dense(6), keras.layers.Dense(6, name="second")],
        name="inner",
    )
    attention = keras.layers.MultiHeadAttention(2, 3, name="attention")
    hidden = attention(inner(inputs), inputs)
    hidden = keras.layers.LayerNormalization(name="norm")(hidden)
    outputs = keras.layers.Dense(1, dtype="bfloat16", name="head")(hidden)
    model = keras.Model(inputs, outputs, name="whole")
    path = tmp_path / f"a{suffix}"
    model.save_weights(path) if "weights" in suffix else model.save(path)

    expected = values_of(model)
    assert expected["head/kernel"].dtype == ml_dtypes.bfloat16
    assert {"inner/second/kernel", "attention/query/bias"} <= expected.keys()
    assert_reads(path, expected)


class Subclassed(keras.Model):
    """A model with layers as attributes and in a list, and its own variable."""

    def __init__(self):
        super().__init__(name="mine")
        self.first = keras.layers.Dense(2, name="input")
        self.norm = keras.layers.LayerNormalization(name="middle")
        self.blocks = [keras.layers.Dense(2), keras.layers.Dense(2)]
        self.free = self.add_weight(shape=(2,), name="free")

    def call(self, x):
        for block in self.blocks:
            x = block(x)
        return self.norm(self.first(x)) + self.free


def test_subclassed_model(tmp_path):
    keras.utils.clear_session(free_memory=False)
    model = Subclassed()
    model(np.zeros([1, 2]))
    model.save_weights(tmp_path / "a.weights.h5")

    expected = values_of(model)
    # Variables of layers that are not from Keras only have numbers.
    expected["mine/0"] = expected.pop("free")
    assert set(expected) == {
        "mine/0",
        "input/kernel",
        "input/bias",
        "middle/gamma",
        "middle/beta",
        "dense/kernel",
        "dense/bias",
        "dense_1/kernel",
        "dense_1/bias",
    }
    assert_reads(tmp_path / "a.weights.h5", expected)


def test_model_of_a_model_fn(tmp_path):
    x = np.ones([8, 3], "float32")
    model = kte.EstimatorModel.from_model_fn(model_fn_of(linear))
    model.fit(x, x[:, :1], batch_size=8, verbose=0)
    model.save_weights(tmp_path / "a.weights.h5")

    expected = values_of(model)
    assert {"dense/kernel", "dense/bias"} < set(expected)
    assert_reads(tmp_path / "a.weights.h5", expected)
    reader = kte.load_checkpoint(tmp_path / "a.weights.h5")
    assert reader.has_tensor("estimator_model/dense/kernel")


def test_model_of_one_matrix_and_one_vector():
    shapes = {"vars/a%2Fb": (3, 2), "vars/c": (2,)}
    assert variable_names(shapes, {"": "estimator_model"}) == {
        "vars/a%2Fb": "a/b",
        "vars/c": "c",
    }


def test_other_names_of_a_variable(tmp_path):
    model = keras.Sequential(
        [keras.Input([3]), keras.layers.Dense(2, name="head")], name="whole"
    )
    model.save_weights(tmp_path / "a.weights.h5")
    reader = kte.load_checkpoint(tmp_path / "a.weights.h5")
    for name in (
        "head/kernel",
        "head/0",
        "whole/head/kernel",
        "layers/dense/vars/0",
    ):
        assert reader.listed_name(name) == "head/kernel"
        np.testing.assert_array_equal(reader.get_tensor(name), model.layers[0].kernel)


def test_the_optimizer_is_numbered(tmp_path):
    keras.utils.clear_session(free_memory=False)
    model = keras.Sequential([keras.Input([3]), keras.layers.Dense(2)])
    model.compile(keras.optimizers.Adam(0.5), "mse")
    model.fit(np.ones([2, 3]), np.ones([2, 2]), verbose=0)
    model.save(tmp_path / "a.keras")

    expected = values_of(model) | {
        f"adam/{number}": np.array(variable)
        for number, variable in enumerate(model.optimizer.variables)
    }
    assert len(expected) == 8
    assert_reads(tmp_path / "a.keras", expected)


def test_layers_with_equal_names_are_shown_by_their_keys(tmp_path):
    class Twice(keras.Model):
        def __init__(self):
            super().__init__()
            self.one = [keras.layers.Dense(2, name="same")]
            self.other = [keras.layers.Dense(2, name="same")]

        def call(self, x):
            return self.one[0](x) + self.other[0](x)

    model = Twice()
    model(np.zeros([1, 3]))
    model.save_weights(tmp_path / "a.weights.h5")
    reader = kte.load_checkpoint(tmp_path / "a.weights.h5")
    assert "layers/dense_1/vars/0" in reader.get_variable_to_shape_map()
    assert not reader.has_tensor("same/kernel")
    assert not reader.has_tensor("same/0")


@pytest.mark.parametrize(
    ("shapes", "names"),
    [
        ([(2,)], ["0"]),
        ([(2, 3)], ["0"]),
        ([(2, 3), (3,)], ["kernel", "bias"]),
        ([(2, 3), (2, 3)], ["0", "1"]),
        ([(2,), (2,)], ["gamma", "beta"]),
        ([(2,), (3,)], ["0", "1"]),
        ([(), ()], ["0", "1"]),
        ([(2,)] * 3, ["0", "1", "2"]),
        ([(2,)] * 4, ["gamma", "beta", "moving_mean", "moving_variance"]),
    ],
)
def test_shapes_determine_names_if_the_class_is_unknown(shapes, names):
    keys = [f"mine/vars/{number}" for number in range(len(shapes))]
    assert variable_names(
        dict(zip(keys, shapes, strict=True)), {"": "m", "mine": "mine"}
    ) == {key: f"mine/{name}" for key, name in zip(keys, names, strict=True)}


@pytest.mark.parametrize("class_name", ["dense", "layer_normalization"])
def test_known_class_with_other_variables_has_numbers(class_name):
    shapes = {f"layers/{class_name}/vars/{n}": (2, 2) for n in range(12)}
    assert list(variable_names(shapes, {}).values()) == [
        f"{class_name}/{n}" for n in range(12)
    ]


def test_file_without_layer_names():
    shapes = {
        "layers/bidirectional/forward_layer/cell/vars/0": (3, 8),
        "layers/dense_1/vars/0": (3, 2),
        "_layer_checkpoint_dependencies/dense/vars/0": (3, 2),
    }
    assert list(variable_names(shapes, {}).values()) == [
        "dense/kernel",
        "bidirectional/forward_layer/cell/0",
        "dense_1/kernel",
    ]


# Functions that make invalid files.


def external(file):
    file.create_dataset("a/vars/0", (2,), "float32", external=[("/etc/passwd", 0, 8)])


def virtual(file):
    layout = h5py.VirtualLayout((2,), "float32")
    layout[:] = h5py.VirtualSource("/etc/passwd", "a", (2,))
    file.create_virtual_dataset("a/vars/0", layout)


def huge(file):
    file.create_dataset("a/vars/0", (1 << 40,), "float32", chunks=(1024,))


def text(file):
    file["a/vars/0"] = np.array([b"text"], dtype="S4")


def unknown_dtype(file):
    file["a/vars/0"] = np.zeros(1, "V2")
    file["a/vars/0"].attrs["dtype"] = "object"


def too_wide(file):
    file["a/vars/0"] = np.zeros(4, "V1")
    file["a/vars/0"].attrs["dtype"] = "bfloat16"


def elsewhere(file):
    file["a/kernel"] = np.zeros(2)


@pytest.mark.parametrize(
    ("write", "message"),
    [
        (external, "the values of 'a/0' are in another file"),
        (virtual, "the values of 'a/0' are in another file"),
        (huge, "'a/0' has 0 bytes, where its shape"),
        (text, r"must contain numbers, but has dtype \|S4"),
        (unknown_dtype, "'object', a dtype unknown to the installed ml_dtypes"),
        (too_wide, r"must contain numbers, but has dtype \|V1"),
        (elsewhere, "'a/kernel' is not in a group 'vars'"),
    ],
)
def test_files_that_keras_does_not_write_are_refused(tmp_path, write, message):
    path = tmp_path / "a.weights.h5"
    with h5py.File(path, "w") as file:
        write(file)
    with pytest.raises(ValueError, match=message):
        kte.load_checkpoint(path).get_tensor("a/0")


def test_links_to_other_files_are_not_followed(tmp_path):
    with h5py.File(tmp_path / "other.h5", "w") as file:
        file["vars/0"] = np.zeros(2)
    with h5py.File(tmp_path / "a.weights.h5", "w") as file:
        file["mine/vars/0"] = np.zeros(3)
        file["a"] = h5py.ExternalLink(str(tmp_path / "other.h5"), "/")
    assert kte.list_variables(tmp_path / "a.weights.h5") == [("mine/0", [3])]
