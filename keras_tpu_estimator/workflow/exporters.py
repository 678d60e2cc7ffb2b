"""Exporters that write SavedModels after each evaluation, or the last one."""

import abc
import os
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from keras_tpu_estimator.base.common.field_checks import check_int
from keras_tpu_estimator.base.common.shown import shown
from keras_tpu_estimator.base.storage import paths, shared_files


class Exporter(abc.ABC):
    """An exporter, which decides after each evaluation whether to export.

    The counterpart of `tf.estimator.Exporter`. Derive from it for a custom
    rule, and pass it to `EvalSpec`.

    Example:

    >>> import keras_tpu_estimator as kte
    >>> class Log(kte.Exporter):
    ...     name = "log"
    ...
    ...     def export(self, estimator, export_path, checkpoint_path,
    ...                eval_result, is_the_final_export):
    ...         print(checkpoint_path, eval_result["loss"])
    >>> spec = kte.EvalSpec(lambda params: [], exporters=Log())
    """

    @property
    @abc.abstractmethod
    def name(self) -> str:
        """The name of this exporter and of its directory."""

    @abc.abstractmethod
    def export(
        self,
        estimator: Any,
        export_path: str,
        checkpoint_path: str,
        eval_result: Mapping[str, Any],
        is_the_final_export: bool,
    ) -> str | None:
        """Exports the model, or returns `None`.

        Args:
            estimator: The `TPUEstimator`.
            export_path: This exporter's directory, which need not exist.
            checkpoint_path: The prefix of the checkpoint that was evaluated.
            eval_result: The result of `evaluate`.
            is_the_final_export: Whether `max_steps` have been made.

        Returns:
            The path of the export, or `None`.
        """


def validate_exporters(
    exporters: Exporter | Iterable[Exporter] | None,
) -> tuple[Exporter, ...]:
    """Returns exporters as a tuple."""
    if isinstance(exporters, Exporter):
        exporters = (exporters,)
    if not isinstance(exporters, Iterable | None):
        raise _wrong_type(exporters)
    checked = tuple(exporters or ())
    for exporter in checked:
        if not isinstance(exporter, Exporter):
            raise _wrong_type(exporter)
        _check_name(exporter)
    check_distinct(checked)
    return checked


def check_distinct(exporters: Iterable[Exporter]) -> None:
    """Checks that exporters have separate directories."""
    names: set[str] = set()
    for exporter in exporters:
        if exporter.name in names:
            raise ValueError(
                "Each exporter must have a different name, because it is "
                f"that of its directory. Received twice: {exporter.name!r}. "
                "Pass another `name` to one of them."
            )
        names.add(exporter.name)


def _check_name(exporter: Exporter) -> None:
    name = exporter.name
    if not isinstance(name, str) or not name:
        raise ValueError(
            "The name of an exporter must be a valid name of a directory. "
            f"Received: {name!r} of {exporter!r}. Pass a string such as "
            "'latest'."
        )


def _wrong_type(value: Any) -> TypeError:
    return TypeError(
        "`exporters` must be an Exporter or a list of them. Received: "
        f"{shown(value)}. Derive it from keras_tpu_estimator.Exporter."
    )


# Only folders that `export_saved_model` named by the time are deleted.
_STAMP = re.compile(r"[0-9]{10}")


class SavedModelExporter(Exporter):
    """The base class of exporters of SavedModels.

    Args:
        name: The exporter's name.
        serving_input_receiver_fn: As in `export_saved_model`.
        assets_extra: As in `export_saved_model`. Defaults to none.
        as_text: As in `export_saved_model`. Defaults to `False`.
        exports_to_keep: Number of exports to keep. Defaults to `None`, for all.

    Raises:
        ValueError: No receiver function is given, or `exports_to_keep` is not
            positive.
        TypeError: An argument has a wrong type.
    """

    def __init__(
        self,
        name: str,
        serving_input_receiver_fn: Callable[[], Any] | None,
        assets_extra: Mapping[str, str] | None = None,
        as_text: bool = False,
        exports_to_keep: int | None = None,
    ):
        receiver_fn = _checked(serving_input_receiver_fn)
        paths.check_name("`name`", name)
        if exports_to_keep is not None:
            check_int("exports_to_keep", exports_to_keep, minimum=1)
        self._name = name
        self._receiver_fn = receiver_fn
        self._assets_extra = assets_extra
        self._as_text = as_text
        self._exports_to_keep = exports_to_keep

    @property
    def name(self) -> str:
        """The name of this exporter and of its directory."""
        return self._name

    def export(
        self,
        estimator: Any,
        export_path: str,
        checkpoint_path: str,
        eval_result: Mapping[str, Any],
        is_the_final_export: bool,
    ) -> str | None:
        """Writes a SavedModel, and deletes the oldest ones.

        Args:
            estimator: The `TPUEstimator`.
            export_path: The directory of the exports.
            checkpoint_path: The prefix of the checkpoint to export.
            eval_result: The result of `evaluate`.
            is_the_final_export: Whether `max_steps` have been made.

        Returns:
            The path of the new folder.

        Raises:
            ValueError: As in `export_saved_model`.
            TypeError: As in `export_saved_model`.
            RuntimeError: As in `export_saved_model`.
        """
        del eval_result, is_the_final_export
        paths.check_folder_name("`name`", export_path)
        path = estimator.export_saved_model(
            export_path,
            self._receiver_fn,
            assets_extra=self._assets_extra,
            as_text=self._as_text,
            checkpoint_path=checkpoint_path,
        )
        self._delete_oldest(export_path)
        return path

    def _delete_oldest(self, export_path: str) -> None:
        if self._exports_to_keep is None:
            return
        for name in exports_in(export_path)[: -self._exports_to_keep]:
            path = os.path.join(export_path, name)
            with shared_files.left_if_in_use(path):
                paths.remove(path)


