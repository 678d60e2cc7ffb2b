"""Tests how readers see files that grow."""

import gc
import logging
import threading

import pytest

from keras_tpu_estimator.base.storage import growing_files as module
from keras_tpu_estimator.base.storage import paths, transfers
from keras_tpu_estimator.base.storage.growing_files import (
    _Uploaded,
    growing,
    show_all,
    shown_at_end,
)
from keras_tpu_estimator.files.summary.event_file import read_scalars
from keras_tpu_estimator.summary import EventWriter

URL = "memory://bucket/run/metrics.jsonl"


class Clock:
    """A stopped clock."""

    now = 100.0

    def __call__(self):
        return self.now


@pytest.fixture(autouse=True)
def nothing_unshown(monkeypatch):
    monkeypatch.setattr(module, "_UNSHOWN", {})


def add(file, text):
    with open(file.path, "a") as stream:
        stream.write(text)
    file.changed()


def joined(file):
    if file._thread is not None:
        file._thread.join()
    return seen()


def seen():
    with paths.opened(URL) as file:
        return file.read().decode()


@pytest.fixture
def failing(memory, monkeypatch):
    """A function that disables or enables writing."""
    put = transfers.put_bytes

    def fail(is_failing=True):
        def put_or_fail(content, url):
            if is_failing:
                raise OSError("quota exceeded")
            put(content, url)

        monkeypatch.setattr(transfers, "put_bytes", put_or_fail)

    return fail


def test_local_file_is_visible_at_once(tmp_path):
    file = growing(str(tmp_path / "file"))
    add(file, "a")
    assert (tmp_path / "file").read_text() == "a"


def test_file_is_copied_in_the_background_at_intervals(memory):
    clock = Clock()
    file = _Uploaded(URL, False, clock)
    add(file, "a")
    assert joined(file) == "a"
    add(file, "b")
    assert joined(file) == "a"
    clock.now += 11
    add(file, "c")
    assert joined(file) == "abc"


def test_complete_file_is_visible_at_the_end(memory):
    file = growing(URL)
    add(file, "a")
    add(file, "b")
    show_all()
    assert seen() == "ab"
    add(file, "c")
    del file
    with shown_at_end():
        pass
    assert seen() == "abc"


def test_new_file_continues_the_previous_one(memory):
    add(growing(URL), "a")
    show_all()
    add(growing(URL, resumes=True), "b")
    show_all()
    assert seen() == "ab"
    add(growing(URL), "c")
    show_all()
    assert seen() == "c"


def test_failure_is_raised_and_recovered_later(failing, caplog):
    failing()
    file = growing(URL)
    add(file, "a")
    with pytest.raises(OSError, match="quota"):
        show_all()
    assert "metrics.jsonl could not be written" in caplog.text
    add(file, "b")
    failing(False)
    show_all()
    assert seen() == "ab"


def test_failure_is_raised_in_the_block_that_wrote(failing, caplog):
    failing()
    with pytest.raises(OSError, match="quota"):
        with shown_at_end():
            add(growing(URL), "a")
            # The inner call has not written the file.
            with shown_at_end():
                pass
    caplog.clear()
    for _ in range(2):
        with shown_at_end():
            pass
    assert caplog.messages == []
    failing(False)
    with shown_at_end():
        pass
    assert seen() == "a"


def test_failure_outside_of_blocks_is_logged_once(failing, caplog):
    failing()
    file = growing(URL)
    add(file, "a")
    file._thread.join()  # It has a separate warning.
    caplog.clear()
    for _ in range(2):
        with shown_at_end():
            pass
    assert caplog.messages == [
        "An earlier write has not reached its file yet, and is retried: quota exceeded"
    ]


def test_failure_does_not_hide_another_error(failing, caplog):
    failing()
    with caplog.at_level(logging.ERROR):
        with pytest.raises(KeyError, match="mine"):
            with shown_at_end():
                add(growing(URL), "a")
                raise KeyError("mine")
    assert "Not all event files could be written" in caplog.text


@pytest.mark.parametrize("url", ["file:///tmp/run", "memory:/bucket/run"])
def test_event_writers_check_urls(url):
    with pytest.raises(ValueError, match="A URL must"):
        EventWriter(url)


def forgotten_writer():
    """Makes a writer that only the garbage collector deletes."""
    writer = EventWriter("memory://bucket/run")
    writer.scalars({"loss": 0.25}, step=20)
    writer.itself = writer


def test_forgotten_event_file_is_visible(memory):
    forgotten_writer()
    gc.collect()
    show_all()
    found = paths.matching("memory://bucket/run/events.out.*")
    assert read_scalars(found) == {20: {"loss": 0.25}}


def test_writer_is_collected_where_files_are_locked(memory):
    forgotten_writer()

    def collect():
        with module._LOCK:
            gc.collect()
        show_all()

    thread = threading.Thread(target=collect, daemon=True)
    thread.start()
    thread.join(20)
    assert not thread.is_alive()
    found = paths.matching("memory://bucket/run/events.out.*")
    assert read_scalars(found) == {20: {"loss": 0.25}}


def test_closed_event_writer_makes_its_file_visible(memory):
    url = "memory://bucket/run"
    assert EventWriter.for_dir(f"{url}/") is EventWriter.for_dir(url)
    for step in (1, 2):
        with EventWriter.for_dir(url) as writer:
            writer.scalars({"loss": 0.25}, step)
        found = paths.matching(f"{url}/events.out.*")
        assert len(found) == step
        assert max(read_scalars(found)) == step
    assert writer.logdir == url
