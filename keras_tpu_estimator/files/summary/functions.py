"""The functions that record summaries, one for each kind."""

import functools
from typing import Any

from keras_tpu_estimator.files.summary.kinds import (
    Audio,
    Histogram,
    Image,
    Scalar,
    Text,
)
from keras_tpu_estimator.files.summary.recording import record


def scalar(
    name: str, data: Any, step: Any = None, description: str | None = None
) -> bool:
    """Records a number, which TensorBoard plots over the steps.

    In a `model_fn` on several devices it is averaged over them.

    Args:
        name: Its tag.
        data: A number, or a real tensor without axes.
        step: The global step. Defaults to the step of the `host_call` or
            `model_fn`, or of the writer.
        description: A Markdown text that TensorBoard shows with it. Defaults to
            none.

    Returns:
        Whether it is recorded: a writer exists, and `record_if` allows it.

    Raises:
        ValueError: `data` is not one real number, or there is no step.

    Example:

    >>> import keras_tpu_estimator as kte
    >>> import tempfile
    >>> kte.summary.scalar("loss", 0.25, step=1)  # No writer.
    False
    >>> with kte.summary.create_file_writer(tempfile.mkdtemp()).as_default():
    ...     kte.summary.scalar("loss", 0.25, step=1)
    True

    Reference: `tf.summary.scalar`.
    """
    try:
        summary = _scalar(name, description)
    except TypeError:  # An unhashable name raises an error here.
        summary = Scalar(tag=name, description=description)
    return record(summary, data, step)


def histogram(
    name: str,
    data: Any,
    step: Any = None,
    buckets: int | None = None,
    description: str | None = None,
) -> bool:
    """Records the distribution of numbers.

    In a `model_fn` it includes the values of all devices, which count them.
    Values that are not finite are ignored.

    Args:
        name: Its tag.
        data: Real tensor of any shape.
        step: As in `scalar`.
        buckets: The number of buckets of equal width. Defaults to 30.
        description: As in `scalar`.

    Returns:
        Whether it is recorded.

    Raises:
        ValueError: An argument is wrong, or there is no step.

    Example:

    >>> import keras_tpu_estimator as kte
    >>> import numpy as np, tempfile
    >>> with kte.summary.create_file_writer(tempfile.mkdtemp()).as_default():
    ...     kte.summary.histogram("weights", np.eye(3), step=1, buckets=10)
    True

    Reference: `tf.summary.histogram`.
    """
    summary = Histogram(
        tag=name,
        description=description,
        buckets=30 if buckets is None else buckets,
    )
    return record(summary, data, step)


def image(
    name: str,
    data: Any,
    step: Any = None,
    max_outputs: int = 3,
    description: str | None = None,
) -> bool:
    """Records the first images of a batch.

    Args:
        name: Their tag.
        data: Tensor of shape `[images, height, width, channels]`: uint8, or
            floats, which are clipped to 0 (black) to 1. One channel is grey, 3
            are RGB; with 2 or 4 the last is the opacity.
        step: As in `scalar`.
        max_outputs: The number of images to record. Defaults to 3.
        description: As in `scalar`.

    Returns:
        Whether they are recorded.

    Raises:
        ValueError: An argument is wrong, or there is no step.

    Example:

    >>> import keras_tpu_estimator as kte
    >>> import numpy as np, tempfile
    >>> pixels = np.random.default_rng(0).random((8, 28, 28, 1))
    >>> with kte.summary.create_file_writer(tempfile.mkdtemp()).as_default():
    ...     kte.summary.image("digits", pixels, step=1)
    True

    Reference: `tf.summary.image`.
    """
    summary = Image(tag=name, description=description, max_outputs=max_outputs)
    return record(summary, data, step)


def text(
    name: str, data: Any, step: Any = None, description: str | None = None
) -> bool:
    """Records a text, which TensorBoard renders as Markdown.

    Args:
        name: Its tag.
        data: A string, or an array of strings, which is shown as a table. It
            must be a Python value: in a `model_fn` it is the same at each step.
        step: As in `scalar`.
        description: As in `scalar`.

    Returns:
        Whether it is recorded.

    Raises:
        ValueError: `data` is not a text, or there is no step.

    Example:

    >>> import keras_tpu_estimator as kte
    >>> import tempfile
    >>> with kte.summary.create_file_writer(tempfile.mkdtemp()).as_default():
    ...     kte.summary.text("about", "with *less* dropout", step=0)
    True

    Reference: `tf.summary.text`.
    """
    return record(Text.of(name, data, description), data, step)


def audio(
    name: str,
    data: Any,
    sample_rate: int,
    step: Any = None,
    max_outputs: int = 3,
    encoding: str | None = None,
    description: str | None = None,
) -> bool:
    """Records the first sounds of a batch.

    Args:
        name: Their tag.
        data: Floats of shape `[sounds, frames, channels]`, clipped to the range
            -1 to 1.
        sample_rate: Frames per second.
        step: As in `scalar`.
        max_outputs: The number of sounds to record. Defaults to 3.
        encoding: `"wav"` or `None`, which mean the same.
        description: As in `scalar`.

    Returns:
        Whether they are recorded.

    Raises:
        ValueError: An argument is wrong, or there is no step.

    Example:

    >>> import keras_tpu_estimator as kte
    >>> import numpy as np, tempfile
    >>> wave = np.sin(np.arange(8000) * 0.3).reshape(1, 8000, 1)
    >>> with kte.summary.create_file_writer(tempfile.mkdtemp()).as_default():
    ...     kte.summary.audio("tone", wave, sample_rate=8000, step=1)
    True

    Reference: `tf.summary.audio`.
    """
    if encoding not in (None, "wav"):
        raise ValueError(f"`encoding` must be 'wav' or None. Received: {encoding!r}")
    summary = Audio(
        tag=name,
        description=description,
        sample_rate=sample_rate,
        max_outputs=max_outputs,
    )
    return record(summary, data, step)


@functools.lru_cache(maxsize=1024)
def _scalar(name: str, description: str | None) -> Scalar:
    return Scalar(tag=name, description=description)
