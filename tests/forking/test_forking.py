"""Tests that a fork behaves like a new Python process."""

import os
import signal
import subprocess
import sys

import pytest

pytestmark = pytest.mark.usefixtures("forked_programs")

_IS_FORK = "import sys; print('keras_tpu_estimator' in sys.modules)"


def _ran(*arguments, **settings):
    return subprocess.run(
        [sys.executable, *arguments],
        capture_output=True,
        text=True,
        check=False,
        **settings,
    )


def test_fork_has_the_state_of_a_new_process(tmp_path):
    (tmp_path / "other.py").write_text("name = 'imported'\n")
    script = tmp_path / "script.py"
    script.write_text(
        "import os, sys, other\n"
        "print(sys.argv, os.getcwd(), os.environ['OWN'], __name__)\n"
        "print(other.name, input(), 'keras_tpu_estimator' in sys.modules)\n"
        "print('told', file=sys.stderr)\n"
        "sys.exit(3)\n"
    )
    environment = os.environ | {"OWN": "1"}
    done = _ran(script, "a", input="read\n", cwd="/", env=environment)
    assert done.stdout == (f"['{script}', 'a'] / 1 __main__\nimported read True\n")
    assert (done.stderr, done.returncode) == ("told\n", 3)
    done = _ran("-m", "other", cwd=tmp_path)
    assert (done.stderr, done.returncode) == ("", 0)


def test_error_has_the_traceback_of_python():
    done = _ran("-c", "import atexit; atexit.register(print, 'over'); 1 / 0")
    assert done.stderr.endswith("ZeroDivisionError: division by zero\n")
    assert (done.stdout, done.returncode) == ("over\n", 1)


def test_fork_has_its_own_xla_flags():
    flags = "--xla_force_host_platform_device_count=3"
    code = "import jax; print(jax.device_count())"
    done = _ran("-c", code, env=os.environ | {"XLA_FLAGS": flags})
    assert done.stdout == "3\n", done.stderr


def test_forks_have_different_random_numbers():
    code = "import random, numpy; print(random.random(), numpy.random.rand())"
    first, second = (_ran("-c", code).stdout.split() for _ in range(2))
    assert not {*first} & {*second}


@pytest.mark.parametrize(
    ("options", "environment"),
    [
        (["-W", "ignore"], {}),
        ([], {"JAX_ENABLE_X64": "1"}),
        ([], {"PYTHONHASHSEED": "1"}),
    ],
)
def test_python_is_started_if_a_fork_is_unsuitable(options, environment):
    done = _ran(*options, "-c", _IS_FORK, env=os.environ | environment)
    assert (done.stdout, done.returncode) == ("False\n", 0)
    assert _ran("-c", _IS_FORK).stdout == "True\n"


def test_python_is_started_if_privileges_differ():
    shell = ["sh", "-c", 'umask 7; exec "$0" -c "$1"', sys.executable, _IS_FORK]
    done = subprocess.run(shell, capture_output=True, check=True)
    assert done.stdout == b"False\n"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGABRT])
def test_signals_are_forwarded(number):
    code = "import time; print('there', flush=True); time.sleep(60)"
    with subprocess.Popen(
        [sys.executable, "-c", code],
        env=os.environ | {"PYTHONFAULTHANDLER": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout.readline() == "there\n"
        process.send_signal(number)
        _, told = process.communicate()
    assert process.returncode == -number
    assert ("Fatal Python error" in told) == (number == signal.SIGABRT)


def test_fork_ends_with_its_client():
    code = "import os; print(os.getpid(), os.getpgrp(), flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-c", code],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        process_group=0,
    ) as process:
        fork, group = map(int, process.stdout.readline().split())
        assert fork != process.pid == group
        process.kill()
        # The output ends when no process can write to it.
        assert process.stdout.read() == ""
    assert process.returncode == -signal.SIGKILL


def test_child_of_a_fork_is_a_fork():
    starts = f"subprocess.run([sys.executable, '-c', {_IS_FORK!r}])"
    code = f"import subprocess, sys; {starts}"
    assert _ran("-c", code).stdout == "True\n"
