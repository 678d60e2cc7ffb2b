"""Tests summaries in a `model_fn` and its `host_call`, on one and eight cores."""

import pathlib
import re
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import keras
import numpy as np
import pytest
import tensorflow as tf  # noqa: TID253 - decodes PNG files
from helpers import batches_of, each_once, estimator_of, linear, model_fn_of, repeated
from keras import ops

import keras_tpu_estimator as kte
from keras_tpu_estimator import summary
from keras_tpu_estimator.summary import experimental

BATCH = 16
ROWS = np.arange(64 * 3, dtype="float32").reshape(64, 3) / 200
LABELS = ROWS.sum(axis=1, keepdims=True)


def summarize(features: Any) -> None:
    """Records every kind of summary of one core's rows."""
    summary.scalar("mean", ops.mean(features))
    summary.histogram("rows", features, buckets=8)
    summary.image("view", features[:, None, :, None], max_outputs=3)
    summary.audio("tone", features[:, :, None], 8000, max_outputs=3)
    summary.text("about", "*rows*")


def recording_with(
    record: Callable[[Any], None],
) -> Callable[..., kte.TPUEstimatorSpec]:
    """A linear model_fn that records summaries of its features."""

    def network(features: Any, is_training: bool) -> Any:
        record(features)
        return linear(features, is_training)

    return model_fn_of(network)


def read(logdir: str | pathlib.Path) -> dict[str, dict[int, np.ndarray]]:
    """The tensors by tag and step; duplicate steps are an error."""
    from tensorboard.backend.event_processing import event_accumulator
    from tensorboard.util import tensor_util

    accumulator = event_accumulator.EventAccumulator(str(logdir)).Reload()
    found: dict[str, dict[int, np.ndarray]] = {}
    for tag in accumulator.Tags()["tensors"]:
        events = accumulator.Tensors(tag)
        found[tag] = {e.step: tensor_util.make_ndarray(e.tensor_proto) for e in events}
        assert len(found[tag]) == len(events)
    return found


def losses(logdir: pathlib.Path) -> list[int]:
    """The steps at which the loss was written."""
    from tensorboard.backend.event_processing import event_accumulator

    accumulator = event_accumulator.EventAccumulator(str(logdir)).Reload()
    return [event.step for event in accumulator.Scalars("loss")]


def check_batch(found: dict[str, np.ndarray], rows: np.ndarray) -> None:
    """Compares the summaries of a batch with NumPy's results."""
    np.testing.assert_allclose(found["mean"], rows.mean(), rtol=1e-6)
    counts, edges = np.histogram(rows, bins=8)
    np.testing.assert_allclose(found["rows"][:, 0], edges[:-1], rtol=1e-6)
    np.testing.assert_array_equal(found["rows"][:, 2].sum(), rows.size)
    np.testing.assert_allclose(found["rows"][:, 2], counts, atol=1)
    images = [tf.io.decode_png(png)[0, :, 0] for png in found["view"][2:]]
    expected = (rows[:3] * 255.5).astype("uint8")
    np.testing.assert_allclose(images, expected, atol=1)
    sounds = [tf.audio.decode_wav(wav)[0][:, 0] for wav, _ in found["tone"]]
    np.testing.assert_allclose(sounds, rows[:3], atol=1e-4)
    assert found["about"].item() == b"*rows*"


@pytest.mark.parametrize("use_tpu", [False, True])
def test_training_writes_the_last_step_of_a_loop(
    tmp_path: pathlib.Path, use_tpu: bool
) -> None:
    estimator = estimator_of(
        recording_with(summarize), tmp_path, use_tpu, save_summary_steps=4
    )
    estimator.train(repeated(ROWS, LABELS), steps=10)
    found = read(tmp_path)
    assert {tag: list(found[tag]) for tag in found} == {
        tag: [4, 8] for tag in ("mean", "rows", "view", "tone", "about")
    }
    assert losses(tmp_path) == [4, 8]
    for step in (4, 8):
        # Four batches, repeated.
        start = (step - 1) % 4 * BATCH
        rows = ROWS[start : start + BATCH]
        check_batch({tag: found[tag][step] for tag in found}, rows)


@pytest.mark.parametrize("use_tpu", [False, True])
def test_evaluation_writes_its_last_batch(
    tmp_path: pathlib.Path, use_tpu: bool
) -> None:
    estimator = estimator_of(
        recording_with(summarize), tmp_path, use_tpu, save_summary_steps=100
    )
    estimator.train(repeated(ROWS, LABELS), steps=2)
    # The last batch is smaller and is not divided between cores.
    estimator.evaluate(batches_of(ROWS[:37], LABELS[:37]), name="part")
    found = read(estimator.eval_dir("part"))
    assert {step for tag in found for step in found[tag]} == {2}
    check_batch({tag: found[tag][2] for tag in found}, ROWS[32:37])
    assert read(tmp_path)["mean"].keys() == {2}


