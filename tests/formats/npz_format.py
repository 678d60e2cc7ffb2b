"""A sharded checkpoint format in one file, written with public names only.

Each process writes a NumPy archive of its shards. The main file is JSON with the
shape, the dtype and the shards of each variable.
"""

import json
import zipfile

import numpy as np

from keras_tpu_estimator import checkpoints
from keras_tpu_estimator.checkpoints import SaveFiles

LAYOUT = checkpoints.Layout(".npz-index", saved={"npz": "arrays-[0-9]+"})


def write_archive(files, number, arrays):
    with files.create(files.named(f"arrays-{number}")) as file:
        np.savez(file, *arrays)


def index_at(prefix):
    with open(LAYOUT.main(prefix), "rb") as file:
        try:
            return json.loads(file.readline())
        except ValueError as error:
            raise ValueError(f"{prefix!r} is corrupt.") from error


def archives_at(prefix):
    index = index_at(prefix)
    numbers = sorted({n for entry in index.values() for n, *_ in entry["shards"]})
    files = SaveFiles.at(prefix)
    return {number: files.named(f"arrays-{number}") for number in numbers}


def is_right(path):
    try:
        with zipfile.ZipFile(path) as archive:
            return archive.testzip() is None
    except zipfile.BadZipFile:
        return False


class NpzReader(checkpoints.CheckpointReader):
    """A reader that opens an archive when it is needed."""

    def __init__(self, prefix):
        self.index = index_at(prefix)
        listed = {
            path: checkpoints.StoredVariable(
                tuple(entry["shape"]), np.dtype(entry["dtype"])
            )
            for path, entry in self.index.items()
        }
        super().__init__(prefix, listed)

    def _read(self, names):
        paths = archives_at(self.path)
        try:
            return {name: self.read_one(self.index[name], paths) for name in names}
        except zipfile.BadZipFile as error:
            raise ValueError(f"{self.path!r} is corrupt: {error}.") from error

    def read_one(self, entry, paths):
        value = np.empty(entry["shape"], entry["dtype"])
        for number, key, start, stop in entry["shards"]:
            with np.load(paths[number]) as archive:
                value[tuple(map(slice, start, stop))] = archive[key]
        return value


class NpzShards(checkpoints.ShardWriter):
    def begin(self, files, step, values, process):
        shards = [
            (path, ranges)
            for path, value in sorted(values.items())
            for ranges, writer in sorted(value.variable.writers.items())
            if writer == process
        ]
        arrays = [values[path].part(ranges) for path, ranges in shards]
        write_archive(files, process, arrays)
        return lambda: [
            (path, [process, f"arr_{number}", ranges.start, ranges.stop])
            for number, (path, ranges) in enumerate(shards)
        ]


class NpzFormat(checkpoints.CheckpointFormat):
    layout = LAYOUT
    shard_writer = NpzShards()

    def read(self, prefix):
        return NpzReader(prefix)

    def write(self, files, variables, receipts):
        index = {}
        whole = []
        for path, value in variables.items():
            shards = [s for receipt in receipts for p, s in receipt if p == path]
            if not isinstance(value, checkpoints.ShardedVariable):
                value = np.asarray(value)
                start, stop = [0] * value.ndim, value.shape
                shards = [[len(receipts), f"arr_{len(whole)}", start, stop]]
                whole.append(value)
            index[path] = {
                "shape": value.shape,
                "dtype": value.dtype.name,
                "shards": shards,
            }
        write_archive(files, len(receipts), whole)
        with files.create(self.layout.main(files.prefix)) as file:
            file.write(json.dumps(index).encode() + b"\n")

    def contents(self, prefix):
        return [
            checkpoints.FileContent((path,), lambda path=path: is_right(path))
            for path in archives_at(prefix).values()
        ]
