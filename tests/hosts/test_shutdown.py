"""Tests how hosts end. Each host is a thread with a store in memory."""

import pytest

from keras_tpu_estimator.base.hosts import shutdown
from keras_tpu_estimator.base.hosts.failures import Problem
from keras_tpu_estimator.base.hosts.shutdown import Shutdown
from keras_tpu_estimator.base.hosts.store import Store

FAILED = Problem("Host 1 has failed in train: no.", 1, is_reachable=True)
GONE = Problem("Host 2 is gone.", 2)


@pytest.fixture
def three(store, monkeypatch):
    """Three hosts, none of which sleeps."""
    monkeypatch.setattr(shutdown.time, "sleep", lambda secs: None)
    return [Shutdown(index, 3, Store(store)) for index in range(3)]


@pytest.mark.parametrize("code", [None, 0, 3])
def test_coordinator_outlives_hosts_without_exit_code(three, code, monkeypatch):
    sleeps = []
    monkeypatch.setattr(shutdown.time, "sleep", sleeps.append)
    ended = Problem("Host 1 did not answer.", 1, is_reachable=True, is_end=True)
    three[1]._publish(shutdown.End(code))
    for host in (1, 2, 0):
        three[host]._store.publish("left", host)
    three[0].announce_end(ended)
    assert sleeps[-1] == (10 if code is None else 1)


@pytest.mark.parametrize("codes", [(None, 0, 0), (1, 2, 2)])
def test_all_leave_together(three, on_each, codes):
    def leave(host):
        own = three[host]
        return own.leave_together(codes[host], own.problem)

    assert on_each(leave, 3) == [None, None, None]
    assert [three[0].ends()[host].code for host in range(3)] == [*codes]


def test_one_exit_code_concerns_all_hosts(three, on_each):
    def leave(host):
        own = three[host]
        return own.leave_together([None, 3, 0][host], own.problem)

    (problem,) = {*on_each(leave, 3)}
    assert (problem.host, problem.code, problem.is_end) == (1, 3, True)
    assert problem.text == "The program of host 1 has ended with exit code 3."


def test_hosts_wait_only_briefly_for_a_late_host(three, on_each):
    def disconnect(host):
        return three[host].disconnect_together(0.5)

    problem, other = on_each(disconnect, 2)
    assert problem == other
    assert "Host 2 of 3 has not ended within" in problem.text
    # The late host also ends.
    assert disconnect(2) == problem


def test_all_disconnect_together(three, on_each):
    assert on_each(lambda host: three[host].disconnect_together(9), 3) == [None] * 3


def test_failing_host_prevents_the_common_end(three, on_each):
    def leave(host):
        own = three[host]
        if host == 1:
            own.announce_end(FAILED)
            return FAILED
        problem = own.leave_together(0, own.problem)
        own.announce_end(problem)
        return problem

    assert on_each(leave, 3) == [FAILED, FAILED, FAILED]
    # The hosts that have ended have announced it.
    assert three[0].ends()[0].problem is None
    assert three[0].ends()[1].problem == FAILED


def test_all_present_hosts_see_the_announcement(three, on_each):
    def announce_end(host):
        if host < 2:
            three[host].announce_end(GONE)
        return three[host].ends().get(0)

    on_each(announce_end, 3)
    assert three[1].problem() == GONE


def test_silent_host_is_awaited_only_briefly(three, clock):
    heard = three[0]._store.published_by_process

    def later(folder):
        clock.now += 1
        return heard(folder)

    three[0]._store.published_by_process = later
    three[0].announce_end(FAILED)
    assert clock.now > shutdown.SHUTDOWN_SECS


def test_failures_elsewhere_are_reported_first(three, clock):
    of_two = Problem("Host 2 is stuck.", 2)
    clock.now = 0.0
    for host, problem in ((1, of_two), (0, FAILED)):
        three[host]._publish(shutdown.End(1, problem))
    assert three[2].problem() == FAILED
    assert three[1].problem() == FAILED


def test_no_host_waits_without_a_coordinator(three, store):
    store.is_gone = True
    three[0].announce_end(FAILED)
