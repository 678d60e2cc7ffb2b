"""The `TPUConfig` of `tf.estimator.tpu`."""

import dataclasses

from keras_tpu_estimator.api.config import tpu_config
from keras_tpu_estimator.api.config.tpu_config import IterationsPerLoop
from keras_tpu_estimator.base.common.field_checks import suggesting

_DEFAULT_ITERATIONS = 2


@suggesting
@dataclasses.dataclass(frozen=True)
class TPUConfig(tpu_config.TPUConfig):
    """The counterpart of `tf.estimator.tpu.TPUConfig` for TF1 code.

    Args:
        iterations_per_loop: As in `keras_tpu_estimator.TPUConfig`, like all others,
            but scripts read a number: it defaults to 2, which means the same as `None`
            there, because the original does not tell them apart.

    Raises:
        ValueError: As there.
        TypeError: As there.

    Example:

    >>> TPUConfig().iterations_per_loop
    2
    """

    iterations_per_loop: int | str | None = _DEFAULT_ITERATIONS

    @property
    def iterations(self) -> IterationsPerLoop | None:
        """The parsed `iterations_per_loop`; `None` if it is the default."""
        if self.iterations_per_loop == _DEFAULT_ITERATIONS:
            return None
        return super().iterations
