"""The command that starts a script in several processes."""

import os
import signal
import subprocess
import sys
import textwrap
import threading
import time

import jax
import psutil
import pytest

from keras_tpu_estimator import HostError
from keras_tpu_estimator.base.common import system
from keras_tpu_estimator.base.hosts import (
    forwarding,
    parent_process,
    restarting,
    started_processes,
)
from keras_tpu_estimator.base.hosts import launching as launch
from keras_tpu_estimator.base.hosts.failures import code_of
from keras_tpu_estimator.base.hosts.restarting import RestartPolicy, run_with_restarts
from keras_tpu_estimator.base.hosts.started_processes import Outcome


@pytest.fixture
def run(tmp_path, capfd, monkeypatch):
    """Runs a script in processes; returns the exit code and the output."""
    for name in ("XLA_FLAGS", "JAX_PLATFORMS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(started_processes, "MOMENT_SECS", 0.0)
    monkeypatch.setattr(restarting, "_PAUSE_SECS", 0.01)

    def start(script, *options, processes=2, arguments=()):
        path = tmp_path / "script.py"
        path.write_text(
            "import os, pathlib, signal, sys, time\n"
            "me = int(os.environ['KTE_PROCESS_ID'])\n" + textwrap.dedent(script)
        )
        code = launch.main(
            "launch",
            ["--processes", str(processes), *options, str(path), *arguments],
        )
        return code, *capfd.readouterr()

    return start


# Waits for a file that another process writes.
_WAIT = """
def wait_for(name):
    while not pathlib.Path(name).exists():
        time.sleep(0.01)
"""


def lines_of(number, text):
    prefix = f"[{number}] "
    return [
        line.removeprefix(prefix)
        for line in text.splitlines()
        if line.startswith(prefix)
    ]


def test_each_process_finds_its_place(run):
    code, out, err = run(
        """
        names = ("KTE_COORDINATOR_ADDRESS", "KTE_NUM_PROCESSES")
        names += ("JAX_COORDINATOR_BIND_ADDRESS", "JAX_LOCAL_DEVICE_IDS")
        print(*(os.environ[name] for name in names))
        print(os.environ.get("JAX_PLATFORMS"), os.environ.get("XLA_FLAGS"))
        """,
        processes=3,
    )
    assert (code, err) == (0, "")
    addresses = set()
    for number in range(3):
        first, second = lines_of(number, out)
        address, count, bound, device = first.split()
        assert (count, bound, device) == ("3", address, str(number))
        assert second == "None None"
        addresses.add(address)
    (address,) = addresses
    host, port = address.split(":")
    assert host == "127.0.0.1" and int(port) > 0


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("", ""),
        ("--xla_a=1 --xla_b", "--xla_a=1 --xla_b "),
        ("--xla_force_host_platform_device_count=8 --xla_b", "--xla_b "),
    ],
)
def test_simulated_cores(before, after, run, monkeypatch):
    monkeypatch.setenv("XLA_FLAGS", before)
    monkeypatch.setenv("JAX_PLATFORMS", "cuda")
    code, out, _ = run(
        "print(os.environ['JAX_PLATFORMS'], os.environ['XLA_FLAGS'])",
        "--cores",
        "3",
        processes=1,
    )
    assert lines_of(0, out) == [f"cpu {after}--xla_force_host_platform_device_count=3"]
    assert code == 0


def test_script_receives_its_arguments(run):
    arguments = ("--cores", "5", "-m", "a b", "--processes=7")
    _, out, _ = run("print(sys.argv[1:])", processes=1, arguments=arguments)
    assert lines_of(0, out) == [str(list(arguments))]


def test_module_is_launched(tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "here.py").write_text("import sys; print(sys.argv[1:])")
    assert launch.main("launch", ["--processes", "1", "-m", "here", "-m", "x"]) == 0
    assert capfd.readouterr().out == "[0] ['-m', 'x']\n"


def test_lines_of_processes_do_not_mix(run):
    code, out, err = run(
        """
        for line in range(200):
            for part in range(4):
                sys.stdout.write(f"{me}-{line}-{part};")
            sys.stdout.write("\\n")
            sys.stderr.write(f"{line}\\n")
        sys.stdout.write("no end")
        """,
        processes=3,
    )
    for number in range(3):
        lines = lines_of(number, out)
        assert lines[-1] == "no end"
        assert lines[:-1] == [
            "".join(f"{number}-{line}-{part};" for part in range(4))
            for line in range(200)
        ]
        assert lines_of(number, err) == [str(line) for line in range(200)]
    assert len(out.splitlines()) == 3 * 201
    assert code == 0