@pytest.mark.parametrize("iterations", [1, 3, 8])
def test_summaries_have_the_steps_of_the_loss(
    tmp_path: pathlib.Path, iterations: int
) -> None:
    """Each value belongs to its own step, in loops of any length."""

    def record(features: Any) -> None:
        summary.scalar("step", kte.get_global_step() + 1)

    estimator = estimator_of(
        recording_with(record),
        tmp_path,
        iterations=iterations,
        save_summary_steps=2,
    )
    estimator.train(repeated(ROWS, LABELS), steps=8)
    found = read(tmp_path)["step"]
    assert list(found) == losses(tmp_path)
    assert list(found) == {1: [1, 3, 5, 7], 3: [3, 6, 8], 8: [8]}[iterations]
    assert all(value == step for step, value in found.items())


@pytest.mark.parametrize("use_tpu", [False, True])
def test_given_step_is_used(tmp_path: pathlib.Path, use_tpu: bool) -> None:
    def record(features: Any) -> None:
        summary.scalar("x", 1.0, step=kte.get_global_step())
        summary.scalar("y", 1.0, step=77)

    estimator = estimator_of(
        recording_with(record), tmp_path, use_tpu, save_summary_steps=1
    )
    estimator.train(repeated(ROWS, LABELS), steps=4)
    found = read(tmp_path)
    assert (list(found["x"]), list(found["y"])) == ([3], [77])


def test_resuming_repeats_no_step(tmp_path: pathlib.Path) -> None:
    def steps_of(estimator: kte.TPUEstimator) -> list[int]:
        estimator.train(repeated(ROWS, LABELS), steps=6)
        return list(read(tmp_path)["mean"])

    def fresh() -> kte.TPUEstimator:
        model_fn = recording_with(summarize)
        return estimator_of(model_fn, tmp_path, iterations=2, save_summary_steps=4)

    estimator = fresh()
    assert steps_of(estimator) == [2, 6]
    assert steps_of(estimator) == [2, 6, 8, 12]
    assert steps_of(fresh()) == [2, 6, 8, 12, 14, 18]


def test_users_loss_summary_replaces_the_automatic_one(
    tmp_path: pathlib.Path,
) -> None:
    estimator = estimator_of(
        recording_with(lambda x: summary.scalar("loss", 42.0)),
        tmp_path,
        save_summary_steps=4,
    )
    estimator.train(repeated(ROWS, LABELS), steps=4)
    assert read(tmp_path)["loss"] == {4: 42}
    result = estimator.evaluate(batches_of(ROWS, LABELS))
    assert losses(estimator.eval_dir()) == [4]
    assert "loss" not in read(estimator.eval_dir())
    assert result["loss"] != 42


def test_summaries_are_transferred_only_if_needed(tmp_path: pathlib.Path) -> None:
    returned = []

    def record(features: Any) -> None:
        returned.append(summary.image("view", features[:, None, :, None]))

    estimator = estimator_of(recording_with(record), tmp_path)
    estimator.train(repeated(ROWS, LABELS), steps=4)
    estimator.evaluate(batches_of(ROWS, LABELS))
    list(estimator.predict(batches_of(ROWS)))
    assert read(tmp_path) == {}
    assert list(read(estimator.eval_dir())) == ["checkpoint_path"]
    assert set(returned) == {False}
    model = estimator._context.model
    step = model.prepare("train", ROWS[:BATCH], LABELS[:BATCH])
    variables = model.program.store.variables
    _, outputs = jax.eval_shape(
        step.function,
        {path: variables[path].value for path in step.reads},
        ROWS[:BATCH],
        LABELS[:BATCH],
    )
    assert not outputs["summaries"]


def test_prediction_records_nothing(tmp_path: pathlib.Path) -> None:
    returned = []

    def record(features: Any) -> None:
        returned.append(summary.scalar("x", 1.0))

    estimator = estimator_of(recording_with(record), tmp_path, save_summary_steps=1)
    list(estimator.predict(batches_of(ROWS)))
    assert set(returned) == {False}


def test_record_if_in_a_model_fn(tmp_path: pathlib.Path) -> None:
    def record(features: Any) -> None:
        with summary.record_if(False):
            assert summary.scalar("no", 1.0) is False
            with summary.record_if(lambda: True):
                assert summary.scalar("yes", 1.0) is True

    estimator = estimator_of(recording_with(record), tmp_path, save_summary_steps=1)
    # Settings around `train` do not apply to model_fn.
    other = summary.create_file_writer(tmp_path / "other")
    with other.as_default(step=5), summary.record_if(False):
        estimator.train(repeated(ROWS, LABELS), steps=4)
    assert list(read(tmp_path)) == ["yes"]
    assert list(read(tmp_path)["yes"]) == [4]


