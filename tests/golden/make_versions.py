"""Writes what another Python and another JAX read: a checkpoint and an export.

    python -m tests.golden.make_versions

under the newest JAX makes `tests/golden/versions` anew.
"""

import json
import pathlib
import shutil
import sys

import keras
import numpy as np
from keras import ops

import keras_tpu_estimator as kte

HERE = pathlib.Path(__file__).parent / "versions"
SHAPE = (12, 3)


def data():
    """Twelve examples, all different, so that their order shows."""
    x = np.arange(36, dtype="float32").reshape(SHAPE) / 36
    return x, 1 + np.sin(x * 9).sum(-1, keepdims=True)


def input_fn(params):
    """The examples in order, again and again, whose position is saved."""
    import tensorflow as tf

    dataset = tf.data.Dataset.from_tensor_slices(data()).repeat()
    return dataset.batch(params["batch_size"], drop_remainder=True)


def model_fn(features, labels, mode, params):
    """A layer, and a function that newer JAX lowers in another way."""
    y = keras.layers.Dense(1, kernel_initializer="ones")(features)
    if mode == kte.ModeKeys.PREDICT:
        return kte.TPUEstimatorSpec(mode, {"y": ops.erf(y)})
    loss = ops.mean((y - labels) ** 2)
    optimizer = kte.CrossShardOptimizer(keras.optimizers.Adam(0.1))
    return kte.TPUEstimatorSpec(
        mode, loss=loss, train_op=optimizer.minimize(loss)
    )


def estimator_in(model_dir):
    """What wrote the files, and what reads them."""
    config = kte.RunConfig(
        tpu_config=kte.TPUConfig(iterations_per_loop=1),
        model_dir=str(model_dir),
        save_checkpoints_steps=2,
        save_summary_steps=None,
        log_step_count_steps=None,
    )
    return kte.TPUEstimator(
        model_fn,
        config=config,
        use_tpu=False,
        train_batch_size=2,
        predict_batch_size=12,
        export_to_tpu=False,
    )


def weights(estimator):
    """The trained values by name."""
    return {
        name: np.asarray(estimator.get_variable_value(name)).tolist()
        for name in ("dense/kernel", "dense/bias")
    }


def receiver_fn():
    """Requests of any size."""
    import tensorflow as tf

    tensor = tf.compat.v1.placeholder(tf.float32, [None, 3], name="x")
    return kte.export.TensorServingInputReceiver(tensor, {"x": tensor})


def main():
    """Trains to step 4, and leaves the files as they were at step 2."""
    import jax

    # No paths of the machine in the export.
    jax.config.update("jax_traceback_in_locations_limit", 0)
    shutil.rmtree(HERE, ignore_errors=True)
    model_dir, exports = HERE / "model", HERE / "exports"
    estimator = estimator_in(model_dir)
    estimator.train(input_fn, steps=4)
    (outputs,) = estimator.predict(
        lambda params: data()[0], yield_single_examples=False
    )
    path = pathlib.Path(estimator.export_saved_model(exports, receiver_fn))
    path.rename(HERE / "export")
    shutil.rmtree(exports)
    expected = {
        "python": sys.version.split()[0],
        "jax": jax.__version__,
        "at step 4": weights(estimator),
        "y": outputs["y"].tolist(),
    }
    (HERE / "expected.json").write_text(json.dumps(expected, indent=1) + "\n")
    for file in model_dir.iterdir():
        if not file.name.startswith("model.ckpt-2."):
            shutil.rmtree(file) if file.is_dir() else file.unlink()
    (model_dir / "checkpoint").write_text(
        'model_checkpoint_path: "model.ckpt-2"\n'
        'all_model_checkpoint_paths: "model.ckpt-2"\n'
    )


if __name__ == "__main__":
    main()
