"""Reading of a checkpoint into a pytree: the inverse of `jax_params`."""

import dataclasses
import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Self, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from keras_tpu_estimator.base.common.field_checks import did_you_mean
from keras_tpu_estimator.base.common.shown import shown, some
from keras_tpu_estimator.base.common.types import CheckpointLike
from keras_tpu_estimator.base.tracing.array_trees import (
    Leaf,
    Parts,
    as_leaf,
    as_value,
    leaves_of,
    shapes_of,
    split_path,
    with_values,
)
from keras_tpu_estimator.files.formats.loading import load_checkpoint
from keras_tpu_estimator.files.formats.reader import (
    GLOBAL_STEP,
    CheckpointReader,
    StoredVariable,
)
from keras_tpu_estimator.files.warm_start.pairing import converted

# The default name of `ExponentialMovingAverage`, here and in TensorFlow.
DEFAULT = "ExponentialMovingAverage"


@dataclasses.dataclass(frozen=True)
class AverageNames:
    """The averages in a checkpoint, with or without those of Keras's optimizers.

    `names` has all variables by name, or by the part of the name after that of an
    optimizer. `last` is the last part of an average's name.
    """

    names: dict[str, str]
    last: str
    of_keras: bool

    @classmethod
    def from_names(cls, names: Iterable[str], kind: bool | str) -> Self:
        """Finds the averages among all variables.

        If `kind` is `True`, these have their default names; otherwise `kind` is the
        name of an `ExponentialMovingAverage`.
        """
        of_keras = kind is True
        names_by_alias = {}
        for name in names:
            names_by_alias[name] = name
            if of_keras:
                names_by_alias.setdefault("/" + name.rpartition("/")[2], name)
        return cls(names_by_alias, DEFAULT if kind is True else str(kind), of_keras)

    def of_paths(self, paths: Iterable[str]) -> dict[str, str]:
        """Returns the names of existing averages, by the paths of their variables."""
        averages = {}
        for path in paths:
            for name in self._candidates(path):
                if name in self.names:
                    averages[path] = self.names[name]
                    break
        return averages

    def examples(self, path: str) -> str:
        """Returns possible names of a variable's average, for a message."""
        shown = [repr(f"{path}/{self.last}")]
        if self.of_keras:
            shown.append(repr(f"<optimizer>{self._candidates(path)[1]}"))
        return " or ".join(shown)

    def _candidates(self, path: str) -> tuple[str, ...]:
        below = f"{path}/{self.last}"
        if not self.of_keras:
            return (below,)
        return below, f"/{path.replace('/', '_')}_average"


Tree = TypeVar("Tree")

_MOST_PROBLEMS = 10


def read_jax_params(
    ckpt_dir_or_file: CheckpointLike,
    name: str,
    like: Tree | Callable[[], Tree] | Callable[[jax.Array], Tree],
    *,
    averages: bool | str = False,
    partial: bool = False,
) -> Tree:
    """Reads variables trained through `jax_params` into a pytree.

    Use this to load a checkpoint outside an estimator, into a module of flax or
    equinox, or into the parameters of flax.linen, haiku or plain JAX.

    Args:
        ckpt_dir_or_file: As for `load_checkpoint`: the prefix of a checkpoint,
            or a `model_dir` for its latest one.
        name: The name that `jax_params` was called with. Pass "" for the root,
            as in checkpoints of other programs.
        like: The pytree that `jax_params` was called with, or one of the same
            structure with arrays or `jax.ShapeDtypeStruct`s; or a function that
            makes it, which is traced but not run.
        averages: Whether variables that have a moving average are read from it:
            `False` (the default); `True` for those of
            `ExponentialMovingAverage` and of Keras's `use_ema`; or the `name`
            that an `ExponentialMovingAverage` was given.
        partial: Whether the checkpoint may have variables under `name` that
            `like` lacks. Defaults to `False`.

    Returns:
        A new pytree of the structure of `like`. Its arrays have the dtypes of
        `like`: arrays of NumPy where `like` has those, and else arrays of JAX.
            If `like` has a sharding, so do they, and each process reads only
            its own shards of a variable that is sharded over devices. Leaves
            that are not arrays are those of `like`.

    Raises:
        ValueError: `like` and the checkpoint do not match: a variable is
            missing, has another shape or an incompatible dtype, or has no leaf;
            the checkpoint has no averages; it is missing or corrupt; or `like`
            has no arrays.

    Example:

    >>> import tempfile
    >>> import keras_tpu_estimator as kte
    >>> import jax, jax.numpy as jnp, numpy as np
    >>> def init(key):
    ...     return {"w": jax.random.normal(key, (2, 1)), "b": jnp.zeros(1)}
    >>> prefix = kte.checkpoints.save(tempfile.mkdtemp(), 20, {
    ...     "net/w": np.ones((2, 1)), "net/b": np.zeros(1)})
    >>> kte.checkpoints.read_jax_params(prefix, "net", init)["b"]
    Array([0.], dtype=float32)
    """
    tree: Tree = shapes_of(like)
    parents = split_path(str(name))
    leaves = leaves_of(tree)
    variables = _leaf_variables(leaves, parents)
    if not variables:
        raise ValueError(
            "`like` must be a pytree with arrays or jax.ShapeDtypeStructs in "
            f"it, or a function that makes one. Received: {shown(tree)}. Pass "
            "the module or the parameters that `jax_params` was called with."
        )
    reader = load_checkpoint(ckpt_dir_or_file)
    stored_names = _StoredNames(reader, "/".join(parents), reader.by_any_name())
    names = {path: path for path in variables}
    if averages:
        names |= stored_names.averages(variables, averages)
    stored_names.check(variables, names, partial)
    with reader.held_open():
        values = _Values(reader, variables, names)
        return with_values(
            tree,
            [
                values.value_of(leaf.path_below(parents), leaf)
                if leaf.is_described
                else leaf.value
                for leaf in leaves
            ],
        )


