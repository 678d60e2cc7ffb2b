"""Networks for tests of sharding, on one host and on several."""

from keras import layers, ops

CLASSES, TOKENS = 8, 96
RULES = {
    ".*up/kernel": (None, "model"),
    ".*(up|down)/bias": ("model",),
    ".*down/kernel": ("model", None),
    ".*out/kernel": ("model", None),
}


def mlp(x, is_training):
    hidden = layers.Dense(64, activation="relu", name="up")(x)
    hidden = layers.LayerNormalization()(hidden)
    return layers.Dense(CLASSES, name="out")(layers.Dense(64, name="down")(hidden))


def with_state(x, is_training):
    hidden = layers.Dense(64, activation="relu", name="up")(x)
    hidden = layers.Dropout(0.3)(hidden, training=is_training)
    hidden = layers.Dense(64, name="down")(hidden)
    hidden = layers.BatchNormalization()(hidden, training=is_training)
    return layers.Dense(CLASSES, name="out")(hidden)


def transformer(ids, is_training):
    hidden = layers.Embedding(TOKENS, 32, name="tokens")(ids)
    attention = layers.MultiHeadAttention(8, 4, flash_attention=False)
    hidden = hidden + attention(hidden, hidden)
    inner = layers.Dense(64, "gelu", name="up")(hidden)
    hidden = hidden + layers.Dense(32, name="down")(inner)
    return layers.Dense(CLASSES)(ops.mean(hidden, axis=1))


def convolutions(x, is_training):
    hidden = layers.Conv2D(8, 5, padding="same", activation="relu")(x)
    hidden = layers.MaxPooling2D(2)(hidden)
    hidden = layers.Conv2D(8, 3, strides=2, padding="same")(hidden)
    return layers.Dense(CLASSES)(layers.GlobalAveragePooling2D()(hidden))


NETWORKS = {
    mlp: RULES,
    with_state: RULES,
    transformer: {
        ".*tokens/embeddings": ("model", None),
        ".*(query|key|value)/kernel": (None, "model", None),
        ".*(query|key|value)/bias": ("model", None),
        ".*attention_output/kernel": ("model", None, None),
        ".*up/kernel": (None, "model"),
        ".*down/kernel": ("model", None),
    },
    convolutions: {"conv2d_1/kernel": (None, None, None, "model")},
}
