"""What comes from PyTorch, Hugging Face and Grain, told by its class.

Nothing of these libraries is imported.
"""

import sys
from typing import Any

import ml_dtypes
import numpy as np

_TENSOR = ("Tensor",)
_SPLITS = ("DatasetDict", "IterableDatasetDict")
_ROWS = ("Dataset", "IterableDataset")
_CHAINS = ("MapDataset", "IterDataset")
_SOURCES = ("SourceMapDataset", "RangeMapDataset")
_LOADER = ("DataLoader",)
_ITERATORS = ("DatasetIterator", "DataLoaderIterator")


def is_of_torch(value: object) -> bool:
    """Whether a value is a tensor of PyTorch."""
    return _is_one_of(value, "torch", _TENSOR)


def array_of_torch(tensor: Any) -> np.ndarray:
    """A tensor of PyTorch on the host, without what differentiates it."""
    tensor = tensor.detach().cpu()
    torch = sys.modules["torch"]
    if tensor.dtype == torch.bfloat16:  # Which NumPy has from another package.
        bits: np.ndarray = tensor.view(torch.int16).numpy()
        return bits.view(ml_dtypes.bfloat16)
    return np.asarray(tensor)


def check_gives_batches(value: object) -> None:
    """Checks that what `input_fn` returned does not give single examples.

    Args:
        value: What it returned.

    Raises:
        TypeError: It is a dataset of PyTorch, Hugging Face or Grain, which
            does.
    """
    if _is_one_of(value, "datasets", _SPLITS):
        raise _not_batches(
            value, "has several datasets", "Choose one of them by its name."
        )
    if _is_one_of(value, "datasets", _ROWS):
        raise _not_batches(
            value,
            "gives single examples",
            'Return dataset.with_format("numpy").iter(params["batch_size"]), '
            "or, if its items are batches already, iter(dataset).",
        )
    if _is_one_of(value, "torch", _ROWS) and not hasattr(value, "__iter__"):
        raise _not_batches(
            value,
            "gives single examples",
            "Return torch.utils.data.DataLoader(dataset, "
            'batch_size=params["batch_size"]).',
        )
    if _is_one_of(value, "grain", _CHAINS) and not _may_batch(value):
        raise _not_batches(
            value,
            "gives single examples",
            'Return dataset.batch(params["batch_size"]), or, if its items are '
            "batches already, iter(dataset).",
        )
    operations = getattr(value, "_operations", None)
    is_loader = _is_one_of(value, "grain", _LOADER) and operations is not None
    if is_loader and not any(map(_is_batching, operations or ())):
        raise _not_batches(
            value,
            "gives single examples",
            'Add grain.transforms.Batch(params["batch_size"]) to its '
            "operations, or, if its items are batches already, return "
            "iter(loader).",
        )


def let_workers_start(value: object) -> None:
    """Has worker processes of Grain start where flags were never parsed.

    Grain reads flags of absl, which are parsed in programs of `app.run` alone,
    and not in other scripts and in notebooks.

    Args:
        value: What `input_fn` returned.
    """
    if _is_one_of(value, "grain", (*_CHAINS, *_LOADER, *_ITERATORS)):
        flags = sys.modules["absl.flags"].FLAGS
        if not flags.is_parsed():
            flags.mark_as_parsed()


def _may_batch(dataset: Any) -> bool:
    """Whether a dataset of Grain may give batches, by the names of its parts.

    It does if it is made of a part that makes them; and it may if it is made of
    what tells nothing, such as a class of the user's, or worker processes.
    """
    parents = getattr(dataset, "parents", ())
    if _is_batching(dataset):
        return True
    if parents:
        return any(map(_may_batch, parents))
    return not type(dataset).__name__.startswith(_SOURCES)


def _is_batching(part: object) -> bool:
    """Whether a part of an input of Grain makes batches, by its name."""
    return "Batch" in type(part).__name__


def _is_one_of(value: object, package: str, names: tuple[str, ...]) -> bool:
    return package in sys.modules and any(
        base.__name__ in names and base.__module__.partition(".")[0] == package
        for base in type(value).__mro__
    )


def _not_batches(value: object, why: str, advice: str) -> TypeError:
    kind = type(value)
    return TypeError(
        "`input_fn` should return a tf.data.Dataset, arrays, or an iterable of "
        f"batches. Received a {kind.__module__}.{kind.__qualname__}, which "
        f"{why}. {advice}"
    )
