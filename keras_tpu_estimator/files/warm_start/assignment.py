"""Resolution of the `assignment_map` of `init_from_checkpoint`."""

import difflib
from collections.abc import Iterable, Mapping, Sequence

from keras_tpu_estimator.files.formats.reader import CheckpointReader
from keras_tpu_estimator.files.warm_start.optimizer_state import counterparts
from keras_tpu_estimator.files.warm_start.pairing import (
    Described,
    HasPath,
    Pairing,
    pairings,
)

_ROOT = "/"
_TENSOR = ":0"

_Target = str | HasPath | Sequence[str | HasPath]
AssignmentMap = Mapping[str, _Target] | Iterable[tuple[str, _Target]]


def resolve_assignments(
    assignment_map: AssignmentMap,
    variables: Mapping[str, Described],
    reader: CheckpointReader,
) -> dict[str, str]:
    """Resolves an assignment map to pairs of variables.

    | from, in the checkpoint | to, in the model | |
    |---|---|---|
    | `"scope/"` | `"other/"` | all variables under `other/` |
    | `"/"` | `"other/"` | the same, from names without a scope |
    | `"scope/"` or `"/"` | `"/"` | all variables of the model |
    | `"name"` | `"path"` or a variable | one variable |

    Args:
        assignment_map: Dict, or pairs, from names or scopes in the checkpoint
            to paths, scopes or variables of the model. Names and paths may end
            with ':0'. If two entries assign to one variable, the one with the
            alphabetically later name counts.
        variables: The variables of the model that scopes can match, by path.
            Each must have a shape.
        reader: The checkpoint.

    Returns:
        Names in the checkpoint by paths of variables.

    Raises:
        ValueError: A variable or scope of the map does not exist in the model,
            a name does not exist in the checkpoint, or the shapes differ.
        TypeError: The map, a name, or a target has a wrong type.

    Example:

    >>> import tempfile
    >>> import numpy as np
    >>> import keras_tpu_estimator as kte
    >>> prefix = kte.checkpoints.save(
    ...     tempfile.mkdtemp(), 0, {"bert/dense/bias": np.zeros(2)})
    >>> resolve_assignments(
    ...     {"bert/": "encoder/"}, {"encoder/dense/bias": np.zeros(2)},
    ...     kte.load_checkpoint(prefix))
    {'encoder/dense/bias': 'bert/dense/bias'}

    Reference: `tf.compat.v1.train.init_from_checkpoint`.
    """
    names: dict[str, str] = {}
    for name, path in sorted(_checked(assignment_map)):
        if path in variables:
            names[path] = name
        else:
            names |= _within_scope(name, path, variables)
    stored = reader.by_any_name()
    renamed = counterparts(names, variables, stored, {})
    names |= {path: name for path, (name, _) in renamed.items()}
    pairs = pairings(names, variables, stored)
    _check_found(pairs, reader)
    _check_shapes(pairs, reader)
    return names


def _checked(assignment_map: AssignmentMap) -> list[tuple[str, str]]:
    """Returns names and paths as strings without ':0'."""
    if isinstance(assignment_map, Mapping):
        assignment_map = assignment_map.items()
    try:
        pairs = [(name, target) for name, target in assignment_map]
    except (TypeError, ValueError) as error:
        raise TypeError(
            "`assignment_map` must be a dict, or a list of pairs. Received: "
            f"{assignment_map!r}. Pass a dict such as {{'scope/': 'scope/'}}."
        ) from error
    return [
        (_name(name).removesuffix(_TENSOR), _path(target).removesuffix(_TENSOR))
        for name, target in pairs
    ]


def _name(name: object) -> str:
    if isinstance(name, str):
        return name
    raise TypeError(
        "`assignment_map` must map names in the checkpoint. Received: "
        f"{name!r} of type {type(name).__name__}. Pass a string such as "
        "'dense/kernel' or 'scope/'."
    )


def _path(target: object) -> str:
    if isinstance(target, list | tuple) and len(target) == 1:
        # Scripts for partitioned variables pass a list.
        target = target[0]
    path = getattr(target, "path", target)
    if isinstance(path, str):
        return path
    raise TypeError(
        "`assignment_map` must map to variables or their paths. Received: "
        f"{target!r} of type {type(target).__name__}. Pass a keras.Variable, "
        "or a string such as 'dense/kernel' or 'scope/'."
    )


def _within_scope(
    name: str, scope: str, variables: Mapping[str, Described]
) -> dict[str, str]:
    if not name.endswith(_ROOT) or not scope.endswith(_ROOT):
        raise ValueError(
            f"The variable {scope!r}, to which {name!r} of the checkpoint is "
            "assigned, does not exist in the model. "
            f"{_near(scope, variables)} To assign all variables of a scope, "
            f"end both names with a slash, as in {{'scope/': 'other_scope/'}}."
        )
    below = scope.removeprefix(_ROOT)
    above = name.removeprefix(_ROOT)
    paths = [path for path in variables if path.startswith(below)]
    if not paths:
        raise ValueError(
            f"The scope {scope!r} of the model, to which {name!r} of the "
            "checkpoint is assigned, has no variables. "
            f"{_near(scope, variables)}"
        )
    return {path: above + path.removeprefix(below) for path in paths}


def _near(path: str, variables: Mapping[str, Described]) -> str:
    if not variables:
        return "The model has no variables yet: create layers first."
    near = difflib.get_close_matches(path, variables, n=5, cutoff=0.0)
    return (
        f"The model has {len(variables)} variables, such as "
        f"{', '.join(map(repr, near))}."
    )


def _check_found(pairs: list[Pairing], reader: CheckpointReader) -> None:
    missing = [pair for pair in pairs if pair.stored_shape is None]
    if missing:
        raise ValueError(
            f"{reader.explain_missing([pair.name for pair in missing])} The "
            "assignment map assigns the first one to the variable "
            f"{missing[0].path!r} of the model. Assign only existing "
            "variables, for example by pairs of names."
        )


def _check_shapes(pairs: list[Pairing], reader: CheckpointReader) -> None:
    wrong = [str(pair) for pair in pairs if not pair.fits]
    if wrong:
        raise ValueError(
            "A variable must have the same shape in the model as in the "
            f"checkpoint {reader.path!r}. Received: {'; '.join(wrong)}. "
            "Change the layer's size, or leave the variable out of the "
            "assignment map."
        )
