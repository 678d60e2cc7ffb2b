"""Disks that are full or may not be written to."""

import os
import shutil
import stat
import subprocess

import keras_tpu_estimator as kte
from tests.torture.figures import expect
from tests.torture.killing import read
from tests.torture.victim import Wishes

# Root without the right to write where only others may.
_AS_OTHERS = ("setpriv", "--bounding-set", "-dac_override")


def full(directory: str) -> dict[str, object]:
    """Trains until a checkpoint does not fit any more.

    Raises:
        ViolationError: There is no clear error, or an older checkpoint
            suffered.
    """
    wishes = Wishes(directory, 8)
    wishes.run()
    before = sorted(os.listdir(directory))
    size = os.path.getsize(kte.latest_checkpoint(directory) + ".h5")
    starved = Wishes(directory, 40, max_file_bytes=size // 2)
    with starved.start(stderr=subprocess.PIPE) as process:
        _, told = process.communicate()
    expect(process.returncode == 1, f"Training stops with an error: {told}")
    expect("OSError" in told, f"The error is the system's: {told}")
    latest = kte.latest_checkpoint(directory)
    step = int(read(latest)["global_step"])
    expect(step == 8, f"The older checkpoint is intact, not of step {step}.")
    files = [name for name in before if name.endswith(".h5")]
    expect(
        files == [n for n in sorted(os.listdir(directory)) if ".h5" in n],
        "No file but the older checkpoints is left.",
    )
    Wishes(directory, 12).run()
    return {"checkpoints that did not fit, older ones intact": 1}


def small_file_system(directory: str) -> dict[str, object]:
    """The same on a file system that is really full, where root may mount.

    Raises:
        ViolationError: As `full`.
    """
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=20m", "tmpfs", directory],
        capture_output=True,
        check=False,
    )
    if mounted.returncode:
        return {"full file systems": "0, as nothing may be mounted here"}
    try:
        with Wishes(directory, 40).start(stderr=subprocess.PIPE) as process:
            _, told = process.communicate()
        expect(process.returncode == 1, f"Training stops: {told}")
        expect("No space left" in told, f"The error says why: {told}")
        read(kte.latest_checkpoint(directory))
    finally:
        subprocess.run(["umount", directory], check=True)
    return {"full file systems": 1}


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
