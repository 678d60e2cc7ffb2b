"""Writes files that tests read with other versions of Python, JAX, Keras and NumPy.

    KERAS_BACKEND=jax python -m tests.golden.make_versions newest

replaces `tests/golden/versions/newest`: a checkpoint of each format, a sharded
checkpoint, an export and an executable. Run it in the environment of the `nox` session
with the folder's name, `newest-3.13` or `lowest`.
"""

import json
import pathlib
import shutil
import sys
from importlib import metadata

import keras
import numpy as np
from keras import ops

import keras_tpu_estimator as kte
from tests.stored_programs import store

HERE = pathlib.Path(__file__).parent / "versions"
SHAPE = (12, 8)
CORES = 8
FORMATS = ("hdf5", "orbax", "tensorflow")
PACKAGES = ("jax", "keras", "numpy", "orbax-checkpoint")


def data():
    """Returns twelve different examples, so that their order matters."""
    x = np.arange(96, dtype="float32").reshape(SHAPE) / 96
    return x, 1 + np.sin(x * 9).mean(-1, keepdims=True)


def input_fn(params):
    """Repeats the examples in order, with a saved iterator state."""
    import tensorflow as tf

    dataset = tf.data.Dataset.from_tensor_slices(data()).repeat()
    return dataset.batch(params["batch_size"], drop_remainder=True)


def predict_fn(params):
    """Returns all examples in one batch."""
    import tensorflow as tf

    return tf.data.Dataset.from_tensors(data()[0])


def model_fn(features, labels, mode, params):
    """Builds a layer, and functions that newer JAX releases lower differently."""
    y = keras.layers.Dense(1, kernel_initializer="ones")(features)
    if mode == kte.ModeKeys.PREDICT:
        gelu = ops.gelu(y - 4, approximate=False)
        return kte.TPUEstimatorSpec(mode, {"erf": ops.erf(y / 8), "gelu": gelu})
    loss = ops.mean((y - labels) ** 2)
    optimizer = kte.CrossShardOptimizer(keras.optimizers.Adam(0.1))
    return kte.TPUEstimatorSpec(mode, loss=loss, train_op=optimizer.minimize(loss))


def estimator_in(
    model_dir, in_shards=False, executables=None, checkpoint_format="hdf5"
):
    """Returns the estimator that writes and reads the files."""
    config = kte.RunConfig(
        tpu_config=kte.TPUConfig(
            iterations_per_loop=1,
            num_cores_per_replica=CORES if in_shards else None,
        ),
        model_dir=str(model_dir),
        layout_map={"dense/kernel": ("model",)} if in_shards else None,
        executables=executables,
        checkpoint_format=checkpoint_format,
        save_checkpoints_steps=2,
        save_summary_steps=None,
        log_step_count_steps=None,
    )
    return kte.TPUEstimator(
        model_fn,
        config=config,
        use_tpu=in_shards,
        train_batch_size=2,
        predict_batch_size=12,
        export_to_tpu=False,
    )


def weights(estimator):
    """Returns the trained values by name."""
    return {
        name: np.asarray(estimator.get_variable_value(name)).tolist()
        for name in ("dense/kernel", "dense/bias")
    }


def receiver_fn():
    """Returns a receiver of requests of any size."""
    import tensorflow as tf

    tensor = tf.compat.v1.placeholder(tf.float32, [None, SHAPE[1]], name="x")
    return kte.export.TensorServingInputReceiver(tensor, {"x": tensor})


def only_step_2(model_dir):
    """Restores the state of a directory at step 2."""
    for file in model_dir.iterdir():
        if not file.name.startswith("model.ckpt-2."):
            shutil.rmtree(file) if file.is_dir() else file.unlink()
    (model_dir / "checkpoint").write_text(
        'model_checkpoint_path: "model.ckpt-2"\n'
        'all_model_checkpoint_paths: "model.ckpt-2"\n'
    )


def shorten(executable):
    """Keeps the line that describes the file; the rest names this checkout."""
    with open(executable, "r+b") as file:
        file.readline()
        file.truncate(file.tell())


def main(folder):
    """Trains to step 4, and writes the expected results next to the files."""
    import jax

    jax.config.update("jax_num_cpu_devices", CORES)
    shutil.rmtree(folder, ignore_errors=True)
    estimator = estimator_in(folder / "hdf5")
    estimator.train(input_fn, steps=4)
    shorten(store(estimator, predict_fn, folder / "executables", "infer"))
    (outputs,) = estimator.predict(predict_fn, yield_single_examples=False)
    exports = folder / "exports"
    path = pathlib.Path(estimator.export_saved_model(exports, receiver_fn))
    path.rename(folder / "export")
    shutil.rmtree(exports)
    estimator_in(folder / "shards", in_shards=True).train(input_fn, steps=4)
    for name in FORMATS[1:]:
        other = estimator_in(folder / name, checkpoint_format=name)
        other.train(input_fn, steps=4)
    expected = {
        "python": sys.version.split()[0],
        **{name: metadata.version(name) for name in PACKAGES},
        "at step 4": weights(estimator),
        "outputs": {name: each.tolist() for name, each in outputs.items()},
    }
    (folder / "expected.json").write_text(json.dumps(expected, indent=1) + "\n")
    for name in (*FORMATS, "shards"):
        only_step_2(folder / name)


if __name__ == "__main__":
    main(HERE / sys.argv[1])