class LatestExporter(SavedModelExporter):
    """An exporter that keeps the newest exports.

    The counterpart of `tf.estimator.LatestExporter`.

    Args:
        name: The exporter's name. Its exports are in
            '<model_dir>/export/<name>'.
        serving_input_receiver_fn: Function without arguments that returns a
            receiver, as in `TPUEstimator.export_saved_model`.
        assets_extra: Dict from paths below 'assets.extra' in the export to
            source files. Defaults to none.
        as_text: Whether graphs are written as text. Defaults to `False`.
        exports_to_keep: Number of exports to keep; `None` for all. Defaults to
            5.

    Raises:
        ValueError: No receiver function is given, or `exports_to_keep` is not
            positive.
        TypeError: An argument has a wrong type.

    Example:

    >>> import keras_tpu_estimator as kte
    >>> exporter = kte.LatestExporter("latest", lambda: None)
    >>> exporter.name
    'latest'
    """

    def __init__(
        self,
        name: str,
        serving_input_receiver_fn: Callable[[], Any],
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


class FinalExporter(SavedModelExporter):
    """An exporter that exports once, after the evaluation at `max_steps`.

    If training ends earlier, by a hook or at the end of its input, nothing is
    exported. The counterpart of `tf.estimator.FinalExporter`.

    Args:
        name: The exporter's name. Its export is in
            '<model_dir>/export/<name>'.
        serving_input_receiver_fn: As in `LatestExporter`.
        assets_extra: As in `LatestExporter`. Defaults to none.
        as_text: As in `LatestExporter`. Defaults to `False`.

    Raises:
        ValueError: No receiver function is given.
        TypeError: An argument has a wrong type.

    Example:

    >>> import keras_tpu_estimator as kte
    >>> exporter = kte.FinalExporter("final", lambda: None)
    >>> exporter.name
    'final'
    """

    def __init__(
        self,
        name: str,
        serving_input_receiver_fn: Callable[[], Any],
        assets_extra: Mapping[str, str] | None = None,
        as_text: bool = False,
    ):
        super().__init__(name, serving_input_receiver_fn, assets_extra, as_text)

    def export(
        self,
        estimator: Any,
        export_path: str,
        checkpoint_path: str,
        eval_result: Mapping[str, Any],
        is_the_final_export: bool,
    ) -> str | None:
        """Writes a SavedModel if all steps have been made.

        Args:
            estimator: The `TPUEstimator`.
            export_path: The directory of the export.
            checkpoint_path: The prefix of the checkpoint to export.
            eval_result: The result of `evaluate`.
            is_the_final_export: Whether `max_steps` have been made.

        Returns:
            The path of the new folder, or `None` before the end.

        Raises:
            ValueError: As in `export_saved_model`.
            TypeError: As in `export_saved_model`.
            RuntimeError: As in `export_saved_model`.
        """
        if not is_the_final_export:
            return None
        return super().export(
            estimator,
            export_path,
            checkpoint_path,
            eval_result,
            is_the_final_export,
        )


def exports_in(export_path: str) -> list[str]:
    """Returns the names of the exports in a directory, oldest first."""
    if not paths.is_directory(export_path):
        return []
    return sorted(
        name
        for name in paths.names_in(export_path)
        if _STAMP.fullmatch(name)
        and paths.is_directory(os.path.join(export_path, name))
    )


def _checked(receiver_fn: object) -> Callable[..., object]:
    if receiver_fn is None:
        raise ValueError(
            "An exporter needs a `serving_input_receiver_fn`. Received: None. "
            "Make one with export.build_raw_serving_input_receiver_fn."
        )
    if not callable(receiver_fn):
        raise TypeError(
            "`serving_input_receiver_fn` must be a function without "
            f"arguments. Received: {shown(receiver_fn)}. Omit the "
            "parentheses after its name."
        )
    return receiver_fn
