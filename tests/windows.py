"""Makes Python's `os` behave as it does on Windows, in a process on Linux.

Names that Windows lacks are removed. Operations that Windows refuses raise errors:
opening a directory, renaming or deleting a file that a process has open, giving a file
a reserved name, and flushing a file that is open for reading. Paths keep their slashes,
so drives and backslashes have separate tests.
"""

import builtins
import errno
import fcntl
import functools
import importlib
import io
import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import sys
import types
from collections.abc import Callable, Iterator

# Imported before any name is removed, because they detect Windows by `sys.platform`.
_LIBRARIES = """
    asyncio concurrent.futures subprocess multiprocessing.context
    multiprocessing.util tempfile pathlib zoneinfo
    numpy h5py jax jax.numpy jax.experimental.serialize_executable keras optax
""".split()
MODULES = """
    fcntl grp nis ossaudiodev posixshmem pty pwd readline resource spwd syslog
    termios tty uvloop
""".split()
# These names of `os` do not exist on Windows under CPython 3.11 to 3.14, or only on
# Linux.
OS_NAMES = """
    EFD_CLOEXEC O_ACCMODE O_ASYNC O_CLOEXEC O_DIRECT O_DIRECTORY O_DSYNC
    O_NDELAY O_NOATIME O_NOCTTY O_NOFOLLOW O_NONBLOCK O_PATH O_RSYNC O_SYNC
    O_TMPFILE
    chown chroot confstr copy_file_range ctermid eventfd fchdir fchown
    fdatasync fork forkpty fpathconf fstatvfs getegid geteuid getgid
    getgrouplist getgroups getloadavg getpgid getpgrp getpriority getresgid
    getresuid getsid getuid initgroups killpg lchown lockf login_tty major
    makedev memfd_create minor mkfifo mknod nice openpty pathconf
    pidfd_open pipe2 posix_fadvise posix_fallocate posix_openpt posix_spawn
    posix_spawnp pread preadv pwrite pwritev readv register_at_fork
    sched_get_priority_max sched_get_priority_min sched_getaffinity
    sched_getparam sched_getscheduler sched_rr_get_interval sched_setaffinity
    sched_setparam sched_setscheduler sched_yield sendfile setegid seteuid
    setgid setgroups setpgid setpriority setregid setresgid setresuid setreuid
    setsid setuid splice statvfs sync sysconf tcgetpgrp tcsetpgrp ttyname uname
    wait wait3 wait4 waitid waitpid writev
""".split()
SIGNAL_NAMES = """
    SIGALRM SIGBUS SIGCHLD SIGCONT SIGHUP SIGIO SIGKILL SIGPIPE SIGPROF SIGPWR
    SIGQUIT SIGSTOP SIGSYS SIGTRAP SIGTSTP SIGTTIN SIGTTOU SIGURG SIGUSR1
    SIGUSR2 SIGVTALRM SIGWINCH SIG_BLOCK SIG_SETMASK SIG_UNBLOCK alarm
    getitimer pause pthread_kill pthread_sigmask setitimer siginterrupt
    sigpending sigtimedwait sigwait sigwaitinfo
""".split()
_RESERVED = re.compile(
    r"(?:con|prn|aux|nul|com[1-9]|lpt[1-9])(?:\..*)?"
    r'|.*[<>:"|?*\\\x00-\x1f].*|.*[. ]',
    re.IGNORECASE,
)
# `SIGBREAK` exists only on Windows. This number is free on Linux.
_SIGBREAK = signal.SIGUSR1


def install() -> None:
    """Makes this process behave as on Windows, before the package is imported."""
    for name in _LIBRARIES:
        importlib.import_module(name)
    sys.modules.update(dict.fromkeys(MODULES))
    sys.modules["msvcrt"] = msvcrt()
    # On Windows it starts and ends processes differently.
    for module in (os, signal):
        whole = types.SimpleNamespace(**vars(module))
        setattr(subprocess, module.__name__, whole)
    for module, names in ((os, OS_NAMES), (signal, SIGNAL_NAMES)):
        for name in names:
            if hasattr(module, name):
                delattr(module, name)
    del socket.AF_UNIX
    socket.socketpair = _socketpair
    signal.SIGBREAK = _SIGBREAK
    os.O_BINARY = 0
    # `shutil` then removes files by full paths.
    shutil._use_fd_functions = False
    _restrict_files()
    system = importlib.import_module("keras_tpu_estimator.base.common.system")
    system.IS_WINDOWS = True


