"""The host memory needed to save and restore sharded variables.

The host has eight simulated cores, which use its memory, and a variable that is
sharded over them. The peak of its resident memory, which Linux records and lets
a process reset, is compared with the memory before.
"""

import json
import os
import tempfile
from collections.abc import Iterator

from benchmarks.isolation import run_module
from benchmarks.table import Goal, Row

_ROWS, _COLUMNS = 4096, 6144
_MEGABYTES = _ROWS * _COLUMNS * 4 / 1e6
_EIGHT_CORES = {
    "KERAS_BACKEND": "jax",
    "JAX_PLATFORMS": "cpu",
    "XLA_FLAGS": "--xla_force_host_platform_device_count=8",
    # The allocator returns freed memory to the system immediately.
    "MALLOC_MMAP_THRESHOLD_": str(1 << 18),
}
_SHARE = Goal("ratio", most=1.2)


def rows() -> Iterator[Row]:
    """Returns rows for the peak memory relative to the size of the variable."""
    held = run_module("benchmarks.spread_memory", _EIGHT_CORES)
    for what, megabytes in held.items():
        yield Row(
            f"memory of a host that {what} a variable over its 8 cores, "
            "against its size",
            megabytes,
            _MEGABYTES,
            "MB",
            _SHARE,
        )


def measure() -> dict[str, float]:
    """Measures the peak memory of the variable and its copies in megabytes."""
    import keras_tpu_estimator as kte  # isort: split

    import jax
    import numpy as np

    from keras_tpu_estimator.base.mesh.all_cores import all_cores
    from keras_tpu_estimator.base.mesh.transfers import put_by_part
    from keras_tpu_estimator.files.checkpoints.saving import save_into
    from keras_tpu_estimator.files.directory.save_files import SaveFiles
    from keras_tpu_estimator.files.formats.hdf5.format import Hdf5Shards
    from keras_tpu_estimator.files.formats.shards import ShardValues

    cores = all_cores(8, {"rows": ("model",), "columns": (None, "model")})
    shape = (_ROWS, _COLUMNS)
    by_row, by_column = (
        cores.variable_sharding(name, shape) for name in ("rows", "columns")
    )
    make = jax.jit(lambda: jax.numpy.ones(shape), out_shardings=by_row)
    held = {}
    # A first run loads modules and allocates buffers.
    for _ in ("warm", "measured"):
        with tempfile.TemporaryDirectory() as directory:
            before = _resident()
            value = jax.block_until_ready(make())
            _reset_peak()
            saved = SaveFiles(os.path.join(directory, "model.ckpt-1"))
            shards = {"kernel": ShardValues.from_array(value)}
            finish = Hdf5Shards().begin(saved, 1, shards, 0)
            sharded = {path: each.variable for path, each in shards.items()}
            retention = kte.checkpoints.Retention()
            save_into(saved, 1, sharded, retention=retention, receipts=[finish()])
            del shards
            held["saves"] = _peak() - before
            kte.checkpoints.save(os.path.join(directory, "whole"), 1, {"kernel": value})
            del value
            for what, source, place in (
                ("restores", directory, by_row),
                ("restores, by other parts,", directory, by_column),
                ("restores, from a file of one core,", "whole", by_column),
            ):
                reader = kte.load_checkpoint(os.path.join(directory, source))
                before = _resident()
                _reset_peak()
                with reader.held_open():
                    value = put_by_part(
                        shape,
                        place,
                        lambda box, reader=reader: reader.get_part(
                            "kernel", box.slices
                        ),
                    )
                held[what] = _peak() - before
                np.testing.assert_array_equal(value[::512, ::512], 1)
                del value
    return held


def _reset_peak() -> None:
    with open("/proc/self/clear_refs", "w", encoding="ascii") as file:
        file.write("5")


def _peak() -> float:
    return _status("VmHWM")


def _resident() -> float:
    return _status("VmRSS")


def _status(name: str) -> float:
    with open("/proc/self/status", encoding="ascii") as file:
        for line in file:
            if line.startswith(name):
                return int(line.split()[1]) * 1024 / 1e6
    raise RuntimeError(f"Linux should tell {name}.")


if __name__ == "__main__":
    print(json.dumps(measure()))