@pytest.mark.parametrize(("use_tpu", "micro_batches"), each_once([False, True], [1, 2]))
def test_a_writer_in_a_model_fn(
    tmp_path: pathlib.Path, use_tpu: bool, micro_batches: int
) -> None:
    def record(features: Any) -> None:
        summary.scalar("here", 1.0)
        with summary.create_file_writer(tmp_path / "a").as_default():
            summary.scalar("loss", ops.mean(features))
            summary.histogram("rows", features, buckets=8)
            later = kte.get_global_step() + 100
            with summary.create_file_writer(tmp_path / "b").as_default(later):
                summary.scalar("inner", 2.0)
            summary.image("view", features[:, None, :, None])

    estimator = estimator_of(
        recording_with(record),
        tmp_path / "m",
        use_tpu,
        save_summary_steps=4,
        config={"micro_batches": micro_batches},
    )
    estimator.train(repeated(ROWS, LABELS), steps=8)
    found = read(tmp_path / "a")
    assert {tag: list(of) for tag, of in found.items()} == {
        "loss": [4, 8],
        "rows": [4, 8],
        "view": [4, 8],
    }
    assert found["loss"][4] == pytest.approx(ROWS[48:].mean(), rel=1e-5)
    assert found["rows"][4][:, 2].sum() == BATCH * 3
    assert list(read(tmp_path / "b")["inner"]) == [103, 107]
    assert list(read(tmp_path / "m")) == ["here"]
    assert losses(tmp_path / "m") == [4, 8]
    estimator.evaluate(batches_of(ROWS, LABELS))
    assert set(read(tmp_path / "m" / "eval")) == {"here", "checkpoint_path"}


def _record_if(features: Any) -> None:
    with summary.record_if(ops.mean(features) > 0):
        summary.scalar("x", 1.0)


def _inner(features: Any) -> None:
    def inner(x: Any) -> Any:
        summary.scalar("x", ops.mean(x))
        return x

    jax.checkpoint(inner)(features)


WRONG = [
    (_record_if, "known while model_fn is traced.*a tensor"),
    (_inner, "from an inner function"),
    (lambda x: summary.scalar("x", x), r"of shape \(16, 3\)"),
    (lambda x: summary.image("x", x), "need an axis of 1"),
    (
        lambda x: summary.text("x", x),
        "text 'x' must be .* known while .* a tensor: .*`host_call`",
    ),
    (
        lambda x: summary.text("x", ["mean", ops.mean(x)]),
        "text 'x' must be .* known while .* a tensor: .*`host_call`",
    ),
]


@pytest.mark.parametrize(("record", "message"), WRONG)
def test_errors_in_a_model_fn(
    tmp_path: pathlib.Path, record: Callable[[Any], None], message: str
) -> None:
    estimator = estimator_of(recording_with(record), tmp_path, save_summary_steps=1)
    with pytest.raises(ValueError, match=re.compile(message, re.DOTALL)):
        estimator.train(repeated(ROWS, LABELS), steps=4)


def test_summaries_do_not_change_results(tmp_path: pathlib.Path) -> None:
    kernels = []
    for record in (summarize, lambda features: None):
        model_dir = tmp_path / str(len(kernels))
        estimator = estimator_of(
            recording_with(record), model_dir, save_summary_steps=2
        )
        estimator.train(repeated(ROWS, LABELS), steps=6)
        kernels.append(estimator.get_variable_value("dense/kernel"))
    np.testing.assert_allclose(*kernels, rtol=1e-6)


def test_summaries_with_requested_gradients(tmp_path: pathlib.Path) -> None:
    def model_fn(features: Any, labels: Any, mode: str, params: Any) -> Any:
        layer = keras.layers.Dense(1, kernel_initializer="zeros")
        loss = ops.mean((layer(features) - labels) ** 2)
        summary.histogram("kernel", layer.kernel, buckets=2)
        (gradient,) = kte.gradients(loss, [layer.kernel])
        summary.scalar("norm", ops.sqrt(ops.sum(gradient**2)))
        optimizer = kte.CrossShardOptimizer(keras.optimizers.SGD(0.1))
        return kte.TPUEstimatorSpec(mode, loss=loss, train_op=optimizer.minimize(loss))

    estimator = estimator_of(model_fn, tmp_path, iterations=1, save_summary_steps=1)
    estimator.train(repeated(ROWS, LABELS), steps=1)
    found = read(tmp_path)
    rows, labels = ROWS[:BATCH], LABELS[:BATCH]
    gradient = -2 * (rows * labels).mean(axis=0)
    np.testing.assert_allclose(found["norm"][1], np.linalg.norm(gradient), rtol=1e-5)
    np.testing.assert_array_equal(found["kernel"][1], [[0, 0, 0], [0, 0, 3]])


