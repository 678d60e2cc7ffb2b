"""A residual network on eight devices, like the ResNet of the TPU examples.

Eight devices share each batch, layers compute in bfloat16, LARS trains with a
warm-up, evaluations use moving averages of the weights, `host_call` writes a
curve, and `train_and_evaluate` runs everything.

Run it with `python examples/resnet.py`. It takes about half a minute on a CPU
with simulated devices. If the machine has TPU cores or GPUs, it trains on all
of them.
"""

import logging
import os
import tempfile

# A CPU simulates eight devices. JAX reads this variable when it is imported.
os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=8")

# Import Keras after this package, so that Keras runs on JAX.
import keras_tpu_estimator as kte  # isort: split

import digits
from keras import layers, ops

BATCH = 64
WARMUP = 0.1  # Of all steps.


def batch_norm(x, is_training, gamma="ones"):
    return layers.BatchNormalization(
        momentum=0.9, epsilon=1e-5, gamma_initializer=gamma
    )(x, training=is_training)


def convolution(x, filters, size, strides):
    return layers.Conv2D(
        filters,
        size,
        strides,
        padding="same",
        use_bias=False,
        kernel_initializer="he_normal",
    )(x)


def block(x, filters, strides, is_training):
    """Returns the output of two convolutions and a shortcut."""
    shortcut = x
    if strides > 1 or x.shape[-1] != filters:
        shortcut = convolution(x, filters, 1, strides)
        shortcut = batch_norm(shortcut, is_training)
    x = ops.relu(batch_norm(convolution(x, filters, 3, strides), is_training))
    # With a zero gamma, a block is initially equal to its shortcut.
    x = batch_norm(convolution(x, filters, 3, 1), is_training, "zeros")
    return ops.relu(x + shortcut)


def resnet(images, is_training):
    x = convolution(images, 16, 3, 1)
    x = ops.relu(batch_norm(x, is_training))
    for filters, strides in ((16, 1), (32, 2), (32, 1)):
        x = block(x, filters, strides, is_training)
    x = layers.GlobalAveragePooling2D()(x)
    # The loss is computed in float32.
    return layers.Dense(10, dtype="float32")(x)


def learning_rate(params):
    """A linear warm-up, and then a quadratic decay to zero."""
    done = ops.cast(kte.get_global_step(), "float32") / params["train_steps"]
    rising = done / WARMUP
    falling = ops.square(ops.maximum(1 - done, 0.0) / (1 - WARMUP))
    return params["learning_rate"] * ops.minimum(rising, falling)


def model_fn(features, labels, mode, params):
    is_training = mode == kte.ModeKeys.TRAIN
    logits = resnet(features["image"], is_training)
    averages = kte.ExponentialMovingAverage(0.98, kte.get_global_step())

    def scaffold_fn():
        return kte.Scaffold(variables_to_restore=averages.variables_to_restore())

    if mode == kte.ModeKeys.PREDICT:
        return kte.TPUEstimatorSpec(
            mode,
            predictions={"digit": ops.argmax(logits, axis=-1)},
            scaffold_fn=scaffold_fn,
        )

    cross_entropy = ops.mean(
        ops.sparse_categorical_crossentropy(labels, logits, from_logits=True)
    )
    if mode == kte.ModeKeys.EVAL:
        return kte.TPUEstimatorSpec(
            mode,
            loss=cross_entropy,
            eval_metrics=(digits.metric_fn, [labels, logits]),
            scaffold_fn=scaffold_fn,
        )

    rate = learning_rate(params)
    optimizer = kte.CrossShardOptimizer(
        kte.optimizers.LARS(rate, eeta=0.02, skip_list=["batch_normalization", "bias"])
    )
    host_call = (
        write_curves(params["model_dir"]),
        # Each core has a row.
        {
            "rate": ops.reshape(rate, [1]),
            "loss": ops.reshape(cross_entropy, [1]),
        },
    )
    return kte.TPUEstimatorSpec(
        mode,
        loss=cross_entropy,
        train_op=[optimizer.minimize(cross_entropy), averages.apply()],
        host_call=host_call,
    )


def write_curves(model_dir):
    def host_call_fn(rate, loss):
        """Receives the values of all cores in a step."""
        step = kte.summary.experimental.get_step()
        writer = kte.summary.create_file_writer(model_dir)
        with writer.as_default(), kte.summary.record_if(step % 20 == 0):
            kte.summary.scalar("learning_rate_of_step", rate[0])
            kte.summary.scalar("loss_of_best_core", loss.min())

    return host_call_fn


def main(steps=300, model_dir=None):
    """Alternates training and evaluation. Returns the last results."""
    model_dir = model_dir or tempfile.mkdtemp()
    estimator = kte.TPUEstimator(
        model_fn,
        config=kte.RunConfig(
            model_dir=model_dir,
            tpu_config=kte.TPUConfig(iterations_per_loop=50),
            save_checkpoints_steps=max(steps // 2, 1),
            dtype_policy="mixed_bfloat16",
            tf_random_seed=0,
        ),
        params={
            "learning_rate": 1.0,
            "train_steps": steps,
            "model_dir": model_dir,
        },
        train_batch_size=BATCH,
        eval_batch_size=BATCH,
        predict_batch_size=BATCH,
    )
    result, _ = kte.train_and_evaluate(
        estimator,
        kte.TrainSpec(digits.train_input_fn, max_steps=steps),
        kte.EvalSpec(digits.held_out_input_fn, steps=None, throttle_secs=0),
    )
    print(
        f"accuracy on {digits.HELD_OUT} held-out images, with averaged "
        f"weights: {result['accuracy']:.3f}"
    )
    print(f"to look at the curves: tensorboard --logdir {estimator.model_dir}")
    return result


if __name__ == "__main__":
    logging.basicConfig(format="%(message)s")
    logging.getLogger("keras_tpu_estimator").setLevel(logging.INFO)
    main()
