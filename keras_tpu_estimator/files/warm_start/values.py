"""Values of a model's variables from a checkpoint of another model."""

import dataclasses
import logging
from collections.abc import Mapping, Sequence

import numpy as np

from keras_tpu_estimator.base.common.pickling import reduce_error
from keras_tpu_estimator.base.common.shown import shortened
from keras_tpu_estimator.files.formats.loading import load_checkpoint
from keras_tpu_estimator.files.formats.reader import CheckpointReader
from keras_tpu_estimator.files.warm_start.optimizer_state import counterparts
from keras_tpu_estimator.files.warm_start.pairing import (
    Described,
    Pairing,
    WarmStartReport,
    pairings,
    read_values,
)
from keras_tpu_estimator.files.warm_start.settings import VocabInfo, WarmStartSettings

_logger = logging.getLogger("keras_tpu_estimator")


class WarmStartError(ValueError):
    """A checkpoint lacks selected variables, or has them in other shapes.

    Args:
        report: The comparison of the model with the checkpoint.

    Attributes:
        report: The comparison.
    """

    __reduce__ = reduce_error

    def __init__(self, report: WarmStartReport):
        super().__init__(
            "All variables that `vars_to_warm_start` selects must be in the "
            "checkpoint, with the model's shapes. Select others, or pass "
            "their names in the checkpoint as "
            f"`var_name_to_prev_var_name`.\n{report}"
        )
        self.report = report


def compare(
    settings: WarmStartSettings,
    variables: Mapping[str, Described],
    reader: CheckpointReader,
    rates: Mapping[str, float] | None = None,
) -> WarmStartReport:
    """Compares all variables of a model with a checkpoint, without reading values.

    `rates` are the model's constant learning rates by path.
    """
    selected = settings.select(variables)
    previous = settings.var_name_to_prev_var_name or {}
    names = {path: previous.get(path, path) for path in selected}
    in_checkpoint = reader.by_any_name()
    renamed = counterparts(names, variables, in_checkpoint, rates or {})
    names |= {path: name for path, (name, _) in renamed.items()}
    pairs = [
        dataclasses.replace(pair, factor=renamed.get(pair.path, (None, 1.0))[1])
        for pair in pairings(names, variables, in_checkpoint)
    ]
    stored = [pair for pair in pairs if pair.stored_shape is not None]
    remapped = settings.var_name_to_vocab_info or {}
    matched = [pair for pair in stored if pair.fits or pair.path in remapped]
    used = {reader.listed_name(pair.name) for pair in stored}
    return WarmStartReport(
        checkpoint=reader.path,
        matched=tuple(matched),
        missing=tuple(pair for pair in pairs if pair.stored_shape is None),
        mismatched=tuple(pair for pair in stored if pair not in matched),
        unselected=tuple(path for path in variables if path not in names),
        unused=tuple(
            name for name in reader.get_variable_to_shape_map() if name not in used
        ),
    )


def warm_start_values(
    settings: WarmStartSettings, variables: Mapping[str, Described]
) -> tuple[dict[str, np.ndarray], WarmStartReport]:
    """Reads the values that variables start from.

    Args:
        settings: The selected variables, and their names in the checkpoint.
        variables: All variables of the model by path. Each must have a shape
            and a dtype, and an attribute `trainable` if it is false.

    Returns:
        Values by path, with the variables' shapes and dtypes, and a report.

    Raises:
        WarmStartError: The checkpoint lacks a variable, or has it in another
            shape. This is a `ValueError` with the report.
        ValueError: The checkpoint does not exist or is corrupt, a vocabulary
            does not match its variable, or the settings name unknown variables.

    Example:

    >>> import tempfile
    >>> import numpy as np
    >>> import keras_tpu_estimator as kte
    >>> prefix = kte.checkpoints.save(tempfile.mkdtemp(), 20, {"b": [1.0]})
    >>> values, report = kte.checkpoints.warm_start_values(
    ...     kte.WarmStartSettings(prefix), {"b": np.zeros(1, "float32")})
    >>> values
    {'b': array([1.], dtype=float32)}

    Reference: `tf.compat.v1.train.warm_start`.
    """
    reader, report = compared(settings, variables)
    return values_of(settings, variables, reader, report.matched), report


def compared(
    settings: WarmStartSettings,
    variables: Mapping[str, Described],
    rates: Mapping[str, float] | None = None,
) -> tuple[CheckpointReader, WarmStartReport]:
    """Opens the checkpoint, or raises `WarmStartError` if selected variables differ."""
    reader = load_checkpoint(settings.ckpt_to_initialize_from)
    report = compare(settings, variables, reader, rates)
    if not report.is_complete:
        raise WarmStartError(report)
    if not report.matched:
        _logger.warning(
            "No variable starts from %r, because `vars_to_warm_start=%r` "
            "selects none of %s. Select variables of the model.",
            reader.path,
            settings.vars_to_warm_start,
            shortened(str(sorted(variables))),
        )
    return reader, report


def values_of(
    settings: WarmStartSettings,
    variables: Mapping[str, Described],
    reader: CheckpointReader,
    pairs: Sequence[Pairing],
) -> dict[str, np.ndarray]:
    """Reads the values of some variables, and maps those with a vocabulary."""
    values = read_values(reader, pairs, variables)
    remapped = settings.var_name_to_vocab_info or {}
    for pair in pairs:
        info = remapped.get(pair.path)
        if info is not None:
            values[pair.path] = _remap(info, values[pair.path], pair)
    return values


def _remap(info: VocabInfo, old: np.ndarray, pair: Pairing) -> np.ndarray:
    try:
        return info.remap(old, pair.shape, old.dtype)
    except ValueError as error:
        raise ValueError(
            f"The VocabInfo of the variable {pair.path!r} must match it: {error}"
        ) from error