@dataclasses.dataclass(frozen=True)
class _LeafVariable:
    """A variable that a leaf is read from, and the dtype of the resulting values."""

    leaf: Leaf
    shape: tuple[int, ...]
    dtype: np.dtype

    @classmethod
    def from_leaf(cls, leaf: Leaf) -> "_LeafVariable":
        """Returns the variable of a leaf; a PRNG key needs its data."""
        value = leaf.value
        if leaf.key_impl is not None:
            value = jax.eval_shape(as_value, value)
        dtype = np.dtype(value.dtype)
        if not isinstance(leaf.value, np.ndarray):
            dtype = jax.dtypes.canonicalize_dtype(dtype)
        return cls(leaf, tuple(value.shape), dtype)

    @property
    def location(self) -> str:
        """The leaf's location in `like`."""
        return f"like{jax.tree_util.keystr(self.leaf.keys)}"

    @property
    def sharding(self) -> jax.sharding.Sharding | None:
        """The sharding of the values, or `None` if `like` has none."""
        value = self.leaf.value
        if isinstance(value, np.ndarray | jax.core.Tracer):
            return None
        if isinstance(value, jax.Array) and not value.committed:
            return None
        sharding: jax.sharding.Sharding | None = value.sharding
        mesh = getattr(sharding, "mesh", None)
        return None if isinstance(mesh, jax.sharding.AbstractMesh) else sharding

    @property
    def is_sharded(self) -> bool:
        """Whether the values are sharded over several devices."""
        sharding = self.sharding
        return (
            sharding is not None
            and len(sharding.device_set) > 1
            and self.leaf.key_impl is None
        )


def _leaf_variables(leaves: Iterable[Leaf], parents: Parts) -> dict[str, _LeafVariable]:
    return {
        leaf.path_below(parents): _LeafVariable.from_leaf(leaf)
        for leaf in leaves
        if leaf.is_described and not leaf.is_again
    }


