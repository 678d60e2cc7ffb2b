"""Optimizers of `tf.contrib.opt`, with their original slots and names."""

from collections.abc import Iterable
from typing import Any

import tensorflow.compat.v1 as tf


class LazyAdamOptimizer(tf.train.AdamOptimizer):
    """Adam that does not change rows without a gradient.

    Args:
        learning_rate: As in `tf.train.AdamOptimizer`, like all others.
    """

    def _resource_apply_sparse(self, grad: Any, var: Any, indices: Any) -> tf.Operation:
        beta1, beta2, epsilon, rate = (
            tf.cast(value, var.dtype.base_dtype)
            for value in (
                self._beta1_t,
                self._beta2_t,
                self._epsilon_t,
                self._lr_t,
            )
        )
        power1, power2 = (
            tf.cast(power, var.dtype.base_dtype)
            for power in self._get_beta_accumulators()
        )
        rate *= tf.sqrt(1 - power2) / (1 - power1)
        m, v = self.get_slot(var, "m"), self.get_slot(var, "v")
        new_m = beta1 * tf.gather(m, indices) + (1 - beta1) * grad
        new_v = beta2 * tf.gather(v, indices) + (1 - beta2) * grad**2
        step = rate * new_m / (tf.sqrt(new_v) + epsilon)
        return tf.group(
            tf.scatter_update(m, indices, new_m),
            tf.scatter_update(v, indices, new_v),
            tf.scatter_sub(var, indices, step),
        )


class NadamOptimizer(tf.train.AdamOptimizer):
    """Adam with Nesterov's momentum.

    Args:
        learning_rate: As in `tf.train.AdamOptimizer`, like all others.
    """

    def _resource_apply_dense(self, grad: Any, var: Any) -> tf.Operation:
        power1, power2 = self._get_beta_accumulators()
        dtype = grad.dtype.base_dtype
        return tf.raw_ops.ResourceApplyAdam(
            var=var.handle,
            m=self.get_slot(var, "m").handle,
            v=self.get_slot(var, "v").handle,
            beta1_power=tf.cast(power1, dtype),
            beta2_power=tf.cast(power2, dtype),
            lr=tf.cast(self._lr_t, dtype),
            beta1=tf.cast(self._beta1_t, dtype),
            beta2=tf.cast(self._beta2_t, dtype),
            epsilon=tf.cast(self._epsilon_t, dtype),
            grad=grad,
            use_locking=self._use_locking,
            use_nesterov=True,
        )

    def _resource_apply_sparse(self, grad: Any, var: Any, indices: Any) -> tf.Operation:
        """Decays all moments, but updates only rows with a gradient."""
        beta1, beta2, epsilon, rate = (
            tf.cast(value, var.dtype.base_dtype)
            for value in (
                self._beta1_t,
                self._beta2_t,
                self._epsilon_t,
                self._lr_t,
            )
        )
        power1, power2 = (
            tf.cast(power, var.dtype.base_dtype)
            for power in self._get_beta_accumulators()
        )
        rate *= tf.sqrt(1 - power2) / (1 - power1)
        m, v = self.get_slot(var, "m"), self.get_slot(var, "v")
        dense = tf.IndexedSlices(grad, indices, tf.shape(var))
        dense = tf.convert_to_tensor(dense)
        new_m = beta1 * m + (1 - beta1) * dense
        new_v = beta2 * v + (1 - beta2) * dense**2
        ahead = beta1 * tf.gather(new_m, indices) + (1 - beta1) * grad
        root = tf.sqrt(tf.gather(new_v, indices))
        return tf.group(
            m.assign(new_m, self._use_locking),
            v.assign(new_v, self._use_locking),
            tf.scatter_sub(var, indices, rate * ahead / (root + epsilon)),
        )


