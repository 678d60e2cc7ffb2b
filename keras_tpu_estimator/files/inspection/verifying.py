"""Whether checkpoints are there, and as they were written."""

import dataclasses

from keras_tpu_estimator.files.directory import location
from keras_tpu_estimator.files.formats import checkpoint_format as formats
from keras_tpu_estimator.files.formats import reading
from keras_tpu_estimator.ground.storage import paths


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
        reader = reading.load_checkpoint(prefix)
        with reader.held_open():
            for name in reader.get_variable_to_shape_map():
                reader.get_tensor(name)
    except (ValueError, OSError) as error:
        return Verdict(prefix, str(error))
    if not formats.is_intact(prefix):
        return Verdict(prefix, "it is not as it was written")
    return Verdict(prefix)
