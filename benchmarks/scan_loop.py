"""The peer that is hard to beat: a training loop written by hand in JAX."""

from collections.abc import Iterable
from typing import Any

import jax
import keras

from benchmarks.models import Mlp
from benchmarks.models import adam
from benchmarks.models import mean_loss


class ScanLoop:
    """`jax.lax.scan` over stacked batches, one jitted function in all.

    Args:
        mlp: The network.
    """

    def __init__(self, mlp: Mlp):
        inputs = keras.Input((mlp.sizes[0],))
        self._model = keras.Model(inputs, mlp.logits(inputs))
        self._optimizer = adam()
        self._optimizer.build(self._model.trainable_variables)
        self._state = (
            [v.value for v in self._model.trainable_variables],
            [v.value for v in self._optimizer.variables],
        )
        self._run = jax.jit(self._steps, donate_argnums=0)

    def train(self, stacked_batches: Iterable[Any]) -> None:
        """Trains over all of the stacked batches and waits for the end."""
        for batches in stacked_batches:
            self._state, losses = self._run(self._state, batches)
        jax.block_until_ready((self._state, losses))

    def loss(self, x: Any, y: Any) -> float:
        """The mean loss over some examples."""
        return float(self._loss(self._state[0], x, y))

    def _loss(self, weights: Any, x: Any, y: Any) -> Any:
        logits, _ = self._model.stateless_call(weights, [], x)
        return mean_loss(y, logits)

    def _steps(self, state: Any, batches: Any) -> tuple[Any, Any]:
        def step(state: Any, batch: Any) -> tuple[Any, Any]:
            weights, slots = state
            loss, gradients = jax.value_and_grad(self._loss)(weights, *batch)
            return self._optimizer.stateless_apply(
                slots, gradients, weights
            ), loss

        return jax.lax.scan(step, state, batches)