class AdaMaxOptimizer(tf.train.AdamOptimizer):
    """Adam with the largest gradient instead of the second moment.

    Args:
        learning_rate: As in `tf.train.AdamOptimizer`, like all others.
        beta1: See there.
        beta2: See there.
        epsilon: See there.
        use_locking: See there.
        name: See there. Defaults to 'AdaMax'.
    """

    def __init__(
        self,
        learning_rate: Any = 0.001,
        beta1: Any = 0.9,
        beta2: Any = 0.999,
        epsilon: Any = 1e-8,
        use_locking: bool = False,
        name: str = "AdaMax",
    ):
        super().__init__(learning_rate, beta1, beta2, epsilon, use_locking, name)

    def _create_slots(self, var_list: Any) -> None:
        first = min(var_list, key=lambda variable: variable.name)
        self._create_non_slot_variable(self._beta1, "beta1_power", first)
        for variable in var_list:
            self._zeros_slot(variable, "m", self._name)
            self._zeros_slot(variable, "v", self._name)

    def _power(self) -> Any:
        graph = tf.get_default_graph()
        return self._get_non_slot_variable("beta1_power", graph)

    def _resource_apply_dense(self, grad: Any, var: Any) -> tf.Operation:
        dtype = grad.dtype.base_dtype
        return tf.raw_ops.ResourceApplyAdaMax(
            var=var.handle,
            m=self.get_slot(var, "m").handle,
            v=self.get_slot(var, "v").handle,
            beta1_power=tf.cast(self._power(), dtype),
            lr=tf.cast(self._lr_t, dtype),
            beta1=tf.cast(self._beta1_t, dtype),
            beta2=tf.cast(self._beta2_t, dtype),
            epsilon=tf.cast(self._epsilon_t, dtype),
            grad=grad,
            use_locking=self._use_locking,
        )

    def _resource_apply_sparse(self, grad: Any, var: Any, indices: Any) -> tf.Operation:
        """Does not change rows without a gradient."""
        beta1, beta2, epsilon, rate, power = (
            tf.cast(value, var.dtype.base_dtype)
            for value in (
                self._beta1_t,
                self._beta2_t,
                self._epsilon_t,
                self._lr_t,
                self._power(),
            )
        )
        m, v = self.get_slot(var, "m"), self.get_slot(var, "v")
        new_m = beta1 * tf.gather(m, indices) + (1 - beta1) * grad
        new_v = tf.maximum(beta2 * tf.gather(v, indices), tf.abs(grad))
        step = rate / (1 - power) * (new_m / (new_v + epsilon))
        return tf.group(
            tf.scatter_update(m, indices, new_m),
            tf.scatter_update(v, indices, new_v),
            tf.scatter_sub(var, indices, step),
        )

    def _finish(self, update_ops: Any, name_scope: str) -> tf.Operation:
        power = self._power()
        with tf.control_dependencies(update_ops):
            update = power.assign(power * self._beta1_t, self._use_locking)
        return tf.group(*update_ops, update, name=name_scope)


class LARSOptimizer(tf.train.Optimizer):
    """Momentum with a rate for each variable, from its norm and its gradient's.

    Args:
        learning_rate: The rate, a number or a tensor.
        momentum: The momentum of the gradients. Defaults to 0.9.
        weight_decay: A factor of the variable, which is added to its gradient. Defaults
            to 0.0001.
        eeta: The factor of the norms. Defaults to 0.001.
        epsilon: A constant that is added to the norm of a gradient. Defaults to 0.
        name: The name of slots. Defaults to 'LARSOptimizer'.
        skip_list: Parts of the names of variables with the given rate and no decay.
            Defaults to none.
        use_nesterov: Whether to use Nesterov's momentum. Defaults to `False`.

    Raises:
        ValueError: The momentum is negative.
    """

    def __init__(
        self,
        learning_rate: Any,
        momentum: Any = 0.9,
        weight_decay: float = 0.0001,
        eeta: float = 0.001,
        epsilon: float = 0.0,
        name: str = "LARSOptimizer",
        skip_list: Iterable[str] | None = None,
        use_nesterov: bool = False,
    ):
        if momentum < 0.0:
            raise ValueError(f"`momentum` must not be negative. Received: {momentum}")
        super().__init__(False, name)
        self._rate, self._momentum = learning_rate, momentum
        self._decay, self._eeta, self._epsilon = weight_decay, eeta, epsilon
        self._skipped = tuple(skip_list or ())
        self._use_nesterov = use_nesterov

    def _create_slots(self, var_list: Iterable[Any]) -> None:
        for variable in var_list:
            self._zeros_slot(variable, "momentum", self._name)

    def _prepare(self) -> None:
        self._rate_t = tf.convert_to_tensor(
            self._rate() if callable(self._rate) else self._rate,
            name="learning_rate",
        )

    def compute_lr(self, grad: Any, var: Any) -> tuple[Any, Any]:
        """Returns the rate of a variable, and its gradient with decay."""
        if any(part in var.name for part in self._skipped):
            return self._rate_t, grad
        norm, slope = tf.norm(var), tf.norm(grad)
        ratio = tf.where(
            (norm > 0) & (slope > 0),
            self._eeta * norm / (slope + self._decay * norm + self._epsilon),
            tf.ones_like(norm),
        )
        return self._rate_t * ratio, grad + self._decay * var

    def _resource_apply_dense(self, grad: Any, var: Any) -> tf.Operation:
        rate, grad = self.compute_lr(grad, var)
        return tf.raw_ops.ResourceApplyMomentum(
            var=var.handle,
            accum=self.get_slot(var, "momentum").handle,
            lr=tf.constant(1.0, var.dtype.base_dtype),
            grad=grad * rate,
            momentum=tf.cast(self._momentum, var.dtype.base_dtype),
            use_nesterov=self._use_nesterov,
        )