def test_invalid_bytes_are_escaped(run):
    _, out, _ = run("sys.stdout.buffer.write(b'\\xff\\xc3\\xa4')", processes=1)
    assert out == "[0] \\xffä\n"


def test_one_failure_stops_all_processes(run):
    code, out, err = run(
        _WAIT
        + """
if me == 1:
    wait_for("ready")
    sys.exit(7)
try:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(9))
    pathlib.Path("ready").touch()
    # `pause` would miss a signal that precedes it.
    wait_for("nothing")
finally:
    print("the end")
"""
    )
    assert code == 7
    assert out == "[0] the end\n"
    assert err == "".join(
        f"Process {number} of 2 has ended with exit code {code}.\n"
        for number, code in ((1, 7), (0, 9))
    )


def test_error_is_shown(run):
    code, out, err = run("raise ValueError('no such thing')", processes=1)
    assert code == 1
    assert lines_of(0, err)[-1] == "ValueError: no such thing"
    assert "Process 0 of 1 has ended with exit code 1.\n" in err


def test_killed_process_is_reported(run):
    code, _, err = run("os.kill(os.getpid(), signal.SIGKILL)", processes=1)
    assert code == 128 + signal.SIGKILL
    assert err == "Process 0 of 1 has ended with exit code 137, SIGKILL.\n"


def test_process_that_ignores_sigterm_is_killed_with_its_children(run):
    # The child holds its parent's output, so the launcher would wait for it.
    code, *_ = run(
        _WAIT
        + """
import subprocess
if me == 0:
    wait_for("ready")
    sys.exit(3)
signal.signal(signal.SIGTERM, signal.SIG_IGN)
subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"])
pathlib.Path("ready").touch()
while True:
    signal.pause()
""",
        "--grace",
        "0",
    )
    assert code == 3


_STOPPED = """
import os, pathlib, signal, sys, time

os.chdir(pathlib.Path(__file__).parent)
got = []
for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
    signal.signal(each, lambda number, _: got.append(number))
pid = pathlib.Path("pid")
if os.environ["KTE_PROCESS_ID"] == "0":
    pid.write_text(str(os.getpid()))
print("ready")
while not got:
    time.sleep(0.01)
try:
    # The other process ends while this one still writes a checkpoint.
    while int(pid.read_text()) != os.getpid():
        time.sleep(0.01)
        os.kill(int(pid.read_text()), 0)
except ProcessLookupError:
    print(f"got {got}")
sys.exit(128 + got[0])
"""


@pytest.mark.rows(1)
@pytest.mark.usefixtures("forked_programs")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_signals_are_forwarded_once(number, tmp_path):
    script = tmp_path / "script.py"
    script.write_text(_STOPPED)
    command = [sys.executable, "-m", "keras_tpu_estimator", "launch"]
    with subprocess.Popen(
        [*command, "--processes", "2", str(script)],
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        ready = {next(process.stdout) for _ in range(2)}
        process.send_signal(number)
        rest = process.stdout.read()
    assert ready == {"[0] ready\n", "[1] ready\n"}
    assert rest == f"[1] got [{int(number)}]\n"
    assert process.returncode == 128 + number


def test_processes_inherit_an_ignored_sighup(run):
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        code, out, _ = run(
            """
            os.kill(os.getppid(), signal.SIGHUP)
            print(signal.getsignal(signal.SIGHUP) == signal.SIG_IGN)
            """,
            processes=1,
        )
        assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)
    assert (code, out) == (0, "[0] True\n")


def test_orphaned_children_are_not_waited_for(run):
    """A child that holds the output and writes forever does not delay the end."""
    code, out, _ = run(
        """
        import subprocess
        child = subprocess.Popen(
            ["sh", "-c", "while sleep 0.01; do echo more; done"],
            start_new_session=True,
        )
        print(child.pid, "x" * 50_000, "end")
        """,
        processes=1,
    )
    (line,) = (each for each in lines_of(0, out) if each != "more")
    child, text, end = line.split()
    os.kill(int(child), signal.SIGKILL)
    assert (code, text, end) == (0, "x" * 50_000, "end")


