"""Tests exchanges between hosts. Each host is a thread with a store in memory."""

import collections
import itertools

import pytest

from keras_tpu_estimator import HostError
from keras_tpu_estimator.base.hosts.host_exchange import HostExchange
from tests.hosts.saying import said


@pytest.fixture
def talking(member):
    """Starts an exchange as one of several hosts."""

    def begin(host, count=2, patience_secs=5.0):
        return HostExchange(member(host, count), "greetings", patience_secs)

    return begin


def test_single_process_exchanges_with_itself():
    with HostExchange(None, "greetings") as talk:
        assert talk.gather({"a": (1, 2)}) == [{"a": (1, 2)}]
        assert talk.from_chief(lambda: 3) == 3
        assert talk.any(True) and not talk.any(False)
        assert not talk.is_with_others
        talk.barrier()
        talk.check_same({"steps": 1})
        assert talk.by_chief(lambda: "path") == "path"
        with talk.reported_errors():
            pass


@pytest.mark.parametrize("count", [2, 3])
def test_all_processes_receive_all_values(on_each, store, talking, count):
    def say(host):
        talk = talking(host, count)
        rounds = [talk.gather([host, turn]) for turn in range(9)]
        return rounds, talk.gather_bytes(bytes([host]))

    for rounds, raw in on_each(say, count):
        assert rounds == [[[host, turn] for host in range(count)] for turn in range(9)]
        assert raw == [bytes([host]) for host in range(count)]
    # The last two rounds, and the number of arrivals.
    folders = {key.split("/")[4] for key in said(store)}
    assert folders == {"9", "10", "arrived"}


def test_closed_exchanges_leave_no_keys(on_each, store, talking):
    def say(host):
        with talking(host, 3) as talk:
            return talk.gather_bytes(bytes(1000))

    for _ in range(3):
        on_each(say, 3)
        assert not said(store)


def test_values_stay_until_a_slow_host_has_read_them(on_each, store, member):
    members = [member(host) for host in range(2)]

    def say(host):
        talk = HostExchange(members[host], "greetings")
        answers = talk.gather(host)
        if host == 0:
            talk.close()
        return answers

    assert on_each(say) == [[0, 1], [0, 1]]
    folder = "kte/agreed/greetings/1"
    assert {*said(store)} == {
        f"{folder}/arrived",
        f"{folder}/closed",
        f"{folder}/1/result",
        f"{folder}/1/values/0",
        f"{folder}/1/values/1",
    }
    # A process may close an exchange without a round.
    HostExchange(members[1], "farewells").close()
    assert "kte/agreed/farewells/1/closed" in said(store)


def test_no_exchange_after_the_end(store, talking):
    talk = talking(0)
    talk.close()
    talk.close()
    with pytest.raises(HostError, match="has ended"):
        talk.gather("hello")
    assert len(said(store)) == 1


def test_end_without_a_coordinator(store, talking):
    talk = talking(0)
    store.is_gone = True
    talk.close()


def test_exchanges_about_one_subject_are_separate(on_each, member):
    def say(host):
        own = member(host)
        first, second = (HostExchange(own, "greetings") for _ in range(2))
        return second.gather(2) + first.gather(1)

    assert on_each(say) == [[2, 2, 1, 1], [2, 2, 1, 1]]


def test_chief_decides_and_any_host_can_request(on_each, talking):
    def say(host):
        talk = talking(host, 3)
        numbers = itertools.count(10 * host)
        return [
            talk.from_chief(lambda: next(numbers)),
            talk.any(host == 2),
            talk.any(False),
            next(numbers),
        ]

    assert on_each(say, 3) == [
        [0, True, False, 1],
        [0, True, False, 10],
        [0, True, False, 20],
    ]


def test_differences_are_named_on_all_hosts(on_each, talking):
    def check(host):
        talking(host).check_same({"model_dir": "/a", "steps": 5 + host})

    for error in on_each(check):
        assert isinstance(error, ValueError)
        assert (
            "All 2 hosts must have the same steps for greetings. Received: "
            "host 0 has 5; host 1 has 6." in str(error)
        )


class Numbers:
    """Numbers that must be equal in each exchange."""

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


def test_each_round_compares_facts(on_each, talking):
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


def test_only_the_chief_acts_while_others_wait(on_each, hosts_of, store):
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


def test_unresponsive_hosts_are_named(member):
    own = member(0)
    own.watch.silent_now = list
    with pytest.raises(
        HostError, match="Host 1 did not answer about greetings within 0"
    ):
        HostExchange(own, "greetings", 0.1).gather("hello")