def msvcrt() -> types.ModuleType:
    """Returns the module that locks files on Windows."""
    module = types.ModuleType("msvcrt")
    module.LK_NBLCK = 2

    def locking(descriptor: int, mode: int, nbytes: int) -> None:
        assert (mode, nbytes) == (module.LK_NBLCK, 1)
        assert not os.path.isdir(f"/proc/self/fd/{descriptor}")
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise PermissionError(errno.EACCES, "Permission denied") from None

    module.locking = locking
    return module


def _socketpair() -> tuple[socket.socket, socket.socket]:
    """Returns two sockets that are connected over TCP, as on Windows."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        first = socket.create_connection(listening.getsockname())
        return listening.accept()[0], first


def _restrict_files() -> None:
    os.open = _opening(os.open)
    os.fsync = _fsync(os.fsync)
    for name in ("mkdir", "remove", "unlink", "rmdir", "rename", "replace"):
        setattr(os, name, _named(getattr(os, name)))
    os.rename = _without_replacing(os.rename)
    for name in ("remove", "unlink", "rmdir", "rename", "replace"):
        setattr(os, name, _shared(getattr(os, name)))
    builtins.open = io.open = _text(io.open)


def _opening(function: Callable[..., int]) -> Callable[..., int]:
    @functools.wraps(function)
    def opened(path, flags, *arguments, **keywords):
        check_name(path)
        if os.path.isdir(path):
            raise PermissionError(errno.EACCES, "Permission denied", path)
        return function(path, flags, *arguments, **keywords)

    return opened


def _fsync(function: Callable[[int], None]) -> Callable[[int], None]:
    def fsync(descriptor):
        if fcntl.fcntl(descriptor, fcntl.F_GETFL) & 3 == 0:
            raise OSError(errno.EBADF, "Bad file descriptor")
        function(descriptor)

    return fsync


def _named(function: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(function)
    def named(*arguments, **keywords):
        for path in arguments[:2]:
            if not isinstance(path, int):
                check_name(path)
        return function(*arguments, **keywords)

    return named


def _without_replacing(function: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(function)
    def rename(source, target, **keywords):
        if os.path.lexists(target):
            raise FileExistsError(errno.EEXIST, "File exists", target)
        return function(source, target, **keywords)

    return rename


def _shared(function: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(function)
    def shared(*paths, **keywords):
        for path in paths:
            taken = next(open_files(path), None)
            if taken is not None:
                error = PermissionError(
                    errno.EACCES, f"{taken} is open in this process", path
                )
                error.winerror = 32
                raise error
        return function(*paths, **keywords)

    return shared


def _text(function: Callable[..., io.IOBase]) -> Callable[..., io.IOBase]:
    @functools.wraps(function)
    def opened(file, mode="r", buffering=-1, *arguments, **keywords):
        if not isinstance(file, int):
            check_name(file)
            if os.path.isdir(file):
                raise PermissionError(errno.EACCES, "Permission denied", file)
        if "b" not in mode and not arguments:
            keywords["encoding"] = keywords.get("encoding") or "cp1252"
            if set(mode) & set("wax+") and keywords.get("newline") is None:
                keywords["newline"] = "\r\n"
        return function(file, mode, buffering, *arguments, **keywords)

    return opened


def check_name(path: os.PathLike | str | bytes) -> None:
    """Refuses a path that contains a name that is invalid on Windows."""
    path = os.fsdecode(path)
    if path.startswith(("/proc/", "/dev/", "/sys/")):
        return
    wrong = [n for n in path.split("/") if _RESERVED.fullmatch(n)]
    if [name for name in wrong if name not in (".", "..")]:
        raise OSError(errno.EINVAL, "Invalid argument", path)


def open_files(path: os.PathLike | str | bytes) -> Iterator[str]:
    """The open files below a path, in this process and its children.

    Args:
        path: A file, or a directory that stands for all its files.
    """
    wanted = pathlib.Path(os.path.realpath(os.fsdecode(path)))
    for process in ("self", *_children()):
        try:
            files = os.listdir(f"/proc/{process}/fd")
        except OSError:
            continue
        for number in files:
            try:
                found = pathlib.Path(os.readlink(f"/proc/{process}/fd/{number}"))
            except OSError:
                continue
            if found == wanted or wanted in found.parents:
                yield str(found)
    with io.FileIO("/proc/self/maps") as maps:
        for line in maps.readall().decode().splitlines():
            _, _, mapped = line.partition(" /")
            found = pathlib.Path("/" + mapped)
            if mapped and (found == wanted or wanted in found.parents):
                yield str(found)


def _children() -> list[str]:
    """The child processes of this process."""
    found = []
    for thread in os.listdir("/proc/self/task"):
        try:
            with io.FileIO(f"/proc/self/task/{thread}/children") as file:
                found += file.readall().decode().split()
        except OSError:
            continue
    return found
