"""Tests of how a host reacts to failures of others, and how it ends."""

import os
import signal

import jax
import pytest

from keras_tpu_estimator.base.hosts import jax_internals, membership, shutdown
from keras_tpu_estimator.base.hosts.failures import HostError, Problem
from keras_tpu_estimator.base.hosts.shutdown import End


@pytest.fixture
def ends(monkeypatch):
    """The exit codes of processes that end themselves, as ever, at once."""
    codes = []
    monkeypatch.setattr(membership.logging, "shutdown", lambda: None)

    def leave(code):
        codes.append(code)
        raise SystemExit(code)

    monkeypatch.setattr(membership.os, "_exit", leave)
    monkeypatch.setattr(shutdown, "SHUTDOWN_SECS", -1.0)
    monkeypatch.setattr(shutdown, "GRACE_SECS", 0.0)
    monkeypatch.setattr(shutdown.time, "sleep", lambda secs: None)
    monkeypatch.setattr(membership.signal, "signal", lambda *args: None)
    return codes


def fail(own, error, call="train/1"):
    """Has a call fail on a host."""
    with pytest.raises(type(error)), own.reported_errors(call, "train"):
        raise error


def at_exit(own):
    """Ends a host's program."""
    try:
        own._at_exit()
    except SystemExit as end:
        return end.code
    return None


def test_what_fails_on_one_host_ends_the_others(member):
    error = TypeError("a hook is wrong\nin detail")
    fail(member(1), error)
    assert "on host 1" in error.__notes__[0]
    with pytest.raises(
        HostError,
        match="Host 1 has failed in train: TypeError: a hook is wrong Host "
        "0 also ends. Restart all hosts",
    ):
        member(0).check()


def test_what_fails_on_all_ends_nobody(member):
    for own in (hosts := [member(host) for host in range(2)]):
        fail(own, ValueError("NaN"))
    for own in hosts:
        own.check()


def test_an_error_is_told_once(member, store):
    own, error = member(1), ValueError("no")
    fail(own, error, "the checkpoint/1")
    fail(own, error, "train/1")
    assert [*store.values] == ["kte/failed/the checkpoint/1/1"]


def test_who_ends_because_of_another_does_not_publish(member, store):
    fail(member(0), HostError("Host 1 has failed."))
    assert not store.values


def test_an_error_of_the_devices_names_who_is_gone(member, monkeypatch):
    three = [member(host, count=3) for host in range(3)]
    watches = [own.watch for own in three]
    monkeypatch.setattr(
        "keras_tpu_estimator.base.hosts.watch.time.sleep",
        lambda secs: [each._publish() for each in watches if each is not gone],
    )
    gone = watches[1]
    error = jax.errors.JaxRuntimeError("Gloo: connection closed by peer")
    with (
        pytest.raises(HostError, match="^Host 1 of 3 is gone, and with it"),
        three[0].reported_errors("train/1", "train"),
    ):
        raise error
    gone = None
    fail(three[0], error)
    assert three[1].failures.of_others()


def test_the_end_is_told_and_has_a_code(member, ends, caplog):
    with pytest.raises(SystemExit):
        member(0)._end(Problem("Host 1 of 3 is gone.", 1))
    assert ends == [1]
    assert (
        "Host 1 of 3 is gone. Host 0 also ends. Restart all hosts to "
        "continue from the latest checkpoint." in caplog.text
    )


def test_nobody_ends_for_what_has_failed_everywhere(member, ends):
    """Though one host was a moment earlier."""
    one, two = (member(host) for host in range(2))
    fail(one, ValueError("NaN"))
    problem = two.watch.look()
    fail(two, ValueError("NaN"))
    two._end(problem)
    assert not ends
    fail(one, ValueError("NaN"), "train/2")
    with pytest.raises(SystemExit):
        two._end(two.watch.look())


def test_an_own_error_that_was_caught_ends_this_host_with_others(member, on_each, ends):
    hosts = [member(host) for host in range(2)]
    fail(hosts[1], ValueError("no"))
    assert on_each(lambda host: at_exit(hosts[host])) == [1, 1]


def test_who_has_left_a_cluster_does_not_end(member, ends, monkeypatch):
    own = member(0)
    monkeypatch.setattr(jax_internals, "coordination_client", lambda: None)
    own._end(Problem("Host 0 is gone.", 0))
    assert at_exit(own) is None and not ends


def test_who_is_about_to_end_is_left_alone(member, ends):
    own = member(1)
    fail(member(0), ValueError("no"))
    problem = own.watch.look()
    own._shutdown.announce_end(problem)
    own._end(problem)
    assert not ends


def test_a_host_that_is_late_at_the_end_ends_with_a_message(member, ends, caplog):
    own, other = member(0), member(1)
    for each in (own, other):
        each._shutdown._publish(End(0))
    late = own._shutdown.disconnect_together(-1)
    assert late.host == 1 and late.is_reachable
    with pytest.raises(SystemExit):
        other._end(other.watch.look())
    assert ends == [1]
    assert "Host 1 of 2 has not ended within" in caplog.text


