"""Which variable each slot of an optimizer is about."""

from collections.abc import Mapping

import keras

from keras_tpu_estimator.ground.tracing.variable_classes import SlotVariable


def slot_owners(variables: Mapping[str, keras.Variable]) -> dict[str, str]:
    """The paths of variables by those of what is kept for each of them.

    That is what says so, as the state of optax does, and what has its shape and
    is named after it: as Keras does, `adam/dense_kernel_momentum`, or as TF1
    does, `dense/kernel/Adam`.

    Args:
        variables: All variables by path.

    Example:

    >>> import keras
    >>> kernel = keras.Variable(1.0, name="kernel")
    >>> adam = keras.optimizers.Adam(name="adam")
    >>> adam.build([kernel])
    >>> made = {each.path: each for each in (kernel, *adam.variables)}
    >>> slot_owners(made)
    {'adam/kernel_momentum': 'kernel', 'adam/kernel_velocity': 'kernel'}
    """
    by_name: dict[str, str] = {}
    for path in variables:
        by_name[path] = by_name[path.replace("/", "_")] = path
    owners = {}
    for path, variable in variables.items():
        if isinstance(variable, SlotVariable):
            if variable.owner is not None:
                owners[path] = variable.owner
            continue
        for name in _prefixes(path):
            owner = by_name.get(name)
            if owner not in (None, path) and (variables[owner].shape == variable.shape):
                owners[path] = owner
                break
    return owners


def _prefixes(path: str) -> list[str]:
    """What a slot's path may start with, the longest first."""
    folder, _, last = path.rpartition("/")
    words = last.split("_")
    keras_names = ["_".join(words[:n]) for n in range(len(words) - 1, 0, -1)]
    parts = folder.split("/")
    tf1_names = ["/".join(parts[:n]) for n in range(len(parts), 0, -1)]
    return [*tf1_names, *keras_names]
