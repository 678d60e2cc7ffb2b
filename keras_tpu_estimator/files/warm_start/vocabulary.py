"""Rows and columns of variables that belong to the words of a vocabulary."""

import dataclasses
import functools
import os
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from keras_tpu_estimator.base.common import tensorflow_session
from keras_tpu_estimator.base.common.types import PathLike
from keras_tpu_estimator.base.storage import paths

# The value of `old_vocab_size` that means all lines of the file.
_ALL = -1


@dataclasses.dataclass(frozen=True)
class VocabInfo:
    """The change of a variable's vocabulary since the checkpoint.

    Each row (or column) of the variable belongs to a line of a text file. The
    new variable gets the rows of the same words, whatever their old lines.

    Args:
        new_vocab: The path of the model's vocabulary file.
        new_vocab_size: The number of its lines that the model uses.
        num_oov_buckets: The number of rows for other words after these.
        old_vocab: The path of the checkpoint's vocabulary file.
        old_vocab_size: The number of its lines that the checkpoint used.
            Defaults to -1, for all of them.
        backup_initializer: A Keras initializer for rows of new words and of
            other words, called with the shape of the complete variable and its
            dtype. Defaults to None, for zeros.
        axis: 0 for rows, 1 for columns. Defaults to 0.

    Raises:
        ValueError: `axis` is neither 0 nor 1, a path is empty, or a size is
            invalid.
        TypeError: `backup_initializer` is not callable.

    Example:

    >>> import pathlib, tempfile
    >>> import numpy as np
    >>> import keras_tpu_estimator as kte
    >>> directory = pathlib.Path(tempfile.mkdtemp())
    >>> size = (directory / "old.txt").write_text("a\\nb\\nc\\n")
    >>> size = (directory / "new.txt").write_text("c\\nz\\na\\n")
    >>> info = kte.VocabInfo(
    ...     directory / "new.txt", 3, 1, directory / "old.txt")
    >>> info.remap(np.array([[1], [2], [3]]), (4, 1), "float32").tolist()
    [[3.0], [0.0], [1.0], [0.0]]

    Reference: `tf.compat.v1.train.VocabInfo`.
    """

    new_vocab: PathLike
    new_vocab_size: int
    num_oov_buckets: int
    old_vocab: PathLike
    old_vocab_size: int = _ALL
    backup_initializer: Callable[..., npt.ArrayLike] | None = None
    axis: int = 0

    def __post_init__(self) -> None:
        if isinstance(self.axis, bool) or self.axis not in (0, 1):
            raise ValueError(
                f"`axis` must be 0 or 1. Received: {self.axis!r}. Pass 0 for "
                "rows, as of an embedding, or 1 for columns, as of classes."
            )
        for field in ("new_vocab", "old_vocab"):
            path = getattr(self, field)
            if not isinstance(path, str | bytes | os.PathLike) or not path:
                raise ValueError(
                    f"`{field}` must be the path of a text file. Received: "
                    f"{path!r}. Pass a file with a word on each line."
                )
        self._check_size("new_vocab_size", 1)
        self._check_size("num_oov_buckets", 0)
        if self.old_vocab_size != _ALL:
            self._check_size("old_vocab_size", 1, " or -1, for the whole file")
        initializer = self.backup_initializer
        if initializer is not None and not callable(initializer):
            raise TypeError(
                "`backup_initializer` must be a function of a shape and a "
                f"dtype. Received: {initializer!r}. Pass a Keras initializer, "
                "or None for zeros."
            )

    @classmethod
    def of(cls, info: Any) -> Any:
        """Converts a `VocabInfo` of `tf.train`; other values stay the same."""
        fields: dict[str, Any] = getattr(info, "_asdict", dict)()
        if fields.keys() != {field.name for field in dataclasses.fields(cls)}:
            return info
        initializer = fields["backup_initializer"]
        if initializer is not None:
            run = functools.partial(tensorflow_session.initialized, initializer)
            fields["backup_initializer"] = run
        return cls(**fields)

    def remap(
        self, old: np.ndarray, shape: tuple[int, ...], dtype: npt.DTypeLike
    ) -> np.ndarray:
        """Computes the value of a variable from that in the checkpoint.

        Args:
            old: The value in the checkpoint.
            shape: The shape of the variable.
            dtype: Its dtype.

        Returns:
            An array of that shape and dtype.

        Raises:
            ValueError: The shapes do not match each other or the vocabularies,
                or a vocabulary file is invalid.
            OSError: A vocabulary file cannot be read.
        """
        sources = self._sources()
        self._check_shapes(old.shape, shape, int(sources.max(initial=-1)))
        new = np.moveaxis(self._initial(shape, dtype), self.axis, 0)
        is_known = sources >= 0
        rows = np.moveaxis(old, self.axis, 0)[sources[is_known]]
        new[: len(sources)][is_known] = rows
        return np.moveaxis(new, 0, self.axis)

    def _sources(self) -> np.ndarray:
        """Returns the old line of each new one, or -1."""
        new = _lines(self.new_vocab, self.new_vocab_size)
        old = _lines(self.old_vocab, self.old_vocab_size)
        line_of = {word: line for line, word in enumerate(old)}
        if len(line_of) < len(old):
            twice = next(w for i, w in enumerate(old) if line_of[w] != i)
            raise ValueError(
                f"The vocabulary {os.fsdecode(self.old_vocab)!r} must have "
                "each word once, because a row belongs to each line. Received "
                f"{twice.decode(errors='replace')!r} twice. Pass a file with "
                "different words."
            )
        return np.array([line_of.get(word, -1) for word in new])

    def _initial(self, shape: tuple[int, ...], dtype: npt.DTypeLike) -> np.ndarray:
        dtype = np.dtype(dtype)
        if self.backup_initializer is None:
            return np.zeros(shape, dtype)
        # This is a copy, because JAX arrays are read-only.
        value = np.array(self.backup_initializer(shape, dtype.name), dtype)
        if value.shape != tuple(shape):
            raise ValueError(
                f"`backup_initializer` must return the shape {tuple(shape)}, "
                f"with which it was called. Received: {value.shape}. Pass a "
                "Keras initializer."
            )
        return value

    def _check_shapes(
        self, old: tuple[int, ...], new: tuple[int, ...], last: int
    ) -> None:
        axis, words = self.axis, self.new_vocab_size
        size = words + self.num_oov_buckets
        if axis >= min(len(old), len(new)) or new[axis] != size:
            raise ValueError(
                f"Axis {axis} of the variable must have {words} entries for "
                f"the new vocabulary and {self.num_oov_buckets} for other "
                f"words. Received shape {tuple(new)}. Change `new_vocab_size` "
                "or the layer."
            )
        if _without(old, axis) != _without(new, axis):
            raise ValueError(
                f"The shapes must be the same except for axis {axis}. "
                f"Received {tuple(old)} in the checkpoint and {tuple(new)} in "
                "the model. Change the layer's size, or do not start it from "
                "the checkpoint."
            )
        if last >= old[axis]:
            raise ValueError(
                "The variable in the checkpoint must have a row for line "
                f"{last + 1} of the old vocabulary. Received shape "
                f"{tuple(old)}. Pass the vocabulary file of the checkpoint's "
                "training, and its `old_vocab_size`."
            )

    def _check_size(self, field: str, minimum: int, more: str = "") -> None:
        size = getattr(self, field)
        is_int = isinstance(size, int | np.integer)
        if not is_int or isinstance(size, bool) or size < minimum:
            raise ValueError(
                f"`{field}` must be an integer of at least {minimum}{more}. "
                f"Received: {size!r}."
            )


def _lines(path: PathLike, size: int) -> list[bytes]:
    """Returns the first lines of a file, which are words, as bytes."""
    with paths.opened(path) as file:
        lines = file.read().replace(b"\r\n", b"\n").removesuffix(b"\n")
    words = lines.split(b"\n") if lines else []
    if size > len(words):
        raise ValueError(
            f"The vocabulary {os.fsdecode(path)!r} must have {size} lines or "
            f"more. Received {len(words)}. Pass the size that was used."
        )
    words = words if size == _ALL else words[:size]
    if b"" in words:
        raise ValueError(
            f"Each line of the vocabulary {os.fsdecode(path)!r} must be a "
            f"word. Received an empty line {words.index(b'') + 1}. Delete it, "
            "or pass the right file."
        )
    return words


def _without(shape: tuple[int, ...], axis: int) -> tuple[int, ...]:
    return (*shape[:axis], *shape[axis + 1 :])