def test_nobody_waits_at_exit_after_a_failure(member, store, ends):
    one, two = (member(host) for host in range(2))
    fail(two, ValueError("no"))
    assert at_exit(one) == 1
    assert at_exit(two) == 1
    # It has caught its own error, but not the end of the other one.
    assert two._shutdown.ends()[1].problem is None


def test_an_error_of_the_program_is_told_at_exit(member, ends):
    own, other = member(1), member(0)
    own._program_end.error = KeyError("name")
    assert at_exit(own) == 1
    with pytest.raises(
        HostError, match="Host 1 has failed in the program: KeyError: 'name'"
    ) as caught:
        other.check()
    other._program_end.error = caught.value
    assert at_exit(other) == 1
    assert other._shutdown.ends()[0].problem.host == 1


def test_an_error_that_nobody_has_told_of(member, ends):
    own = member(1)
    own._program_end.error = HostError("Host 0 is gone.")
    assert at_exit(own) == 1


def test_an_interrupt_has_a_code_of_its_own(member, ends):
    own = member(1)
    own._program_end.error = KeyboardInterrupt()
    assert at_exit(own) == 128 + signal.SIGINT


def test_all_leave_together(member, on_each, ends, monkeypatch):
    left = []
    monkeypatch.setattr(jax.distributed, "shutdown", lambda: left.append(1))
    hosts = [member(host, count=3) for host in range(3)]
    assert on_each(lambda host: at_exit(hosts[host]), 3) == [None] * 3
    # All other work at the end.
    assert not ends and len(left) == 3


def test_a_host_that_exits_by_itself_gives_its_code_to_all(member, ends):
    """The others wait for what it does not say any more."""
    own, other = member(1), member(0)
    own._program_end.code = 3
    own._shutdown._publish(End(3))
    with pytest.raises(HostError, match="has ended, with exit code 3") as e:
        other.raise_ended(1, other.ended()[1], "train")
    other._program_end.error = e.value
    assert at_exit(other) == 3
    assert at_exit(own) == 3


def test_a_host_whose_code_is_not_known_keeps_it(member, ends, monkeypatch):
    forgotten = []
    monkeypatch.setattr(jax_internals, "forget_cluster", lambda: forgotten.append(1))
    own, other = member(1), member(0)
    own._shutdown._publish(End(None))
    with pytest.raises(HostError) as caught:
        other.raise_ended(1, other.ended()[1], "train")
    other._program_end.error = caught.value
    assert at_exit(other) == 1
    assert at_exit(own) is None and forgotten == [1]


@pytest.mark.usefixtures("ends")
def test_an_exit_code_at_the_end_is_that_of_all(member, on_each, caplog):
    hosts = [member(host) for host in range(2)]
    hosts[1]._program_end.code = 3
    assert on_each(lambda host: at_exit(hosts[host])) == [3, 3]
    (logged,) = caplog.messages
    assert logged == (
        "The program of host 1 has ended with exit code 3. Host 0 also ends. "
        "Restart all hosts to continue from the latest checkpoint."
    )


@pytest.mark.usefixtures("ends")
def test_a_late_host_is_reported_and_jax_aborts_nobody(member, caplog, monkeypatch):
    monkeypatch.setattr(jax.distributed, "shutdown", lambda: 1 / 0)
    own, other = member(0), member(1)
    own.shutdown_secs = -1
    other._shutdown._publish(End(0))
    other._shutdown._arrive("ended")
    assert at_exit(own) == 1
    assert "Host 1 of 2 has not ended within" in caplog.text
    assert at_exit(other) == 1


def test_a_program_that_continues_has_caught_its_exit(member):
    own = member(0)
    own._program_end.code = 3
    own.number_of("train")
    assert own._program_end.code is None


def test_an_exit_in_a_call_gives_its_code_to_all(member, ends):
    own, other = member(1), member(0)
    fail(own, SystemExit(3))
    with pytest.raises(HostError, match="left train with exit") as caught:
        other.check()
    other._program_end.error = caught.value
    assert at_exit(other) == 3
    assert at_exit(own) == 3


def test_others_that_fail_do_not_change_an_own_code(member, ends):
    own, other = member(1), member(0)
    fail(other, ValueError("no"))
    own._program_end.code = 5
    assert at_exit(own) == 5


def test_who_is_forked_off_says_nothing(member, store, ends, monkeypatch):
    own = member(1)
    monkeypatch.setattr(os, "getpid", lambda: 0)
    assert at_exit(own) is None
    assert not store.values and not ends


def test_nobody_waits_at_exit_without_a_coordinator(member, store, ends):
    own = member(1)
    store.is_gone = True
    assert at_exit(own) == 1


def test_it_begins_and_leaves(member, monkeypatch):
    own = member(0)
    registered = []
    monkeypatch.setattr(membership.atexit, "register", registered.append)
    monkeypatch.setattr(membership.atexit, "unregister", registered.remove)
    own.begin()
    assert own.watch._thread.is_alive() and len(registered) == 1
    own.leave()
    assert not own.watch._thread.is_alive() and not registered
