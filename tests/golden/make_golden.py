"""Writes the golden JSON files with the original `TPUEstimator`.

It needs TensorFlow 2.15.1, the last release with estimators:

    python3.11 -m venv tf215
    tf215/bin/pip install tensorflow-cpu==2.15.1
    tf215/bin/python tests/golden/make_golden.py
"""

import dataclasses
import itertools
import json
import pathlib
import tempfile
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf
from recipe import NUM_CLASSES, PROGRAMS, Program

HERE = pathlib.Path(__file__).parent
BATCH_NORM_MOMENTUM = 0.99
BATCH_NORM_EPSILON = 1e-3

v1 = tf.compat.v1


class Recorder(v1.train.SessionRunHook):
    """A hook that appends the value of a tensor to `values` after each step."""

    def __init__(self, tensor: tf.Tensor, values: list) -> None:
        self._tensor = tensor
        self._values = values

    def before_run(self, run_context: Any) -> Any:
        del run_context
        return v1.train.SessionRunArgs(self._tensor)

    def after_run(self, run_context: Any, run_values: Any) -> None:
        del run_context
        self._values.append(run_values.results)


def optimizer_of(settings: dict) -> v1.train.Optimizer:
    """Returns the TensorFlow 1 optimizer with the recipe's settings."""
    rate = settings["learning_rate"]
    if settings["name"] == "sgd":
        return v1.train.GradientDescentOptimizer(rate)
    if settings["name"] == "momentum":
        return v1.train.MomentumOptimizer(rate, settings["momentum"])
    return v1.train.AdamOptimizer(
        rate, settings["beta_1"], settings["beta_2"], settings["epsilon"]
    )


def batch_norm(x: tf.Tensor, training: bool) -> tf.Tensor:
    """Normalizes `x`, and also averages the biased variance.

    TensorFlow's fused kernel averages the unbiased variance instead.
    """
    size = x.shape[-1:]
    gamma = v1.get_variable("gamma", size, initializer=v1.ones_initializer())
    beta = v1.get_variable("beta", size, initializer=v1.zeros_initializer())
    moving_mean = v1.get_variable(
        "mean", size, initializer=v1.zeros_initializer(), trainable=False
    )
    moving_variance = v1.get_variable(
        "variance", size, initializer=v1.ones_initializer(), trainable=False
    )
    mean, variance = moving_mean, moving_variance
    if training:
        mean, variance = tf.nn.moments(x, axes=[0])
        for moving, batch in (moving_mean, mean), (moving_variance, variance):
            update = moving.assign(
                moving * BATCH_NORM_MOMENTUM + batch * (1 - BATCH_NORM_MOMENTUM)
            )
            v1.add_to_collection(v1.GraphKeys.UPDATE_OPS, update)
    return tf.nn.batch_normalization(x, mean, variance, beta, gamma, BATCH_NORM_EPSILON)


def network(program: Program, x: tf.Tensor, training: bool) -> tf.Tensor:
    """Returns the output of the model: logits, or the regression value."""
    weights = program.initial_weights()

    def dense(name: str, inputs: tf.Tensor) -> tf.Tensor:
        kernel = v1.get_variable(
            f"{name}/kernel", initializer=weights[f"{name}/kernel"]
        )
        bias = v1.get_variable(f"{name}/bias", initializer=weights[f"{name}/bias"])
        return tf.matmul(inputs, kernel) + bias

    if program.is_regression:
        return dense("output", x)
    hidden = dense("hidden", x)
    if program.model == "batch_norm":
        hidden = batch_norm(hidden, training)
    return dense("logits", tf.nn.relu(hidden))


def regression_metrics(
    labels: tf.Tensor, outputs: tf.Tensor, weight: tf.Tensor, losses: tf.Tensor
) -> dict[str, tuple]:
    """Metrics of the linear program."""
    return {
        "mean_squared_error": v1.metrics.mean_squared_error(labels, outputs),
        "mean_absolute_error": v1.metrics.mean_absolute_error(labels, outputs),
        "mean_absolute_error_weighted": v1.metrics.mean_absolute_error(
            labels, outputs, weights=weight[:, tf.newaxis]
        ),
        "root_mean_squared_error": v1.metrics.root_mean_squared_error(labels, outputs),
        "weighted_loss": v1.metrics.mean(losses),
    }


