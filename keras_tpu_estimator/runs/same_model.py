"""Whether all hosts are about to train the same model."""

import zlib
from collections.abc import Mapping

import jax
import numpy as np

from keras_tpu_estimator.ground.hosts.host_exchange import HostExchange


def check_same_model(
    call: HostExchange, values: Mapping[str, jax.Array], is_new: bool
) -> None:
    """Checks that variables, and values that are new, are equal on all hosts.

    Args:
        call: With the other hosts.
        values: The variables' values by path.
        is_new: Whether they were made here, rather than read.

    Raises:
        ValueError: They are not.
    """
    if not call.is_with_others:
        return
    shapes = {path: (v.shape, str(v.dtype)) for path, v in values.items()}
    facts = {
        "variables (of model_fn)": f"{len(shapes)} variables of "
        f"{sum(value.size for value in values.values())} numbers, "
        f"checksum {zlib.crc32(repr(sorted(shapes.items())).encode()):08x}"
    }
    if is_new:
        facts["initial values"] = f"checksum {_checksum(values):08x}"
    call.check_same(facts)


def _checksum(values: Mapping[str, jax.Array]) -> int:
    checksum = 0
    for path in sorted(values):
        if not values[path].is_fully_replicated:
            # It was made by all hosts together.
            continue
        array = np.asarray(values[path])
        checksum = zlib.crc32(array.tobytes(), checksum)
    return checksum
