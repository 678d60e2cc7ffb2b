"""Where hooks write what TensorBoard shows."""

from typing import Any

from keras_tpu_estimator.files.summary.event_writer import EventWriter
from keras_tpu_estimator.ground.base.shown import shown
from keras_tpu_estimator.ground.base.types import PathLike


def writer_of(
    output_dir: PathLike | None, summary_writer: Any
) -> EventWriter | None:
    """The writer that a hook was given, or that of its directory.

    Args:
        summary_writer: An `EventWriter`, or `None`; it comes first.

    Returns:
        A writer, or `None` if neither is given.

    Raises:
        TypeError: `summary_writer` is something else.

    Example:

    >>> from keras_tpu_estimator.spec.hooks.writers import writer_of
    >>> writer_of(None, None) is None
    True
    """
    if summary_writer is None:
        return EventWriter.for_dir(output_dir) if output_dir else None
    if not isinstance(summary_writer, EventWriter):
        raise TypeError(
            "`summary_writer` should be a keras_tpu_estimator.summary."
            f"EventWriter. Received: {shown(summary_writer)}. Pass "
            "`output_dir` instead to have one made."
        )
    return summary_writer
