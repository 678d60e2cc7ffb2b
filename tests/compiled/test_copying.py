"""Tests copies of Keras models: shared weights, LoRA, inner layers."""

import keras
import numpy as np
import pytest
from helpers import batches_of
from keras import layers, ops

import keras_tpu_estimator as kte

BATCH = 8
RNG = np.random.default_rng(4)
IDS = RNG.integers(0, 6, size=(32, 4))
ROWS = RNG.normal(size=(32, 4)).astype("float32")
TOTALS = ROWS.sum(axis=1, keepdims=True)


def tied_by_reverse():
    ids = keras.Input((4,), dtype="int32")
    embedding = layers.ReversibleEmbedding(6, 3, name="tokens")
    return keras.Model(ids, embedding(embedding(ids), reverse=True))


class Head(layers.Layer):
    """Logits from the weights of another layer, which its config contains."""

    def __init__(self, embedding, **kwargs):
        super().__init__(**kwargs)
        self.embedding = embedding

    def call(self, x):
        return ops.matmul(x, ops.transpose(self.embedding.embeddings))

    def get_config(self):
        embedding = keras.saving.serialize_keras_object(self.embedding)
        return {**super().get_config(), "embedding": embedding}

    @classmethod
    def from_config(cls, config):
        embedding = config.pop("embedding")
        return cls(keras.saving.deserialize_keras_object(embedding), **config)


def tied_by_another_layer():
    ids = keras.Input((4,), dtype="int32")
    embedding = layers.Embedding(6, 3, name="tokens")
    return keras.Model(ids, Head(embedding)(embedding(ids)))


def lora_of_dense():
    """LoRA that the layers' configs contain."""
    model = keras.Sequential([keras.Input((4,)), layers.Dense(3, "tanh")])
    model.add(layers.Dense(1))
    for layer in model.layers:
        layer.enable_lora(2, lora_alpha=3)
    return model


def lora_of_attention():
    """LoRA inside a layer whose config does not contain it."""
    ids = keras.Input((4,), dtype="int32")
    x = layers.Embedding(6, 4)(ids)
    attention = layers.MultiHeadAttention(2, 2)
    model = keras.Model(ids, layers.Dense(6)(attention(x, x)))
    attention.trainable = False
    for inner in (attention.query_dense, attention.value_dense):
        inner.trainable = True
        inner.enable_lora(2)
    return model


class Block(layers.Layer):
    """Two layers without their own names."""

    def build(self, shape):
        self.first, self.second = layers.Dense(3), layers.Dense(1)
        self.first.build(shape)
        self.second.build((None, 3))

    def call(self, x):
        return self.second(self.first(x))


def frozen_inside():
    rows = keras.Input((4,))
    block = Block()
    model = keras.Model(rows, block(rows))
    block.first.trainable = False
    return model


def of_a_lambda():
    rows = keras.Input((4,))
    return keras.Model(rows, layers.Dense(1)(layers.Lambda(lambda x: 2 * x)(rows)))


def adapted():
    rows = keras.Input((4,))
    normalization = layers.Normalization()
    normalization.adapt(3 * ROWS + 1)
    return keras.Model(rows, layers.Dense(1)(normalization(rows)))


MODELS = {
    each.__name__: each
    for each in (
        tied_by_reverse,
        tied_by_another_layer,
        lora_of_dense,
        lora_of_attention,
        frozen_inside,
        of_a_lambda,
        adapted,
    )
}


def data_of(model):
    return (IDS, IDS) if model.inputs[0].dtype == "int32" else (ROWS, TOTALS)


def compiled(model):
    loss = "mse"
    if model.inputs[0].dtype == "int32":
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(0.1), loss)
    return model


def estimator_of(model, **settings):
    return kte.from_keras(
        model,
        use_tpu=False,
        train_batch_size=BATCH,
        eval_batch_size=BATCH,
        predict_batch_size=BATCH,
        **settings,
    )


