"""What there is in a `model_dir`."""

import dataclasses
import glob
import os
from collections.abc import Mapping
from typing import Self

import numpy as np

from keras_tpu_estimator.files.directory import location
from keras_tpu_estimator.files.directory import training_status
from keras_tpu_estimator.files.formats import checkpoint_format as formats
from keras_tpu_estimator.files.formats import loading
from keras_tpu_estimator.files.summary.event_reader import read_scalars
from keras_tpu_estimator.ground.storage import paths


@dataclasses.dataclass(frozen=True)
class Checkpoint:
    """One checkpoint.

    Attributes:
        prefix: Its path, without the ends of its files.
        step: The global step it was made at.
        num_bytes: The size of its files.
    """

    prefix: str
    step: int
    num_bytes: int

    @classmethod
    def of(cls, prefix: str) -> Self:
        """The one with a prefix."""
        pattern = glob.escape(prefix) + ".*"
        files = [
            file
            for path in (pattern, os.path.join(pattern, "**"))
            for file in glob.glob(path, recursive=True)
            if os.path.isfile(file)
        ]
        return cls(
            prefix,
            loading.step_of(prefix),
            sum(os.path.getsize(file) for file in files),
        )


@dataclasses.dataclass(frozen=True)
class Directory:
    """What training has left in a directory, or one checkpoint of it.

    Attributes:
        checkpoints: The newest first.
        variables: Shapes and dtypes of the newest one's, by name.
        results: The last scalars of the event files in each folder, by its
            name: "" for training's.
        is_complete: Whether `train_and_evaluate` has come to its end.
    """

    path: str
    checkpoints: tuple[Checkpoint, ...]
    variables: Mapping[str, tuple[tuple[int, ...], np.dtype]]
    results: Mapping[str, Mapping[str, float]]
    is_complete: bool

    @classmethod
    def of(cls, path: str) -> Self:
        """What there is for a path.

        Args:
            path: A directory, or the prefix or a file of a checkpoint.

        Raises:
            ValueError: There is no checkpoint.
        """
        prefixes = prefixes_of(path)
        newest = prefixes[0]
        directory = os.path.dirname(newest)
        reader = loading.load_checkpoint(newest)
        dtypes = reader.get_variable_to_dtype_map()
        return cls(
            directory,
            tuple(map(Checkpoint.of, prefixes)),
            {
                name: (tuple(shape), np.dtype(dtypes[name]))
                for name, shape in sorted(
                    reader.get_variable_to_shape_map().items()
                )
            },
            _results(directory),
            training_status.training_is_complete(directory),
        )

    @property
    def num_parameters(self) -> int:
        """Numbers in all variables of the newest checkpoint."""
        return sum(
            int(np.prod(shape, dtype=np.int64))
            for shape, _ in self.variables.values()
        )


def prefixes_of(path: str) -> list[str]:
    """The checkpoints there are for a path, the newest first.

    Args:
        path: A directory, or the prefix or a file of a checkpoint.

    Raises:
        ValueError: There is no checkpoint.
    """
    newest = location.resolve(path)
    if not paths.is_directory(path):
        return [newest]
    listed = location.listed(os.path.dirname(newest))
    return [*filter(location.exists, listed)]


def _results(directory: str) -> dict[str, Mapping[str, float]]:
    """The scalars of the last step in the event files of each folder."""
    pattern = os.path.join(glob.escape(directory), "**", "*.tfevents.*")
    files: dict[str, list[str]] = {}
    for path in sorted(glob.glob(pattern, recursive=True)):
        folder = os.path.relpath(os.path.dirname(path), directory)
        files.setdefault("" if folder == "." else folder, []).append(path)
    steps = {folder: read_scalars(own) for folder, own in files.items()}
    return {
        folder: {"step": last, **scalars[last]}
        for folder, scalars in steps.items()
        if (last := max(scalars, default=None)) is not None
    }


@dataclasses.dataclass(frozen=True)
class Verdict:
    """What reading a checkpoint has shown.

    Attributes:
        prefix: Its path, without the ends of its files.
        problem: What is wrong with it; `None`, the default, for nothing.
        is_gone: Whether there is no such checkpoint. Defaults to `False`.
    """

    prefix: str
    problem: str | None = None
    is_gone: bool = False

    @property
    def is_intact(self) -> bool:
        """Whether nothing is."""
        return self.problem is None


def verify_all(path: str) -> list[Verdict]:
    """Reads all of the checkpoints that there should be for a path.

    Args:
        path: A directory, or the prefix or a file of a checkpoint.

    Returns:
        What that has shown, the newest first.

    Raises:
        ValueError: There is no checkpoint, and none is listed.
    """
    verdicts = [*map(verify, _expected_at(path))]
    if all(verdict.is_intact for verdict in verdicts):
        return verdicts
    # A training may have removed one in the meantime.
    still = _expected_at(path)
    return [each for each in verdicts if each.is_intact or each.prefix in still]


def _expected_at(path: str) -> list[str]:
    """Those that the list of a directory names, or the one that is meant."""
    if paths.is_directory(path) and not location.exists(path):
        if listed := location.listed(path):
            return listed
    return [location.resolve(path)]


def verify(prefix: str) -> Verdict:
    """Reads all of a checkpoint.

    Args:
        prefix: Its path, without the ends of its files.

    Example:

    >>> import tempfile
    >>> from keras_tpu_estimator import checkpoints
    >>> prefix = checkpoints.save(tempfile.mkdtemp(), 20, {"bias": [0.0]})
    >>> verify(prefix).is_intact
    True
    """
    if not location.exists(prefix):
        return Verdict(prefix, "the `checkpoint` file lists it", is_gone=True)
    try:
        reader = loading.load_checkpoint(prefix)
        with reader.held_open():
            for name in reader.get_variable_to_shape_map():
                reader.get_tensor(name)
    except (ValueError, OSError) as error:
        return Verdict(prefix, str(error))
    if not formats.is_intact(prefix):
        return Verdict(prefix, "it is not as it was written")
    return Verdict(prefix)
