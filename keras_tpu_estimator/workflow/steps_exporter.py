"""The exporter of `tf.contrib.estimator` that exports at steps of a list."""

import glob
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from keras_tpu_estimator.base.storage import paths
from keras_tpu_estimator.files.summary.event_file import read_scalars
from keras_tpu_estimator.workflow.exporters import SavedModelExporter

_STEP = "global_step"


class StepsExporter(SavedModelExporter):
    """An exporter of the first evaluated model at or after each step of a list.

    Args:
        steps_to_keep: The steps. At least one is a positive integer; others have no
            effect.
        name: The exporter's name. Defaults to `'steps_exporter'`.
        serving_input_receiver_fn: As in `LatestExporter`; required.
        event_file_pattern: Pattern of the event files of earlier evaluations, below
            `model_dir`; a restarted program exports no step again that they contain.
            `None` for none.
        assets_extra: As in `LatestExporter`. Defaults to none.
        as_text: As in `LatestExporter`. Defaults to `False`.

    Raises:
        ValueError: `steps_to_keep` contains no positive integer, or as in
            `LatestExporter`.
        TypeError: As in `LatestExporter`.

    Example:

    >>> exporter = StepsExporter([100, 200], serving_input_receiver_fn=lambda: None)
    >>> exporter.name
    'steps_exporter'
    """

    def __init__(
        self,
        steps_to_keep: Sequence[int],
        name: str = "steps_exporter",
        serving_input_receiver_fn: Callable[[], Any] | None = None,
        event_file_pattern: str | None = "eval/*.tfevents.*",
        assets_extra: Mapping[str, str] | None = None,
        as_text: bool = False,
    ):
        super().__init__(name, serving_input_receiver_fn, assets_extra, as_text)
        self._due = sorted(x for x in steps_to_keep if isinstance(x, int) and x > 0)
        if not self._due:
            raise ValueError(
                "`steps_to_keep` must contain a positive integer. Received: "
                f"{[*steps_to_keep]}. Add the step of an export."
            )
        self._event_file_pattern = event_file_pattern
        self._read_dir: str | None = None

    def export(
        self,
        estimator: Any,
        export_path: str,
        checkpoint_path: str,
        eval_result: Mapping[str, Any],
        is_the_final_export: bool,
    ) -> str | None:
        """Writes a SavedModel if a step of the list is reached.

        Args:
            estimator: The `TPUEstimator`.
            export_path: The directory of the exports.
            checkpoint_path: The prefix of the checkpoint to export.
            eval_result: The result of `evaluate`.
            is_the_final_export: Whether `max_steps` have been made.

        Returns:
            The path of the new folder, or `None` if no step is reached.

        Raises:
            ValueError: The result contains no step, or as in `export_saved_model`.
            TypeError: As in `export_saved_model`.
            RuntimeError: As in `export_saved_model`.
        """
        if not eval_result or _STEP not in eval_result:
            raise ValueError(
                f"`eval_result` must contain {_STEP!r}. Received: {eval_result!r}. "
                "Pass the result of `evaluate`."
            )
        step = int(eval_result[_STEP])
        if self._read_dir != estimator.model_dir:
            self._read_dir = estimator.model_dir
            self._due = [x for x in self._due if x > self._last(step)]
        remaining = [x for x in self._due if x > step]
        if remaining == self._due:
            return None
        path = super().export(
            estimator, export_path, checkpoint_path, eval_result, is_the_final_export
        )
        self._due = remaining
        return path

    def _last(self, step: int) -> int:
        """Returns the last step that was evaluated before this one."""
        if self._event_file_pattern is None or self._read_dir is None:
            return 0
        folder = glob.escape(os.fspath(self._read_dir))
        files = paths.matching(os.path.join(folder, self._event_file_pattern))
        return max((x for x in read_scalars(files) if x < step), default=0)