@dataclasses.dataclass(frozen=True)
class _StoredNames:
    """The variables of a checkpoint, below the path `name` of `like`, by every name."""

    reader: CheckpointReader
    name: str
    stored: Mapping[str, StoredVariable]

    def averages(
        self, variables: Mapping[str, _LeafVariable], kind: bool | str
    ) -> dict[str, str]:
        """Returns the names of the existing averages, by path."""
        averages = AverageNames.from_names(self.stored, kind)
        names = averages.of_paths(variables)
        if not names:
            path = next(iter(variables))
            raise ValueError(
                "`averages` must be False for a checkpoint without moving "
                f"averages. Received: {kind!r}, and the checkpoint "
                f"{self.reader.path!r} has no average of {path!r} or of the "
                f"other variables: no name is {averages.examples(path)}. Leave "
                "`averages` out, or pass the `name` that "
                "`ExponentialMovingAverage` was given."
            )
        return names

    def check(
        self,
        variables: Mapping[str, _LeafVariable],
        names: Mapping[str, str],
        partial: bool,
    ) -> None:
        """Raises an error if leaves and variables do not match."""
        below = [path for path in self.stored if self._is_below(path)]
        if not below:
            firsts = sorted({path.partition("/")[0] for path in self.stored})
            raise ValueError(
                "`name` must be the name that `jax_params` was called with. "
                f"Received: {self.name!r}, and the checkpoint "
                f"{self.reader.path!r} has no variable below it. The variables "
                f"begin with {some(list(map(repr, firsts)), _MOST_PROBLEMS)}: "
                "pass one of these names."
            )
        problems = [
            problem
            for path, one in variables.items()
            if (problem := self._problem(one, names[path], below)) is not None
        ]
        advice = "Make `like` with the settings of the training."
        if not partial:
            unused = list(self._unused(variables, below))
            problems += (f"no leaf for the variable {o!r}" for o in unused)
            if unused:
                advice = (
                    f"{advice[:-1]}, or pass `partial=True` if it is only a "
                    "part of the trained parameters."
                )
        if problems:
            listed = some(problems, _MOST_PROBLEMS, "\n  ")
            raise ValueError(
                "`like` must have the structure that `jax_params` was called "
                f"with. Received one that does not match {self.name!r} in the "
                f"checkpoint {self.reader.path!r}:\n  {listed}\n{advice}"
            )

    def _problem(
        self, one: _LeafVariable, name: str, below: Sequence[str]
    ) -> str | None:
        stored = self.stored.get(name)
        if stored is None:
            question = did_you_mean(name, below)
            return f"{one.location}: no variable {name!r}.{question}"
        if stored.shape != one.shape:
            text = (
                f"{one.location} of shape {one.shape}: the variable {name!r} has "
                f"shape {stored.shape}"
            )
            if one.leaf.key_impl is None:
                return text
            return f"{text}, the data of a key of another generator"
        return None

    def _unused(
        self, variables: Mapping[str, _LeafVariable], below: Iterable[str]
    ) -> Iterator[str]:
        """Yields the variables that no leaf is read from."""
        read = {
            self.reader.listed_name(path) for path in variables if path in self.stored
        }
        for path in below:
            # A variable below another one is its average or optimizer state.
            parts = path.split("/")
            parents = ("/".join(parts[:end]) for end in range(len(parts)))
            if (
                self.reader.listed_name(path) not in read
                and path != GLOBAL_STEP
                and not any(parent in variables for parent in parents)
            ):
                yield path

    def _is_below(self, path: str) -> bool:
        start = f"{self.name}/" if self.name else ""
        return path == self.name or path.startswith(start)


class _Values:
    """The values of variables, on the devices of the leaves."""

    def __init__(
        self,
        reader: CheckpointReader,
        variables: Mapping[str, _LeafVariable],
        names: Mapping[str, str],
    ):
        self._reader = reader
        self._variables = variables
        self._names = names
        self._read = reader.get_tensors(
            {names[p] for p, one in variables.items() if not one.is_sharded}
        )

    def value_of(self, path: str, leaf: Leaf) -> Any:
        """Returns the value of a leaf, which may occur twice in the pytree."""
        one = self._variables[path]
        sharding = one.sharding
        if sharding is not None and one.is_sharded:
            part = functools.partial(self._part, path)
            return jax.make_array_from_callback(one.shape, sharding, part)
        value = self._converted(path, self._read[self._names[path]])
        if isinstance(leaf.value, np.ndarray):
            return value
        array = as_leaf(jnp.asarray(value), leaf.key_impl)
        return array if sharding is None else jax.device_put(array, sharding)

    def _part(self, path: str, index: Sequence[slice] | None) -> np.ndarray:
        value = self._reader.get_part(self._names[path], index or ())
        return self._converted(path, value)

    def _converted(self, path: str, value: np.ndarray) -> np.ndarray:
        one, name = self._variables[path], self._names[path]
        result = converted(value, one.dtype, f"{name!r} in {self._reader.path!r}")
        if result is None:
            raise ValueError(
                f"{one.location} must have a dtype that can hold the values of "
                f"{name!r} in the checkpoint {self._reader.path!r}, which are "
                f"{value.dtype}. Received: {shown(one.leaf.value)}. Give it "
                "the dtype of the training."
            )
        return result
