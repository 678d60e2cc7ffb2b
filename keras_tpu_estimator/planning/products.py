"""Floating point operations of matrix products and convolutions."""

import math
import re

from keras_tpu_estimator.planning.array_types import ArrayType
from keras_tpu_estimator.planning.hlo import Instruction

_LABELS = re.compile(r"(\w+)_(\w+)->(\w+)")
_WINDOW = re.compile(r"(\w+)=(-?[\dx_\-]+)")
_CONTRACTED = re.compile(r'lhs_contracting_dim(?:s=\{|ensions":\[)([^\]}]*)')
# Which of the operands and the result are the input, the kernel and the output
# of a convolution. The libraries of GPUs have a call for each gradient.
_CONVOLUTIONS = {
    "": (0, 1, -1),
    "__cudnn$convForward": (0, 1, -1),
    "__cudnn$convBiasActivationForward": (0, 1, -1),
    "__cudnn$convBackwardInput": (-1, 1, 0),
    "__cudnn$convBackwardFilter": (0, -1, 1),
}
_PRODUCTS = ("", "__cublas$gemm", "__cublas$lt$matmul")


def is_counted(target: str) -> bool:
    """Whether a call of a library is counted here.

    Example:

    >>> from keras_tpu_estimator.planning import products
    >>> products.is_counted("__cublas$gemm")
    True
    """
    return target in _PRODUCTS or target in _CONVOLUTIONS


def flops(each: Instruction, operands: tuple[ArrayType, ...]) -> float | None:
    """Two operations for each pair of factors.

    Returns:
        `None` if it is no product.
    """
    target = each.target
    if each.opcode not in ("dot", "convolution", "custom-call"):
        return None
    if len(operands) < 2 or not each.type:
        return None
    arrays = (*operands[:2], each.type[0])
    if each.opcode != "dot" and target in _CONVOLUTIONS:
        first, second, third = _CONVOLUTIONS[target]
        return _of_convolution(each, arrays[first], arrays[second], arrays[third])
    if each.opcode != "convolution" and target in _PRODUCTS:
        found = _CONTRACTED.search(each.text)
        axes = re.findall(r"\d+", found[1] if found else "")
        contracted = math.prod(arrays[0].shape[int(axis)] for axis in axes)
        return 2.0 * arrays[2].size * contracted
    return None


def _of_convolution(
    each: Instruction, inputs: ArrayType, kernel: ArrayType, output: ArrayType
) -> float | None:
    labels = _LABELS.match(each.attribute("dim_labels") or "")
    if not labels:
        return None
    window = dict(_WINDOW.findall(each.attribute("window") or ""))
    groups = int(each.attribute("batch_group_count") or 1)
    products = (
        inputs.shape[labels[1].index("b")]
        // groups
        * kernel.shape[labels[2].index("i")]
        * kernel.shape[labels[2].index("o")]
    )
    spatial = sorted(set(labels[1]) - {"b", "f"})
    for number, axis in enumerate(spatial):
        products *= _positions(
            inputs.shape[labels[1].index(axis)],
            output.shape[labels[3].index(axis)],
            {name: _part(text, number) for name, text in window.items()},
        )
    return 2.0 * products


def _part(text: str, number: int) -> tuple[int, ...]:
    """What a window says of one axis: "2x1" and, of padding, "0_1x0_0"."""
    return tuple(map(int, text.split("x")[number].split("_")))


def _positions(size: int, outputs: int, window: dict[str, tuple[int, ...]]) -> int:
    """How many elements of an axis meet one of a kernel, and no padding."""
    (width,) = window.get("size", (1,))
    (stride,) = window.get("stride", (1,))
    (before, _) = window.get("pad", (0, 0))
    (apart,) = window.get("lhs_dilate", (1,))
    (spread,) = window.get("rhs_dilate", (1,))
    end = (size - 1) * apart + 1
    return sum(
        sum(
            1
            for at in range(
                place * spread - before,
                place * spread - before + outputs * stride,
                stride,
            )
            if 0 <= at < end and at % apart == 0
        )
        for place in range(width)
    )