@pytest.mark.rows(4)
@pytest.mark.parametrize("make", MODELS.values(), ids=MODELS)
def test_copy_trains_like_the_model(make, tmp_path):
    model = compiled(make())
    # Adapters start with zeros, so other values would be noticed.
    for variable in model.trainable_variables:
        variable.assign(RNG.normal(size=variable.shape) / 2)
    features, labels = data_of(model)
    estimator = estimator_of(model, model_dir=tmp_path)
    estimator.train(batches_of(features, labels), steps=4)
    model.fit(features, labels, BATCH, shuffle=False, verbose=0)
    # Adapted moments are constants.
    known = estimator.get_variable_names()
    assert {v.path for v in model.trainable_weights} <= {*known}
    for variable in model.weights:
        if variable.path not in known:
            assert make is adapted
            continue
        value = estimator.get_variable_value(variable.path)
        np.testing.assert_allclose(value, variable.numpy(), 1e-4, 1e-5)
    path = kte.export_keras(estimator, tmp_path / "m.weights.h5", features)
    expected = model.predict(features, verbose=0)
    same = make()
    if make is adapted:  # Loaded weights are used.
        same.layers[1].adapt(ROWS)
    compiled(same).load_weights(path)
    # A file contains weights with the adapters merged.
    found = same.predict(features, verbose=0)
    np.testing.assert_allclose(found, expected, 1e-4, 1e-5)


class Growing(layers.Layer):
    """A layer whose config omits a weight."""

    def __init__(self, extra=False, **kwargs):
        super().__init__(**kwargs)
        self.extra = extra

    def build(self, shape):
        self.scale = self.add_weight(shape=(shape[-1],), name="scale")
        if self.extra:
            self.shift = self.add_weight(shape=(7, 300), name="shift")

    def call(self, x):
        return x * self.scale

    def get_config(self):
        return super().get_config() | {"extra": False}


def with_a_weight_left_out():
    rows = keras.Input((4,))
    return keras.Model(rows, Growing(extra=True, name="growing")(rows))


def with_a_layer_in_two_models():
    shared = layers.Dense(4)
    one = keras.Sequential([keras.Input((4,)), shared])
    other = keras.Sequential([keras.Input((4,)), shared, layers.Dense(2)])
    rows = keras.Input((4,))
    return keras.Model(rows, other(one(rows)))


class Large(layers.Layer):
    """A layer whose error contains an array."""

    def __init__(self, table=None, **kwargs):
        if table is None:
            raise TypeError(f"no table {np.arange(1000.0)}")
        super().__init__(**kwargs)

    def call(self, x):
        return x

    def get_config(self):
        return super().get_config()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            with_a_weight_left_out,
            r"Received one with none, where this one has 'growing/shift' of "
            r"shape \(7, 300\)\. Make the `get_config`",
        ),
        (
            with_a_layer_in_two_models,
            "where this one has 'sequential.*/dense.*/kernel'",
        ),
        (
            lambda: keras.Sequential([keras.Input((4,)), Large(table=1)]),
            r"Received TypeError: no table \[.* \.\.\. .* Write a model_fn",
        ),
    ],
)
def test_the_first_weight_without_a_counterpart_is_named(make, message):
    model = make()
    model.compile("sgd", "mse")
    message = f"(?s)cannot be copied.*{message}"
    with pytest.raises(ValueError, match=message) as why:
        kte.from_keras(model, use_tpu=False)
    assert len(str(why.value)) < 700


def test_weights_are_copied_not_shared():
    model = compiled(tied_by_another_layer())
    before = model.get_weights()
    estimator = estimator_of(model)
    estimator.train(batches_of(IDS, IDS), steps=2)
    for weight, old in zip(model.get_weights(), before, strict=True):
        np.testing.assert_array_equal(weight, old)


