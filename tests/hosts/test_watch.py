"""Tests a host's view of the others with a simulated clock."""

import pytest

from keras_tpu_estimator.base.hosts import watch


@pytest.fixture
def three(member):
    """The watches of three hosts."""
    return [member(index, count=3).watch for index in range(3)]


def looked(watches, clock, seconds, silent=()):
    """The view of each host after several seconds, if it checks every second."""
    problems = {}
    for _ in range(seconds):
        clock.now += 1
        for host, each in enumerate(watches):
            if host not in silent:
                problem = each.look()
                if problem:
                    problems.setdefault(host, problem)
    return problems


def test_hosts_with_heartbeats_are_healthy(three, clock):
    assert looked(three, clock, 30) == {}


def test_silent_host_is_gone(three, clock):
    assert looked(three, clock, 2) == {}
    assert looked(three, clock, 9, silent=[1]) == {}
    problems = looked(three, clock, 4, silent=[1])
    assert problems.keys() == {0, 2}
    for problem in problems.values():
        assert problem.text == (
            "Host 1 of 3 has not responded for 10 seconds: it is gone."
        )
        assert problem.host == 1 and not problem.is_reachable


def test_host_that_falls_behind_is_stuck(three, clock):
    for each in three:
        each.runs = 5
    three[2].runs = 4
    assert looked(three, clock, 9) == {}
    problems = looked(three, clock, 4)
    assert problems.keys() == {0, 1, 2}
    assert problems[0].text.startswith("Host 2 of 3 is alive, but stuck: it ha")
    assert "started 4 runs on its devices, and others 5, for 10 sec" in problems[0].text


def test_host_that_catches_up_is_not_stuck(three, clock):
    for turn in range(5):
        three[0].runs = three[1].runs = turn + 1
        three[2].runs = turn
        assert looked(three, clock, 8) == {}


def test_busy_host_is_neither_gone_nor_stuck(three, clock):
    three[0].runs = three[1].runs = 1
    with three[2].busy("reads a checkpoint"):
        assert three[0].is_busy(2) == "reads a checkpoint"
        assert looked(three, clock, 50) == {}
    assert three[0].is_busy(2) is None
    assert looked(three, clock, 5) == {}
    assert looked(three, clock, 10).keys() == {0, 1, 2}


def test_busy_host_may_be_gone(three, clock):
    with three[2].busy("reads a checkpoint"):
        assert looked(three[:2], clock, 20).keys() == {0, 1}


def test_no_host_is_busy_without_a_coordinator(three, store):
    store.is_gone = True
    with three[2].busy("reads a checkpoint"):
        assert three[0].is_busy(2) is None


def test_all_hosts_may_wait_for_devices(three, clock):
    for each in three:
        each.runs = 3
    assert looked(three, clock, 100) == {}


def test_lost_coordinator_ends_the_host_at_once(three, clock, store):
    store.is_gone = True
    (problem,) = looked(three[:1], clock, 1).values()
    assert problem.host == 0
    assert problem.text.startswith(
        "Host 0, which coordinates the others, is gone: UNAVAILABLE"
    )


def test_host_reported_as_silent_is_gone_at_once(three, clock, monkeypatch):
    looked(three, clock, 2)
    looked(three, clock, 7, silent=[2])
    monkeypatch.setattr(watch.time, "sleep", lambda secs: pytest.fail("slept"))
    assert three[0].silent_now() == [2]


def test_thread_runs_until_it_is_stopped(store):
    problems = []

    def end(problem):
        problems.append(problem)
        store.is_gone = False
        own._is_over.set()

    own = watch.Watch(0, 2, watch.Store(store), lambda: None, end)
    store.is_gone = True
    own.start()
    own.stop()
    assert len(problems) <= 1
    # A thread inside JAX would abort an interpreter that ends.
    assert not own._thread.is_alive()


def test_unstarted_watch_can_be_stopped(three):
    three[0].stop()
