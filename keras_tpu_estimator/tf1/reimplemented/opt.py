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


class MovingAverageOptimizer(tf.train.Optimizer):
    """An optimizer that averages the variables that it trains.

    Args:
        opt: The optimizer.
        average_decay: The decay of the averages. Defaults to 0.9999.
        num_updates: The number of steps, for a faster decay at the start. Defaults to
            none.
        sequential_update: Accepted; averages always follow the step.
    """

    def __init__(
        self,
        opt: Any,
        average_decay: Any = 0.9999,
        num_updates: Any = None,
        sequential_update: bool = True,
    ):
        del sequential_update
        super().__init__(False, "MovingAverageOptimizer")
        self._opt = opt
        self._average = tf.train.ExponentialMovingAverage(average_decay, num_updates)
        self._averaged: list[Any] = []

    def compute_gradients(self, *args: Any, **kwargs: Any) -> Any:
        """Returns the gradients of the optimizer."""
        return self._opt.compute_gradients(*args, **kwargs)

    def apply_gradients(
        self,
        grads_and_vars: Iterable[tuple[Any, Any]],
        global_step: Any = None,
        name: str | None = None,
    ) -> tf.Operation:
        """Runs a step of the optimizer, and then updates the averages."""
        pairs = list(grads_and_vars)
        step = self._opt.apply_gradients(pairs, global_step, name)
        self._averaged = [variable for _, variable in pairs]
        with tf.control_dependencies([step]):
            return tf.group(self._average.apply(self._averaged))

    def swapping_saver(
        self, var_list: Any = None, name: str = "swapping_saver", **kwargs: Any
    ) -> Any:
        """Returns a saver that writes averages under the names of the variables.

        Args:
            var_list: The variables to save, as in `tf.train.Saver`. Defaults to all
                global variables.
            name: The name of the saver's operations.
            **kwargs: Arguments of `tf.train.Saver`.

        Raises:
            RuntimeError: `apply_gradients` was not called before.
            ValueError: `var_list` contains a variable without its average, or an
                average without its variable.
        """
        if not self._averaged:
            raise RuntimeError(
                "Call `apply_gradients` or `minimize` before `swapping_saver`. "
                "Received an optimizer that has no averages yet."
            )
        variables = tf.global_variables() if var_list is None else var_list
        names = (
            dict(variables)
            if isinstance(variables, dict)
            else {variable.op.name: variable for variable in variables}
        )
        key_of = {variable.name: key for key, variable in names.items()}
        for variable in self._averaged:
            average = self._average.average(variable)
            pair = key_of.get(variable.name), key_of.get(average.name)
            if pair == (None, None):
                continue
            if None in pair:
                raise ValueError(
                    "`var_list` must contain variables together with their averages. "
                    f"Received only one of {variable.op.name!r} and "
                    f"{average.op.name!r}. Add the other, or leave both out."
                )
            names[pair[0]], names[pair[1]] = average, variable
        return tf.train.Saver(names, name=name, **kwargs)


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
        decay = self._decay() if callable(self._decay) else self._decay
        return tf.cast(decay, var.dtype.base_dtype)

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