def test_processes_do_not_inherit_a_joined_cluster(run, monkeypatch):
    monkeypatch.setenv(parent_process.PLACES_VARIABLE, "1,10.0.0.1:8476 2 0")
    _, out, _ = run(f"print(os.environ.get('{parent_process.PLACES_VARIABLE}'))")
    assert lines_of(0, out) == lines_of(1, out) == ["None"]


def test_signal_handlers_are_restored(run):
    before = [signal.getsignal(signal.Signals[each]) for each in forwarding._SIGNALS]
    run("")
    assert [
        signal.getsignal(signal.Signals[each]) for each in forwarding._SIGNALS
    ] == before


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["x.py"], "the following arguments are required: --processes"),
        (["--processes", "0", "x.py"], "must be a positive integer"),
        (["--processes", "2"], "the following arguments are required: script"),
        (["--processes", "2", "--cores", "1.5", "x.py"], "Received: '1.5'"),
    ],
)
def test_invalid_commands_are_refused(arguments, message, capfd):
    with pytest.raises(SystemExit) as end:
        launch.main("launch", arguments)
    assert end.value.code == 2
    assert message in capfd.readouterr().err


def test_launch_is_refused_on_windows(monkeypatch):
    monkeypatch.setattr(system, "IS_WINDOWS", True)
    with pytest.raises(NotImplementedError, match="`launch` is not.*Start the"):
        launch.main("launch", ["--processes", "2", "script.py"])


