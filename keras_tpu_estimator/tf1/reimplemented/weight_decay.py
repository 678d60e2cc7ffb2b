"""Optimizers of `tf.contrib.opt` with decoupled weight decay."""

from typing import Any

import tensorflow.compat.v1 as tf


class WeightDecay(tf.train.Optimizer):
    """A mixin that adds decoupled weight decay to an optimizer."""

    def __init__(self, weight_decay: Any, *args: Any, **kwargs: Any):
        self._decay = weight_decay
        self._decayed: set[str] | None = None
        super().__init__(*args, **kwargs)

    def minimize(
        self, *args: Any, decay_var_list: Any = None, **kwargs: Any
    ) -> tf.Operation:
        """Minimizes as the base class does, with decay of some variables."""
        self._note(decay_var_list)
        return super().minimize(*args, **kwargs)

    def apply_gradients(
        self, *args: Any, decay_var_list: Any = None, **kwargs: Any
    ) -> tf.Operation:
        """Applies gradients as the base class does, with decay of some variables."""
        self._note(decay_var_list)
        return super().apply_gradients(*args, **kwargs)

    def _note(self, variables: Any) -> None:
        if variables:
            self._decayed = {variable.name for variable in variables}

    def _has_decay(self, var: Any) -> bool:
        return self._decayed is None or var.name in self._decayed

    def _factor(self, var: Any) -> Any:
        own = self._decay() if callable(self._decay) else self._decay
        return tf.cast(own, var.dtype.base_dtype)

    def _resource_apply_dense(self, grad: Any, var: Any) -> tf.Operation:
        after = []
        if self._has_decay(var):
            after = [var.assign_sub(self._factor(var) * var)]
        with tf.control_dependencies(after):
            return super()._resource_apply_dense(grad, var)

    def _resource_apply_sparse(self, grad: Any, var: Any, indices: Any) -> tf.Operation:
        after = []
        if self._has_decay(var):
            lost = self._factor(var) * tf.gather(var, indices)
            after = [tf.scatter_sub(var, indices, lost)]
        with tf.control_dependencies(after):
            return super()._resource_apply_sparse(grad, var, indices)


def extend_with_decoupled_weight_decay(base: type) -> type:
    """Returns a class that adds decoupled weight decay to an optimizer class.

    Args:
        base: A subclass of `tf.train.Optimizer`.

    Returns:
        A class whose first argument is `weight_decay`, a number or a tensor, by which
        variables shrink in each step. Its `minimize` and `apply_gradients` take
        `decay_var_list`, which limits the decay to some variables.
    """
    return type("WithWeightDecay", (WeightDecay, base), {})


class AdamWOptimizer(
    extend_with_decoupled_weight_decay(tf.train.AdamOptimizer)  # type: ignore[misc]
):
    """Adam with decoupled weight decay.

    Args:
        weight_decay: The fraction by which variables shrink in each step.
        learning_rate: As in `tf.train.AdamOptimizer`, like all others.
        beta1: See there.
        beta2: See there.
        epsilon: See there.
        use_locking: See there.
        name: See there. Defaults to 'AdamW'.
    """

    def __init__(
        self,
        weight_decay: Any,
        learning_rate: Any = 0.001,
        beta1: Any = 0.9,
        beta2: Any = 0.999,
        epsilon: Any = 1e-8,
        use_locking: bool = False,
        name: str = "AdamW",
    ):
        super().__init__(
            weight_decay,
            learning_rate,
            beta1,
            beta2,
            epsilon,
            use_locking,
            name,
        )


class MomentumWOptimizer(
    extend_with_decoupled_weight_decay(tf.train.MomentumOptimizer)  # type: ignore[misc]
):
    """Momentum with decoupled weight decay.

    Args:
        weight_decay: The fraction by which variables shrink in each step.
        learning_rate: As in `tf.train.MomentumOptimizer`, like all others.
        momentum: See there.
        use_locking: See there.
        name: See there. Defaults to 'MomentumW'.
        use_nesterov: See there.
    """

    def __init__(
        self,
        weight_decay: Any,
        learning_rate: Any,
        momentum: Any,
        use_locking: bool = False,
        name: str = "MomentumW",
        use_nesterov: bool = False,
    ):
        super().__init__(
            weight_decay,
            learning_rate,
            momentum,
            use_locking,
            name,
            use_nesterov,
        )
