"""Whether a checkpoint has what a model wants of it."""

import re
from collections import Counter
from collections.abc import Iterable, Mapping

from keras_tpu_estimator.engine.program.store import VariableStore
from keras_tpu_estimator.files.formats.loading import load_checkpoint
from keras_tpu_estimator.files.formats.reader import CheckpointReader
from keras_tpu_estimator.files.warm_start.pairing import Described


def check_fits(
    store: VariableStore,
    checkpoint: str,
    wanted: set[str],
    required: Iterable[str],
) -> None:
    """Checks that a checkpoint has some variables; reads none of them.

    Args:
        store: The variables.
        checkpoint: The checkpoint's prefix.
        wanted: Paths of those whose values are wanted, if they are there.
        required: Paths of those that have to be there.

    Raises:
        ValueError: It lacks a variable, or has it in another shape.
    """
    reader = load_checkpoint(checkpoint)
    described(store, reader, names_of(store, reader, wanted, required))


def names_of(
    store: VariableStore,
    reader: CheckpointReader,
    wanted: set[str],
    required: Iterable[str],
) -> dict[str, str]:
    """The names to read from a checkpoint, by path: weights first."""
    there = reader.get_variable_to_shape_map().keys()
    saved = set(store.saved_paths())
    # A learning rate is there only if a callback has set it.
    paths = wanted & saved & ({*required} | there)
    paths |= wanted & there & store.constants
    # A weight of another shape is the reason why its slots have another one.
    ordered = sorted(paths, key=lambda path: (path in store.slots, path))
    return {path: path for path in ordered}


def described(
    store: VariableStore, reader: CheckpointReader, names: Mapping[str, str]
) -> Mapping[str, Described]:
    """What a checkpoint has by name; checks what is wanted of it.

    Args:
        store: The variables.
        reader: The checkpoint.
        names: Names in it, by the paths of the variables.

    Raises:
        ValueError: The checkpoint lacks a variable, or has it in another
            shape.
    """
    there = reader.by_any_name()
    missing = [name for name in names.values() if name not in there]
    if missing:
        raise ValueError(
            f"The checkpoint {reader.path!r} does not fit the model: "
            f"{reader.explain_missing(missing)} "
            f"{_advice(missing, there.keys() - names.values())}"
        )
    given = f" model_fn was given {store.inputs}." if store.inputs else ""
    for path, name in names.items():
        expected = tuple(store.variables[path].shape)
        if there[name].shape != expected:
            raise ValueError(
                f"The variable {path!r} has shape "
                f"{expected} in model_fn, but "
                f"{there[name].shape} in the checkpoint {reader.path!r}. "
                "Restore the layer's size, or start in another model_dir."
                f"{given}"
            )
    return there


def _advice(missing: Iterable[str], unused: Iterable[str]) -> str:
    """What to do about variables that a checkpoint lacks.

    Args:
        missing: Their names.
        unused: The names of what else it has.
    """
    if _counted(missing) <= _counted(unused):
        return (
            "It has all of them under other counts, as Keras counts the names "
            "that it gives in a process. Give the model and its layers a "
            "`name`, or call keras.utils.clear_session() before they are made."
        )
    return "Restore the layer's name, or start in another model_dir."


def _counted(names: Iterable[str]) -> Counter[str]:
    """How many names there are that differ in their counts alone.

    Example:

    >>> _counted(["dense_1/kernel", "adam/dense_2_kernel_velocity"])
    Counter({'dense/kernel': 1, 'adam/dense_kernel_velocity': 1})
    """
    return Counter(re.sub(r"_[0-9]+(?=[/_]|$)", "", name) for name in names)