def test_progress_bar_is_shown_before_its_end(tmp_path):
    """Each update waits for this test, which waits for the update."""
    script = tmp_path / "script.py"
    script.write_text(
        "import pathlib, sys, time\n"
        "sys.stderr.write('\\r 50%\\r')\n"
        "sys.stderr.flush()\n"
        f"while not pathlib.Path({str(tmp_path / 'seen')!r}).exists():\n"
        "    time.sleep(0.01)\n"
        "sys.stderr.write('\\r100%\\n')\n"
    )
    command = [sys.executable, "-m", "keras_tpu_estimator", "launch"]
    with subprocess.Popen(
        [*command, "--processes", "1", str(script)], stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stderr.readline() == "[0]  50%\n"
        (tmp_path / "seen").touch()
        assert process.stderr.read() == "[0] 100%\n"
    assert process.returncode == 0


@pytest.mark.skipif(sys.platform != "linux", reason="Only Linux has this.")
def test_processes_end_with_a_killed_launcher(tmp_path):
    script = tmp_path / "script.py"
    script.write_text("import os, time\nprint(os.getpid())\ntime.sleep(600)\n")
    command = [sys.executable, "-m", "keras_tpu_estimator", "launch"]
    with subprocess.Popen(
        [*command, "--processes", "2", str(script)], stdout=subprocess.PIPE, text=True
    ) as process:
        lines = [process.stdout.readline() for _ in range(2)]
        process.kill()
    deadline = time.monotonic() + 10
    pids = [int(line.partition("] ")[2]) for line in lines]
    while any(map(psutil.pid_exists, pids)) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not any(map(psutil.pid_exists, pids))


_ATTEMPTS = """
path = pathlib.Path(f"starts-{me}")
starts = int(path.read_text()) + 1 if path.exists() else 1
path.write_text(str(starts))
count, restarts = (os.environ[f"KTE_{name}"] for name in ("NUM_PROCESSES", "RESTARTS"))
print(f"start {restarts} of {count}")
"""


def test_processes_restart_after_a_signal(run):
    code, out, err = run(
        _ATTEMPTS + "if me == 1 and starts < 3: os.kill(os.getpid(), signal.SIGKILL)",
        "--max-restarts",
        "2",
        "--grace",
        "0",
    )
    assert code == 0
    assert lines_of(1, out) == [f"start {number} of 2" for number in range(3)]
    assert [line for line in err.splitlines() if line.startswith("Restart")] == [
        "Restart 1 of at most 2 in 0 s.",
        "Restart 2 of at most 2 in 0 s.",
    ]


def test_process_that_fails_twice_is_omitted_once(run):
    code, out, _ = run(
        _ATTEMPTS
        + "print(os.environ['JAX_LOCAL_DEVICE_IDS'], flush=True)\n"
        # The end of one process also ends the other, which must print before.
        + "ready = pathlib.Path(f'ready-{restarts}')\n"
        + "ready.touch() if me == 0 else None\n"
        + "while not ready.exists(): pass\n"
        + "if me == 1 and restarts != '2': sys.exit(75)\n"
        + "if restarts == '2': sys.exit(75)\n",
        *("--max-restarts", "3", "--min-processes", "1", "--grace", "0"),
        processes=2,
    )
    assert code == 75
    first = lines_of(0, out)
    assert first[::2] == [
        "start 0 of 2",
        "start 1 of 2",
        "start 2 of 1",
        "start 3 of 2",
    ]


@pytest.mark.parametrize(
    ("end", "code", "message"),
    [
        ("sys.exit(2)", 2, "No restart: exit code 2 means that it would fail again."),
        ("raise ValueError", 1, "No restart: exit code 1 means that it would fail"),
        ("sys.exit(75)", 75, "No restart: the limit of 1 is reached."),
        ("os.abort()", 134, "No restart: the limit of 1 is reached."),
    ],
)
def test_restarts_end(end, code, message, run):
    options = ("--max-restarts", "1", "--grace", "0")
    ended = run(end, *options, processes=1)
    assert ended[0] == code
    assert message in ended[2]
    assert ended[2].count("has ended with") == 1 + (code > 2)


def test_job_does_not_restart_after_a_signal_of_the_user(tmp_path):
    script = tmp_path / "script.py"
    script.write_text("import time\nprint('ready')\ntime.sleep(600)\n")
    command = [sys.executable, "-m", "keras_tpu_estimator", "launch"]
    command += ["--processes", "1", "--max-restarts", "9", str(script)]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout.readline() == "[0] ready\n"
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate()
    assert (process.returncode, out) == (143, "")
    assert err == "Process 0 of 1 has ended with exit code 143, SIGTERM.\n"


def test_ended_processes_are_not_killed_later(monkeypatch):
    """Another process may have received the number."""
    environment = os.environ | {"KTE_PROCESS_ID": "0", "KTE_NUM_PROCESSES": "1"}
    command = [sys.executable, "-c", "import time; time.sleep(600)"]
    started = started_processes.StartedProcesses(
        command, [environment], 0.5, forwarding.ForwardedSignals()
    )
    threading.Timer(1, started.stop).start()
    assert started.run().code == 143
    killed = []
    monkeypatch.setattr(os, "killpg", lambda *args: killed.append(args))
    time.sleep(1)
    assert not killed


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (OSError(28, "No space left on device"), 75),
        (ConnectionResetError(), 75),
        (HostError(), 75),
        (jax.errors.JaxRuntimeError("UNKNOWN: Gloo all-reduce failed"), 75),
        (jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory"), 1),
        (FileNotFoundError(2, "data.csv"), 1),
        (PermissionError(13, "data.csv"), 1),
        (ValueError("x"), 1),
    ],
)
def test_exit_codes_of_errors(error, code):
    assert code_of(error) == code
    cause = RuntimeError("A checkpoint could not be written.")
    cause.__cause__ = error
    assert code_of(cause) == code


def test_single_process_reports_whether_to_restart(run):
    code, *_ = run(
        """
        import keras_tpu_estimator as kte
        kte.initialize()
        raise OSError("The disk is full.")
        """,
        processes=1,
    )
    assert code == 75


def test_pauses_grow_until_a_long_start():
    times = iter([0, 1, 1, 2, 2, 100, 100, 101])
    pauses = []
    signals = forwarding.ForwardedSignals()
    signals.wait = lambda secs: pauses.append(secs) or False
    outcome = Outcome(75, 0)
    code = run_with_restarts(
        RestartPolicy(1, max_restarts=3),
        lambda slots, restarts: outcome,
        signals,
        clock=lambda: next(times),
    )
    assert code == 75
    assert pauses == [1, 2, 1]


def test_more_processes_than_all_are_refused(capfd):
    with pytest.raises(SystemExit):
        launch.main("launch", ["--processes", "2", "--min-processes", "3", "x.py"])
    assert "must be at most the number of processes, 2" in capfd.readouterr().err
