"""The work of attention kernels, which the compiler does not count."""

import re

from keras_tpu_estimator.base.tpu.attention import BLOCKS
from keras_tpu_estimator.planning.hlo import ArrayType, Instruction

_KERNEL = re.compile(r"splash_m[hq]a_(fwd|dq|dkv)")
# The number of matrix products: the forward pass computes scores and outputs, and both
# backward kernels compute the scores and their gradients again.
_PRODUCTS = {"fwd": 2, "dq": 3, "dkv": 4}
_FLOATS = ("f32", "bf16")


def is_forward(instruction: Instruction) -> bool:
    """Returns whether an instruction is the forward pass of an attention."""
    return _part(instruction) == "fwd"


def attention_flops(
    instruction: Instruction, operands: tuple[ArrayType, ...]
) -> float | None:
    """Returns the operations of an attention kernel; `None` if it is another one.

    A block that no query sees counts none. Sizes of queries and of values count alike.
    """
    part = _part(instruction)
    blocks = re.search(BLOCKS.format(r"(\d+)", r"(\d+)"), instruction.op_name)
    # The masks before the query are integers. One example has no axis of a batch.
    tensors = [array for array in operands if array.dtype in _FLOATS]
    if part is None or blocks is None or len(tensors) < 2:
        return None
    query, key = tensors[:2]
    pairs = query.size * key.shape[-2] * int(blocks[1]) / int(blocks[2])
    return 2.0 * _PRODUCTS[part] * pairs


def _part(instruction: Instruction) -> str | None:
    """Returns "fwd", "dq" or "dkv"; `None` if it is no attention kernel."""
    if instruction.target != "tpu_custom_call":
        return None
    match = _KERNEL.search(instruction.op_name) or _KERNEL.search(instruction.name)
    return match[1] if match else None
