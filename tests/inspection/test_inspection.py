"""Tests of the reports of `python -m keras_tpu_estimator` about a directory."""

import os
import re
import sys

import pytest
from helpers import (
    batches_of,
    estimator_of,
    linear,
    model_fn_of,
    regression_data,
    repeated,
)

from keras_tpu_estimator import checkpoints
from keras_tpu_estimator.__main__ import main
from keras_tpu_estimator.files import inspection
from keras_tpu_estimator.files.directory import state_file
from keras_tpu_estimator.files.inspection import Directory


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A directory with two checkpoints and an evaluation."""
    directory = tmp_path_factory.mktemp("run")
    x, y = regression_data()
    estimator = estimator_of(model_fn_of(linear), directory)
    estimator.train(repeated(x, y), steps=4)
    estimator.train(repeated(x, y), steps=4)
    estimator.evaluate(batches_of(x, y))
    return directory


def test_info_of_a_directory(trained, capsys):
    assert main(["info", str(trained)]) == 0
    text = capsys.readouterr().out
    assert f"{trained}: at step 8; training is not marked as complete" in text
    assert "model.ckpt-8  8     " in text
    assert "model.ckpt-4  4     " in text
    assert "dense/kernel   (3, 1)  float32\n" in text
    assert "4 variables, 6 numbers" in text
    assert "\neval             step = 8, loss = " in text


def test_info_of_a_checkpoint(trained, capsys):
    assert main(["info", str(trained / "model.ckpt-4")]) == 0
    text = capsys.readouterr().out
    assert "model.ckpt-4" in text
    assert "model.ckpt-8" not in text


def test_info_shows_the_times(trained, capsys):
    with open(trained / "run_times.jsonl", "a") as file:
        file.write("corrupt\n")
    assert main(["info", str(trained)]) == 0
    times = capsys.readouterr().out.partition("\n\ntime ")[2].splitlines()
    assert [line.partition("  ")[0] for line in times[1:4]] == [
        *("steps", "start", "restore")
    ]
    assert re.fullmatch(r"total +[\d.]+ +100.0%", times[-3])
    assert re.fullmatch(
        r"1 run, goodput [\d.]+%, [\d.]+ s of saving in the background", times[-1]
    )


def test_info_of_an_empty_directory(tmp_path, capsys):
    with pytest.raises(SystemExit) as ended:
        main(["info", str(tmp_path)])
    assert ended.value.code == 2
    assert "There is no other checkpoint in" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["info", "verify"])
def test_missing_driver_of_a_url(command, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "gcsfs", None)
    with pytest.raises(SystemExit) as ended:
        main([command, "gs://bucket/run"])
    assert ended.value.code == 2
    assert "needs a driver" in capsys.readouterr().err


def test_completed_training(tmp_path):
    checkpoints.save(str(tmp_path), 20, {"bias": [0.0]})
    assert not Directory.at(str(tmp_path)).is_complete
    state_file.mark_complete(str(tmp_path), 20)
    assert Directory.at(str(tmp_path)).is_complete


@pytest.mark.parametrize("format_name", ["hdf5", "tensorflow"])
def test_verify(format_name, tmp_path, capsys):
    prefixes = [
        checkpoints.save(
            str(tmp_path),
            step,
            {"bias": [float(step)] * 100},
            format_name=format_name,
        )
        for step in (10, 20)
    ]
    assert main(["verify", str(tmp_path)]) == 0
    assert capsys.readouterr().out == (
        f"intact   {prefixes[1]}\nintact   {prefixes[0]}\n"
    )
    numbers = "h5" if format_name == "hdf5" else "data-00000-of-00001"
    damaged = tmp_path / f"model.ckpt-10.{numbers}"
    content = bytearray(damaged.read_bytes())
    content[len(content) // 2] ^= 0xFF
    damaged.write_bytes(content)
    assert main(["verify", str(tmp_path)]) == 1
    said = capsys.readouterr().out.splitlines()
    assert said[0] == f"intact   {prefixes[1]}"
    assert said[1].startswith(f"CORRUPT  {prefixes[0]}: ")
    assert main(["verify", prefixes[1]]) == 0


@pytest.mark.parametrize("steps", [(10,), (20,), (10, 20)])
def test_verify_finds_listed_missing_checkpoints(steps, tmp_path, capsys):
    saved = {
        step: checkpoints.save(str(tmp_path), step, {"bias": [0.0]})
        for step in (10, 20)
    }
    for step in steps:
        os.remove(f"{saved[step]}.h5")
    assert main(["verify", str(tmp_path)]) == 1
    assert capsys.readouterr().out.splitlines() == [
        f"MISSING  {saved[step]}: the `checkpoint` file lists it"
        if step in steps
        else f"intact   {saved[step]}"
        for step in (20, 10)
    ]
    with pytest.raises(SystemExit) as ended:
        main(["verify", saved[steps[0]]])
    assert ended.value.code == 2


def test_checkpoints_removed_by_retention_are_not_missing(tmp_path, capsys):
    for step in (10, 20, 30):
        prefix = checkpoints.save(
            tmp_path, step, {}, retention=checkpoints.Retention(1)
        )
    assert main(["verify", str(tmp_path)]) == 0
    assert capsys.readouterr().out == f"intact   {prefix}\n"


def test_checkpoint_removed_during_verification_is_not_missing(
    tmp_path, capsys, monkeypatch
):
    checkpoints.save(tmp_path, 10, {})

    def read(prefix):
        if prefix.endswith("-10"):
            retention = checkpoints.Retention(1)
            checkpoints.save(tmp_path, 20, {}, retention=retention)
        return verify(prefix)

    verify = inspection.verify
    monkeypatch.setattr(inspection, "verify", read)
    assert main(["verify", str(tmp_path)]) == 0
    assert "MISSING" not in capsys.readouterr().out
