"""The checkpoints from which the variables of a program start."""

import dataclasses
from collections.abc import Callable, Collection, Iterable, Mapping

import keras
import numpy as np

from keras_tpu_estimator.files.formats.reader import CheckpointReader
from keras_tpu_estimator.files.warm_start.pairing import cast


@dataclasses.dataclass(frozen=True)
class Source:
    """The checkpoint and the name there of a variable's initial value."""

    reader: CheckpointReader
    name: str


@dataclasses.dataclass(frozen=True)
class Target:
    """A program's variables, and the sources of their initial values, by path;
    `constants` are paths that checkpoints of this package never contain.
    """

    variables: Mapping[str, keras.Variable]
    constants: Collection[str]
    sources: dict[str, Source]

    def values(
        self, paths: Iterable[str], dtype_of: Callable[[str], np.dtype]
    ) -> dict[str, np.ndarray]:
        """Returns the initial values of those variables that have a source; a
        variable's dtype must be able to represent its value.
        """
        names: dict[CheckpointReader, dict[str, str]] = {}
        for path in paths:
            if path in self.sources:
                source = self.sources[path]
                names.setdefault(source.reader, {})[path] = source.name
        values: dict[str, np.ndarray] = {}
        for reader, name_of in names.items():
            # All values are read at once, because each read checks the file.
            read = reader.get_tensors(set(name_of.values()))
            values |= {
                path: cast(read[name], dtype_of(path), path, name, reader.path)
                for path, name in name_of.items()
            }
        return values
