"""Which way a convolution is computed fastest on a CPU.

XLA lays convolutions out for its library, Eigen, in the outermost computation
only. In a loop, others than forward ones become loops over single numbers.
"""

import functools
import math
from collections.abc import Callable

import jax
from jax.extend import core as jex

from keras_tpu_estimator.ground.cpu import unrolled
from keras_tpu_estimator.ground.cpu.convolution import (
    Convolution,
    Implementation,
    in_order_of,
)

# The library takes these; XLA computes bfloat16 as float32 for it.
_OF_LIBRARY = ("bfloat16", "float16", "float32")
_FLOATS = (*_OF_LIBRARY, "float64")
# Measured with 3 x 3 to 11 x 11 taps: unrolled, depthwise convolutions are 4 to
# 40 times, and their gradients 20 to 100 times faster. More taps would take
# more than some seconds to compile.
_MOST_TAPS = 128
# Up to 64 groups are 2 to 9 times faster as convolutions of their own; each
# takes 20 ms to compile.
_MOST_GROUPS = 64
# There the library takes 15 times as long as matrix products; for 9, as long.
_FEW_POSITIONS = 4


def faster_convolution(
    equation: jex.JaxprEqn,
) -> Callable[..., jax.Array] | None:
    """A rule for `rewritten`: convolutions of all kinds and their gradients."""
    implementation = _implementation(Convolution.of(equation))
    if implementation is None:
        return None
    return in_order_of(equation, implementation)


def _implementation(this: Convolution) -> Implementation | None:
    sizes = (*this.lhs_shape, *this.rhs_shape, *this.out_shape)
    if this.dtype.name not in _FLOATS or not this.window or 0 in sizes:
        return None
    library = this.by_library if this.dtype.name in _OF_LIBRARY else None
    positions, window = math.prod(this.positions), math.prod(this.window)
    is_depthwise = this.groups == this.lhs_shape[-1] > 1
    is_depthwise_gradient = this.batch_groups == this.lhs_shape[0] > 1
    unroll = None
    if is_depthwise and window <= _MOST_TAPS:
        unroll = unrolled.sums_by_tap
    elif is_depthwise_gradient and positions <= _MOST_TAPS:
        unroll = unrolled.sums_by_position
    elif this.groups > 1 or this.batch_groups > 1:
        return _by_group(this) or library
    elif window == 1:
        unroll = unrolled.products_by_tap
    elif positions <= _FEW_POSITIONS and positions < window:
        unroll = unrolled.products_by_position
    return functools.partial(unroll, this) if unroll else library


def _by_group(this: Convolution) -> Implementation | None:
    if max(this.groups, this.batch_groups) > _MOST_GROUPS:
        return None
    one_group = _implementation(this.of_one_group())
    if one_group is None:
        return None
    return functools.partial(unrolled.by_group, this, one_group)