def test_patience_may_be_extended(on_each, member):
    def say(host):
        talk = HostExchange(member(host), "greetings", 0.0)
        if host:
            impatient = member(0)
            impatient.watch.silent_now = list
            with pytest.raises(HostError):
                HostExchange(impatient, "nobody", 0.2).gather(0)
        return talk.gather(host, more_patience_secs=5.0)

    assert on_each(say) == [[0, 1], [0, 1]]


def test_busy_hosts_are_awaited(on_each, hosts_of, caplog):
    """The other hosts wait while the busy host is alive."""

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


def test_closed_exchange_ends_at_once(on_each, talking):
    def say(host):
        talk = talking(0, patience_secs=60.0)
        if host:
            return None
        talk.close()
        return talk.gather("hello")

    error, _ = on_each(say)
    assert isinstance(error, HostError) and "has ended" in str(error)


def test_ended_hosts_are_not_awaited(member, talking):
    member(1)._shutdown.leave_together(3, lambda: "others have failed")
    with pytest.raises(
        HostError,
        match="Host 1 did not answer about greetings, because its program "
        "has ended, with exit code 3. Every host must make the same calls.",
    ):
        talking(0, patience_secs=60.0).gather("hello")


def test_values_from_before_the_end_of_a_host_are_used(
    on_each, member, talking, monkeypatch
):
    """The process combined the values shortly before it ended."""

    def say(host):
        talk = talking(host)
        if host == 0:
            read = talk._membership.store.read

            def late(*arguments):
                monkeypatch.setattr(talk._membership.store, "read", read)
                while not member(0).ended():
                    pass

            monkeypatch.setattr(talk._membership.store, "read", late)
        else:
            while not said(talk._membership.store.client):
                pass
        values = talk.gather(host)
        if host == 1:
            own = member(1)
            own._shutdown.leave_together(None, lambda: "others have failed")
        return values

    assert on_each(say) == [[0, 1], [0, 1]]


def test_lost_coordinator_is_reported(store, talking):
    talk = talking(1)
    store.is_gone = True
    with pytest.raises(HostError, match="Host 0, which coordinates the othe"):
        talk.gather("hello")


def test_round_has_four_requests_for_each_process(on_each, store, talking):
    """The number does not depend on the number of processes."""
    counts = {}

    def requests_of(count):
        requests = collections.Counter()

        def say(host):
            talk = talking(host, count)
            client = talk._membership.store.client
            talk._membership.store.client = Counting(client, requests, host)
            for turn in range(20):
                talk.agree([host, turn], len)
            return talk

        store.values.clear()
        on_each(say, count)
        return max(requests.values())

    for count in (2, 8, 24):
        counts[count] = requests_of(count)
    # Unsuccessful reads are not counted.
    assert all(count <= 4 * 20 for count in counts.values()), counts


class Counting:
    """A client that counts the requests of one process about rounds."""

    def __init__(self, client, requests, host):
        self._client = client
        self._requests = requests
        self._host = host

    def __getattr__(self, name):
        method = getattr(self._client, name)

        def counted(key, *arguments, **options):
            value = method(key, *arguments, **options)
            if key.startswith("kte/agreed/"):
                self._requests[self._host] += 1
            return value

        return counted


def test_equal_values_are_sent_once(on_each, store, talking):
    """The result of a round does not grow with the number of processes."""

    def say(host):
        return talking(host, 16).gather("x" * 100)

    assert on_each(say, 16) == [["x" * 100] * 16] * 16
    assert len(store.values["kte/agreed/greetings/1/1/result"]) < 200


def test_calls_of_different_kinds_are_named(on_each, talking):
    """One host makes another call than the others."""

    def say(host):
        talk = talking(host, 3)
        if host == 2:
            talk.barrier("session.save_checkpoint")
        else:
            talk.any(False, "the end of a loop")

    for error in on_each(say, 3):
        assert isinstance(error, ValueError)
        assert str(error) == (
            "All hosts must make the same calls in the same order in "
            "greetings. Received: host 0 has come to the end of a loop; host 1 "
            "has come to the end of a loop; host 2 has come to "
            "session.save_checkpoint. Make a call on every host or on none."
        )


def test_any_function_combines_the_values(on_each, talking):
    def say(host):
        return talking(host, 3).agree([host, -host], combined)

    def combined(values):
        return [max(column) for column in zip(*values, strict=True)]

    assert on_each(say, 3) == [[2, 0]] * 3
