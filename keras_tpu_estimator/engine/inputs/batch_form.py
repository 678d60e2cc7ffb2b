"""What batches of several hosts have to have in common."""

import dataclasses
import functools
import zlib
from collections.abc import Mapping, Sequence
from typing import Any, Self

import jax

from keras_tpu_estimator.engine.inputs.batch import StackedSteps
from keras_tpu_estimator.engine.inputs.unbatched import is_unbatched, named_leaves
from keras_tpu_estimator.ground.base.shown import some

_NEST = "the nest of features and labels"


@dataclasses.dataclass(frozen=True)
class BatchForm:
    """A batch but for its size: its nest, and a tensor's shapes and dtypes.

    Attributes:
        facts: What it is like, by the names of its tensors.

    Example:

    >>> import numpy as np
    >>> from keras_tpu_estimator.engine.inputs.batch import StackedSteps
    >>> from keras_tpu_estimator.engine.inputs.batch_form import BatchForm
    >>> stacked = StackedSteps({"ids": np.zeros((4, 8, 5), "int32")}, None)
    >>> BatchForm.of(stacked).facts["features['ids']"]
    'int32 of shape (batch, 5)'
    """

    facts: Mapping[str, str]

    @classmethod
    def of(cls, stacked: StackedSteps) -> Self:
        """That of stacked steps."""
        leaves = named_leaves(stacked.features, stacked.labels)
        facts = {name: _told(leaf) for name, leaf in leaves}
        nest = jax.tree.structure((stacked.features, stacked.labels))
        return cls(facts | {_NEST: str(nest)})

    @functools.cached_property
    def digest(self) -> int:
        """Equal for equal forms, on all hosts."""
        return zlib.crc32(repr(sorted(self.facts.items())).encode())


def error_of_unlike(said: Sequence[Mapping[str, str] | None]) -> ValueError:
    """What to raise if hosts have batches of several forms.

    Args:
        said: The facts of each host's, or `None` of one without a batch.
    """
    names = dict.fromkeys(name for each in said for name in each or ())
    unlike = [
        name
        for name in names
        if len({each.get(name) for each in said if each is not None}) > 1
    ]
    # The nest says no more than names do.
    told = [name for name in unlike if name != _NEST] or unlike
    received = some(
        [
            f"For {name}, "
            + "; ".join(
                f"host {host} has {each.get(name, 'nothing')}"
                for host, each in enumerate(said)
                if each is not None
            )
            for name in told
        ],
        separator=". ",
    )
    return ValueError(
        "Batches should be equal on all hosts, except for their size and their "
        f"values. Received others. {received}. Have input_fn make the same "
        "on each host: pad tensors to one shape."
    )


def _told(leaf: Any) -> str:
    value = leaf.value if is_unbatched(leaf) else leaf
    dtype = jax.dtypes.canonicalize_dtype(value.dtype)
    first = ("core",) if is_unbatched(leaf) else ("batch",)
    return f"{dtype} of shape ({', '.join(map(str, first + value.shape[2:]))})"
