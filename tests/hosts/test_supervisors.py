"""The leader and the supervisors of a job, with processes that only the test ends."""

import contextlib
import dataclasses
import queue
import signal
import socket
import threading

import pytest

from keras_tpu_estimator.base.hosts import job_leader, restarting
from keras_tpu_estimator.base.hosts import supervisor as supervisor_module
from keras_tpu_estimator.base.hosts.forwarding import ForwardedSignals
from keras_tpu_estimator.base.hosts.job_leader import JobLeader
from keras_tpu_estimator.base.hosts.joined_supervisors import JoinedSupervisors
from keras_tpu_estimator.base.hosts.restarting import RestartPolicy
from keras_tpu_estimator.base.hosts.started_processes import Outcome
from keras_tpu_estimator.base.hosts.supervisor import Supervisor
from keras_tpu_estimator.base.hosts.supervisor_connection import (
    Connection,
    Ended,
    Join,
    Start,
    Stop,
)

_TIMEOUT = 2.0
_LIMIT_SECS = 30.0


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch):
    monkeypatch.setattr(restarting, "_PAUSE_SECS", 0.01)
    monkeypatch.setattr(job_leader, "MOMENT_SECS", 0.05)
    monkeypatch.setattr(job_leader, "_RETURN_SECS", 0.3)
    for module in (job_leader, supervisor_module):
        monkeypatch.setattr(module, "_SIGNAL_SECS", 0.02)
    monkeypatch.setattr(supervisor_module, "_RETRY_SECS", 0.05)


class Process:
    """A process that ends when the test, or its supervisor, ends it."""

    def __init__(self, start):
        self.start = start
        self._codes = queue.SimpleQueue()

    def run(self):
        return Outcome(self._codes.get(timeout=_LIMIT_SECS), 0)

    def end(self, code):
        self._codes.put(code)

    def stop(self):
        self.end(143)


class Host:
    """A supervisor on a thread, with its processes as they are made."""

    def __init__(self, number, port):
        self.signals = ForwardedSignals()
        self.processes = queue.SimpleQueue()
        self.codes = queue.SimpleQueue()
        self._supervisor = Supervisor(
            number,
            ("127.0.0.1", port),
            self._make,
            wait_secs=1.0,
            timeout=_TIMEOUT,
            signals=self.signals,
        )
        threading.Thread(target=self._run, daemon=True).start()

    def _make(self, start):
        process = Process(start)
        self.signals.send = lambda number: process.end(128 + number)
        self.processes.put(process)
        return process

    def _run(self):
        self.codes.put(self._supervisor.run())

    def process(self):
        """The next process that this host starts."""
        return self.processes.get(timeout=_LIMIT_SECS)

    def code(self):
        return self.codes.get(timeout=_LIMIT_SECS)


class Job:
    """A leader on a thread, and the hosts that the test starts."""

    def __init__(self, count, port=0, **policy):
        listener = socket.create_server(("127.0.0.1", port))
        self.port = listener.getsockname()[1]
        self.signals = ForwardedSignals()
        self.supervisors = JoinedSupervisors(listener, count, _TIMEOUT)
        self.leader = JobLeader(
            self.supervisors,
            "first",
            RestartPolicy(count, **policy),
            wait_secs=5.0,
            end_secs=0.5,
            signals=self.signals,
        )
        self.thread = threading.Thread(target=self.leader.run, daemon=True)
        self.thread.start()

    def hosts(self, *numbers):
        return [Host(number, self.port) for number in numbers]

    def connect(self, number):
        """Joins as a supervisor whose messages the test sends."""
        received = queue.SimpleQueue()
        sock = socket.create_connection(("127.0.0.1", self.port))
        connection = Connection(sock, _TIMEOUT)
        connection.listen(received.put)
        connection.send(Join(number, 0))
        return connection, lambda: received.get(timeout=_LIMIT_SECS)


@pytest.fixture
def start_job():
    """Starts a leader, and ends all connections after the test."""
    jobs = []

    def start(*args, **kwargs):
        jobs.append(Job(*args, **kwargs))
        return jobs[-1]

    yield start
    for job in jobs:
        job.supervisors.close()


def test_all_start_together_and_end_with_0(start_job):
    hosts = start_job(3).hosts(2, 0, 1)
    processes = [host.process() for host in hosts]
    starts = [process.start for process in processes]
    assert [start.number for start in starts] == [2, 0, 1]
    (address,) = {start.address for start in starts}
    assert address.startswith("first:")
    assert {(start.count, start.restarts) for start in starts} == {(3, 0)}
    for process in processes:
        process.end(0)
    assert [host.code() for host in hosts] == [0, 0, 0]


@pytest.mark.parametrize("code", [75, 137])
def test_failure_of_one_restarts_all(code, start_job):
    hosts = start_job(2, max_restarts=3).hosts(0, 1)
    first = [host.process() for host in hosts]
    first[1].end(code)
    second = [host.process() for host in hosts]
    assert [process.start.restarts for process in second] == [1, 1]
    assert second[0].start.address != first[0].start.address
    for process in second:
        process.end(0)
    assert [host.code() for host in hosts] == [0, 0]


@pytest.mark.parametrize(("code", "limit"), [(1, 3), (75, 0), (75, 1)])
def test_job_ends_with_the_code_of_the_first_failure(code, limit, capfd, start_job):
    hosts = start_job(2, max_restarts=limit).hosts(0, 1)
    for _ in range(limit + 1 if code == 75 else 1):
        processes = [host.process() for host in hosts]
        processes[1].end(code)
    assert [host.code() for host in hosts] == [code, code]


