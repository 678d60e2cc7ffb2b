"""Tests how a host reacts to failures of others, and how it ends."""

import os
import signal

import jax
import pytest

from keras_tpu_estimator import HostError
from keras_tpu_estimator.base.hosts import membership, shutdown
from keras_tpu_estimator.base.hosts.failures import Problem
from keras_tpu_estimator.base.hosts.shutdown import End
from keras_tpu_estimator.base.upstream import jax_clusters


@pytest.fixture
def ends(monkeypatch):
    """Records the exit codes of processes that end themselves."""
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
    """Makes a call fail on a host."""
    with pytest.raises(type(error)), own.reported_errors(call, "train"):
        raise error


def at_exit(own):
    """Runs the exit handlers of a host."""
    try:
        own._at_exit()
    except SystemExit as end:
        return end.code
    return None


def test_failure_of_one_host_ends_the_others(member):
    error = TypeError("a hook is wrong\nin detail")
    fail(member(1), error)
    assert "on host 1" in error.__notes__[0]
    with pytest.raises(
        HostError,
        match="Host 1 has failed in train: TypeError: a hook is wrong Host "
        "0 also ends. Restart all hosts",
    ):
        member(0).check()


def test_failure_of_all_hosts_ends_no_process(member):
    for own in (hosts := [member(host) for host in range(2)]):
        fail(own, ValueError("NaN"))
    for own in hosts:
        own.check()


def test_error_is_published_once(member, store):
    own, error = member(1), ValueError("no")
    fail(own, error, "the checkpoint/1")
    fail(own, error, "train/1")
    assert [*store.values] == ["kte/failed/the checkpoint/1/1"]


def test_host_that_ends_because_of_another_does_not_publish(member, store):
    fail(member(0), HostError("Host 1 has failed."))
    assert not store.values


def test_device_error_names_the_lost_host(member, monkeypatch):
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


def test_end_is_logged_and_has_a_code(member, ends, caplog, monkeypatch):
    own, problem = member(0), Problem("Host 1 of 3 is gone.", 1)
    monkeypatch.setattr(own.watch, "look", lambda: problem)
    with pytest.raises(SystemExit):
        own._end(problem)
    assert ends == [75]
    assert (
        "Host 1 of 3 is gone. Host 0 also ends. Restart all hosts to "
        "continue from the latest checkpoint." in caplog.text
    )


def test_failure_on_all_hosts_ends_no_host(member, ends):
    """This holds although one host failed slightly earlier."""
    one, two = (member(host) for host in range(2))
    fail(one, ValueError("NaN"))
    problem = two.watch.look()
    fail(two, ValueError("NaN"))
    two._end(problem)
    assert not ends
    fail(one, ValueError("NaN"), "train/2")
    with pytest.raises(SystemExit):
        two._end(two.watch.look())


@pytest.mark.parametrize(
    ("host", "is_end", "secs"), [(0, False, 0.0), (0, True, 3.0), (1, False, 3.0)]
)
def test_only_a_late_host_ends_at_once(member, monkeypatch, host, is_end, secs):
    own, waited = member(0), []
    monkeypatch.setattr(shutdown, "GRACE_SECS", 3.0)
    monkeypatch.setattr(own.watch, "is_over_within", lambda s: waited.append(s) or True)
    own._end(Problem("A host is late.", host, is_reachable=True, is_end=is_end))
    assert waited == [secs]


def test_silent_host_that_answers_again_ends_no_host(member, ends):
    own = member(0)
    own._end(Problem("Host 1 of 3 is gone.", 1))
    assert not ends


def test_caught_error_ends_this_host_with_the_others(member, on_each, ends):
    hosts = [member(host) for host in range(2)]
    fail(hosts[1], ValueError("no"))
    assert on_each(lambda host: at_exit(hosts[host])) == [1, 1]


def test_host_that_has_left_the_cluster_does_not_end(member, ends, monkeypatch):
    own = member(0)
    monkeypatch.setattr(jax_clusters, "coordination_client", lambda: None)
    own._end(Problem("Host 0 is gone.", 0))
    assert at_exit(own) is None and not ends


def test_ending_host_is_not_ended_by_others(member, ends):
    own = member(1)
    fail(member(0), ValueError("no"))
    problem = own.watch.look()
    own._shutdown.announce_end(problem)
    own._end(problem)
    assert not ends


