"""Tests that train, evaluate and predict reproduce the original's numbers.

`golden/make_golden.py` made the files with the original `TPUEstimator`.
"""

import dataclasses
import json
import pathlib
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
from golden.recipe import NUM_CLASSES, PROGRAMS, Program
from keras import ops

import keras_tpu_estimator as kte

GOLDEN = pathlib.Path(__file__).parent / "golden"
RTOL = 1e-5
# With beta_2 = 0.999 each step of Keras's Adam is 6e-6 shorter than the
# original's: only one of the two rounds 1 - beta_2 to float32.
LOOSER_RTOL = {"mlp_adam": 4e-5}
# A small probability has the rounding error of its much larger logits.
PREDICTION_ATOL = 1e-6


@dataclasses.dataclass(frozen=True)
class Run:
    """The results of one program here and under the original."""

    golden: dict[str, Any]
    rtol: float
    train_losses: dict[int, float]
    eval_results: dict[str, Any]
    predictions: list[dict[str, np.ndarray]]


@pytest.fixture(scope="module", params=sorted(PROGRAMS))
def run(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Run:
    name = request.param
    program = PROGRAMS[name]
    model_dir = str(tmp_path_factory.mktemp(name))
    estimator = kte.TPUEstimator(
        model_fn_of(program),
        config=kte.RunConfig(
            model_dir=model_dir,
            save_summary_steps=1,
            tpu_config=kte.TPUConfig(iterations_per_loop=1),
        ),
        use_tpu=False,
        train_batch_size=program.batch_size,
        eval_batch_size=program.batch_size,
        predict_batch_size=program.batch_size,
    )
    held_out = input_fn_of(program.eval_data())
    estimator.train(input_fn_of(program.train_data()), steps=program.steps)
    return Run(
        golden=golden_of(name),
        rtol=LOOSER_RTOL.get(name, RTOL),
        train_losses=logged_losses(model_dir),
        eval_results=estimator.evaluate(held_out),
        predictions=list(estimator.predict(held_out)),
    )


@pytest.mark.parametrize("name", sorted(PROGRAMS))
def test_recipe_matches_the_golden_file(name: str) -> None:
    assert golden_of(name)["program"] == dataclasses.asdict(PROGRAMS[name]), (
        "The recipe has changed. Remake the golden files: "
        "see tests/golden/make_golden.py."
    )


def test_every_loss_matches_the_original(run: Run) -> None:
    expected = run.golden["train_losses"]
    assert list(run.train_losses) == list(range(1, len(expected) + 1))
    np.testing.assert_allclose(list(run.train_losses.values()), expected, rtol=run.rtol)


def test_metrics_match_the_original(run: Run) -> None:
    expected = run.golden["eval_results"]
    assert run.eval_results.keys() == expected.keys()
    # The loss differs by design; the next test checks it.
    for name in sorted(expected.keys() - {"loss"}):
        np.testing.assert_allclose(
            run.eval_results[name], expected[name], run.rtol, err_msg=name
        )


def test_loss_counts_each_example_once(run: Run) -> None:
    # The original gives the small last batch the weight of a full one.
    program = PROGRAMS[run.golden["name"]]
    losses = run.golden["eval_batch_losses"]
    sizes = np.full(len(losses), program.batch_size)
    sizes[-1] = program.eval_examples - sizes[:-1].sum()
    expected = np.average(losses, weights=sizes)
    np.testing.assert_allclose(run.eval_results["loss"], expected, run.rtol)


def test_predictions_match_the_original(run: Run) -> None:
    program = PROGRAMS[run.golden["name"]]
    expected = run.golden["predictions"]
    outputs = [each["outputs"] for each in run.predictions]
    assert len(outputs) == program.eval_examples
    np.testing.assert_allclose(
        outputs[: len(expected)], expected, run.rtol, PREDICTION_ATOL
    )


def golden_of(name: str) -> dict[str, Any]:
    """The original's results for a program."""
    return json.loads((GOLDEN / f"{name}.json").read_text())


def model_fn_of(program: Program) -> Callable:
    """Returns the program as a native model_fn."""

    def model_fn(
        features: dict, labels: Any, mode: str, params: dict
    ) -> kte.TPUEstimatorSpec:
        del params
        outputs = network(program, features["x"], mode == "train")
        if not program.is_regression:
            logits, outputs = outputs, ops.softmax(outputs)
        if mode == "infer":
            return kte.TPUEstimatorSpec(mode, predictions={"outputs": outputs})
        if program.is_regression:
            losses = ops.mean(ops.square(outputs - labels), axis=-1)
            metric_fn = regression_metrics
        else:
            losses = keras.losses.sparse_categorical_crossentropy(
                labels, logits, from_logits=True
            )
            metric_fn = classification_metrics
        loss = ops.mean(losses)
        if mode == "eval":
            tensors = [labels, outputs, features["weight"], losses]
            return kte.TPUEstimatorSpec(
                mode, loss=loss, eval_metrics=(metric_fn, tensors)
            )
        optimizer = kte.CrossShardOptimizer(optimizer_of(program.optimizer))
        return kte.TPUEstimatorSpec(mode, loss=loss, train_op=optimizer.minimize(loss))

    return model_fn


def network(program: Program, x: Any, training: bool) -> Any:
    """Logits, or the regression value."""
    weights = program.initial_weights()

    def dense(name: str) -> keras.layers.Dense:
        kernel = weights[f"{name}/kernel"]
        return keras.layers.Dense(
            kernel.shape[1],
            kernel_initializer=kernel,
            bias_initializer=weights[f"{name}/bias"],
            name=name,
        )

    if program.is_regression:
        return dense("output")(x)
    hidden = dense("hidden")(x)
    if program.model == "batch_norm":
        norm = keras.layers.BatchNormalization(momentum=0.99, epsilon=1e-3)
        hidden = norm(hidden, training=training)
    return dense("logits")(ops.relu(hidden))


def optimizer_of(settings: dict) -> keras.optimizers.Optimizer:
    """The Keras optimizer with the recipe's settings."""
    settings = dict(settings)
    if settings.pop("name") == "adam":
        return keras.optimizers.Adam(**settings)
    return keras.optimizers.SGD(**settings)


def regression_metrics(
    labels: Any, outputs: Any, weight: Any, losses: Any
) -> dict[str, Any]:
    """Metrics of the linear program."""
    metrics = kte.metrics
    return {
        "mean_squared_error": metrics.mean_squared_error(labels, outputs),
        "mean_absolute_error": metrics.mean_absolute_error(labels, outputs),
        "mean_absolute_error_weighted": metrics.mean_absolute_error(
            labels, outputs, weights=weight[:, None]
        ),
        "root_mean_squared_error": metrics.root_mean_squared_error(labels, outputs),
        "weighted_loss": metrics.mean(losses),
    }


def classification_metrics(
    labels: Any, outputs: Any, weight: Any, losses: Any
) -> dict[str, Any]:
    """Metrics of the classifiers; class 1 against the rest where binary."""
    classes = ops.argmax(outputs, axis=-1)
    is_one = ops.equal(labels, 1)
    said_one = ops.equal(classes, 1)
    of_one = outputs[:, 1]
    metrics = kte.metrics
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


def input_fn_of(data: tuple) -> Callable:
    """An input_fn over arrays, in order, with the remainder kept."""

    def input_fn(params: dict) -> Any:
        import tensorflow as tf

        dataset = tf.data.Dataset.from_tensor_slices(data)
        return dataset.batch(params["batch_size"])

    return input_fn


def logged_losses(model_dir: str) -> dict[int, float]:
    """The `loss` scalars in the event files, by step."""
    from tensorboard.backend.event_processing import event_accumulator

    events = event_accumulator.EventAccumulator(
        model_dir, size_guidance={event_accumulator.SCALARS: 0}
    )
    events.Reload()
    return {event.step: event.value for event in events.Scalars("loss")}
