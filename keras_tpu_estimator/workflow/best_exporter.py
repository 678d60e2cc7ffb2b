"""The exporter of the best model so far."""

import contextlib
import glob
import json
import math
import os
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from keras_tpu_estimator.base.common.params import argument_names
from keras_tpu_estimator.base.common.shown import shown
from keras_tpu_estimator.base.storage import paths
from keras_tpu_estimator.base.storage.parsing import parsing
from keras_tpu_estimator.base.storage.paths import is_url
from keras_tpu_estimator.files.atomic import commit
from keras_tpu_estimator.files.summary.event_file import read_scalars
from keras_tpu_estimator.workflow.exporters import SavedModelExporter, exports_in

Compare = Callable[..., bool]

_BEST = "best_eval_result.json"
_STEP = "global_step"


def loss_smaller(
    best_eval_result: Mapping[str, Any], current_eval_result: Mapping[str, Any]
) -> bool:
    """Returns whether the current evaluation's loss is smaller than the best one; any
    number is smaller than NaN.
    """
    for name, result in (
        ("best_eval_result", best_eval_result),
        ("current_eval_result", current_eval_result),
    ):
        if not result or "loss" not in result:
            raise ValueError(
                f"`{name}` must have a 'loss'. Received: {result!r}. Pass a "
                "`compare_fn` that compares another metric."
            )
    best, current = best_eval_result["loss"], current_eval_result["loss"]
    if math.isnan(best):
        return not math.isnan(current)
    return bool(current < best)


class BestExporter(SavedModelExporter):
    """An exporter that exports the best model so far.

    The best result is stored in `<name>.best_eval_result.json`, beside the
    folder of the exports, so that a restarted process exports nothing worse. If
    exports exist but this file does not, the best result is read from the event
    files of earlier evaluations. The counterpart of
    `tf.estimator.BestExporter`.

    Args:
        name: The exporter's name. Its exports are in
            '<model_dir>/export/<name>'. Defaults to `'best_exporter'`.
        serving_input_receiver_fn: As in `LatestExporter`; required.
        event_file_pattern: Pattern of the event files of earlier evaluations,
            below `model_dir`; `None` for none. Defaults to those of evaluations
            without a name.
        compare_fn: Function of `best_eval_result` and `current_eval_result`,
            each a dict of metrics, which returns whether the latter is better.
            Defaults to `loss_smaller`.
        assets_extra: As in `LatestExporter`. Defaults to none.
        as_text: As in `LatestExporter`. Defaults to `False`.
        exports_to_keep: Number of exports to keep; `None` for all. Defaults to
            5.

    Raises:
        ValueError: No receiver function is given, `compare_fn` has other
            arguments, or `exports_to_keep` is not positive.
        TypeError: An argument has a wrong type.

    Example:

    >>> import keras_tpu_estimator as kte
    >>> def more_accurate(best_eval_result, current_eval_result):
    ...     best = best_eval_result["accuracy"]
    ...     return current_eval_result["accuracy"] > best
    >>> exporter = kte.BestExporter(
    ...     serving_input_receiver_fn=lambda: None, compare_fn=more_accurate)
    >>> exporter.name
    'best_exporter'
    """

    def __init__(
        self,
        name: str = "best_exporter",
        serving_input_receiver_fn: Callable[[], Any] | None = None,
        event_file_pattern: str | None = "eval/*.tfevents.*",
        compare_fn: Compare = loss_smaller,
        assets_extra: Mapping[str, str] | None = None,
        as_text: bool = False,
        exports_to_keep: int | None = 5,
    ):
        super().__init__(
            name,
            serving_input_receiver_fn,
            assets_extra,
            as_text,
            exports_to_keep,
        )
        _check_compare_fn(compare_fn)
        self._event_file_pattern = event_file_pattern
        self._compare_fn = compare_fn

    def export(
        self,
        estimator: Any,
        export_path: str,
        checkpoint_path: str,
        eval_result: Mapping[str, Any],
        is_the_final_export: bool,
    ) -> str | None:
        """Writes a SavedModel if the model is the best so far.

        Args:
            estimator: The `TPUEstimator`.
            export_path: The directory of the exports.
            checkpoint_path: The prefix of the checkpoint to export.
            eval_result: The result of `evaluate`.
            is_the_final_export: Whether `max_steps` have been made.

        Returns:
            The path of the new folder, or `None` if an earlier model is better.

        Raises:
            ValueError: `compare_fn` needs a missing metric, the file of the
                best result is corrupt, or as in `export_saved_model`.
            TypeError: As in `export_saved_model`.
            RuntimeError: As in `export_saved_model`.
        """
        current = _numbers(eval_result or {})
        best = self._best(estimator.model_dir, export_path, current)
        if best is not None and not self._is_better(best, eval_result):
            return None
        path = super().export(
            estimator,
            export_path,
            checkpoint_path,
            eval_result,
            is_the_final_export,
        )
        if current:
            _store(export_path, current)
        return path

    def _best(
        self, model_dir: str, export_path: str, current: Mapping[str, Any]
    ) -> Mapping[str, Any] | None:
        """Returns the best result so far, if an export exists."""
        stored = _load(export_path)
        if stored is not None or not exports_in(export_path):
            return stored
        best = None
        for result in self._earlier(model_dir, current):
            if best is None or self._is_better(best, result):
                best = result
        return best

    def _earlier(
        self, model_dir: str, current: Mapping[str, Any]
    ) -> list[Mapping[str, Any]]:
        """Returns results in event files, except that of this evaluation."""
        if self._event_file_pattern is None:
            return []
        pattern = os.path.join(glob.escape(model_dir), self._event_file_pattern)
        results = read_scalars(paths.matching(pattern))
        scalars = {name for name, x in current.items() if np.ndim(x) == 0}
        required = scalars - {_STEP}
        return [
            {**result, _STEP: step}
            for step, result in results.items()
            if step != current.get(_STEP) and result.keys() >= required
        ]

    def _is_better(self, best: Mapping[str, Any], current: Mapping[str, Any]) -> bool:
        return bool(
            self._compare_fn(best_eval_result=best, current_eval_result=current)
        )


