"""Talk of hosts, each a thread here, over a store in memory."""

import itertools

import pytest

from keras_tpu_estimator.ground.hosts.errors import HostError
from keras_tpu_estimator.ground.hosts.host_exchange import HostExchange
from tests.hosts.saying import said


@pytest.fixture
def talking(member):
    """Begins a conversation, as one of several hosts."""

    def begin(host, count=2, patience_secs=5.0):
        return HostExchange(member(host, count), "greetings", patience_secs)

    return begin


def test_a_process_alone_talks_with_itself():
    with HostExchange(None, "greetings") as talk:
        assert talk.gather({"a": (1, 2)}) == [{"a": (1, 2)}]
        assert talk.chiefs(lambda: 3) == 3
        assert talk.any(True) and not talk.any(False)
        assert not talk.is_with_others
        talk.barrier()
        talk.check_same({"steps": 1})
        assert talk.by_chief(lambda: "path") == "path"
        with talk.told_of_errors():
            pass


@pytest.mark.parametrize("count", [2, 3])
def test_all_hosts_hear_all(on_each, store, talking, count):
    def say(host):
        talk = talking(host, count)
        rounds = [talk.gather([host, turn]) for turn in range(9)]
        return rounds, talk.gather_bytes(bytes([host]))

    for rounds, raw in on_each(say, count):
        assert rounds == [
            [[host, turn] for host in range(count)] for turn in range(9)
        ]
        assert raw == [bytes([host]) for host in range(count)]
    # What all have read is taken away.
    assert len(said(store)) == count


def test_nothing_is_left_of_what_all_have_closed(on_each, store, talking):
    def say(host):
        with talking(host, 3) as talk:
            return talk.gather_bytes(bytes(1000))

    for _ in range(3):
        on_each(say, 3)
        assert not said(store)


def test_what_a_slow_host_has_yet_to_read_is_kept(on_each, store, member):
    members = [member(host) for host in range(2)]

    def say(host):
        talk = HostExchange(members[host], "greetings")
        answers = talk.gather(host)
        if host == 0:
            talk.close()
        return answers

    assert on_each(say) == [[0, 1], [0, 1]]
    assert len(said(store)) == 3
    # It need not have said anything.
    HostExchange(members[1], "farewells").close()
    assert len(said(store)) == 4


def test_nobody_says_anything_after_the_end(store, talking):
    talk = talking(0)
    talk.close()
    talk.close()
    with pytest.raises(HostError, match="has ended"):
        talk.gather("hello")
    assert len(said(store)) == 1


def test_the_end_without_a_coordinator(store, talking):
    talk = talking(0)
    store.is_gone = True
    talk.close()


def test_conversations_about_one_subject_are_several(on_each, member):
    def say(host):
        own = member(host)
        first, second = (HostExchange(own, "greetings") for _ in range(2))
        return second.gather(2) + first.gather(1)

    assert on_each(say) == [[2, 2, 1, 1], [2, 2, 1, 1]]


def test_the_chief_chooses_and_any_host_counts(on_each, talking):
    def say(host):
        talk = talking(host, 3)
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


def test_what_differs_is_named_on_all_hosts(on_each, talking):
    def check(host):
        talking(host).check_same({"model_dir": "/a", "steps": 5 + host})

    for error in on_each(check):
        assert isinstance(error, ValueError)
        assert (
            "All 2 hosts should have the same steps for greetings. Received: "
            "host 0 has 5; host 1 has 6." in str(error)
        )


class Numbers:
    """Numbers that have to be the same whenever hosts talk."""

    def __init__(self):
        self.numbers = []

    def digest(self):
        return sum(self.numbers)

    def facts(self):
        return {"numbers": self.numbers}

    def is_equal(self):
        self.numbers = []

    def error(self, said):
        return ValueError(f"not equal: {[each['numbers'] for each in said]}")


def test_something_is_compared_in_each_round(on_each, talking):
    def say(host):
        talk = talking(host)
        talk.compared = numbers = Numbers()
        numbers.numbers.append(5)
        assert talk.any(host == 1)
        assert not numbers.numbers
        if host:
            numbers.numbers.append(6)
        talk.barrier()

    for error in on_each(say):
        assert isinstance(error, ValueError)
        assert str(error) == "not equal: [[], [6]]"


def test_the_chief_acts_alone_while_others_wait(on_each, hosts_of, store):
    def act(host):
        hosts = hosts_of(host, patience_secs=5.0)

        def action():
            assert not hosts.are_several
            assert not call.is_with_others
            with hosts.call("inside") as inside:
                return inside.gather(("path", host))

        with hosts.call("export") as call:
            return call.by_chief(action), hosts.are_several

    chief, other = on_each(act)
    assert chief == ([("path", 0)], True)
    assert other == ([["path", 0]], True)
    assert not said(store)


def test_who_does_not_answer_is_named(member):
    own = member(0)
    own.watch.silent_now = list
    with pytest.raises(
        HostError, match="Host 1 should say something about greetings within 0"
    ):
        HostExchange(own, "greetings", 0.1).gather("hello")


def test_more_patience_for_what_takes_longer(on_each, member):
    def say(host):
        talk = HostExchange(member(host), "greetings", 0.0)
        if host:
            impatient = member(0)
            impatient.watch.silent_now = list
            with pytest.raises(HostError):
                HostExchange(impatient, "nobody", 0.2).gather(0)
        return talk.gather(host, more_patience_secs=5.0)

    assert on_each(say) == [[0, 1], [0, 1]]


def test_who_is_busy_is_waited_for(on_each, hosts_of, caplog):
    """However long that takes, as long as it is alive."""

    def say(host):
        hosts = hosts_of(host, patience_secs=0.0)
        talk = hosts.exchange("greetings")
        if host:
            with hosts.busy("reads a checkpoint"):
                while "Waiting for host 1, which reads a" not in caplog.text:
                    pass
                return talk.gather(1)
        while hosts.membership.watch.is_busy(1) is None:
            pass
        return talk.gather(0, more_patience_secs=0.1)

    assert on_each(say) == [[0, 1], [0, 1]]


def test_a_conversation_that_is_closed_ends_at_once(on_each, talking):
    def say(host):
        talk = talking(0, patience_secs=60.0)
        if host:
            return None
        talk.close()
        return talk.gather("hello")

    error, _ = on_each(say)
    assert isinstance(error, HostError) and "has ended" in str(error)


def test_who_has_ended_is_not_waited_for(member, talking):
    member(1)._parting.leave_together(3, lambda: "others have failed")
    with pytest.raises(
        HostError,
        match="Host 1 should say something about greetings. Received: its "
        "program has come to its end, with exit code 3",
    ):
        talking(0, patience_secs=60.0).gather("hello")


def test_what_was_said_before_the_end_is_heard(member, talking, monkeypatch):
    """Though it came after this host had listened."""
    own = member(1)
    talk = talking(0)
    heard = talk._membership.store.heard

    def late(*arguments):
        monkeypatch.setattr(talk._membership.store, "heard", heard)
        own.store.say("said/greetings/1/1/1", b'["hello", 0]')
        own._parting.leave_together(None, lambda: "others have failed")

    monkeypatch.setattr(talk._membership.store, "heard", late)
    assert talk.gather(0) == [0, "hello"]


def test_a_coordinator_that_is_gone_is_said_to_be(store, talking):
    talk = talking(1)
    store.is_gone = True
    with pytest.raises(HostError, match="Host 0, through which all others tal"):
        talk.gather("hello")
