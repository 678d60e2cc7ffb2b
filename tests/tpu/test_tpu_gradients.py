"""What cores send to each other, by the TPU's compiler."""

import keras
import pytest
from helpers import estimator_of
from helpers import regression_data
from helpers import repeated

import keras_tpu_estimator as kte

DATA = repeated(*regression_data(size=256))


def planned(tmp_path, dtype, topology="v5e:2x2", config=None, **settings):
    """The plan of a training, and how many weights there are."""

    def model_fn(features, labels, mode, params):
        x = keras.ops.cast(features, dtype)
        x = keras.layers.Dense(256, "relu", dtype=dtype)(x)
        y = keras.layers.Dense(1, dtype=dtype)(x)
        loss = keras.ops.mean((y - keras.ops.cast(labels, dtype)) ** 2)
        optimizer = kte.CrossShardOptimizer(keras.optimizers.Adam(), **settings)
        return kte.TPUEstimatorSpec(
            mode, loss=loss, train_op=optimizer.minimize(loss)
        )

    made = estimator_of(model_fn, tmp_path, use_tpu=True, config=config or {})
    return made.plan(DATA, topology, print_fn=None).figures


WEIGHTS = 256 * 256 + 256 + 256 + 1


def reduced(figures):
    """Bytes of what is reduced, by dtype."""
    (each,) = [c for c in figures.collectives if c.kind == "all-reduce"]
    return dict(each.bytes)


# What a user chooses, and the bytes of a gradient.
CHOICES = [
    ("bfloat16", None, "bfloat16"),
    ("bfloat16", "float32", "float32"),
    ("float32", None, "float32"),
    ("float32", "bfloat16", "bfloat16"),
]


@pytest.mark.parametrize(("dtype", "chosen", "sent"), CHOICES)
def test_gradients_are_sent_as_they_are(tmp_path, dtype, chosen, sent):
    found = reduced(planned(tmp_path, dtype, reduce_dtype=chosen))
    size = {"bfloat16": 2, "float32": 4}[sent]
    assert found[sent] == pytest.approx(size * WEIGHTS, rel=0.01)
    # With the loss, and what XLA sums in another dtype than it is told.
    assert sum(found.values()) == pytest.approx(size * WEIGHTS, rel=0.01)
