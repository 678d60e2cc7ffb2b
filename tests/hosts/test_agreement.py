"""Agreement of hosts, each a thread here, over a store in memory."""

import itertools

import pytest

from keras_tpu_estimator.hosts import jax_internals
from keras_tpu_estimator.hosts import watch
from keras_tpu_estimator.hosts.agreement import Conversation
from keras_tpu_estimator.hosts.agreement import Hosts
from keras_tpu_estimator.hosts.agreement import is_chief
from keras_tpu_estimator.hosts.errors import HostError


def conversation(host, count=2, patience_secs=5.0):
    return Conversation(Hosts(host, count, patience_secs), "greetings", 1)


def test_a_process_alone_agrees_with_itself():
    hosts = Hosts.of_this_process(patience_secs=1)
    assert hosts == Hosts() and not hosts.are_several
    with hosts.call("train") as call:
        assert call.gather({"a": (1, 2)}) == [{"a": (1, 2)}]
        assert call.chiefs(lambda: 3) == 3
        assert call.any(True) and not call.any(False)
        assert not call.is_with_others
        call.barrier()
        call.check_same({"steps": 1})
        assert call.by_chief(lambda: "path") == "path"


def test_who_is_in_a_cluster_is_known_from_jax(store, monkeypatch):
    monkeypatch.setattr(jax_internals, "joined_cluster", lambda: ("a:1", 4, 2))
    started = []
    monkeypatch.setattr(watch, "start", lambda *args: started.append(args))
    assert Hosts.of_this_process(7) == Hosts(2, 4, 7)
    assert started == [(2, 4, 7)] and not is_chief()


@pytest.mark.parametrize("count", [2, 3])
def test_all_hosts_hear_all(on_each, store, count):
    def say(host):
        talk = conversation(host, count)
        rounds = [talk.gather([host, turn]) for turn in range(9)]
        return rounds, talk.gather_bytes(bytes([host]))

    for rounds, raw in on_each(say, count):
        assert rounds == [
            [[host, turn] for host in range(count)] for turn in range(9)
        ]
        assert raw == [bytes([host]) for host in range(count)]
    # What all have read is taken away.
    assert len(store.values) == 2 * count


def test_the_chief_chooses_and_any_host_counts(on_each):
    def say(host):
        talk = conversation(host, 3)
        numbers = itertools.count(10 * host)
        return [
            talk.chiefs(lambda: next(numbers)),
            talk.any(host == 2),
            talk.any(False),
            next(numbers),
        ]

    assert on_each(say, 3) == [
        [0, True, False, 1],
        [0, True, False, 10],
        [0, True, False, 20],
    ]


def test_what_differs_is_named_on_all_hosts(on_each):
    def check(host):
        conversation(host).check_same({"model_dir": "/a", "steps": 5 + host})

    for error in on_each(check):
        assert isinstance(error, ValueError)
        assert (
            "All 2 hosts should have the same steps for greetings. Received: "
            "host 0 has 5; host 1 has 6." in str(error)
        )


def test_the_chief_acts_alone_while_others_wait(on_each):
    def act(host):
        hosts = Hosts(host, 2, 5.0)

        def action():
            assert not hosts.are_several
            with hosts.call("inside") as inside:
                return inside.gather(("path", host))

        call = Conversation(hosts, "export", 1)
        return call.by_chief(action), hosts.are_several

    chief, other = on_each(act)
    assert chief == ([("path", 0)], True)
    assert other == ([["path", 0]], True)


def test_who_does_not_answer_is_named(store):
    with pytest.raises(
        HostError, match="Host 1 should say something about greetings within 0"
    ):
        conversation(0, patience_secs=0.1).gather("hello")


def test_more_patience_for_what_takes_longer(on_each):
    def say(host):
        talk = conversation(host, patience_secs=0.0)
        if host:
            with pytest.raises(HostError):
                Conversation(Hosts(0, 2, 0.2), "nobody", 1).gather(0)
        return talk.gather(host, more_patience_secs=5.0)

    assert on_each(say) == [[0, 1], [0, 1]]


def test_a_conversation_that_is_closed_ends_at_once(on_each):
    def say(host):
        talk = conversation(0, patience_secs=60.0)
        if host:
            return None
        talk.close()
        return talk.gather("hello")

    error, _ = on_each(say)
    assert isinstance(error, HostError) and "has ended" in str(error)


def test_what_fails_on_one_host_ends_the_others(store, watched):
    watched(1)
    with (
        pytest.raises(TypeError, match="wrong") as caught,
        watch.told_of_errors("train"),
    ):
        raise TypeError("a hook is wrong\nin detail")
    assert "on host 1" in caught.value.__notes__[0]
    watched(0)
    with pytest.raises(
        HostError,
        match="Host 1 has failed in train: TypeError: a hook is wrong This",
    ):
        conversation(0).gather("hello")


def test_who_ends_because_of_another_does_not_tell(store, watched):
    watch_of_0 = watched(0)
    with pytest.raises(HostError), watch.told_of_errors("train"):
        raise HostError("Host 1 has failed.")
    assert watch_of_0.has_failed
    assert not store.values


def test_a_coordinator_that_is_gone_is_said_to_be(store):
    store.is_gone = True
    with pytest.raises(HostError, match="Host 0, through which all others tal"):
        conversation(1).gather("hello")