def classification_metrics(
    labels: tf.Tensor, outputs: tf.Tensor, weight: tf.Tensor, losses: tf.Tensor
) -> dict[str, tuple]:
    """Metrics of the classifiers. Binary metrics compare class 1 with all others."""
    classes = tf.argmax(outputs, axis=-1, output_type=tf.int32)
    is_one = tf.equal(labels, 1)
    said_one = tf.equal(classes, 1)
    of_one = outputs[:, 1]
    metrics = v1.metrics
    return {
        "accuracy": metrics.accuracy(labels, classes),
        "accuracy_weighted": metrics.accuracy(labels, classes, weights=weight),
        "precision": metrics.precision(is_one, said_one),
        "recall": metrics.recall(is_one, said_one),
        "auc": metrics.auc(is_one, of_one),
        "auc_weighted": metrics.auc(is_one, of_one, weights=weight),
        "mean_per_class_accuracy": metrics.mean_per_class_accuracy(
            labels, classes, NUM_CLASSES
        ),
        "mean_iou": metrics.mean_iou(labels, classes, NUM_CLASSES),
        "weighted_loss": metrics.mean(losses),
    }


def model_fn_of(program: Program, train_losses: list, eval_losses: list) -> Callable:
    """Returns a model_fn that appends the loss of each batch to the given lists."""

    def model_fn(
        features: dict, labels: tf.Tensor | None, mode: str, params: dict
    ) -> v1.estimator.tpu.TPUEstimatorSpec:
        del params
        outputs = network(program, features["x"], mode == "train")
        if not program.is_regression:
            logits, outputs = outputs, tf.nn.softmax(outputs)
        if mode == "infer":
            return v1.estimator.tpu.TPUEstimatorSpec(
                mode, predictions={"outputs": outputs}
            )
        if program.is_regression:
            losses = tf.reduce_mean(tf.square(outputs - labels), axis=-1)
            metric_fn = regression_metrics
        else:
            losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
            metric_fn = classification_metrics
        loss = tf.reduce_mean(losses)
        if mode == "eval":
            return v1.estimator.tpu.TPUEstimatorSpec(
                mode,
                loss=loss,
                eval_metrics=(
                    metric_fn,
                    [labels, outputs, features["weight"], losses],
                ),
                evaluation_hooks=[Recorder(loss, eval_losses)],
            )
        step = optimizer_of(program.optimizer).minimize(
            loss, v1.train.get_global_step()
        )
        updates = v1.get_collection(v1.GraphKeys.UPDATE_OPS)
        return v1.estimator.tpu.TPUEstimatorSpec(
            mode,
            loss=loss,
            train_op=tf.group(step, *updates),
            training_hooks=[Recorder(loss, train_losses)],
        )

    return model_fn


def input_fn_of(data: tuple) -> Callable:
    """Returns an input_fn over arrays, in order, with a smaller last batch."""

    def input_fn(params: dict) -> tf.data.Dataset:
        dataset = tf.data.Dataset.from_tensor_slices(data)
        return dataset.batch(params["batch_size"])

    return input_fn


def plain(values: Any) -> Any:
    """Converts float32 values to the shortest equal floats."""
    if isinstance(values, np.integer):
        return int(values)
    if np.ndim(values) == 0:
        return float(str(np.float32(values)))
    return [plain(value) for value in values]


def run(program: Program, model_dir: str) -> dict:
    """Trains, evaluates and predicts; returns the content of the JSON file."""
    train_losses, eval_losses = [], []
    estimator = v1.estimator.tpu.TPUEstimator(
        model_fn_of(program, train_losses, eval_losses),
        config=v1.estimator.tpu.RunConfig(
            model_dir=model_dir, save_checkpoints_steps=program.steps
        ),
        use_tpu=False,
        train_batch_size=program.batch_size,
        eval_batch_size=program.batch_size,
        predict_batch_size=program.batch_size,
    )
    held_out = input_fn_of(program.eval_data())
    estimator.train(input_fn_of(program.train_data()), steps=program.steps)
    results = estimator.evaluate(held_out)
    predictions = itertools.islice(estimator.predict(held_out), 5)
    return {
        "train_losses": plain(train_losses),
        "eval_batch_losses": plain(eval_losses),
        "eval_results": {k: plain(results[k]) for k in sorted(results)},
        "predictions": [plain(p["outputs"]) for p in predictions],
    }


def main() -> None:
    """Writes one file for each program."""
    if tf.__version__ != "2.15.1":
        raise SystemExit(f"TensorFlow 2.15.1 is needed, not {tf.__version__}.")
    for name, program in PROGRAMS.items():
        with tempfile.TemporaryDirectory() as model_dir:
            values = run(program, model_dir)
        golden = {
            "name": name,
            "made_with": f"tensorflow-cpu {tf.__version__}",
            "program": dataclasses.asdict(program),
            **values,
        }
        text = json.dumps(golden, indent=1) + "\n"
        (HERE / f"{name}.json").write_text(text)
        print(name, values["train_losses"][-1], values["eval_results"])


if __name__ == "__main__":
    main()
