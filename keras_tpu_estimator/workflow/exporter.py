"""The base class of exporters, which run after each evaluation."""

import abc
from collections.abc import Iterable
from collections.abc import Mapping
from typing import Any

from keras_tpu_estimator.ground.base.shown import shown


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
