"""Whether a checkpoint is as it was written."""

import dataclasses

from keras_tpu_estimator.files.formats import checkpoint_format as formats
from keras_tpu_estimator.files.formats import reading


@dataclasses.dataclass(frozen=True)
class Verdict:
    """What reading a checkpoint has shown."""

    prefix: str
    problem: str | None = None

    @property
    def is_intact(self) -> bool:
        """Whether nothing is."""
        return self.problem is None


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
