"""Tests families of Keras layers in loops over steps."""

import dataclasses

import jax
import keras
import pytest
from keras import layers, ops
from tpu_models import images, joined, made, sequences, volumes, words
from tpu_programs import LAID_OUT, Program, rows
from tpu_table import TOPOLOGIES


def convolutions(x, is_training):
    return joined(
        layers.Conv1D(8, 3)(sequences(x)),
        layers.Conv2D(8, 3, strides=2, padding="same")(images(x)),
        layers.Conv2D(8, 3, dilation_rate=2)(images(x)),
        layers.Conv3D(4, 2)(volumes(x)),
    )


def grouped_convolutions(x, is_training):
    wide = layers.Conv2D(4, 1)(images(x))
    return joined(
        layers.Conv2D(8, 3, groups=4)(wide),
        layers.DepthwiseConv1D(3)(sequences(x)),
        layers.DepthwiseConv2D(3, strides=2)(wide),
        layers.SeparableConv1D(4, 3)(sequences(x)),
        layers.SeparableConv2D(4, 3)(wide),
    )


def transposed_convolutions(x, is_training):
    return joined(
        layers.Conv1DTranspose(4, 3, strides=2)(sequences(x)),
        layers.Conv2DTranspose(4, 3, strides=2)(images(x)),
        layers.Conv2DTranspose(4, 5, padding="same")(images(x)),
        layers.Conv3DTranspose(2, 2, strides=2)(volumes(x)),
    )


def pooling(x, is_training):
    x = layers.Dense(256)(x)
    return joined(
        layers.MaxPooling1D(3, 2)(sequences(x)),
        layers.MaxPooling2D(2)(images(x)),
        layers.MaxPooling3D()(volumes(x)),
        layers.AveragePooling1D(3, 2)(sequences(x)),
        layers.AveragePooling2D(2, padding="same")(images(x)),
        layers.AveragePooling3D(2)(volumes(x)),
        layers.GlobalMaxPooling2D()(images(x)),
        layers.GlobalAveragePooling3D()(volumes(x)),
    )


def normalizations(x, is_training):
    x = images(layers.Dense(256)(x))
    wide = layers.Conv2D(4, 1)(x)
    return joined(
        layers.BatchNormalization()(wide, training=is_training),
        layers.GroupNormalization(2)(wide),
        layers.LayerNormalization()(wide),
        layers.RMSNormalization()(wide),
        layers.UnitNormalization()(wide),
        layers.SpectralNormalization(layers.Dense(4))(wide),
    )


def recurrences(x, is_training):
    x = sequences(x)
    return joined(
        layers.GRU(8, reset_after=False)(x),
        layers.LSTM(8, return_sequences=True, go_backwards=True)(x),
        layers.Bidirectional(layers.GRU(8))(x),
        layers.RNN([layers.LSTMCell(8), layers.SimpleRNNCell(8)])(x),
        layers.TimeDistributed(layers.Dense(4))(x),
    )


def masked_recurrences(x, is_training):
    x = layers.Embedding(10, 8, mask_zero=True)(words(x))
    return joined(layers.LSTM(8)(x), layers.Bidirectional(layers.LSTM(8))(x))


def recurrent_convolutions(x, is_training):
    return joined(layers.ConvLSTM2D(4, 3)(volumes(x)))


def embeddings(x, is_training):
    table = layers.Embedding(10, 8)
    shared = table(words(x))
    return joined(
        shared,
        ops.matmul(shared, ops.transpose(table.embeddings)),
        layers.CategoryEncoding(10, "count")(words(x)),
    )


def attention(x, is_training):
    x = sequences(x)
    dropped = layers.MultiHeadAttention(2, 8, dropout=0.1)
    return joined(
        layers.MultiHeadAttention(4, 8)(x, x),
        dropped(x, x, use_causal_mask=True, training=is_training),
        layers.GroupQueryAttention(8, 4, 2)(x, x),
        layers.Attention()([x, x]),
        layers.AdditiveAttention()([x, x]),
    )


def transformer(x, is_training):
    """A layer like BERT's with words, positions and a mask."""
    ids = words(x)
    mask = ops.cast(ids > 0, "bool")[:, None, :]
    x = layers.Embedding(10, 32)(ids) + layers.Embedding(16, 32)(ops.arange(16))
    attended = layers.MultiHeadAttention(4, 8, dropout=0.1)(
        x, x, attention_mask=mask, training=is_training
    )
    x = layers.LayerNormalization()(x + attended)
    inner = layers.Dense(64, "gelu")(x)
    x = layers.LayerNormalization()(x + layers.Dense(32)(inner))
    return joined(layers.Dropout(0.1)(x, training=is_training))


