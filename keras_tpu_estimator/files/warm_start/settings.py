"""Settings that select the variables that start from a checkpoint."""

import dataclasses
import os
import re
from collections.abc import Mapping, Sequence
from typing import Any

from keras_tpu_estimator.base.common.shown import shown
from keras_tpu_estimator.base.common.types import CheckpointLike
from keras_tpu_estimator.files.warm_start.pairing import Described, HasPath
from keras_tpu_estimator.files.warm_start.vocabulary import VocabInfo

_TENSOR = ":0"


@dataclasses.dataclass(frozen=True)
class WarmStartSettings:
    """Selects the variables that start from a checkpoint.

    Args:
        ckpt_to_initialize_from: Any checkpoint that `load_checkpoint` reads: a
            prefix or a directory of checkpoints, of this package or of
            TensorFlow, a SavedModel, a '.weights.h5', '.keras' or
            '.safetensors' file, an Orbax directory, or a dict of arrays, which
            may be nested.
        vars_to_warm_start: A regular expression that selects trainable
            variables by the beginning of their paths; or a list of these, which
            select from all variables; or a list of variables; or None, for only
            those of `var_name_to_vocab_info`. Defaults to '.*', for all
            trainable variables.
        var_name_to_vocab_info: A dict from paths of variables to their
            `VocabInfo`, or to TensorFlow's. Defaults to None, for none.
        var_name_to_prev_var_name: A dict from paths of variables to names in
            the checkpoint, where these differ. Defaults to None, for none.

    Raises:
        ValueError: The path or dict is empty, or `vars_to_warm_start` is
            invalid.
        TypeError: An argument has a wrong type.

    Example:

    >>> import keras_tpu_estimator as kte
    >>> settings = kte.WarmStartSettings(
    ...     "/models/bert.ckpt", vars_to_warm_start="bert/",
    ...     var_name_to_prev_var_name={"bert/dense/kernel": "bert/fc/kernel"})
    >>> settings.vars_to_warm_start
    'bert/'

    Reference: `tf.estimator.WarmStartSettings`.
    """

    ckpt_to_initialize_from: CheckpointLike
    vars_to_warm_start: str | Sequence[str | HasPath] | None = ".*"
    var_name_to_vocab_info: Mapping[str, VocabInfo] | None = None
    var_name_to_prev_var_name: Mapping[str, str] | None = None

    def __post_init__(self) -> None:
        path = self.ckpt_to_initialize_from
        if not path:
            raise ValueError(
                "`ckpt_to_initialize_from` must be a checkpoint. Received: "
                f"{path!r}. Pass a prefix, a directory, a file or a dict."
            )
        if not isinstance(path, str | bytes | os.PathLike | Mapping):
            raise TypeError(
                "`ckpt_to_initialize_from` must be a path, or a dict of "
                f"arrays. Received: {path!r} of type {type(path).__name__}."
            )
        if isinstance(path, Mapping):
            _check_arrays(path)
        _check_selection(self.vars_to_warm_start)
        for field, kind in (
            ("var_name_to_vocab_info", VocabInfo),
            ("var_name_to_prev_var_name", str),
        ):
            # These are copies, so that the checked values cannot change.
            checked = _by_path(field, getattr(self, field), kind)
            object.__setattr__(self, field, checked)
        if isinstance(self.vars_to_warm_start, list):
            selection = tuple(self.vars_to_warm_start)
            object.__setattr__(self, "vars_to_warm_start", selection)

    def select(self, variables: Mapping[str, Described]) -> list[str]:
        """Returns the variables that start from the checkpoint.

        Args:
            variables: All variables of the model by path. A variable is
                trainable unless its attribute `trainable` is false.

        Returns:
            Their paths, in the order of `variables`.

        Raises:
            ValueError: `var_name_to_vocab_info` or `var_name_to_prev_var_name`
                names a variable that is not selected.
        """
        wanted = self.vars_to_warm_start
        if wanted is None or isinstance(wanted, str):
            paths = [
                path
                for path, variable in variables.items()
                if getattr(variable, "trainable", True) and _matches(path, wanted or "")
            ]
        else:
            paths = [path for path in variables if _is_among(path, wanted)]
        for field in ("var_name_to_prev_var_name", "var_name_to_vocab_info"):
            unknown = sorted(getattr(self, field).keys() - set(paths))
            if unknown:
                raise ValueError(
                    f"`{field}` must name variables that `vars_to_warm_start` "
                    f"selects. Received others: {unknown}. It selects "
                    f"{paths}. Correct the names, or select them."
                )
        if wanted:
            return paths
        return [p for p in paths if p in (self.var_name_to_vocab_info or {})]


def _check_arrays(values: Mapping[Any, Any]) -> None:
    for name, value in values.items():
        if isinstance(value, Mapping):
            _check_arrays(value)
        elif isinstance(value, str | bytes) or value is None:
            raise TypeError(
                "`ckpt_to_initialize_from` must be a path, or a dict of "
                f"arrays. Received for {name!r}: {shown(value)}. Pass names "
                "of variables as `var_name_to_prev_var_name`."
            )


def _check_selection(wanted: object) -> None:
    if wanted is None:
        return
    if isinstance(wanted, str):
        patterns = [wanted]
    elif isinstance(wanted, list | tuple):
        patterns = [one for one in wanted if isinstance(one, str)]
        are_variables = all(map(_path_of, wanted))
        if len(patterns) != len(wanted) and not are_variables:
            raise ValueError(
                "`vars_to_warm_start` must be a list of only strings, or of "
                f"only variables. Received: {wanted!r}. Pass the variables' "
                "paths, all as strings."
            )
    else:
        raise ValueError(
            "`vars_to_warm_start` must be a string, a list or None. Received: "
            f"{wanted!r} of type {type(wanted).__name__}. Pass a regular "
            "expression such as '.*'."
        )
    for pattern in patterns:
        try:
            re.compile(pattern)
        except re.error as error:
            raise ValueError(
                f"{pattern!r} in `vars_to_warm_start` must be a regular "
                f"expression ({error}). Escape special characters with a "
                "backslash."
            ) from error


def _by_path(field: str, given: object, kind: type) -> dict[str, Any]:
    if given is None:
        return {}
    wanted = {}
    if isinstance(given, Mapping):
        wanted = {path: VocabInfo.of(one) for path, one in given.items()}
    if not isinstance(given, Mapping) or not all(
        isinstance(path, str) and isinstance(value, kind)
        for path, value in wanted.items()
    ):
        raise TypeError(
            f"`{field}` must be a dict from paths of variables to "
            f"{kind.__name__}. Received: {given!r}."
        )
    return {_named(path): _named(one) for path, one in wanted.items()}


def _named(name: Any) -> Any:
    return name.removesuffix(_TENSOR) if isinstance(name, str) else name


def _is_among(path: str, wanted: Sequence[object]) -> bool:
    return any(
        _matches(path, one) if isinstance(one, str) else path == _path_of(one)
        for one in wanted
    )


def _matches(path: str, pattern: str) -> bool:
    # In a graph the names ended with ':0', and so do the patterns of some
    # scripts.
    return any(re.match(pattern, name) for name in (path, path + _TENSOR))


def _path_of(variable: object) -> str | None:
    path = getattr(variable, "path", None)
    return path if isinstance(path, str) else None
