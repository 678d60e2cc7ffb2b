"""Tests items that a thread prepares: order, errors and leaks."""

import itertools
import threading
import time
import types

import pytest
from helpers import open_when_joined

from keras_tpu_estimator.engine.inputs import pipeline as infeed_module
from keras_tpu_estimator.engine.inputs.pipeline import Infeed

# Only for waits that would never end.
PATIENCE_SECS = 60


def producer(items):
    """A function that returns items and then None."""
    iterator = iter(items)
    return lambda: next(iterator, None)


def infeed_threads():
    return [t for t in threading.enumerate() if t.name == "infeed"]


def wait_until(condition):
    """Waits for another thread, with a time limit."""
    end = time.monotonic() + PATIENCE_SECS
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.001)


def is_waited_in(infeed):
    """Whether a thread waits for room or for an item."""
    return bool(infeed._changed._waiters)


@pytest.fixture(autouse=True)
def no_thread_is_left():
    yield
    wait_until(lambda: not infeed_threads())


@pytest.mark.parametrize("depth", [1, 2, 50])
@pytest.mark.parametrize("count", [0, 1, 100])
def test_items_come_in_order_and_end(depth, count):
    with Infeed(producer(range(count)), depth) as infeed:
        assert list(infeed) == list(range(count))
        # The end is permanent.
        assert list(infeed) == []
        assert next(infeed, "over") == "over"


def test_ready_items_are_gathered():
    with Infeed(producer(range(9)), depth=50) as infeed:
        assert not infeed.gather(5, PATIENCE_SECS)
        assert infeed.has_ready(5)
        assert not infeed.gather(50, PATIENCE_SECS)
        assert list(infeed) == list(range(9))


def test_take_ready_does_not_wait_for_items():
    goes_on = threading.Event()

    def produce():
        yield 1
        goes_on.wait(PATIENCE_SECS)
        yield 2

    with Infeed(producer(produce()), depth=50) as infeed:
        assert next(infeed) == 1
        assert infeed.gather(2, gap_secs=0.001)
        goes_on.set()
        assert list(infeed) == [2]


def test_falsy_items_do_not_end_the_infeed():
    items = [0, False, "", (), 1]
    with Infeed(producer(items)) as infeed:
        assert list(infeed) == items


@pytest.mark.parametrize("depth", [1, 3])
def test_number_of_prefetched_items_is_limited(depth):
    made = []

    def produce():
        made.append(len(made))
        return made[-1]

    with Infeed(produce, depth) as infeed:
        # The producer has made one more item.
        wait_until(lambda: is_waited_in(infeed))
        assert len(made) == depth + 1
        assert next(infeed) == 0
        wait_until(lambda: len(made) == depth + 2)


def test_prefetch_limit_may_depend_on_the_items():
    made = []

    def produce():
        made.append(len(made))
        return made[-1]

    # From number 2 on, only one item may wait.
    with Infeed(produce, lambda number: 3 if number < 2 else 1) as infeed:
        wait_until(lambda: is_waited_in(infeed))
        assert made == [0, 1, 2]
        assert [next(infeed), next(infeed)] == [0, 1]
        wait_until(lambda: len(made) == 4)


def test_items_are_made_on_another_thread():
    with Infeed(threading.current_thread) as infeed:
        assert next(infeed) is not threading.current_thread()


@pytest.mark.parametrize(
    "error", [ValueError("wrong"), KeyboardInterrupt(), SystemExit(1)]
)
def test_error_is_raised_after_the_items_before_it(error):
    def produce():
        count = next(counts)
        if count == 2:
            raise error
        return count

    counts = itertools.count()
    with Infeed(produce, depth=5) as infeed:
        wait_until(lambda: not infeed_threads())
        assert [next(infeed), next(infeed)] == [0, 1]
        with pytest.raises(type(error)) as info:
            next(infeed)
        assert info.value is error
        # It is raised once.
        assert next(infeed, "over") == "over"
    assert next(counts) == 3


def test_error_in_the_first_item_is_raised():
    def produce():
        raise OSError("no such file")

    with Infeed(produce) as infeed:
        with pytest.raises(OSError, match="no such file"):
            next(infeed)


def test_consumer_waits_for_an_item():
    release = threading.Event()

    def produce():
        release.wait(PATIENCE_SECS)
        return "late"

    # Only a consumer that must wait calls this.
    with Infeed(produce, is_cancelled=release.set) as infeed:
        assert next(infeed) == "late"


def test_waiting_time_is_returned_once(monkeypatch):
    clock = types.SimpleNamespace(now=0.0)
    clock.monotonic = lambda: clock.now
    monkeypatch.setattr(infeed_module, "time", clock)
    release = threading.Event()

    def produce():
        release.wait(PATIENCE_SECS)
        return "late"

    def two_seconds_pass():
        clock.now += 2
        release.set()

    with Infeed(produce, is_cancelled=two_seconds_pass) as infeed:
        next(infeed)
        waited = clock.now
        wait_until(
            lambda: is_waited_in(infeed)
        )  # The producer waits for room, so all items are ready.
        clock.now += 100
        next(infeed)
        assert infeed.take_waited_secs() == waited >= 2
        assert infeed.take_waited_secs() == 0


def test_closing_a_full_queue_drops_its_items():
    made = []

    def produce():
        made.append(None)
        return len(made)

    infeed = Infeed(produce, depth=2)
    wait_until(lambda: len(made) == 3)
    infeed.close()
    assert not infeed_threads()
    assert len(made) == 3
    assert next(infeed, "over") == "over"


def test_closing_does_not_wait_forever_for_a_producer(monkeypatch):
    monkeypatch.setattr(infeed_module, "_PATIENCE_SECS", 0.02)
    inside, release = threading.Event(), threading.Event()

    def produce():
        inside.set()
        release.wait(PATIENCE_SECS)
        return "too late"

    infeed = Infeed(produce)
    assert inside.wait(PATIENCE_SECS)
    infeed.close()
    assert infeed_threads()
    assert next(infeed, "over") == "over"
    release.set()
    wait_until(lambda: not infeed_threads())
    # Items made after closing are dropped.
    assert next(infeed, "over") == "over"


def test_closing_waits_briefly_for_a_producer(monkeypatch):
    inside, release = threading.Event(), threading.Event()

    def produce():
        inside.set()
        release.wait(PATIENCE_SECS)
        return 1

    monkeypatch.setattr(infeed_module, "_PATIENCE_SECS", PATIENCE_SECS)
    infeed = Infeed(produce)
    assert inside.wait(PATIENCE_SECS)
    open_when_joined(monkeypatch, release, "infeed")
    infeed.close()
    assert not infeed_threads()


def test_closing_twice_and_after_the_end():
    infeed = Infeed(producer([1]))
    assert list(infeed) == [1]
    infeed.close()
    infeed.close()
    assert list(infeed) == []


def test_error_in_the_block_closes_the_infeed():
    with pytest.raises(RuntimeError, match="elsewhere"):
        with Infeed(lambda: 1):
            raise RuntimeError("elsewhere")
    assert not infeed_threads()
