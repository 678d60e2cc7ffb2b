"""Tests the exporter of `tf.contrib.estimator` that exports at steps of a list."""

import keras_tpu_estimator as kte  # isort: skip

import pytest
import tensorflow.compat.v1 as tf


class Exported:
    """An estimator that records its exports."""

    def __init__(self, model_dir):
        self.model_dir, self.paths = str(model_dir), []

    def export_saved_model(self, path, *args, **kwargs):
        self.paths.append(path)
        return f"export {len(self.paths)}"


def exported(exporter, estimator, steps):
    """Returns the steps whose evaluation is followed by an export."""
    return [
        step
        for step in steps
        if exporter.export(estimator, "path", "prefix", {"global_step": step}, False)
    ]


def exporter_of(steps):
    kte.tf1.install()
    kind = tf.contrib.estimator.StepsExporter
    return kind(steps, serving_input_receiver_fn=lambda: None)


def evaluated(folder, steps):
    """Writes the event file of earlier evaluations."""
    with tf.Graph().as_default():
        writer = tf.summary.FileWriter(str(folder / "eval"))
    for step in steps:
        value = tf.Summary.Value(tag="loss", simple_value=1.0)
        writer.add_summary(tf.Summary(value=[value]), step)
    writer.close()


@pytest.mark.parametrize(
    ("listed", "steps", "expected"),
    [
        ([25, 1, 2, 3, 6, 7, 10, 12], range(5, 31, 5), [5, 10, 15, 25]),
        ([1, 5, 8, 10, 11], [1, 2, 5, 8, 13, 14], [1, 5, 8, 13]),
        ([-1, 0, 1.5, 4], [1, 6], [6]),
    ],
)
def test_models_are_exported_at_or_after_the_steps(listed, steps, expected, tmp_path):
    assert exported(exporter_of(listed), Exported(tmp_path), steps) == expected


def test_restarted_program_exports_no_step_again(tmp_path):
    evaluated(tmp_path, [1, 2, 6])
    # The event file already contains step 6, which is evaluated now.
    assert exported(exporter_of([1, 2, 6, 8]), Exported(tmp_path), [6, 7, 8]) == [6, 8]
    assert exported(exporter_of([1, 2, 6, 8]), Exported(tmp_path), [7, 9]) == [9]


def test_steps_and_results_are_checked(tmp_path):
    with pytest.raises(ValueError, match="must contain a positive integer"):
        exporter_of([-1, 0, 1.1])
    with pytest.raises(ValueError, match="must contain 'global_step'"):
        exporter_of([1]).export(Exported(tmp_path), "path", "prefix", {}, False)