def test_late_host_ends_with_a_message(member, ends, caplog):
    own, other = member(0), member(1)
    for each in (own, other):
        each._shutdown._publish(End(0))
    late = own._shutdown.disconnect_together(-1)
    assert late.host == 1 and late.is_reachable
    with pytest.raises(SystemExit):
        other._end(other.watch.look())
    assert ends == [75]
    assert "Host 1 of 2 has not ended within" in caplog.text


def test_no_host_waits_at_exit_after_a_failure(member, store, ends):
    one, two = (member(host) for host in range(2))
    fail(two, ValueError("no"))
    assert at_exit(one) == 1
    assert at_exit(two) == 1
    # The host has caught its own error, but not the other's end.
    assert two._shutdown.ends()[1].problem is None


def test_error_of_the_script_is_published_at_exit(member, ends):
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


def test_unpublished_error_of_another_host(member, ends):
    own = member(1)
    own._program_end.error = HostError("Host 0 is gone.")
    assert at_exit(own) == 75


def test_interrupt_has_its_own_exit_code(member, ends):
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


def test_exit_code_of_one_host_is_that_of_all(member, ends):
    """The others wait for a value that the host never sends."""
    own, other = member(1), member(0)
    own._program_end.code = 3
    own._shutdown._publish(End(3))
    with pytest.raises(HostError, match="has ended, with exit code 3") as e:
        other.raise_ended(1, other.ended()[1], "train")
    other._program_end.error = e.value
    assert at_exit(other) == 3
    assert at_exit(own) == 3


def test_host_with_an_unknown_exit_code_keeps_it(member, ends, monkeypatch):
    forgotten = []
    monkeypatch.setattr(jax_clusters, "forget_cluster", lambda: forgotten.append(1))
    own, other = member(1), member(0)
    own._shutdown._publish(End(None))
    with pytest.raises(HostError) as caught:
        other.raise_ended(1, other.ended()[1], "train")
    other._program_end.error = caught.value
    assert at_exit(other) == 1
    assert at_exit(own) is None and forgotten == [1]


@pytest.mark.usefixtures("ends")
def test_exit_code_at_the_end_is_that_of_all(member, on_each, caplog):
    hosts = [member(host) for host in range(2)]
    hosts[1]._program_end.code = 3
    assert on_each(lambda host: at_exit(hosts[host])) == [3, 3]
    (logged,) = caplog.messages
    assert logged == (
        "The program of host 1 has ended with exit code 3. Host 0 also ends. "
        "Restart all hosts to continue from the latest checkpoint."
    )


@pytest.mark.usefixtures("ends")
def test_late_host_is_reported_without_an_abort(member, caplog, monkeypatch):
    monkeypatch.setattr(jax.distributed, "shutdown", lambda: 1 / 0)
    own, other = member(0), member(1)
    own.shutdown_secs = -1
    other._shutdown._publish(End(0))
    other._shutdown._arrive("ended")
    assert at_exit(own) == 75
    assert "Host 1 of 2 has not ended within" in caplog.text
    assert at_exit(other) == 75


def test_continuing_script_has_caught_its_exit(member):
    own = member(0)
    own._program_end.code = 3
    own.number_of("train")
    assert own._program_end.code is None


def test_exit_in_a_call_is_the_code_of_all(member, ends):
    own, other = member(1), member(0)
    fail(own, SystemExit(3))
    with pytest.raises(HostError, match="left train with exit") as caught:
        other.check()
    other._program_end.error = caught.value
    assert at_exit(other) == 3
    assert at_exit(own) == 3


def test_failures_of_others_do_not_change_an_exit_code(member, ends):
    own, other = member(1), member(0)
    fail(other, ValueError("no"))
    own._program_end.code = 5
    assert at_exit(own) == 5


def test_forked_process_publishes_nothing(member, store, ends, monkeypatch):
    own = member(1)
    monkeypatch.setattr(os, "getpid", lambda: 0)
    assert at_exit(own) is None
    assert not store.values and not ends


def test_no_host_waits_at_exit_without_a_coordinator(member, store, ends):
    own = member(1)
    store.is_gone = True
    assert at_exit(own) == 75


def test_membership_begins_and_ends(member, monkeypatch):
    own = member(0)
    registered = []
    monkeypatch.setattr(membership.atexit, "register", registered.append)
    monkeypatch.setattr(membership.atexit, "unregister", registered.remove)
    own.begin()
    assert own.watch._thread.is_alive() and len(registered) == 1
    own.leave()
    assert not own.watch._thread.is_alive() and not registered
