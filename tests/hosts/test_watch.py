"""What a host thinks of the others, as its clock goes on."""

import jax
import pytest

from keras_tpu_estimator.hosts import watch
from keras_tpu_estimator.hosts.errors import HostError


@pytest.fixture
def three(watched):
    """The watches of three hosts."""
    return [watched(index, count=3) for index in range(3)]


def looked(watches, clock, seconds, silent=()):
    """What each thinks after so many seconds, each of which it looks."""
    problems = {}
    for _ in range(seconds):
        clock.now += 1
        for each in watches:
            if each.index not in silent:
                problem = each._look()
                if problem:
                    problems.setdefault(each.index, problem)
    return problems


def test_nothing_is_wrong_with_those_who_beat(three, clock):
    assert looked(three, clock, 30) == {}


def test_who_is_silent_is_gone(three, clock):
    assert looked(three, clock, 2) == {}
    assert looked(three, clock, 9, silent=[1]) == {}
    problems = looked(three, clock, 4, silent=[1])
    assert problems.keys() == {0, 2}
    for problem in problems.values():
        assert problem == (
            "Host 1 of 3 has not been heard of for 10 seconds: it is gone."
        )


def test_who_is_behind_is_stuck(three, clock, watched):
    for each in three:
        each.runs = 5
    three[2].runs = 4
    assert looked(three, clock, 9) == {}
    problems = looked(three, clock, 4)
    assert problems.keys() == {0, 1, 2}
    assert problems[0].startswith("Host 2 of 3 is alive, but stuck: its dev")
    assert "given 4 runs, and those of others 5, for 10 seconds" in problems[0]


def test_who_catches_up_is_not(three, clock):
    for turn in range(5):
        three[0].runs = three[1].runs = turn + 1
        three[2].runs = turn
        assert looked(three, clock, 8) == {}


def test_all_waiting_for_their_devices_is_fine(three, clock):
    for each in three:
        each.runs = 3
    assert looked(three, clock, 100) == {}


def test_failures_and_a_lost_coordinator_end_at_once(three, clock, store):
    three[1].tell("failed", "Host 1 has failed in train: ValueError: no.")
    problems = looked(three, clock, 1)
    assert problems.keys() == {0, 2}
    assert problems[0] == "Host 1 has failed in train: ValueError: no."
    store.is_gone = True
    assert looked(three[:1], clock, 1)[0].startswith(
        "Host 0, through which all others talk, is gone: UNAVAILABLE"
    )


def test_the_end_is_told_and_has_a_code(three, monkeypatch, caplog):
    ends = []
    monkeypatch.setattr(watch, "_GRACE_SECS", 0.0)
    monkeypatch.setattr(watch.logging, "shutdown", lambda: None)
    monkeypatch.setattr(watch.os, "_exit", ends.append)
    three[0]._end("Host 1 of 3 is gone.")
    assert ends == [1]
    assert (
        "Host 1 of 3 is gone. This one, host 0, ends, too. Start all hosts "
        "again to go on from the latest checkpoint." in caplog.text
    )


def test_an_error_of_the_devices_names_who_is_gone(three, monkeypatch):
    beats = iter(range(2, 99))

    def wait(secs):
        for host in (0, 2):
            three[host].tell("alive", f"[{next(beats)}, 0]")

    for host in three:
        host.tell("alive", "[1, 0]")
    monkeypatch.setattr(watch.time, "sleep", wait)
    error = jax.errors.JaxRuntimeError("Gloo: connection closed by peer")
    with (
        pytest.raises(HostError, match="^Host 1 of 3 is gone, and with it"),
        watch.told_of_errors("train"),
    ):
        raise error
    monkeypatch.setattr(
        watch.time, "sleep", lambda s: (wait(s), three[1].tell("alive", "[2]"))
    )
    with (
        pytest.raises(jax.errors.JaxRuntimeError, match="Gloo"),
        watch.told_of_errors("train"),
    ):
        raise error


def test_who_is_known_to_be_silent_is_gone_at_once(three, clock, monkeypatch):
    monkeypatch.setattr(watch, "_watch", three[0])
    looked(three, clock, 2)
    looked(three, clock, 7, silent=[2])
    monkeypatch.setattr(watch.time, "sleep", lambda secs: pytest.fail("slept"))
    with pytest.raises(HostError, match="^Host 2 of 3 is gone"):
        watch.check_gone()


@pytest.fixture
def ends(monkeypatch):
    """The exit codes of processes that end themselves."""
    codes = []
    monkeypatch.setattr(watch.logging, "shutdown", lambda: None)
    monkeypatch.setattr(watch.os, "_exit", codes.append)
    monkeypatch.setattr(watch.sys, "last_value", None, raising=False)
    monkeypatch.setattr(watch, "_PARTING_SECS", 0.0)
    return codes


def test_nobody_waits_at_exit_after_a_failure(watched, store, ends):
    watched(0).has_failed = True
    watch._at_exit()
    assert ends == [1] and [*store.values] == ["kte/left/0"]


def test_an_error_of_the_program_is_told_at_exit(
    three, store, ends, clock, monkeypatch
):
    monkeypatch.setattr(watch.sys, "last_value", KeyError("name"))
    monkeypatch.setattr(watch, "_watch", three[2])
    watch._at_exit()
    assert ends == [1]
    assert looked(three[:1], clock, 1)[0] == (
        "Host 2 has failed in the program: KeyError: 'name'"
    )


def test_all_leave_together(three, ends, monkeypatch):
    others = iter(three[1:])
    monkeypatch.setattr(
        watch.time, "sleep", lambda secs: next(others).tell("done", "")
    )
    monkeypatch.setattr(watch, "_watch", three[0])
    three[0].start()
    watch._at_exit()
    assert not ends and next(others, None) is None
    # A thread inside JAX would abort an interpreter that ends.
    assert not three[0]._thread.is_alive()


def test_nobody_waits_at_exit_without_a_coordinator(watched, store, ends):
    watched(1)
    store.is_gone = True
    watch._at_exit()
    assert ends == [1]


def test_runs_are_counted_where_there_are_others(watched, monkeypatch):
    host = watched(0)
    watch.ran()
    watch.ran()
    assert host.runs == 2
    monkeypatch.setattr(watch, "_watch", None)
    watch.ran()
    watch.check_failures()
    assert host.runs == 2
