"""What optimizers keep for each variable they update, by name."""

from collections.abc import Iterable

import keras

from keras_tpu_estimator.ground.base.shown import shown
from keras_tpu_estimator.ground.tracing import keras_internals
from keras_tpu_estimator.spec.optimizers.optax_optimizer import Optax

# Keras's and optax's names by those of the optimizers of `tf.compat.v1.train`.
_ORIGINALS = {
    "m": ("momentum", "mu"),
    "v": ("velocity", "norm", "nu"),
    "vhat": ("velocity_hat",),
    "rms": ("velocity",),
    "mg": ("average_gradient",),
    "accum": ("accumulator", "accumulated_grad"),
    "accum_update": ("accumulated_delta_var",),
}


def slot(
    optimizers: Iterable[keras.optimizers.Optimizer],
    variable: keras.Variable,
    name: str,
) -> keras.Variable | None:
    """What one of some optimizers keeps for a variable.

    Args:
        optimizers: The optimizers.
        variable: A variable that one of them updates.
        name: Keras's name, such as "velocity", or optax's, such as "nu", or
            that of the original, "v".

    Returns:
        The slot variable, or `None` if there is none.

    Raises:
        TypeError: `variable` is no variable.

    Example:

    >>> optimizer = keras.optimizers.Adam(name="adam")
    >>> kernel = keras.Variable(1.0, name="kernel")
    >>> optimizer.build([kernel])
    >>> slot([optimizer], kernel, "m").path
    'adam/kernel_momentum'
    """
    if not isinstance(variable, keras.Variable):
        raise TypeError(
            "A slot is of a keras.Variable. Received: "
            f"{shown(variable)}. Pass one of "
            "kte.trainable_variables()."
        )
    for optimizer in optimizers:
        made = {each.path: each for each in optimizer.variables}
        for own_name in (name, *_ORIGINALS.get(name, ())):
            path = _path(optimizer, variable, own_name)
            if path in made:
                return made[path]
    return None


def slot_names(
    optimizers: Iterable[keras.optimizers.Optimizer],
) -> list[str]:
    """The names under which optimizers keep something for each variable.

    Args:
        optimizers: The optimizers.

    Returns:
        Keras's names, sorted; none before the first update.

    Example:

    >>> optimizer = keras.optimizers.Adam()
    >>> optimizer.build([keras.Variable(1.0, name="kernel")])
    >>> slot_names([optimizer])
    ['momentum', 'velocity']
    """
    return sorted(
        {
            made.path.removeprefix(prefix).removesuffix(suffix)
            for optimizer in optimizers
            for updated in keras_internals.updated_variables(optimizer)
            for prefix, suffix in [_path(optimizer, updated, "\0").split("\0")]
            for made in optimizer.variables
            if made.path.startswith(prefix) and made.path.endswith(suffix)
        }
    )


def _path(
    optimizer: keras.optimizers.Optimizer, variable: keras.Variable, name: str
) -> str:
    """The path of what an optimizer keeps of a name for a variable."""
    if isinstance(optimizer, Optax):
        return optimizer.slot_path(variable, name)
    return f"{optimizer.name}/{variable.path.replace('/', '_')}_{name}"
