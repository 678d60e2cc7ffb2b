"""Replaces the Python that tests start: forks a template process instead.

Without a suitable template it becomes Python itself.
"""

import marshal
import os
import signal
import socket
import sys

# Environment variables with these names contain paths of sockets. If there are several,
# hosts use them in turn.
PREFIX = "TESTS_FORK_"
# Scripts with their own templates; all others share one.
SCRIPTS = ("first_request.py", "tensorflow_graph.py")
_PASSED_ON = (
    signal.SIGINT,
    signal.SIGTERM,
    signal.SIGHUP,
    signal.SIGABRT,
)


def main() -> None:
    """Runs the command in a fork, and exits with its status."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as template:
        # A signal that arrives before the handler is installed is delivered later.
        signal.pthread_sigmask(signal.SIG_BLOCK, _PASSED_ON)
        process = _forked(template)
        if process:
            for number in _PASSED_ON:
                signal.signal(number, lambda got, _: os.kill(process, got))
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _PASSED_ON)
        if not process:
            os.execv(sys.executable, [sys.executable, *sys.argv[1:]])
        # Negative for a signal.
        code = int(template.recv(64))
    if code < 0:
        if -code in _PASSED_ON:
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    sys.exit(code)


def _forked(template: socket.socket) -> int:
    """Returns the id of the forked process, or 0 if no template forks it."""
    script = os.path.basename(sys.argv[-1])
    name = script if script in SCRIPTS else "package"
    request = (sys.argv, os.getcwd(), dict(os.environ), os.getpid())
    try:
        paths = os.environ[PREFIX + name].split(os.pathsep)
        number = int(os.environ.get("KTE_PROCESS_ID", 0))
        template.connect(paths[number % len(paths)])
        socket.send_fds(template, [marshal.dumps(request)], [0, 1, 2])
        return int(template.recv(64) or 0)
    except (OSError, KeyError):
        return 0


if __name__ == "__main__":
    main()
