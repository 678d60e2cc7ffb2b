"""The base class of checkpoint readers, their errors, and checks of unchanged files.

Each format describes the expected content of its files. This module remembers
the files that this process has written or completely read.
"""

import abc
import collections
import contextlib
import dataclasses
import difflib
import functools
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Self

import jax
import numpy as np

from keras_tpu_estimator.base.common.index_ranges import IndexRanges
from keras_tpu_estimator.base.common.types import PathLike
from keras_tpu_estimator.base.storage import paths
from keras_tpu_estimator.files.directory import location


class VariableNotFoundError(KeyError):
    """A checkpoint has no variable with the requested name.

    Args:
        message: The requested name, and the names in the checkpoint.

    Example:

    >>> from keras_tpu_estimator.errors import VariableNotFoundError
    >>> try:
    ...     raise VariableNotFoundError("no 'kernel'")
    ... except KeyError as error:
    ...     print(error)
    no 'kernel'
    """

    def __str__(self) -> str:
        # `KeyError` would show the message in quotes, with escaped quotes.
        return self.args[0]


def explain_missing(
    missing: list[str],
    existing: list[str],
    checkpoint_path: PathLike,
) -> str:
    """Returns an error message about missing variables."""
    near = difflib.get_close_matches(missing[0], existing, n=5, cutoff=0.5)
    hint = "Similar to the first" if near else "Its variables include"
    return (
        f"The checkpoint {os.fsdecode(checkpoint_path)!r} has no variable "
        f"{_listed(missing)}. {hint}: {_listed(near or existing)}."
    )


def _listed(paths: list[str], limit: int = 10) -> str:
    more = len(paths) - limit
    suffix = f" and {more} more" if more > 0 else ""
    return ", ".join(map(repr, paths[:limit])) + suffix


def removed(path: str) -> ValueError:
    """Returns an error for a checkpoint that was removed while it was read."""
    return ValueError(
        f"The checkpoint {path!r} was removed or replaced before all of it "
        "was read. Training keeps only as many as "
        "`RunConfig(keep_checkpoint_max=...)` allows. Read a newer one, or "
        f"keep more of them. {location.alternatives(path)}"
    )


GLOBAL_STEP = "global_step"


@dataclasses.dataclass(frozen=True)
class StoredVariable:
    """A variable in a checkpoint, before its value is read.

    Args:
        shape: Its shape.
        dtype: Its NumPy dtype; `object` for strings.

    Example:

    >>> import numpy as np
    >>> from keras_tpu_estimator.checkpoints import StoredVariable
    >>> StoredVariable((2,), np.dtype("float32"))
    StoredVariable(shape=(2,), dtype=dtype('float32'))
    """

    shape: tuple[int, ...]
    dtype: np.dtype


