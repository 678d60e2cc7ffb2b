"""The random seeds of one call of `predict`."""

import dataclasses
import zlib
from collections.abc import Iterable, Mapping

import jax
import keras
import numpy as np

from keras_tpu_estimator.base.tracing.variables import ArraysByPath, is_seed
from keras_tpu_estimator.engine.device.run_state import RunState


@dataclasses.dataclass(frozen=True)
class SamplingSeed:
    """The origin of a call's random numbers, which the call does not save.

    Attributes:
        seed: The user's seed, which replaces those of the model; or `None`.
        call: The number of earlier calls of `predict`. The first call begins with the
            seeds of the model, and each later one with others that depend on these.
        process: The index of this process, which predicts for its own input.
    """

    seed: int | None = None
    call: int = 0
    process: int = 0

    def reseed(
        self,
        values: RunState,
        variables: Mapping[str, keras.Variable],
        paths: Iterable[str],
    ) -> None:
        """Changes the seeds among some values of the call."""
        changed: ArraysByPath = {
            path: self._seed_for(path, values[path])
            for path in paths
            if is_seed(variables[path])
        }
        if changed:
            values.update(changed)

    def _seed_for(self, path: str, value: jax.Array) -> jax.Array:
        words = np.asarray(value).ravel().astype("uint32")
        numbers = [self.process]
        if self.seed is not None:
            numbers += [self.seed, zlib.crc32(path.encode())]
        elif self.call or self.process:
            numbers += [self.call, *map(int, words)]
        else:
            return value
        drawn = np.random.SeedSequence(numbers).generate_state(words.size)
        drawn = drawn.reshape(value.shape).astype(value.dtype)
        return jax.device_put(drawn, value.sharding)
