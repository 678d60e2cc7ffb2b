"""Nothing that is left out may look like equality."""

import json
import pathlib
from typing import Any

import jax.numpy as jnp
import keras
import numpy as np
import pytest
from keras import ops

import keras_tpu_estimator as kte
from keras_tpu_estimator.workflow.comparing.rounding import nearly


def input_fn(params: Any) -> Any:
    """Yields one batch, which is not repeated."""
    del params
    x = np.random.default_rng(0).normal(size=(8, 4)).astype("float32")
    yield x, x.sum(1, keepdims=True)


def program(
    more: bool = False,
    fails: bool = False,
    metric: bool = True,
    log: pathlib.Path | None = None,
) -> Any:
    """Returns a `model_fn` with options."""

    def note(text: str) -> None:
        if log is not None:
            log.write_text(text)

    class Hook(kte.hooks.SessionRunHook):
        def begin(self) -> None:
            note("hook")

    def host_call(loss: Any) -> None:
        note(f"host call {loss.shape}")

    def model_fn(features: Any, labels: Any, mode: str, params: Any) -> Any:
        del params
        outputs = keras.layers.Dense(1, name="output")(features)
        if more:
            outputs += 0.0 * keras.layers.Dense(1, name="more")(features)
        if mode == "infer":
            if fails:
                raise KeyError("mine")
            return kte.TPUEstimatorSpec(mode, predictions={"y": outputs})
        loss = ops.mean((outputs - labels) ** 2)
        if mode == "eval":
            metrics = (metric_fn, [labels, outputs]) if metric else None
            return kte.TPUEstimatorSpec(mode, loss=loss, eval_metrics=metrics)
        optimizer = kte.CrossShardOptimizer(keras.optimizers.SGD(0.1))
        return kte.TPUEstimatorSpec(
            mode,
            loss=loss,
            train_op=optimizer.minimize(loss),
            host_call=(host_call, [ops.reshape(loss, [1])]),
            training_hooks=[Hook()],
        )

    return model_fn


def metric_fn(labels: Any, outputs: Any) -> Any:
    return {"error": kte.metrics.mean_absolute_error(labels, outputs)}


def test_trained_variable_without_counterpart_is_a_difference() -> None:
    report = kte.compare(program(), program(more=True), input_fn, steps=1)
    assert report.finding is not None, str(report)
    assert report.finding.compared.name == "more/kernel"
    assert "mapping" in report.finding.explanation
    finding = json.loads(report.as_json())["finding"]
    assert finding["compared"]["difference"]["relative"] is None


def test_metric_that_only_the_old_program_has_is_a_difference() -> None:
    report = kte.compare(program(), program(metric=False), input_fn, steps=1)
    assert report.finding is not None, str(report)
    assert report.finding.compared.name == "error"
    report = kte.compare(program(metric=False), program(), input_fn, steps=1)
    assert report.is_equal, str(report)
    assert "Only the new program has the metric `error`." in report.notes


def test_errors_of_the_new_program_propagate() -> None:
    with pytest.raises(KeyError, match="mine"):
        kte.compare(program(), program(fails=True), input_fn, steps=1)
    report = kte.compare(program(fails=True), program(), input_fn, steps=1)
    assert report.is_equal
    assert any("KeyError" in note for note in report.notes)


def test_hooks_and_host_calls_of_the_programs_do_not_run(
    tmp_path: pathlib.Path,
) -> None:
    log = tmp_path / "log"
    assert kte.compare(program(log=log), program(log=log), input_fn, steps=1).is_equal
    assert not log.exists()


def test_values_of_16_bits_are_perturbed() -> None:
    value = jnp.asarray([1.0, 0.0, -3.0], "bfloat16")
    moved = nearly({"x": np.asarray(value)})["x"]
    assert moved.dtype == value.dtype
    assert np.abs(np.asarray(moved - value, "float32")).tolist() == pytest.approx(
        [2**-8, 0.0, 2**-6], rel=1
    )


def recording(mean: bool = True, tag: str = "error", noise: float = 0.0) -> Any:
    """Returns a `model_fn` that passes tensors to a `host_call` and to summaries."""

    def model_fn(features: Any, labels: Any, mode: str, params: Any) -> Any:
        del params
        outputs = keras.layers.Dense(1, name="output")(features)
        outputs = keras.layers.GaussianNoise(noise)(outputs, training=mode == "train")
        errors = (outputs - labels) ** 2
        loss = ops.mean(errors)
        optimizer = kte.CrossShardOptimizer(keras.optimizers.SGD(0.1))
        reduced = ops.mean(errors, 0) if mean else ops.sum(errors, 0)
        if mode == "train":
            kte.summary.scalar(tag, reduced[0])
        return kte.TPUEstimatorSpec(
            mode,
            loss=loss,
            train_op=optimizer.minimize(loss),
            host_call=(lambda errors: None, [reduced]),
        )

    return model_fn


def test_tensors_of_host_calls_and_summaries_are_compared() -> None:
    report = kte.compare(recording(), recording(), input_fn, steps=1)
    names = {one.name for one in report.compared if "host" in one.kind}
    assert names == {"host_call[0]", "summary error"}, str(report)
    report = kte.compare(recording(), recording(mean=False), input_fn, steps=1)
    assert report.finding is not None, str(report)
    assert report.finding.compared.name == "host_call[0]"
    report = kte.compare(recording(), recording(tag="other"), input_fn, steps=1)
    assert report.is_equal, str(report)
    assert "Only the new program records summary other." in report.notes


def test_random_numbers_are_reported() -> None:
    report = kte.compare(recording(noise=0.1), recording(), input_fn, steps=1)
    assert not report.is_equal
    assert any("old program depends on random" in note for note in report.notes)
    assert not any("new program depends on random" in note for note in report.notes)


def exporting(name: str) -> Any:
    """Returns a `model_fn` whose export has a signature with this name."""

    def model_fn(features: Any, labels: Any, mode: str, params: Any) -> Any:
        spec = program()(features["x"], labels, mode, params)
        if mode != "infer":
            return spec
        output = kte.export.PredictOutput(spec.predictions)
        return spec._replace(export_outputs={name: output})

    return model_fn


@pytest.mark.rows(1)
@pytest.mark.parametrize("name", ["second", "first"])
def test_exports_are_compared_on_request(name: str) -> None:
    example = {"x": np.ones((1, 4), "float32")}
    report = kte.compare(
        exporting("first"),
        exporting(name),
        lambda params: (({"x": x}, y) for x, y in input_fn(params)),
        steps=1,
        serving_input_receiver_fn=kte.export.build_raw_serving_input_receiver_fn(
            example
        ),
    )
    assert any(one.kind == "exported signature" for one in report.compared)
    assert report.is_equal == (name == "first")
    if report.finding is not None:
        assert "first" in str(report.finding.compared)
