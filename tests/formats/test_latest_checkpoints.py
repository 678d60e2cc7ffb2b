import itertools

import numpy as np
import pytest
from tensorflow_files import save_tf1

import keras_tpu_estimator as kte
from keras_tpu_estimator import checkpoints
from keras_tpu_estimator.files.formats import latest_checkpoints


@pytest.fixture
def clock(monkeypatch):
    """A clock that sleeping advances, with events at given times."""

    class Clock:
        def __init__(self):
            self.now = 0.0
            self.events = {}

        def monotonic(self):
            return self.now

        def sleep(self, seconds):
            self.now += seconds
            for time in [t for t in self.events if t <= self.now]:
                self.events.pop(time)()

    clock = Clock()
    monkeypatch.setattr(latest_checkpoints, "time", clock)
    return clock


def test_latest_of_every_kind(tmp_path):
    assert kte.latest_checkpoint(tmp_path / "missing") is None
    assert kte.latest_checkpoint(tmp_path) is None
    own = checkpoints.save(tmp_path / "own", 20, {})
    assert kte.latest_checkpoint(tmp_path / "own") == own


@pytest.mark.parametrize("version", [1, 2])
def test_latest_of_tensorflow(tmp_path, version):
    variables = {"a": np.zeros(1, "float32")}
    prefix = save_tf1(str(tmp_path), variables, step=5, version=version)
    assert kte.latest_checkpoint(tmp_path) == prefix
    assert kte.latest_checkpoint(bytes(tmp_path)) == prefix


def test_latest_with_a_state_file_of_another_name(tmp_path):
    first = checkpoints.save(tmp_path, 20, {})
    (tmp_path / "checkpoint").rename(tmp_path / "best")
    second = checkpoints.save(tmp_path, 30, {})

    assert kte.latest_checkpoint(tmp_path) == second
    assert kte.latest_checkpoint(tmp_path, "best") == first
    assert kte.latest_checkpoint(tmp_path, latest_filename="none") is None


def test_latest_falls_back_to_the_newest_existing(tmp_path, caplog):
    first = checkpoints.save(tmp_path, 20, {})
    checkpoints.save(tmp_path, 30, {})
    (tmp_path / "model.ckpt-30.h5").unlink()
    assert kte.latest_checkpoint(tmp_path) == first
    assert f"Using {first!r} instead." in caplog.text


def test_iterator_yields_each_latest_once(tmp_path, clock):
    directory = tmp_path / "appears"
    clock.events = {
        3: lambda: checkpoints.save(directory, 0, {}),
        5: lambda: checkpoints.save(directory, 10, {}),
    }
    found = [
        (path, clock.now) for path in kte.checkpoints_iterator(directory, timeout=10)
    ]
    assert found == [
        (str(directory / "model.ckpt-0"), 3),
        (str(directory / "model.ckpt-10"), 5),
    ]
    assert clock.now == 15


def test_iterator_skips_checkpoints_that_another_follows(tmp_path, clock):
    found = []
    for path in kte.checkpoints_iterator(tmp_path, timeout=0):
        found.append(path)
    checkpoints.save(tmp_path, 0, {})
    for path in kte.checkpoints_iterator(tmp_path, timeout=0):
        found.append(path)
        if len(found) == 1:
            checkpoints.save(tmp_path, 10, {})
            checkpoints.save(tmp_path, 20, {})
    assert found == [
        str(tmp_path / "model.ckpt-0"),
        str(tmp_path / "model.ckpt-20"),
    ]


def test_iterator_keeps_the_interval(tmp_path, clock):
    checkpoints.save(tmp_path, 0, {})
    times = []
    for _ in kte.checkpoints_iterator(tmp_path, min_interval_secs=60, timeout=0):
        times.append(clock.now)
        clock.now += 25
        if len(times) < 3:
            checkpoints.save(tmp_path, len(times), {})
    assert times == [0, 60, 120]


def test_iterator_without_a_timeout_waits(tmp_path, clock):
    clock.events = {1000: lambda: checkpoints.save(tmp_path, 0, {})}
    path = next(kte.checkpoints_iterator(tmp_path))
    assert (path, clock.now) == (str(tmp_path / "model.ckpt-0"), 1000)


def test_timeout_fn_decides_after_each_timeout_only(tmp_path, clock):
    calls = []

    def is_done():
        calls.append(clock.now)
        if len(calls) == 2:
            checkpoints.save(tmp_path, 0, {})
        return len(calls) == 3

    found = list(kte.checkpoints_iterator(tmp_path, timeout=10, timeout_fn=is_done))
    assert found == [str(tmp_path / "model.ckpt-0")]
    assert calls == [10, 20, 30]


def test_iterator_does_not_wait_past_the_timeout(tmp_path, clock):
    assert list(kte.checkpoints_iterator(tmp_path, timeout=2.5)) == []
    assert clock.now == 2.5


def test_iterator_reads_the_real_clock(tmp_path):
    prefix = checkpoints.save(tmp_path, 0, {})
    paths = kte.checkpoints_iterator(tmp_path, 0.01, timeout=0.05)
    assert list(itertools.islice(paths, 5)) == [prefix]
