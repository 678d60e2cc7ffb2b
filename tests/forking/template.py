"""A process that imports slow modules once, and forks for each client.

Its arguments are the number of a listening socket, the modules to import, and, with a
"-", names of modules that must not be imported. It ends with its standard input.
"""

import contextlib
import dataclasses
import faulthandler
import gc
import importlib
import marshal
import os
import pathlib
import re
import runpy
import select
import signal
import socket
import sys
import types
from typing import NoReturn

# Environment variables that Python and libraries read when they start.
_EARLY = re.compile(
    "PYTHON(?!PATH$|UNBUFFERED$|FAULTHANDLER$)|KERAS_|TF_(?!CONFIG$)"
    "|JAX_(?!COORDINATOR_|LOCAL_DEVICE_IDS$)"
)
_STREAMS = ("stdin", "stdout", "stderr")
_REQUEST_BYTES = 2**20


@dataclasses.dataclass(frozen=True)
class Request:
    """A client's request.

    Attributes:
        arguments: The path and arguments of the Python command.
        folder: The client's working directory.
        environment: The client's environment variables.
        number: The client's process id.
        files: The client's standard input, output and error.
    """

    arguments: list[str]
    folder: str
    environment: dict[str, str]
    number: int
    files: list[int]

    @property
    def can_be_forked(self) -> bool:
        """Whether a fork of this process would equal a new process."""
        return (
            not re.match("-[^cmP]", self.arguments[1])
            and _early(self.environment) == _early(os.environ)
            and _rights(self.number) == _rights(os.getpid())
        )

    def run(self) -> None:
        """Gives this process the requested state, and runs the program."""
        os.setpgid(0, os.getpgid(self.number))
        os.chdir(self.folder)
        own = _folders()
        os.environ.clear()
        os.environ.update(self.environment)
        sys.path[:] = [*_folders(), *(p for p in sys.path if p not in own)]
        for name, file in zip(_STREAMS, self.files, strict=True):
            _put(name, file)
        if "PYTHONFAULTHANDLER" in os.environ:
            faulthandler.enable()
        # Its own child processes are also forked.
        sys.executable = self.arguments[0]
        if "numpy" in sys.modules:
            sys.modules["numpy"].random.seed()
        _run(*self.arguments[1:])


def _put(name: str, file: int) -> None:
    """Replaces a standard stream by a file."""
    stream = getattr(sys, name)
    is_by_line = name == "stderr" or "PYTHONUNBUFFERED" in os.environ
    os.dup2(file, stream.fileno())
    os.close(file)
    # A new stream, because the existing one remembers whether the old file was
    # seekable.
    stream = open(
        stream.fileno(),
        stream.mode,
        buffering=1 if is_by_line else -1,
        errors=stream.errors,
        closefd=False,
    )
    setattr(sys, name, stream)
    setattr(sys, f"__{name}__", stream)


def _early(environment: "os._Environ[str] | dict[str, str]") -> dict[str, str]:
    return {name: value for name, value in environment.items() if _EARLY.match(name)}


def _rights(process: int) -> tuple[int, str, list[str]]:
    """The session, limits and privileges of a process."""
    own = pathlib.Path(f"/proc/{process}")
    status = (own / "status").read_text()
    rights = re.findall("^(?:Uid|Gid|Groups|Umask|Cap).*", status, re.MULTILINE)
    return os.getsid(process), (own / "limits").read_text(), rights


def _folders() -> list[str]:
    return [*filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]


def _run(*arguments: str) -> None:
    """Runs what Python would run with these arguments."""
    match arguments:
        case ["-P", script]:
            sys.argv = [script]
            runpy.run_path(script, run_name="__main__")
        case ["-m", module, *_]:
            sys.path.insert(0, os.getcwd())
            sys.argv = [*arguments[1:]]
            runpy.run_module(module, run_name="__main__", alter_sys=True)
        case ["-c", code, *others]:
            sys.path.insert(0, "")
            sys.argv = ["-c", *others]
            main = sys.modules["__main__"] = types.ModuleType("__main__")
            exec(compile(code, "<string>", "exec"), vars(main))  # noqa: S102
        case [script, *_]:
            sys.path.insert(0, os.path.dirname(os.path.abspath(script)))
            sys.argv = [*arguments]
            runpy.run_path(script, run_name="__main__")


def forked(listening: socket.socket) -> Request:
    """Forks for each client, and returns only in the forks."""
    while True:
        if sys.stdin in select.select([sys.stdin, listening], [], [])[0]:
            # The parent process is gone.
            sys.exit()
        client, _ = listening.accept()
        with client:
            if not os.fork():
                listening.close()
                data, files, *_ = socket.recv_fds(client, _REQUEST_BYTES, 3)
                request = Request(*marshal.loads(data), files)
                if not request.can_be_forked:
                    os._exit(0)
                process = os.fork()
                if not process:
                    return request
                _watch(process, client, files)
        # Earlier forks that have ended.
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass


def _watch(process: int, client: socket.socket, files: list[int]) -> NoReturn:
    """Sends the exit status to the client, and kills the process with the client."""
    for each in (0, 1, 2, *files):
        os.close(each)
    client.send(str(process).encode())
    ended = os.pidfd_open(process)
    if ended not in select.select([client, ended], [], [])[0]:
        os.kill(process, signal.SIGKILL)
    code = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
    with contextlib.suppress(OSError):
        client.send(str(code).encode())
    os._exit(0)


def main(listening: str, *modules: str) -> None:
    """Imports modules and serves clients."""
    # Background jobs start with SIGINT ignored.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    for each in modules:
        if each.startswith("-"):
            sys.modules[each[1:]] = None
        else:
            importlib.import_module(each)
    # Garbage collection would copy shared pages.
    gc.freeze()
    with socket.socket(fileno=int(listening)) as connections:
        request = forked(connections)
    request.run()


if __name__ == "__main__":
    main(*sys.argv[1:])
