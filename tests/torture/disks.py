"""Disks that are full or may not be written to."""

import glob
import os
import shutil
import stat
import subprocess

import keras_tpu_estimator as kte
from tests.torture.figures import expect
from tests.torture.killing import read
from tests.torture.saves import WHOLE
from tests.torture.saves import expect_no_leftovers
from tests.torture.victim import Wishes

_SMALL = 30 << 20
_FILLED = 10 << 20
# Root without the right to write where only others may.
_AS_OTHERS = ("setpriv", "--bounding-set", "-dac_override")


def full(directory: str, way: str = WHOLE) -> dict[str, object]:
    """Trains until a checkpoint does not fit any more.

    Args:
        directory: An empty directory.
        way: How it saves. Defaults to files that are whole.

    Raises:
        ViolationError: There is no clear error, or an older checkpoint
            suffered.
    """
    Wishes(directory, 8, way=way).run()
    before = sorted(os.listdir(directory))
    prefix = kte.latest_checkpoint(directory)
    size = max(map(os.path.getsize, glob.glob(prefix + ".*")))
    starved = Wishes(directory, 40, max_file_bytes=size // 2, way=way)
    with starved.start(stderr=subprocess.PIPE) as process:
        _, told = process.communicate()
    expect(process.returncode == 1, f"Training stops with an error: {told}")
    expect("OSError" in told, f"The error is the system's: {told}")
    latest = kte.latest_checkpoint(directory)
    step = int(read(latest)["global_step"])
    expect(step == 8, f"The older checkpoint is intact, not of step {step}.")
    after = sorted(os.listdir(directory))
    expect(
        _of_checkpoints(before) == _of_checkpoints(after),
        f"No file but those of the older checkpoints is left: {after}",
    )
    Wishes(directory, 12, way=way).run()
    return {f"checkpoints {way} that did not fit, older ones intact": 1}


def _of_checkpoints(names: list[str]) -> list[str]:
    return [name for name in names if "tfevents" not in name]


def small_file_system(directory: str, way: str = WHOLE) -> dict[str, object]:
    """The same on a file system that is really full, where root may mount.

    When there is room again, there has to be as much as before.

    Args:
        directory: An empty directory.
        way: How it saves. Defaults to files that are whole.

    Raises:
        ViolationError: As `full`.
    """
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={_SMALL}", "tmpfs", directory],
        capture_output=True,
        check=False,
    )
    if mounted.returncode:
        return {"full file systems": "0, as nothing may be mounted here"}
    try:
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
        expect_no_leftovers(directory, f"a full disk, {way}", is_alive=True)
        Wishes(directory, 20, way=way).run()
    finally:
        subprocess.run(["umount", directory], check=True)
    return {f"full file systems, saved to {way}": 1}


def read_only(directory: str) -> dict[str, object]:
    """Trains into a directory that may not be written to.

    Raises:
        ViolationError: There is no clear error.
    """
    if os.geteuid() == 0 and not shutil.which(_AS_OTHERS[0]):
        return {"read-only directories": "0, as root may write anywhere"}
    prefix = _AS_OTHERS if os.geteuid() == 0 else ()
    os.chmod(directory, stat.S_IRUSR | stat.S_IXUSR)
    with Wishes(directory, 8).start(*prefix, stderr=subprocess.PIPE) as process:
        _, told = process.communicate()
    os.chmod(directory, stat.S_IRWXU)
    expect(process.returncode == 1, f"Training stops with an error: {told}")
    expect("PermissionError" in told, f"The error is the system's: {told}")
    expect(os.listdir(directory) == [], "Nothing is written.")
    return {"read-only directories refused": 1}
