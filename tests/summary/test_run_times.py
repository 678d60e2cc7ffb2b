"""Tests of the file with the times of all runs in a directory."""

import json
import os

import pytest

from keras_tpu_estimator.base.common.ledger import ACCOUNTS, StepSeconds, TimeLedger
from keras_tpu_estimator.files.summary import run_times
from keras_tpu_estimator.files.summary.run_times import (
    FILE_NAME,
    RunTimes,
    RunTimesFile,
    TimeTable,
)


def times(began=1000.0, points=((0, 0.0), (10, 5.0)), saving=0.5, **seconds):
    accounts = dict.fromkeys(ACCOUNTS, 0.0) | {"steps": points[-1][1]} | seconds
    return RunTimes(began, accounts, StepSeconds(points), saving)


def written(directory, *runs):
    for run in runs:
        file = RunTimesFile(str(directory), None)
        file.write(run)
        file.close()


def test_file_has_a_line_for_each_run(tmp_path):
    first, second = times(), times(began=2000.0, compile=1.25)
    written(tmp_path, first, second)
    assert run_times.read(str(tmp_path)) == [first, second]
    lines = (tmp_path / FILE_NAME).read_text().splitlines()
    assert json.loads(lines[1])["seconds"] == {"steps": 5.0, "compile": 1.25}


def test_line_is_rewritten_in_place(tmp_path):
    file = RunTimesFile(str(tmp_path), None)
    for seconds in (1.0, 123456.789, 2.0):
        file.write(times(input=seconds))
        (run,) = run_times.read(str(tmp_path))
        assert run.seconds["input"] == seconds
    file.close()
    again = RunTimesFile(str(tmp_path), file.position)
    assert not again.is_new and again.position == 0 and not again.earlier()
    again.close()


def test_run_gets_a_new_line_after_another_run(tmp_path):
    file = RunTimesFile(str(tmp_path), None)
    file.write(times())
    file.close()
    written(tmp_path, times(began=2000.0))
    again = RunTimesFile(str(tmp_path), file.position)
    assert again.is_new
    assert again.earlier() == [times(), times(began=2000.0)]
    again.close()


def test_longest_line_fits(tmp_path):
    points = [(0, 0.0)]
    steps = StepSeconds(tuple(points))
    for number in range(100):
        steps = steps.to(2**31 - 200 + number, 1e9 + number / 7)
    run = RunTimes(2e9, dict.fromkeys(ACCOUNTS, 123456789.123456), steps, 1e9 / 7)
    assert len(run.as_line()) == 2048
    written(tmp_path, run)
    assert len(run_times.read(str(tmp_path))) == 1


def test_ledger_of_a_run():
    ledger = TimeLedger(before=2.0)
    ledger.resume(30)
    run = RunTimes.from_ledger(1000.0, ledger)
    assert run.seconds["start"] == 2.0 and run.steps.first == 30
    assert RunTimes.parse(run.as_line()).seconds["start"] == 2.0


def test_table_adds_up():
    runs = [
        times(1000.0, points=((0, 0.0), (10, 5.0), (16, 8.0)), start=2.0),
        times(1020.0, points=((10, 0.0), (20, 5.0)), saving=1.5),
        # Its last checkpoints were corrupt.
        times(1027.0, points=((5, 0.0), (20, 4.0))),
    ]
    table = TimeTable.from_runs(runs)
    # Steps 0 to 5 of the first run, none of the second, and all of the third.
    assert table.seconds["steps"] == 2.5 + 4.0
    assert table.seconds["lost_steps"] == 5.5 + 5.0
    assert table.seconds["down"] == 10.0 + 2.0
    assert table.total == 31.0 and table.goodput == 6.5 / 31
    assert table.saving == 2.5 and table.runs == 3
    scalars = table.scalars()
    assert scalars["time/down"] == 12.0 and scalars["time/goodput"] == 6.5 / 31


def test_clock_that_goes_back_makes_no_negative_time():
    table = TimeTable.from_runs([times(2000.0), times(1000.0)])
    assert table.seconds["down"] == 0.0


def test_no_runs():
    table = TimeTable.from_runs([])
    assert table.total == 0.0 and table.goodput == 0.0


_LINE = json.loads(times().as_line())


@pytest.mark.parametrize(
    "line",
    [
        b"\xff\x00",
        b"null",
        b"[" * 2000,
        b"{}",
        json.dumps({**_LINE, "began": "NaN"}).encode(),
        json.dumps({**_LINE, "began": 10**400}).encode(),
        json.dumps({**_LINE, "saving": -1}).encode(),
        json.dumps({**_LINE, "began": 1e300}).encode(),
        json.dumps({**_LINE, "seconds": []}).encode(),
        json.dumps({**_LINE, "seconds": {"steps": float("inf")}}).encode(),
        json.dumps({**_LINE, "steps": []}).encode(),
        json.dumps({**_LINE, "steps": [[2, 1], [1, 2]]}).encode(),
        json.dumps({**_LINE, "steps": [[1e300, 1], [2e300, 1]]}).encode(),
        b'{"began": ' + b"9" * 2000,
        times().as_line()[:60],
        b"x" * 10_000,
    ],
)
def test_corrupt_lines_are_skipped(tmp_path, line):
    (tmp_path / FILE_NAME).write_bytes(line)
    assert not run_times.read(str(tmp_path))
    written(tmp_path, times())
    assert run_times.read(str(tmp_path)) == [times()]


def test_missing_file_has_no_runs(tmp_path):
    assert run_times.read(str(tmp_path)) == []
    (tmp_path / FILE_NAME).mkdir()
    assert run_times.read(str(tmp_path)) == []


def _pipe(path):
    os.mkfifo(path)


def _link(path):
    (path.parent / "other").write_text("private")
    path.symlink_to("other")


@pytest.mark.parametrize("make", [_pipe, _link, os.mkdir])
def test_only_a_regular_file_is_written(tmp_path, make):
    make(tmp_path / FILE_NAME)
    with pytest.raises(OSError):
        RunTimesFile(str(tmp_path), None)
    assert run_times.read(str(tmp_path)) == []
    for other in tmp_path.glob("other"):
        assert other.read_text() == "private"