class CheckpointReader(abc.ABC):
    """Names, shapes and values of the variables of a checkpoint.

    `load_checkpoint` returns a reader for checkpoints of any format. A subclass for
    another format defines `_read(names)`, which returns arrays by name, and for fast
    reading of slices `_read_part(name, box)`, where `box.slices` selects the part.

    Args:
        path: The checkpoint, for messages.
        listed: Its variables by name, or a function that lists them on demand.
        aliases: Other names of variables. Defaults to none.

    Example:

    >>> import tempfile
    >>> import numpy as np
    >>> import keras_tpu_estimator as kte
    >>> prefix = kte.checkpoints.save(
    ...     tempfile.mkdtemp(), 20, {"dense/bias": np.ones(2, "float32")})
    >>> reader = kte.load_checkpoint(prefix)
    >>> reader.get_variable_to_shape_map()
    {'dense/bias': [2], 'global_step': []}
    >>> reader.get_tensor("dense/bias")
    array([1., 1.], dtype=float32)

    Reference: the result of `tf.train.load_checkpoint`. Here dtypes are
    NumPy's, and a missing variable raises a `VariableNotFoundError`.
    """

    def __init__(
        self,
        path: str,
        listed: Mapping[str, StoredVariable]
        | Callable[[], Mapping[str, StoredVariable]],
        aliases: Mapping[str, str] | None = None,
    ):
        self.path = path
        self._given = listed
        self._aliases = aliases or {}
        # The variable of the last partial read.
        self._last: tuple[str, np.ndarray] | None = None

    @functools.cached_property
    def _listed(self) -> dict[str, StoredVariable]:
        listed = self._given
        return dict(sorted((listed() if callable(listed) else listed).items()))

    @functools.cached_property
    def _names(self) -> dict[str, str]:
        """The listed name of each variable, by every name."""
        return {**self._aliases, **{name: name for name in self._listed}}

    def get_variable_to_shape_map(self) -> dict[str, list[int]]:
        """Returns shapes by name.

        Returns:
            A list of dimensions for each variable, sorted by name.
        """
        return {name: list(one.shape) for name, one in self._listed.items()}

    def get_variable_to_dtype_map(self) -> dict[str, np.dtype]:
        """Returns dtypes by name.

        Returns:
            A NumPy dtype for each variable, sorted by name.
        """
        return {name: one.dtype for name, one in self._listed.items()}

    def has_tensor(self, name: str) -> bool:
        """Returns whether a variable exists.

        Args:
            name: The name.

        Returns:
            True also if the variable is listed under another name.
        """
        return name in self._names

    def get_tensor(self, name: str) -> np.ndarray:
        """Reads a variable.

        Args:
            name: Its name.

        Returns:
            Its value, with the dtype and shape that were saved.

        Raises:
            VariableNotFoundError: The variable does not exist. This is a
                `KeyError`, and its message lists similar names.
            ValueError: The file is corrupt.
        """
        return self.get_tensors([name])[name]

    def get_tensors(self, names: Iterable[str]) -> dict[str, np.ndarray]:
        """Reads several variables at once, which is faster than one by one.

        Args:
            names: Their names.

        Returns:
            Values by name.

        Raises:
            VariableNotFoundError: One of them does not exist.
            ValueError: The file is corrupt.
        """
        names = list(names)
        unlisted = self._read_unlisted(names)
        if unlisted is not None:
            return unlisted
        missing = [name for name in names if name not in self._names]
        if missing:
            raise VariableNotFoundError(self.explain_missing(missing))
        values = self._read([self._names[name] for name in names])
        return {name: values[self._names[name]] for name in names}

    def get_part(self, name: str, index: Sequence[slice]) -> np.ndarray:
        """Reads a part of a variable.

        For checkpoints of this package, this needs little more memory than the
        part; for other formats, the memory of the complete variable.

        Args:
            name: Its name.
            index: A slice of step 1 for each dimension.

        Returns:
            The values, with the dtype that was saved.

        Raises:
            VariableNotFoundError: The variable does not exist.
            ValueError: The file is corrupt, or the slices do not match the
                shape.
        """
        if name not in self._names:
            raise VariableNotFoundError(self.explain_missing([name]))
        name = self._names[name]
        shape = self._listed[name].shape
        steps = {1, None}
        if len(index) != len(shape) or {s.step for s in index} - steps:
            raise ValueError(
                "`index` must have a slice of step 1 for each dimension of "
                f"{name!r}, whose shape is {shape}. Received: {index}."
            )
        return self._read_part(name, IndexRanges.from_slices(index, shape))

    @contextlib.contextmanager
    def held_open(self) -> Iterator[Self]:
        """Keeps files open in a `with` block, for faster reads."""
        try:
            yield self
        finally:
            self._last = None

    def explain_missing(self, missing: list[str]) -> str:
        """Returns an error message about missing variables.

        Args:
            missing: The missing names.

        Returns:
            Sentences for an error message.
        """
        return explain_missing(missing, list(self._listed), self.path)

    def by_any_name(self) -> dict[str, StoredVariable]:
        """Returns the shapes and dtypes of variables by every name of theirs.

        Returns:
            Shapes and dtypes by name. A listed name takes precedence over
            another
            variable's alias.
        """
        return {name: self._listed[key] for name, key in self._names.items()}

    def listed_name(self, name: str) -> str:
        """Returns the name under which a variable is listed.

        Args:
            name: Any name of the variable.

        Returns:
            Its name in `get_variable_to_shape_map`.
        """
        return self._names[name]

    def _read_unlisted(self, names: Sequence[str]) -> dict[str, np.ndarray] | None:
        """Reads variables by any name; returns `None` if it must list all of them."""
        del names
        return None

    @abc.abstractmethod
    def _read(self, names: Sequence[str]) -> Mapping[str, np.ndarray]:
        """Reads variables by their listed names."""

    def _read_part(self, name: str, box: IndexRanges) -> np.ndarray:
        """Reads a part of a variable by its listed name."""
        if self._last is None or self._last[0] != name:
            self._last = name, self._read([name])[name]
        return self._last[1][box.slices]