class Scaled(layers.Layer):
    """Weights without names."""

    def build(self, shape):
        self.scale = self.add_weight(shape=(shape[-1],), initializer="ones")
        self.shift = self.add_weight(shape=(1,), initializer="zeros")

    def call(self, x):
        return x * self.scale + self.shift


def named():
    """A model with all names that Keras chooses when building it."""
    model = keras.Sequential(
        [
            keras.Input((4,)),
            Scaled(name="scaled"),
            layers.Dropout(0.5, seed=1, name="dropped"),
            layers.Dense(1, kernel_initializer="ones", name="last"),
        ],
        name="model",
    )
    model.compile(keras.optimizers.SGD(0.01, momentum=0.9), "mse")
    return model


def trained(make, model_dirs):
    """Trains in two calls, with a newly built model for each."""
    for model_dir in model_dirs:
        estimator = estimator_of(make(), model_dir=model_dir)
        estimator.train(batches_of(ROWS, TOTALS), steps=2)
    return estimator


def test_rebuilt_model_continues(tmp_path):
    estimator = estimator_of(named(), model_dir=tmp_path / "one")
    for _ in range(2):
        estimator.train(batches_of(ROWS, TOTALS), steps=2)
    again = trained(named, [tmp_path / "two"] * 2)
    names = again.get_variable_names()
    assert names == estimator.get_variable_names()
    assert {
        "model/scaled/variable",
        "model/scaled/variable_1",
        "sgd/model_scaled_variable_1_momentum",
        "seed_generator/seed_generator_state",
    } <= {*names}
    for name in names:
        np.testing.assert_array_equal(
            again.get_variable_value(name),
            estimator.get_variable_value(name),
            err_msg=name,
        )


def test_error_advises_names_for_unnamed_layers(tmp_path):
    def make():
        return compiled(keras.Sequential([keras.Input((4,)), layers.Dense(1)]))

    with pytest.raises(ValueError, match="under other counts.*`name`, or call"):
        trained(make, [tmp_path] * 2)
    with pytest.raises(ValueError, match="Restore the layer's name"):
        trained(lambda: compiled(lora_of_dense()), [tmp_path])


@keras.saving.register_keras_serializable("copying")
class SameNames(layers.Layer):
    """Inner layers of one name, which Keras accepts."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        names = ["same", "same_1", "same", "same"]
        self.parts = [layers.Dense(3, "tanh", name=name) for name in names]

    def build(self, shape):
        for part in self.parts:
            part.build(shape)
        self.built = True

    def call(self, x):
        for part in self.parts:
            x = part(x)
        return x


def test_inner_layers_of_one_name_train_as_in_keras(tmp_path):
    def make():
        keras.utils.set_random_seed(4)
        parts = [keras.Input((3,)), SameNames(name="nest"), layers.Dense(1, name="y")]
        model = keras.Sequential(parts, name="m")
        model.compile(keras.optimizers.SGD(0.1, momentum=0.9), "mse")
        return model

    x = np.random.default_rng(0).normal(size=(16, 3)).astype("float32")
    y = x[:, :1]
    model = make()
    model.fit(x, y, 8, 2, shuffle=False, verbose=0)
    estimator = estimator_of(make(), model_dir=tmp_path)
    estimator.train(batches_of(x, y), steps=2).train(batches_of(x, y), steps=2)
    names = {f"m/nest/same{end}/kernel" for end in ("", "_1", "_2", "_3")}
    assert names <= {*estimator.get_variable_names()}
    expected = model.predict(x, verbose=0)
    again = estimator_of(make(), model_dir=tmp_path)
    got = np.stack([row["y"] for row in again.predict(batches_of(x))])
    np.testing.assert_allclose(got, expected, 1e-5, 1e-6)
    path = kte.export_keras(again, tmp_path / "m.keras", x)
    loaded = keras.models.load_model(path)
    np.testing.assert_allclose(loaded.predict(x, verbose=0), expected, 1e-5, 1e-6)
