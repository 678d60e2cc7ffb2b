"""Tensors and datasets of PyTorch and Hugging Face, told by their classes.

Nothing of these libraries is imported.
"""

import sys
from typing import Any

import ml_dtypes
import numpy as np

_TENSOR = ("Tensor",)
_SPLITS = ("DatasetDict", "IterableDatasetDict")
_ROWS = ("Dataset", "IterableDataset")


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
        TypeError: It is a dataset of PyTorch or Hugging Face, which does.
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
