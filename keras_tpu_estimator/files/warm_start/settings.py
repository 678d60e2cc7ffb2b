"""The selection of variables that start from a checkpoint, and their vocabularies."""

import dataclasses
import os
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from keras_tpu_estimator.base.common import tensorflow_session
from keras_tpu_estimator.base.common.shown import shown
from keras_tpu_estimator.base.common.types import CheckpointLike, PathLike
from keras_tpu_estimator.base.storage import paths
from keras_tpu_estimator.files.warm_start.pairing import Described, HasPath

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
        backup_initializer: A Keras or TensorFlow initializer for rows of new words
            and of other words, called with the shape of the complete variable and
            its dtype. Defaults to None, for zeros.
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
    def from_tensorflow(cls, info: Any) -> Any:
        """Converts a `VocabInfo` of `tf.train`; other values stay the same."""
        fields: dict[str, Any] = getattr(info, "_asdict", dict)()
        if fields.keys() != {field.name for field in dataclasses.fields(cls)}:
            return info
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
        value = tensorflow_session.evaluated(self.backup_initializer, shape, dtype.name)
        value = np.array(value, dtype)
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


_TENSOR = ":0"


@dataclasses.dataclass(frozen=True)
class WarmStartSettings:
    """Selects the variables that start from a checkpoint.

    Args:
        ckpt_to_initialize_from: Any checkpoint that `load_checkpoint` reads: a
            prefix or a directory of checkpoints, of this package or of
            TensorFlow, a SavedModel, a '.weights.h5', '.keras' or
            '.safetensors' file, an Orbax directory, or a dict of arrays, which
            may be nested.
        vars_to_warm_start: A regular expression that selects trainable
            variables by the beginning of their paths; or a list of these, which
            select from all variables; or a list of variables; or None, for only
            those of `var_name_to_vocab_info`. Defaults to '.*', for all
            trainable variables.
        var_name_to_vocab_info: A dict from paths of variables to their
            `VocabInfo`, or to TensorFlow's. Defaults to None, for none.
        var_name_to_prev_var_name: A dict from paths of variables to names in
            the checkpoint, where these differ. Defaults to None, for none.

    Raises:
        ValueError: The path or dict is empty, or `vars_to_warm_start` is
            invalid.
        TypeError: An argument has a wrong type.

    Example:

    >>> import keras_tpu_estimator as kte
    >>> settings = kte.WarmStartSettings(
    ...     "/models/bert.ckpt", vars_to_warm_start="bert/",
    ...     var_name_to_prev_var_name={"bert/dense/kernel": "bert/fc/kernel"})
    >>> settings.vars_to_warm_start
    'bert/'

    Reference: `tf.estimator.WarmStartSettings`.
    """

    ckpt_to_initialize_from: CheckpointLike
    vars_to_warm_start: str | Sequence[str | HasPath] | None = ".*"
    var_name_to_vocab_info: Mapping[str, VocabInfo] | None = None
    var_name_to_prev_var_name: Mapping[str, str] | None = None

    def __post_init__(self) -> None:
        path = self.ckpt_to_initialize_from
        if not path:
            raise ValueError(
                "`ckpt_to_initialize_from` must be a checkpoint. Received: "
                f"{path!r}. Pass a prefix, a directory, a file or a dict."
            )
        if not isinstance(path, str | bytes | os.PathLike | Mapping):
            raise TypeError(
                "`ckpt_to_initialize_from` must be a path, or a dict of "
                f"arrays. Received: {path!r} of type {type(path).__name__}."
            )
        if isinstance(path, Mapping):
            _check_arrays(path)
        _check_selection(self.vars_to_warm_start)
        for field, kind in (
            ("var_name_to_vocab_info", VocabInfo),
            ("var_name_to_prev_var_name", str),
        ):
            # These are copies, so that the checked values cannot change.
            checked = _by_path(field, getattr(self, field), kind)
            object.__setattr__(self, field, checked)
        if isinstance(self.vars_to_warm_start, list):
            selection = tuple(self.vars_to_warm_start)
            object.__setattr__(self, "vars_to_warm_start", selection)

    def select(self, variables: Mapping[str, Described]) -> list[str]:
        """Returns the variables that start from the checkpoint.

        Args:
            variables: All variables of the model by path. A variable is
                trainable unless its attribute `trainable` is false.

        Returns:
            Their paths, in the order of `variables`.

        Raises:
            ValueError: `var_name_to_vocab_info` or `var_name_to_prev_var_name`
                names a variable that is not selected.
        """
        selection = self.vars_to_warm_start
        if selection is None or isinstance(selection, str):
            paths = [
                path
                for path, variable in variables.items()
                if getattr(variable, "trainable", True)
                and _matches(path, selection or "")
            ]
        else:
            paths = [path for path in variables if _is_among(path, selection)]
        for field in ("var_name_to_prev_var_name", "var_name_to_vocab_info"):
            unknown = sorted(getattr(self, field).keys() - set(paths))
            if unknown:
                raise ValueError(
                    f"`{field}` must name variables that `vars_to_warm_start` "
                    f"selects. Received others: {unknown}. It selects "
                    f"{paths}. Correct the names, or select them."
                )
        if selection:
            return paths
        return [p for p in paths if p in (self.var_name_to_vocab_info or {})]


