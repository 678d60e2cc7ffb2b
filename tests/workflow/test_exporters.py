"""Tests which models are exported, and which exports are kept."""

import json
import os
import pathlib

import numpy as np
import pytest
import tensorflow as tf  # noqa: TID253 - loads the exports
from helpers import estimator_of, linear, model_fn_of
from training_helpers import DATA, HELD_OUT, TRAIN

import keras_tpu_estimator as kte

pytestmark = pytest.mark.usefixtures("forked_trials")


class Writer:
    """Replaces an estimator; its exports are empty folders."""

    def __init__(self, model_dir):
        self.model_dir = str(model_dir)
        self.exports = []

    def export_saved_model(self, base, receiver_fn, **arguments):
        """Makes a folder with a number as its name."""
        path = pathlib.Path(base, str(1_700_000_000 + len(self.exports)))
        path.mkdir(parents=True)
        self.exports.append((receiver_fn, arguments))
        return str(path)


def receiver_fn():
    """A function that is never called."""


def best_exporter(**arguments):
    return kte.BestExporter(**{"serving_input_receiver_fn": receiver_fn} | arguments)


def offer(exporter, writer, results, path=None, is_final=False):
    """The indices of the exported results."""
    path = path or os.path.join(writer.model_dir, "export", exporter.name)
    return [
        place
        for place, result in enumerate(results)
        if exporter.export(
            estimator=writer,
            export_path=path,
            checkpoint_path=f"model.ckpt-{place}",
            eval_result={"global_step": np.int64(place), **result},
            is_the_final_export=is_final,
        )
    ]


def losses(*values):
    return [{"loss": np.float32(value)} for value in values]


@pytest.mark.parametrize(
    "exporter",
    [
        kte.LatestExporter("latest", receiver_fn, {"a": "b"}, as_text=True),
        kte.BestExporter("best", receiver_fn, assets_extra={"a": "b"}, as_text=True),
    ],
    ids=lambda exporter: exporter.name,
)
def test_arguments_match_export_saved_model(exporter, tmp_path):
    writer = Writer(tmp_path)
    assert offer(exporter, writer, losses(1)) == [0]
    ((used, arguments),) = writer.exports
    assert used is receiver_fn
    assert arguments == {
        "assets_extra": {"a": "b"},
        "as_text": True,
        "checkpoint_path": "model.ckpt-0",
    }


@pytest.mark.parametrize(
    ("keep", "left"),
    [(1, [3]), (2, [2, 3]), (5, [0, 1, 2, 3]), (None, [0, 1, 2, 3])],
)
def test_newest_exports_are_kept(keep, left, tmp_path):
    others = ["temp-1700000000", "170000000", "17000000000", "notes"]
    for name in others:
        (tmp_path / "export" / "latest" / name).mkdir(parents=True)
    exporter = kte.LatestExporter("latest", receiver_fn, exports_to_keep=keep)
    results = losses(1, 1, 1, 1)
    assert offer(exporter, Writer(tmp_path), results) == [0, 1, 2, 3]
    names = os.listdir(tmp_path / "export" / "latest")
    stamps = [str(1_700_000_000 + number) for number in left]
    assert sorted(names) == sorted([*others, *stamps])


def test_linked_export_is_removed_without_its_target(tmp_path):
    exporter = kte.LatestExporter("latest", receiver_fn, exports_to_keep=1)
    path, disk = tmp_path / "export" / "latest", tmp_path / "disk"
    writer = Writer(tmp_path)
    offer(exporter, writer, [{}])
    (path / "1700000000").rename(disk)
    (disk / "saved_model.pb").touch()
    (path / "1700000000").symlink_to(disk)
    assert offer(exporter, writer, [{}]) == [0]
    assert os.listdir(path) == ["1700000001"]
    assert os.listdir(disk) == ["saved_model.pb"]


