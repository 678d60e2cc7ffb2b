"""Trains a GPT whose training state is larger than a device.

With the sizes below it has the 1.5 billion parameters of GPT-2 XL: weights, gradients
and Adam's state take 23 GiB. `fsdp=True` shards them over all devices. Plan it for 16
cores of a TPU v5e, without a TPU:

    python -m keras_tpu_estimator plan examples/gpt.py --topology v5e:4x4

It reads the documentation of Keras as bytes. To run it on a CPU, reduce the sizes.
"""

import inspect
import tempfile

# Import Keras after this package, so that Keras runs on JAX.
import keras_tpu_estimator as kte  # isort: split

import jax
import keras
import numpy as np
from keras import layers, ops

LAYERS, WIDTH, HEADS = 48, 1600, 25
LENGTH, VOCABULARY = 512, 50304
EXAMPLES = 8  # For each device and step.


def text():
    """Returns the bytes of Keras's documentation."""
    modules = (keras.layers, keras.ops, keras.optimizers, keras.losses)
    found = [inspect.getdoc(each) or "" for m in modules for each in vars(m).values()]
    return np.frombuffer("\n".join(found).encode(), "uint8").astype("int32")


def input_fn(params):
    """Yields random pieces of the text, and the byte after each byte."""
    rng, data = np.random.default_rng(0), text()
    while True:
        starts = rng.integers(0, len(data) - LENGTH, params["batch_size"])
        rows = data[starts[:, None] + np.arange(LENGTH + 1)]
        yield rows[:, :-1], rows[:, 1:]


def block(x):
    """A transformer block: attention to earlier bytes, and an MLP."""
    attention = layers.MultiHeadAttention(HEADS, WIDTH // HEADS)
    y = layers.LayerNormalization()(x)
    x = x + attention(y, y, use_causal_mask=True)
    y = layers.Dense(4 * WIDTH, "gelu")(layers.LayerNormalization()(x))
    return x + layers.Dense(WIDTH)(y)


def gpt(ids):
    """Returns the logits of the next byte at each position."""
    tokens = layers.Embedding(VOCABULARY, WIDTH, name="tokens")
    positions = layers.Embedding(LENGTH, WIDTH, name="positions")
    x = tokens(ids) + positions(ops.arange(LENGTH))
    for _ in range(LAYERS):
        x = block(x)
    x = layers.LayerNormalization()(x)
    # Like GPT-2, the output layer shares the weights of the first layer.
    return ops.matmul(x, ops.transpose(ops.cast(tokens.embeddings, x.dtype)))


def model_fn(features, labels, mode, params):
    """Trains with Adam and clipped gradients."""
    logits = ops.cast(gpt(features), "float32")
    losses = keras.losses.sparse_categorical_crossentropy(
        labels, logits, from_logits=True
    )
    adam = keras.optimizers.AdamW(3e-4, global_clipnorm=1.0)
    loss = ops.mean(losses)
    return kte.TPUEstimatorSpec(
        mode, loss=loss, train_op=kte.CrossShardOptimizer(adam).minimize(loss)
    )


def main(steps=100, model_dir=None):
    """Trains, and returns the estimator."""
    estimator = kte.TPUEstimator(
        model_fn,
        config=kte.RunConfig(
            model_dir=model_dir or tempfile.mkdtemp(),
            tpu_config=kte.TPUConfig(iterations_per_loop=10),
            fsdp=True,
            remat="full",
            dtype_policy="mixed_bfloat16",
        ),
        train_batch_size=EXAMPLES * jax.device_count(),
    )
    return estimator.train(input_fn, steps=steps)


if __name__ == "__main__":
    main()
