"""Trials with full and read-only disks."""

import contextlib
import errno
import glob
import os
import shutil
import stat
import subprocess
import time
from collections.abc import Iterator

# Import Keras after this package, so that Keras runs on JAX.
import keras_tpu_estimator as kte  # isort: split

import numpy as np

from keras_tpu_estimator import checkpoints
from keras_tpu_estimator.files.directory import save_files
from tests.torture import saves
from tests.torture.figures import expect
from tests.torture.killing import read
from tests.torture.saves import WHOLE, expect_no_stale_files, stale_files
from tests.torture.victim import Wishes

_SMALL = 30 << 20
_FILLED = 10 << 20
_ROWS = 1 << 20
_PATIENCE_SECS = 30
_NOT_MOUNTED = "0, because mounting is not allowed"
# Root, but without the capability to override file permissions.
_AS_OTHERS = ("setpriv", "--bounding-set", "-dac_override")


def full(directory: str, way: str = WHOLE) -> dict[str, object]:
    """Trains until a checkpoint no longer fits.

    Args:
        directory: An empty directory.
        way: How training saves. Defaults to unsharded files.

    Raises:
        ViolationError: The error is unclear, or an older checkpoint has changed.
    """
    Wishes(directory, 8, way=way).run()
    before = sorted(os.listdir(directory))
    prefix = kte.latest_checkpoint(directory)
    size = max(map(os.path.getsize, _files_at(prefix)))
    starved = Wishes(directory, 40, max_file_bytes=size // 2, way=way)
    with starved.start(stderr=subprocess.PIPE) as process:
        _, told = process.communicate()
    expect(process.returncode == 1, f"Training must stop with an error: {told}")
    expect("OSError" in told, f"The error must be an OSError: {told}")
    latest = kte.latest_checkpoint(directory)
    step = int(read(latest)["global_step"])
    expect(step == 8, f"The older checkpoint must be intact, not of step {step}.")
    after = sorted(os.listdir(directory))
    expect(
        _of_checkpoints(before) == _of_checkpoints(after),
        f"Only files of older checkpoints must remain: {after}",
    )
    Wishes(directory, 12, way=way).run()
    return {"checkpoints that did not fit, with older ones intact": 1}


def _of_checkpoints(names: list[str]) -> list[str]:
    return [name for name in names if "tfevents" not in name]


def small_file_system(directory: str, way: str = WHOLE) -> dict[str, object]:
    """Trains on a full file system, if root may mount one.

    After space has been freed, the same amount must be available as before.

    Args:
        directory: An empty directory.
        way: How training saves. Defaults to unsharded files.

    Raises:
        ViolationError: See `full`.
    """
    with _file_system(directory) as is_there:
        if not is_there:
            return {"full file systems": _NOT_MOUNTED}
        filler = os.path.join(directory, "filler")
        with open(filler, "wb") as file:
            os.posix_fallocate(file.fileno(), 0, _FILLED)
        for step in (4, 8):
            Wishes(directory, step, way=way).run()
        starved = Wishes(directory, 40, way=way)
        with starved.start(stderr=subprocess.PIPE) as process:
            _, told = process.communicate()
        expect(process.returncode == 1, f"Training stops: {told}")
        expect("No space left" in told, f"The error says why: {told}")
        read(kte.latest_checkpoint(directory))
        os.remove(filler)
        expect_no_stale_files(directory, f"a full disk, {way}")
        Wishes(directory, 20, way=way).run()
    return {"full file systems": 1}


def full_at_each_stage(directory: str, way: str, stages: int = 24) -> dict[str, object]:
    """Saves with room for a part of a checkpoint, and then for all of it.

    Args:
        directory: An empty directory.
        way: How to save, one of `saves.SPREAD`.
        stages: The number of different sizes of the room. Defaults to 24.

    Raises:
        ViolationError: See `full`.
    """
    what = "saves with room for a part only"
    left = 0
    with _file_system(directory) as is_there:
        if not is_there:
            return {what: _NOT_MOUNTED}
        model_dir = os.path.join(directory, "run")
        saved = saves.save(model_dir, 8, 8, way, rows=_ROWS)
        size = sum(map(os.path.getsize, _files_at(saved)))
        filler = os.path.join(directory, "filler")
        for stage in range(stages):
            room = size * stage // stages
            _fill(filler, but=room)
            _save_in_vain(model_dir, way, room)
            os.remove(filler)
            (step,) = checkpoints.read(model_dir)["global_step"].reshape(1)
            expect(step == 8, f"The older checkpoint must be intact: {room} bytes")
            left += bool(stale_files(model_dir))
            # Orbax may still be writing.
            until = time.monotonic() + _PATIENCE_SECS
            while stale_files(model_dir) and time.monotonic() < until:
                save_files.sweep(model_dir)
                time.sleep(0.1)
            expect_no_stale_files(model_dir, f"{room} bytes, {way}")
        newest = saves.save(model_dir, 20, 20, way, rows=_ROWS)
        (value,) = np.unique(read(newest)["a"])
        expect(value == 20, "There is room again.")
    return {
        what: stages,
        "of these, files remained until the next sweep": left,
    }


def _save_in_vain(model_dir: str, way: str, room: int) -> None:
    try:
        saves.save(model_dir, 20, 20, way, rows=_ROWS)
    except OSError as error:
        is_told = os.strerror(errno.ENOSPC) in str(error)
        expect(is_told, f"The error says why: {error}")
    else:
        expect(False, f"An error must report the full disk: {room} bytes")


def _fill(filler: str, but: int) -> None:
    """Makes a file that leaves a number of free bytes in the file system."""
    left = os.statvfs(os.path.dirname(filler))
    with open(filler, "wb") as file:
        size = left.f_bavail * left.f_frsize - but
        os.posix_fallocate(file.fileno(), 0, size)


def _files_at(prefix: str) -> list[str]:
    found = glob.glob(prefix + ".*") + glob.glob(prefix + ".*/**", recursive=True)
    return [path for path in found if os.path.isfile(path)]


@contextlib.contextmanager
def _file_system(directory: str) -> Iterator[bool]:
    """Mounts a small file system on a directory; returns whether this is allowed."""
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={_SMALL}", "tmpfs", directory],
        capture_output=True,
        check=False,
    )
    if mounted.returncode:
        yield False
        return
    try:
        yield True
    finally:
        # Libraries may keep files open for a short time.
        subprocess.run(["umount", "--lazy", directory], check=True)


def read_only(directory: str) -> dict[str, object]:
    """Trains into a read-only directory.

    Raises:
        ViolationError: The error is unclear.
    """
    if os.geteuid() == 0 and not shutil.which(_AS_OTHERS[0]):
        return {"read-only directories": "0, because root may write anywhere"}
    prefix = _AS_OTHERS if os.geteuid() == 0 else ()
    os.chmod(directory, stat.S_IRUSR | stat.S_IXUSR)
    with Wishes(directory, 8).start(*prefix, stderr=subprocess.PIPE) as process:
        _, told = process.communicate()
    os.chmod(directory, stat.S_IRWXU)
    expect(process.returncode == 1, f"Training must stop with an error: {told}")
    expect("PermissionError" in told, f"The error must be an OSError: {told}")
    expect(os.listdir(directory) == [], "Nothing is written.")
    return {"read-only directories refused": 1}
