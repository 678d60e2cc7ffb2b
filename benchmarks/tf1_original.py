"""Steps per second of the original estimator, run by a Python with TensorFlow 2.15.

python -m tf1_original '{"network": "mlp", ...}'
"""

import json
import statistics
import sys
import tempfile
import time

import numpy as np
import tensorflow.compat.v1 as tf
import tf1_models

_REPETITIONS = 5


def main(settings):
    """Prints the median rate of several trainings."""
    networks = {"mlp": tf1_models.mlp(128, 10)}
    networks["attention"] = tf1_models.attention(settings["classes"])
    networks["convolutions"] = tf1_models.convolutions(settings["classes"])
    rng = np.random.default_rng(0)
    count = settings["batch"] * settings["batches"]
    x = rng.normal(size=(count, *settings["shape"])).astype("float32")
    y = rng.integers(0, settings["classes"], count).astype("int32")

    def input_fn(params):
        slices = tf.data.Dataset.from_tensor_slices((x, y))
        whole = slices.batch(params["batch_size"], drop_remainder=True).cache()
        return whole.repeat().prefetch(2)

    tpu = tf.estimator.tpu
    model_fn = tf1_models.model_fn_of(
        networks[settings["network"]], tpu.TPUEstimatorSpec
    )
    with tempfile.TemporaryDirectory() as directory:
        estimator = tpu.TPUEstimator(
            model_fn,
            config=tpu.RunConfig(
                model_dir=directory,
                tpu_config=tpu.TPUConfig(iterations_per_loop=100),
            ),
            use_tpu=False,
            train_batch_size=settings["batch"],
        )
        estimator.train(input_fn, steps=settings["steps"])
        times = []
        for _ in range(_REPETITIONS):
            start = time.perf_counter()
            estimator.train(input_fn, steps=settings["steps"])
            times.append(time.perf_counter() - start)
    print(settings["steps"] / statistics.median(times))


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
