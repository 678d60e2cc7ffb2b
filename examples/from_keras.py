"""Trains a compiled Keras model with an estimator, and saves a Keras file.

The model defines its optimizer, loss and metrics. The estimator adds loops on
the devices, checkpoints from which a run resumes, evaluations during training,
and the best model. The result is a Keras model again.

Run it with `python examples/from_keras.py`. It takes less than half a minute.
"""

import logging
import os
import tempfile

# Import Keras after this package, so that Keras runs on JAX.
import keras_tpu_estimator as kte  # isort: split

import digits
import keras
import numpy as np
from keras import layers


def make_model():
    """Returns a compiled model, as for `fit`."""
    model = keras.Sequential(
        [
            layers.Input((8, 8, 1), name="image"),
            layers.Conv2D(16, 3, padding="same", activation="relu"),
            layers.MaxPooling2D(2),
            layers.Flatten(),
            layers.Dense(64, activation="relu", name="hidden"),
            layers.Dense(10, name="logits"),
        ],
        name="digits",
    )
    model.compile(
        keras.optimizers.Adam(2e-3),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=[keras.metrics.SparseCategoricalAccuracy(name="accuracy")],
    )
    return model


def main(steps=600, model_dir=None):
    """Alternates training and evaluation. Returns the saved model's accuracy."""
    model_dir = model_dir or tempfile.mkdtemp()
    estimator = kte.from_keras(
        make_model(),
        config=kte.RunConfig(
            model_dir=model_dir,
            tpu_config=kte.TPUConfig(iterations_per_loop=100),
            save_checkpoints_steps=max(steps // 3, 1),
            keep_best=kte.checkpoints.KeepBest("accuracy", mode="max"),
            tf_random_seed=0,
        ),
        train_batch_size=64,
        eval_batch_size=64,
        predict_batch_size=64,
    )
    kte.train_and_evaluate(
        estimator,
        kte.TrainSpec(digits.train_input_fn, max_steps=steps),
        kte.EvalSpec(digits.held_out_input_fn, steps=None, throttle_secs=0),
    )
    best = kte.checkpoints.best(model_dir)
    print(f"best checkpoint: {os.path.basename(best)}")

    path = os.path.join(model_dir, "digits.keras")
    images, labels = digits.load()
    images, labels = images[-digits.HELD_OUT :], labels[-digits.HELD_OUT :]
    features = {"image": images[:1]}  # Only the shape is used.
    kte.export_keras(estimator, path, features, checkpoint_path=best)

    # The rest uses only Keras.
    model = keras.models.load_model(path)
    read = np.argmax(model.predict(images, verbose=0), axis=-1)
    accuracy = np.mean(read == labels)
    print(
        f"accuracy of the Keras model on {digits.HELD_OUT} held-out images: "
        f"{accuracy:.3f}"
    )
    return accuracy


if __name__ == "__main__":
    logging.basicConfig(format="%(message)s")
    logging.getLogger("keras_tpu_estimator").setLevel(logging.INFO)
    main()