@pytest.mark.parametrize(("is_final", "exported"), [(False, []), (True, [0])])
def test_final_exporter_exports_only_at_the_end(is_final, exported, tmp_path):
    exporter = kte.FinalExporter("final", receiver_fn)
    writer = Writer(tmp_path)
    assert offer(exporter, writer, losses(1), is_final=is_final) == exported


@pytest.mark.parametrize(
    ("values", "exported"),
    [
        ([3, 2, 1], [0, 1, 2]),
        ([3, 3, 3], [0]),
        ([1, 2, 0.5, 0.7, 0.4], [0, 2, 4]),
        ([np.nan, 5, 6, np.nan, 4], [0, 1, 4]),
        ([np.inf, 5], [0, 1]),
        ([np.nan, np.nan], [0]),
    ],
)
def test_best_exporter_exports_improvements(values, exported, tmp_path):
    assert offer(best_exporter(), Writer(tmp_path), losses(*values)) == exported


def test_best_result_is_saved_for_other_processes(tmp_path):
    writer = Writer(tmp_path)
    assert offer(best_exporter(), writer, losses(2, 1)) == [0, 1]
    assert offer(best_exporter(), writer, losses(1.5, 1, 0.5)) == [2]
    assert offer(best_exporter(), writer, losses(0.7)) == []
    kept = tmp_path / "export" / "best_exporter.best_eval_result.json"
    assert json.loads(kept.read_text()) == {"global_step": 2, "loss": 0.5}
    # A program that lists the folder finds only exports.
    assert not [p for p in (kept.parent / "best_exporter").iterdir() if p.is_file()]


def test_two_exporters_have_separate_best_results(tmp_path):
    one, other = best_exporter(name="one"), best_exporter(name="other")
    writer = Writer(tmp_path)
    assert offer(one, writer, losses(1, 2)) == [0]
    assert offer(other, writer, losses(2, 3)) == [0]


def test_comparison_may_be_customized(tmp_path):
    def more_accurate(best_eval_result, current_eval_result):
        best = best_eval_result["accuracy"]
        return current_eval_result["accuracy"] > best

    results = [
        {"accuracy": 0.5, "matrix": np.ones((2, 2)), "name": b"no number"},
        {"accuracy": 0.4},
        {"accuracy": 0.6},
    ]
    exporter = best_exporter(compare_fn=more_accurate)
    assert offer(exporter, Writer(tmp_path), results) == [0, 2]


def write_events(directory, results):
    with kte.summary.EventWriter(str(directory)) as writer:
        for step, metrics in results.items():
            writer.metrics(metrics, step)


@pytest.mark.parametrize(
    ("arguments", "directory", "exported"),
    [
        ({}, "eval", [1]),
        ({}, "eval_test", [0, 1]),
        ({"event_file_pattern": "eval_test/*.tfevents.*"}, "eval_test", [1]),
        ({"event_file_pattern": None}, "eval", [0, 1]),
    ],
)
def test_best_result_of_older_programs_is_in_event_files(
    arguments, directory, exported, tmp_path
):
    earlier = {10: {"loss": 3.0}, 20: {"loss": 1.0}, 30: {"loss": 2.0}}
    other = {40: {"learning_rate": 0.0}}
    write_events(tmp_path / directory, earlier | other)
    (tmp_path / "export" / "best_exporter" / "1600000000").mkdir(parents=True)
    exporter = best_exporter(**arguments)
    assert offer(exporter, Writer(tmp_path), losses(1.5, 0.9)) == exported


def test_evaluation_is_not_compared_with_its_own_event(tmp_path):
    (tmp_path / "export" / "best_exporter" / "1600000000").mkdir(parents=True)
    write_events(tmp_path / "eval", {0: {"loss": 0.5}, 10: {"loss": 1.0}})
    assert offer(best_exporter(), Writer(tmp_path), losses(0.5)) == [0]


def test_first_model_is_the_best_without_exports(tmp_path):
    write_events(tmp_path / "eval", {10: {"loss": 1.0}})
    assert offer(best_exporter(), Writer(tmp_path), losses(5, 4)) == [0, 1]


