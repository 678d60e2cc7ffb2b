"""When lines of `metrics.jsonl` are written."""

import json

import pytest
from helpers import model_fn_of
from helpers import regression_data
from helpers import repeated
from keras import layers
from keras import optimizers

import keras_tpu_estimator as kte
from keras_tpu_estimator.hooks import metrics_file
from keras_tpu_estimator.hooks.metrics_file import MetricsFile
from keras_tpu_estimator.storage.growing_files import show_all


def steps_in(directory):
    lines = (directory / "metrics.jsonl").read_text().splitlines()
    return [json.loads(line)["step"] for line in lines]


def test_lines_that_come_fast_are_written_together(tmp_path, monkeypatch):
    monkeypatch.setattr(metrics_file, "_FLUSH_SECS", 1000)
    file = MetricsFile(str(tmp_path))
    for step in range(4):
        file.write(step, {"loss": 0.5})
    assert steps_in(tmp_path) == [0]
    show_all()
    assert steps_in(tmp_path) == [0, 1, 2, 3]
    file.flush()
    assert steps_in(tmp_path) == [0, 1, 2, 3]


def test_lines_that_come_slowly_are_written_at_once(tmp_path, monkeypatch):
    monkeypatch.setattr(metrics_file, "_FLUSH_SECS", 0)
    file = MetricsFile(str(tmp_path))
    for step in range(4):
        file.write(step, {"loss": 0.5})
        assert steps_in(tmp_path) == [*range(step + 1)]


class Failing(kte.hooks.SessionRunHook):
    """Ends training with an error."""

    def after_run(self, run_context, run_values):
        if run_context.session.run("global_step") == 6:
            raise KeyError("an error of the user's")


def test_a_training_that_fails_has_its_lines(tmp_path, monkeypatch):
    monkeypatch.setattr(metrics_file, "_FLUSH_SECS", 1000)
    model_fn = model_fn_of(
        lambda x, training: layers.Dense(1)(x),
        lambda: optimizers.SGD(0.01),
    )
    config = kte.RunConfig(
        model_dir=str(tmp_path),
        tpu_config=kte.TPUConfig(2),
        log_step_count_steps=2,
    )
    estimator = kte.TPUEstimator(model_fn, config=config, train_batch_size=16)
    input_fn = repeated(*regression_data(size=16))
    with pytest.raises(KeyError, match="of the user's"):
        estimator.train(input_fn, hooks=[Failing()], steps=20)
    assert steps_in(tmp_path) == [2, 4]