def _check_arrays(values: Mapping[Any, Any]) -> None:
    for name, value in values.items():
        if isinstance(value, Mapping):
            _check_arrays(value)
        elif isinstance(value, str | bytes) or value is None:
            raise TypeError(
                "`ckpt_to_initialize_from` must be a path, or a dict of "
                f"arrays. Received for {name!r}: {shown(value)}. Pass names "
                "of variables as `var_name_to_prev_var_name`."
            )


def _check_selection(selection: object) -> None:
    if selection is None:
        return
    if isinstance(selection, str):
        patterns = [selection]
    elif isinstance(selection, list | tuple):
        patterns = [one for one in selection if isinstance(one, str)]
        are_variables = all(map(_path_of, selection))
        if len(patterns) != len(selection) and not are_variables:
            raise ValueError(
                "`vars_to_warm_start` must be a list of only strings, or of "
                f"only variables. Received: {selection!r}. Pass the variables' "
                "paths, all as strings."
            )
    else:
        raise ValueError(
            "`vars_to_warm_start` must be a string, a list or None. Received: "
            f"{selection!r} of type {type(selection).__name__}. Pass a regular "
            "expression such as '.*'."
        )
    for pattern in patterns:
        try:
            re.compile(pattern)
        except re.error as error:
            raise ValueError(
                f"{pattern!r} in `vars_to_warm_start` must be a regular "
                f"expression ({error}). Escape special characters with a "
                "backslash."
            ) from error


def _by_path(field: str, value: object, kind: type) -> dict[str, Any]:
    if value is None:
        return {}
    by_path = {}
    if isinstance(value, Mapping):
        by_path = {path: VocabInfo.from_tensorflow(one) for path, one in value.items()}
    if not isinstance(value, Mapping) or not all(
        isinstance(path, str) and isinstance(value, kind)
        for path, value in by_path.items()
    ):
        raise TypeError(
            f"`{field}` must be a dict from paths of variables to "
            f"{kind.__name__}. Received: {value!r}."
        )
    return {_named(path): _named(one) for path, one in by_path.items()}


def _named(name: Any) -> Any:
    return name.removesuffix(_TENSOR) if isinstance(name, str) else name


def _is_among(path: str, selection: Sequence[object]) -> bool:
    return any(
        _matches(path, one) if isinstance(one, str) else path == _path_of(one)
        for one in selection
    )


def _matches(path: str, pattern: str) -> bool:
    # In a graph the names ended with ':0', and so do the patterns of some
    # scripts.
    return any(re.match(pattern, name) for name in (path, path + _TENSOR))


def _path_of(variable: object) -> str | None:
    path = getattr(variable, "path", None)
    return path if isinstance(path, str) else None