@pytest.mark.parametrize("every", [1, 3])
@pytest.mark.parametrize("use_tpu", [False, True])
def test_host_call_has_its_step(
    tmp_path: pathlib.Path, use_tpu: bool, every: int
) -> None:
    logdir = str(tmp_path / "host")

    def host(rows: np.ndarray) -> None:
        with summary.create_file_writer(logdir).as_default():
            with summary.record_if(True):
                summary.scalar("mean", rows.mean())
                summary.scalar("own", 1.0, step=experimental.get_step() * 10)
            with summary.record_if(lambda: experimental.get_step() % 4 == 0):
                summary.histogram("rows", rows)

    base = recording_with(lambda features: None)

    def model_fn(features: Any, labels: Any, mode: str, params: Any) -> Any:
        spec = base(features, labels, mode, params)
        return kte.TPUEstimatorSpec(
            mode,
            loss=spec.loss,
            train_op=spec.train_op,
            host_call=(host, [jnp.asarray(features)]),
        )

    config = kte.RunConfig(
        tpu_config=kte.TPUConfig(
            iterations_per_loop=4,
            experimental_host_call_every_n_steps=every,
        ),
        model_dir=str(tmp_path),
    )
    estimator = kte.TPUEstimator(
        model_fn,
        config=config,
        use_tpu=use_tpu,
        train_batch_size=BATCH,
        eval_batch_size=BATCH,
    )
    estimator.train(repeated(ROWS, LABELS), steps=4)
    estimator.train(repeated(ROWS, LABELS), steps=6)
    found = read(logdir)
    steps = list(range(1, 11, every))
    assert list(found["mean"]) == steps
    assert list(found["own"]) == [10 * step for step in steps]
    assert list(found["rows"]) == [step for step in steps if step % 4 == 0]
    for step in steps:
        # The second call of `train` restarts its input.
        start = (step - 1) % 4 * BATCH
        expected = ROWS[start : start + BATCH].mean()
        np.testing.assert_allclose(found["mean"][step], expected, rtol=1e-6)


def test_host_call_in_evaluation_has_the_step_of_the_checkpoint(
    tmp_path: pathlib.Path,
) -> None:
    steps = []
    base = recording_with(lambda features: None)

    def model_fn(features: Any, labels: Any, mode: str, params: Any) -> Any:
        spec = base(features, labels, mode, params)
        if mode != kte.ModeKeys.EVAL:
            return spec
        host = (lambda rows: steps.append(experimental.get_step()), [features])
        return kte.TPUEstimatorSpec(mode, loss=spec.loss, host_call=host)

    estimator = estimator_of(model_fn, tmp_path)
    estimator.train(repeated(ROWS, LABELS), steps=5)
    estimator.evaluate(batches_of(ROWS, LABELS))
    assert steps == [5] * 4
    assert experimental.get_step() is None


def test_host_call_needs_no_writer(tmp_path: pathlib.Path) -> None:
    base = recording_with(lambda features: None)

    def host(rows: np.ndarray) -> None:
        summary.scalar("row", rows[0, 0])
        with summary.record_if(False):
            summary.scalar("never", 1.0)

    def model_fn(features: Any, labels: Any, mode: str, params: Any) -> Any:
        spec = base(features, labels, mode, params)
        return spec._replace(host_call=(host, [jnp.asarray(features)]))

    estimator = estimator_of(model_fn, tmp_path, save_summary_steps=3)
    estimator.train(repeated(ROWS, LABELS), steps=8)
    found = read(tmp_path)
    assert list(found["row"]) == [1, 4, 7]
    assert "never" not in found
    for step, value in found["row"].items():
        assert value == ROWS[(step - 1) % 4 * BATCH, 0]
    # An evaluation has the summaries of its last batch.
    estimator.evaluate(batches_of(ROWS, LABELS))
    assert read(estimator.eval_dir())["row"] == {8: ROWS[3 * BATCH, 0]}
    none = estimator_of(model_fn, tmp_path / "none", save_summary_steps=None)
    none.train(repeated(ROWS, LABELS), steps=1)
    none.evaluate(batches_of(ROWS, LABELS))
    assert "row" not in read(tmp_path / "none")
    assert "row" not in read(none.eval_dir())


def test_keras_runs_a_model_fn_with_summaries() -> None:
    model = kte.EstimatorModel.from_model_fn(recording_with(summarize))
    history = model.fit(ROWS, LABELS, batch_size=BATCH, verbose=0)
    assert np.isfinite(history.history["loss"][0])