def test_preempted_host_returns_to_a_restart(start_job):
    job = start_job(2, max_restarts=3)
    hosts = job.hosts(0, 1)
    processes = [host.process() for host in hosts]
    hosts[1].signals.received.append(signal.SIGTERM)
    processes[1].end(143)
    assert hosts[1].code() == 143
    hosts[1] = Host(1, job.port)
    assert [host.process().start.count for host in hosts] == [2, 2]


def test_job_continues_without_a_lost_host_which_joins_later(capfd, start_job):
    job = start_job(3, max_restarts=5, min_processes=2)
    hosts = job.hosts(0, 2)
    lost, receive = job.connect(1)
    assert receive() == Start(hosts[0].process().start.address, 3, 1, 0)
    hosts[1].process()
    lost.close()
    second = [host.process() for host in hosts]
    assert [(p.start.count, p.start.number) for p in second] == [(2, 0), (2, 1)]
    hosts += job.hosts(1)
    second[0].end(137)
    assert [host.process().start.number for host in hosts] == [0, 2, 1]
    assert "The supervisor of process 1 is lost." in capfd.readouterr().err


def test_silent_host_is_lost(start_job):
    job = start_job(2, max_restarts=5, min_processes=1)
    (host,) = job.hosts(0)
    silent = socket.create_connection(("127.0.0.1", job.port))
    silent.sendall(b'{"type": "Join", "number": 1, "starts": 0}\n')
    assert host.process().start.count == 2
    assert host.process().start.count == 1
    silent.close()


def test_process_that_does_not_end_is_lost(start_job):
    job = start_job(2, max_restarts=5, min_processes=1)
    (host,) = job.hosts(0)
    stuck, receive = job.connect(1)
    assert isinstance(receive(), Start)
    host.process().end(137)
    assert receive() == Stop(0)
    assert receive() is None
    assert host.process().start.count == 1
    assert stuck.is_closed


def test_signal_of_a_user_on_any_host_ends_the_job(start_job):
    hosts = start_job(2, max_restarts=5).hosts(0, 1)
    processes = [host.process() for host in hosts]
    hosts[1].signals.received.append(signal.SIGINT)
    processes[1].end(130)
    assert [host.code() for host in hosts] == [130, 130]


def test_supervisors_wait_for_the_next_leader(start_job):
    job = start_job(2, max_restarts=5)
    hosts = job.hosts(0, 1)
    processes = [host.process() for host in hosts]
    for signals in (job.signals, hosts[0].signals):
        signals.received.append(signal.SIGTERM)
    for process in processes:
        process.end(143)
    assert hosts[0].code() == 143
    job.thread.join(_LIMIT_SECS)
    start_job(2, job.port, max_restarts=5)
    hosts[0] = Host(0, job.port)
    # The new leader continues to count.
    assert [host.process().start.restarts for host in hosts] == [1, 1]


def test_too_few_supervisors_end_the_job(monkeypatch, capfd, start_job):
    job = start_job(2)
    monkeypatch.setattr(job.leader, "_wait_secs", 0.1)
    (host,) = job.hosts(0)
    assert host.code() == 69
    assert "Only 1 of 2 supervisors have joined in 0 s." in capfd.readouterr().err


def test_supervisor_without_a_leader_ends(capfd):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    assert Host(1, port).code() == 75
    message = f"The supervisor of process 0 must be reached at 127.0.0.1:{port}."
    assert message in capfd.readouterr().err


def test_number_is_taken_until_its_supervisor_is_lost(start_job):
    job = start_job(2, max_restarts=1)
    (host,) = job.hosts(0)
    first, receive = job.connect(1)
    assert isinstance(receive(), Start)
    _, receive_other = job.connect(1)
    assert receive_other() is None
    first.send(Ended(0, 0))
    host.process().end(0)
    assert host.code() == 0


def test_other_numbers_of_processes_are_rejected(capfd, start_job):
    job = start_job(2)
    _, receive = job.connect(2)
    assert receive() is None
    assert "wants to be process 2 of 2" in capfd.readouterr().err


@pytest.mark.parametrize(
    "line",
    [
        b"GET / HTTP/1.1\r\n",
        b"[]\n",
        b'{"type": "Join"}\n',
        b'{"type": "Join", "number": "1", "starts": 0}\n',
        b'{"type": "Ended", "restarts": 0, "code": true}\n',
        b'{"type": "Other"}\n',
        b"\xff\n",
        b"[" * 4000 + b"\n",
        b"x" * 10_000,
    ],
)
def test_foreign_connections_are_closed(line, start_job):
    job = start_job(2)
    with socket.create_connection(("127.0.0.1", job.port)) as sock:
        sock.sendall(line)
        sock.settimeout(_LIMIT_SECS)
        with contextlib.suppress(ConnectionError):
            while data := sock.recv(100):
                assert b"Alive" in data
    hosts = job.hosts(0, 1)
    for host in hosts:
        host.process().end(0)
    assert [host.code() for host in hosts] == [0, 0]


def test_stop_that_precedes_its_start_is_kept():
    """The messages of a start are received on one thread and started on another."""
    made = []
    left, right = socket.socketpair()
    leader, follower = Connection(left, _TIMEOUT), Connection(right, _TIMEOUT)
    received = queue.SimpleQueue()
    leader.listen(received.put)
    supervisor = Supervisor(
        0, ("", 0), made.append, wait_secs=1, timeout=1, signals=ForwardedSignals()
    )
    follower.listen(lambda _: None)
    supervisor._receive(queue.SimpleQueue(), Stop(3))
    assert supervisor._start(Start("x:1", 1, 0, 3), follower) == 143
    assert received.get(timeout=_LIMIT_SECS) == Ended(3, 143)
    assert not made
    for connection in (leader, follower):
        connection.close()


def test_messages_are_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        Stop(1).restarts = 2