def unambiguous(aliases: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Returns the variables of aliases that only one variable has.

    >>> unambiguous([("Variable", "a"), ("Variable", "b"), ("kernel", "c")])
    {'kernel': 'c'}
    """
    meant: dict[str, set[str]] = collections.defaultdict(set)
    for alias, name in aliases:
        meant[alias].add(name)
    return {
        alias: next(iter(names)) for alias, names in meant.items() if len(names) == 1
    }


# The value of `isbuiltin` for dtypes that another package registered, such as
# bfloat16.
_REGISTERED = 2


class ArraysReader(CheckpointReader):
    """A reader of arrays in nested dicts, by paths ('dense/kernel')."""

    def __init__(self, arrays: Mapping[str, Any]):
        self._values: dict[str, jax.Array | np.ndarray] = {}
        for path, leaf in jax.tree_util.tree_leaves_with_path(dict(arrays)):
            name = jax.tree_util.keystr(path, simple=True, separator="/")
            if name in self._values:
                raise ValueError(
                    "The dict must have one array for each name. Received two "
                    f"for the name {name!r}."
                )
            self._values[name] = _array(name, leaf)
        listed = {
            name: StoredVariable(value.shape, np.dtype(value.dtype))
            for name, value in self._values.items()
        }
        super().__init__("a dict of arrays", listed)

    def _read(self, names: Sequence[str]) -> dict[str, np.ndarray]:
        # These are copies, because the program may modify its arrays.
        return {name: np.array(self._values[name]) for name in names}


def _array(name: str, value: Any) -> jax.Array | np.ndarray:
    """Returns a NumPy array, or a JAX array, which is not fetched yet."""
    array = value if isinstance(value, jax.Array) else np.asarray(value)
    kind, is_builtin = (
        getattr(array.dtype, attribute, None) for attribute in ("kind", "isbuiltin")
    )
    if kind is None or (kind not in "biufc" and is_builtin != _REGISTERED):
        raise ValueError(
            f"The dict must contain arrays of numbers. Received at {name!r}: "
            f"a {type(value).__name__} of dtype {array.dtype}."
        )
    return array


# The results for content that was read or written.
_KNOWN: dict[tuple[object, ...], bool] = {}
_MOST_KNOWN = 1 << 14
_KNOWN_LOCK = threading.Lock()


@dataclasses.dataclass(frozen=True)
class FileContent:
    """The expected content of one file, or of several that must be checked together.

    Args:
        files: Their paths. All of them must exist.
        is_right: Reads all files, and returns whether they are unchanged. It is
            not called again while their sizes and times stay the same.
        seal: A value that identifies the content, if the checkpoint has one.
            Defaults to None.

    Example:

    >>> from keras_tpu_estimator.checkpoints import FileContent
    >>> content = FileContent(("model.ckpt-20.values",), lambda: True)
    >>> content.is_right()
    True
    """

    files: tuple[str, ...]
    is_right: Callable[[], bool]
    seal: object = None

    @property
    def identity(self) -> tuple[object, ...]:
        """A key that changes with any file; all of them must exist."""
        return (*map(paths.version, self.files), self.seal)


def are_intact(contents: Iterable[FileContent], host: int = 0, hosts: int = 1) -> bool:
    """Returns whether files are unchanged since they were written.

    Each of the `hosts` reads every byte of its share of the files, but only once while
    a file's size and time stay the same. The result is `False` if a file is missing.
    """
    try:
        # No file is read if one is missing.
        identified = [(content.identity, content) for content in contents]
        return all(_is_right(key, content) for key, content in identified[host::hosts])
    except FileNotFoundError:
        return False


def trust(contents: Iterable[FileContent]) -> None:
    """Records files that were just written as intact.

    A file that another machine sees only later is still read to be checked.
    """
    for content in contents:
        with contextlib.suppress(FileNotFoundError):
            _remember(content.identity, True)


def _is_right(identity: tuple[object, ...], content: FileContent) -> bool:
    is_right = _KNOWN.get(identity)
    if is_right is None:
        is_right = content.is_right()
        _remember(identity, is_right)
    return is_right


def _remember(identity: tuple[object, ...], is_right: bool) -> None:
    with _KNOWN_LOCK:
        if len(_KNOWN) >= _MOST_KNOWN:
            del _KNOWN[next(iter(_KNOWN))]
        _KNOWN[identity] = is_right
