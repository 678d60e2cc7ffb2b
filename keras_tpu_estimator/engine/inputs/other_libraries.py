"""Values from PyTorch, Hugging Face and Grain, recognized by their classes.

These libraries are not imported.
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
    """Returns whether a value is a PyTorch tensor."""
    return _is_one_of(value, "torch", _TENSOR)


def array_of_torch(tensor: Any) -> np.ndarray:
    """Returns a PyTorch tensor as an array, detached from its gradient."""
    tensor = tensor.detach().cpu()
    torch = sys.modules["torch"]
    if tensor.dtype == torch.bfloat16:  # NumPy has it from ml_dtypes.
        bits: np.ndarray = tensor.view(torch.int16).numpy()
        return bits.view(ml_dtypes.bfloat16)
    return np.asarray(tensor)


def check_yields_batches(value: object) -> None:
    """Raises `TypeError` if a dataset of a known library yields single examples."""
    if _is_one_of(value, "datasets", _SPLITS):
        raise _not_batches(
            value, "contains several datasets", "Select one by its name."
        )
    if _is_one_of(value, "datasets", _ROWS):
        raise _not_batches(
            value,
            "yields single examples",
            'Return dataset.with_format("numpy").iter(params["batch_size"]), '
            "or, if its items already are batches, iter(dataset).",
        )
    if _is_one_of(value, "torch", _ROWS) and not hasattr(value, "__iter__"):
        raise _not_batches(
            value,
            "yields single examples",
            "Return torch.utils.data.DataLoader(dataset, "
            'batch_size=params["batch_size"]).',
        )
    if _is_one_of(value, "grain", _CHAINS) and not _may_batch(value):
        raise _not_batches(
            value,
            "yields single examples",
            'Return dataset.batch(params["batch_size"]), or, if its items '
            "already are batches, iter(dataset).",
        )
    operations = getattr(value, "_operations", None)
    is_loader = _is_one_of(value, "grain", _LOADER) and operations is not None
    if is_loader and not any(map(_is_batching, operations or ())):
        raise _not_batches(
            value,
            "yields single examples",
            'Add grain.transforms.Batch(params["batch_size"]) to its '
            "operations, or, if its items already are batches, return "
            "iter(loader).",
        )


def allow_worker_processes(value: object) -> None:
    """Marks absl's flags as parsed, because Grain's worker processes read them."""
    if _is_one_of(value, "grain", (*_CHAINS, *_LOADER, *_ITERATORS)):
        flags = sys.modules["absl.flags"].FLAGS
        if not flags.is_parsed():
            flags.mark_as_parsed()


def _may_batch(dataset: Any) -> bool:
    """Returns whether a Grain dataset may yield batches, by the names of its parts.

    It yields batches if a part makes them, and may yield them if a part is unknown,
    such as a user's class or worker processes.
    """
    parents = getattr(dataset, "parents", ())
    if _is_batching(dataset):
        return True
    if parents:
        return any(map(_may_batch, parents))
    return not type(dataset).__name__.startswith(_SOURCES)


def _is_batching(part: object) -> bool:
    """Returns whether a part of a Grain dataset makes batches, by its name."""
    return "Batch" in type(part).__name__


def _is_one_of(value: object, package: str, names: tuple[str, ...]) -> bool:
    return package in sys.modules and any(
        base.__name__ in names and base.__module__.partition(".")[0] == package
        for base in type(value).__mro__
    )


def _not_batches(value: object, why: str, advice: str) -> TypeError:
    kind = type(value)
    return TypeError(
        "`input_fn` must return a tf.data.Dataset, arrays, or an iterable of "
        f"batches. Received a {kind.__module__}.{kind.__qualname__}, which "
        f"{why}. {advice}"
    )