def dropout(x, is_training):
    x = layers.Dense(256)(x)
    return joined(
        layers.Dropout(0.1)(x, training=is_training),
        layers.SpatialDropout2D(0.1)(images(x), training=is_training),
        layers.GaussianNoise(0.1)(x, training=is_training),
        layers.GaussianDropout(0.1)(x, training=is_training),
        layers.AlphaDropout(0.1)(x, training=is_training),
    )


def products(x, is_training):
    x = layers.EinsumDense("abc,cd->abd", (None, 8))(sequences(x))
    return joined(
        x,
        ops.einsum("abc,adc->abd", x, x),
        layers.Dot(axes=2)([x, x]),
        layers.Dense(4, kernel_regularizer="l2", kernel_constraint="unit_norm")(x),
    )


def activations(x, is_training):
    x = layers.Dense(32)(x)
    return joined(
        layers.PReLU()(x),
        layers.LeakyReLU()(x),
        layers.Softmax()(x),
        *(getattr(keras.activations, n)(x) for n in ("gelu", "silu", "mish")),
    )


def shapes(x, is_training):
    x = layers.Dense(256)(x)
    return joined(
        layers.UpSampling2D()(images(x)),
        layers.UpSampling2D(interpolation="bilinear")(images(x)),
        layers.ZeroPadding2D()(images(x)),
        layers.Cropping2D()(images(x)),
        layers.Resizing(8, 8)(images(x)),
        layers.Permute((2, 1))(sequences(x)),
        layers.RepeatVector(3)(x),
    )


def augmentation(x, is_training):
    x = images(x)
    return joined(
        layers.RandomFlip()(x, training=is_training),
        layers.RandomRotation(0.1)(x, training=is_training),
        layers.RandomZoom(0.1)(x, training=is_training),
        layers.RandomTranslation(0.1, 0.1)(x, training=is_training),
        layers.RandomBrightness(0.1)(x, training=is_training),
        layers.RandomContrast(0.1)(x, training=is_training),
    )


def algebra(x, is_training):
    """Functions of `keras.ops` for which TPUs have no instruction."""
    x = layers.Dense(256)(x)
    square = ops.matmul(sequences(x), ops.transpose(sequences(x), (0, 2, 1)))
    square = square + 16 * ops.eye(16)
    real, _ = ops.fft((x, ops.zeros_like(x)))
    return joined(
        ops.cholesky(square),
        ops.linalg.inv(square),
        ops.qr(square)[1],
        ops.eigh(square)[0],
        ops.svd(square, compute_uv=False),
        real,
    )


def choices(x, is_training):
    x = layers.Dense(256)(x)
    return joined(
        ops.sort(x),
        ops.top_k(x, 4)[0],
        ops.cumsum(x, axis=1),
        ops.take_along_axis(x, ops.argsort(x)[:, :8], axis=1),
        ops.scatter_update(x, [[0, 0], [1, 2]], [1.0, 2.0]),
        ops.one_hot(ops.argmax(x, axis=1), 256) * x,
    )


def stateful_recurrences(x, is_training):
    x = layers.GRU(8, stateful=True, return_sequences=True)(sequences(x))
    return joined(layers.LSTM(8, stateful=True)(x))


def eigenvalues(x, is_training):
    """Eigenvalues of asymmetric matrices, which XLA supports only on CPUs."""
    square = sequences(layers.Dense(256)(x))
    return joined(ops.real(jax.numpy.linalg.eigvals(square)))


NETWORKS = (
    activations,
    algebra,
    attention,
    augmentation,
    choices,
    convolutions,
    dropout,
    embeddings,
    grouped_convolutions,
    masked_recurrences,
    normalizations,
    pooling,
    products,
    recurrences,
    recurrent_convolutions,
    shapes,
    transformer,
    transposed_convolutions,
)


# Slow cases that depend only on Keras and XLA.
SELDOM = (
    algebra,
    attention,
    augmentation,
    choices,
    grouped_convolutions,
    masked_recurrences,
    pooling,
    recurrent_convolutions,
    shapes,
    transposed_convolutions,
)


def program_of(network):
    is_seldom = network in SELDOM
    return Program(
        lambda folder: made(folder, network),
        topologies=() if is_seldom else TOPOLOGIES[:1],
        seldom=TOPOLOGIES[:1] if is_seldom else (),
        seldom_in=("eval", "infer"),
        is_quick=True,
    )


PROGRAMS = {each.__name__: program_of(each) for each in NETWORKS} | {
    # Cores also agree on the states in predictions.
    "stateful_recurrences": dataclasses.replace(
        program_of(stateful_recurrences), collectives=LAID_OUT
    ),
    "eigenvalues": dataclasses.replace(program_of(eigenvalues), refusal="'eig'"),
}


@pytest.mark.rows(3)
@pytest.mark.parametrize(("name", "mode", "topology"), rows(PROGRAMS))
def test_layers(name, mode, topology, compiles):
    compiles(PROGRAMS, name, mode, topology)