def _check_compare_fn(compare_fn: Any) -> None:
    if compare_fn is None:
        raise ValueError(
            "`compare_fn` must be a function. Received: None. Leave it out "
            "to compare the losses."
        )
    expected = {"best_eval_result", "current_eval_result"}
    if not callable(compare_fn):
        raise TypeError(
            f"`compare_fn` must be a function of {sorted(expected)}. "
            f"Received: {shown(compare_fn)}. Leave it out to compare the "
            "losses."
        )
    arguments = {*argument_names(compare_fn)}
    if arguments != expected:
        raise ValueError(
            f"`compare_fn` must have the arguments {sorted(expected)}. "
            f"Received one of {sorted(arguments)}. Rename them."
        )


def _numbers(result: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the values that JSON supports: numbers, and arrays of them."""
    arrays = {name: np.asarray(value) for name, value in result.items()}
    return {
        name: array.tolist()
        for name, array in arrays.items()
        if array.dtype.kind in "biuf"
    }


def _load(export_path: str) -> dict[str, Any] | None:
    path = _kept_in(export_path)
    advice = (
        "Delete it; the next evaluation is then compared with those in the event files."
    )
    with (
        contextlib.suppress(FileNotFoundError),
        parsing(path, "be the best result as JSON", advice),
        paths.opened(path) as file,
    ):
        return {**json.load(file)}
    return None


def _kept_in(export_path: str) -> str:
    """Returns a path beside the folder, which must only contain exports because
    servers list it.
    """
    return f"{export_path.rstrip('/')}.{_BEST}"


def _store(export_path: str, best: Mapping[str, Any]) -> None:
    path = _kept_in(export_path)
    if not is_url(path):
        commit.remove_abandoned(os.path.dirname(path) or os.curdir)
    with commit.replacing(path) as partial:
        with open(partial, "w", encoding="utf-8") as file:
            json.dump(best, file, indent=2, sort_keys=True)
