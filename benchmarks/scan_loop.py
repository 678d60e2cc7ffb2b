"""Training loops in plain JAX, to compare with."""

from collections.abc import Iterable
from typing import Any

import jax
import keras
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from benchmarks.models import Classifier, adam, mean_loss
from keras_tpu_estimator.base.cpu.tuning import tuned

_WHOLE = PartitionSpec()
_SPLIT = PartitionSpec(None, "core")


class ScanLoop:
    """A jitted `jax.lax.scan` over stacked batches.

    Args:
        network: The network.
        cores: The number of devices that share each batch. Defaults to 1.
    """

    def __init__(self, network: Classifier, cores: int = 1):
        inputs = keras.Input(network.shape)
        self._model = keras.Model(inputs, network.logits(inputs))
        self._optimizer = adam()
        self._optimizer.build(self._model.trainable_variables)
        self._state = (
            [v.value for v in self._model.trainable_variables],
            [v.value for v in self._model.non_trainable_variables],
            [v.value for v in self._optimizer.variables],
        )
        self._mesh = None
        run = self._steps
        if cores > 1:
            self._mesh = Mesh(jax.devices()[:cores], "core")
            whole = NamedSharding(self._mesh, _WHOLE)
            self._state = jax.device_put(self._state, whole)
            run = jax.shard_map(
                run,
                mesh=self._mesh,
                in_specs=(_WHOLE, _SPLIT),
                out_specs=_WHOLE,
                check_vma=False,
            )
        self._run = jax.jit(run, donate_argnums=0)

    def train(self, stacked_batches: Iterable[Any]) -> None:
        """Trains on all stacked batches and waits for the end."""
        for batches in stacked_batches:
            if self._mesh is not None:
                split = NamedSharding(self._mesh, _SPLIT)
                batches = jax.device_put(batches, split)  # noqa: PLW2901
            self._state, losses = self._run(self._state, batches)
            if self._mesh is not None:
                # Many queued programs can deadlock simulated cores.
                jax.block_until_ready(losses)
        jax.block_until_ready((self._state, losses))

    def compile(self, batches: Any) -> None:
        """Traces and compiles the loop again."""
        jax.clear_caches()
        self._run.trace(self._state, batches).lower().compile()

    def loss(self, x: Any, y: Any) -> float:
        """Returns the mean loss of some examples."""
        weights, others, _ = jax.device_get(self._state)
        logits, _ = self._model.stateless_call(weights, others, x)
        return float(mean_loss(y, logits))

    def _loss(self, weights: Any, others: Any, x: Any, y: Any) -> Any:
        logits, others = self._model.stateless_call(weights, others, x, training=True)
        return mean_loss(y, logits), others

    def _steps(self, state: Any, batches: Any) -> tuple[Any, Any]:
        return jax.lax.scan(self._step, state, batches)

    def _step(self, state: Any, batch: Any) -> tuple[Any, Any]:
        weights, others, slots = state
        differentiated = jax.value_and_grad(self._loss, has_aux=True)
        found = differentiated(weights, others, *batch)
        if self._mesh is not None:
            found = jax.lax.pmean(found, "core")
        (loss, others), gradients = found
        weights, slots = self._optimizer.stateless_apply(slots, gradients, weights)
        return (weights, others, slots), loss


class RewrittenScanLoop(ScanLoop):
    """A scan on one CPU core with the rewrites of this package.

    Args:
        network: The network.
    """

    def __init__(self, network: Classifier):
        super().__init__(network)
        self._run = jax.jit(tuned(self._steps), donate_argnums=0)


class StepLoop(ScanLoop):
    """A jitted step function on one core.

    Args:
        network: The network.
    """

    def __init__(self, network: Classifier):
        super().__init__(network)
        self._run = jax.jit(self._step, donate_argnums=0)