def test_first_model_is_exported_without_a_result(tmp_path):
    exporter, writer = best_exporter(exports_to_keep=1), Writer(tmp_path)
    path = tmp_path / "export"
    arguments = (writer, str(path), "model.ckpt-0", None, False)
    exports = [exporter.export(*arguments) for _ in range(2)]
    assert [str(each) for each in path.iterdir()] == exports[-1:]
    assert offer(exporter, writer, losses(5, 6), str(path)) == [0]


def test_comparing_losses_needs_a_loss(tmp_path):
    with pytest.raises(ValueError, match="Pass a `compare_fn`"):
        offer(best_exporter(), Writer(tmp_path), [{"mae": 2}, {"mae": 1}])


def test_corrupt_record_of_the_best_is_named(tmp_path):
    writer = Writer(tmp_path)
    offer(best_exporter(), writer, losses(1))
    kept = tmp_path / "export" / "best_exporter.best_eval_result.json"
    kept.write_text("{")
    with pytest.raises(ValueError, match="best_eval_result.json.*Delete it"):
        offer(best_exporter(), writer, losses(1))


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: kte.BestExporter(), ValueError, "needs a `serving_input_rec"),
        (
            lambda: kte.LatestExporter("a", None),
            ValueError,
            "needs a `serving_input_receiver_fn`",
        ),
        (
            lambda: kte.FinalExporter("a", "receiver"),
            TypeError,
            "must be a function without arguments",
        ),
        (
            lambda: kte.LatestExporter("a", receiver_fn, exports_to_keep=0),
            ValueError,
            "`exports_to_keep` must be positive",
        ),
        (
            lambda: best_exporter(exports_to_keep=-1),
            ValueError,
            "`exports_to_keep` must be positive",
        ),
        (
            lambda: best_exporter(compare_fn=None),
            ValueError,
            "`compare_fn` must be a function",
        ),
        (
            lambda: best_exporter(compare_fn="loss"),
            TypeError,
            "`compare_fn` must be a function of",
        ),
        (
            lambda: best_exporter(compare_fn=lambda best, current: True),
            ValueError,
            r"Received one of \['best', 'current'\]",
        ),
        (
            lambda: best_exporter(compare_fn=lambda best_eval_result: True),
            ValueError,
            "must have the arguments",
        ),
        (lambda: kte.Exporter(), TypeError, "abstract"),
    ],
)
def test_invalid_arguments_of_exporters_are_refused(make, error, message):
    with pytest.raises(error, match=message):
        make()


def test_exports_can_be_served(tmp_path, monkeypatch):
    serving_fn = kte.export.build_raw_serving_input_receiver_fn(
        {"x": tf.TensorSpec([None, 3], tf.float32)},
    )
    monkeypatch.setattr(
        "keras_tpu_estimator.export.exporting.FirstRequest.check",
        lambda *arguments: None,
    )

    def network(features, is_training):
        x = features["x"] if isinstance(features, dict) else features
        return linear(x, is_training)

    estimator = estimator_of(model_fn_of(network), tmp_path, batch=16)
    _, exports = kte.train_and_evaluate(
        estimator,
        kte.TrainSpec(TRAIN, max_steps=4),
        kte.EvalSpec(
            HELD_OUT,
            exporters=[
                kte.FinalExporter("final", serving_fn),
                kte.BestExporter("best", serving_fn),
            ],
        ),
    )
    final, best = exports
    assert pathlib.Path(final).parent == tmp_path / "export" / "final"
    assert pathlib.Path(best).parent == tmp_path / "export" / "best"
    loaded = tf.saved_model.load(best, tags=["serve"])
    served = loaded.signatures["serving_default"]
    rows = DATA[0][:5]
    (expected,) = estimator.predict(lambda params: rows, yield_single_examples=False)
    (outputs,) = served(tf.constant(rows)).values()
    np.testing.assert_allclose(outputs, expected["y"], rtol=1e-5)
