"""The distribution that is set in Keras."""

import contextlib
from collections.abc import Iterator

import keras

from keras_tpu_estimator.base.upstream.private_names import PrivateAttribute

_LAYOUT_MAP = PrivateAttribute(
    "holds the layouts of variables by patterns of their paths",
    "keras.distribution.ModelParallel._layout_map",
)


def current_layout_map() -> keras.distribution.LayoutMap | None:
    """Returns the layout map of the current distribution, if it has one."""
    distribution = keras.distribution.distribution()
    if not isinstance(distribution, keras.distribution.ModelParallel):
        return None
    return _LAYOUT_MAP.get(distribution)


@contextlib.contextmanager
def without_distribution() -> Iterator[None]:
    """Disables Keras's distribution in a `with` block.

    A distribution would put new variables on devices, and shard outputs of layers by
    the rules for variables.
    """
    before = keras.distribution.distribution()
    keras.distribution.set_distribution(None)
    try:
        yield
    finally:
        keras.distribution.set_distribution(before)
