"""The part of an estimator that exports SavedModels."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import typing_extensions

from keras_tpu_estimator.base.common import registry
from keras_tpu_estimator.base.common.modes import ModeKeys
from keras_tpu_estimator.base.common.types import PathLike
from keras_tpu_estimator.base.common.user_code import UserFrames
from keras_tpu_estimator.base.hosts import this_process
from keras_tpu_estimator.engine.program.bound_model_fn import BoundModelFn
from keras_tpu_estimator.estimator.trained_estimator import TrainedEstimator
from keras_tpu_estimator.files.directory import location
from keras_tpu_estimator.runs import call_receiver


@dataclasses.dataclass(frozen=True)
class ExportTargets:
    """The metagraphs of an estimator's exports.

    Attributes:
        to_cpu: Whether to write a metagraph with only the tag 'serve'.
        to_tpu: Whether to write a metagraph with the tags 'serve' and 'tpu'.
        api_version: 1 if both contain the same model, or 2 if `model_fn` is called
            for each of them.
    """

    to_cpu: bool
    to_tpu: bool
    api_version: int


class ExportingEstimator(TrainedEstimator):
    """The part of `TPUEstimator` that exports checkpoints as SavedModels."""

    _export_targets: ExportTargets

    def export_saved_model(
        self,
        export_dir_base: PathLike,
        serving_input_receiver_fn: Callable[[], Any],
        assets_extra: Mapping[str, str] | None = None,
        as_text: bool = False,
        checkpoint_path: PathLike | None = None,
        experimental_mode: str = ModeKeys.PREDICT,
    ) -> str:
        """Exports the trained model as a SavedModel.

        The SavedModel runs without JAX wherever TensorFlow runs: on CPU, GPU and
        TPU, and with batches of any size. This method loads and runs it once
        before it returns.

        Args:
            export_dir_base: The folder for the new folder, whose name is the
                seconds since 1970.
            serving_input_receiver_fn: Function of no arguments that returns a
                receiver, as those of `keras_tpu_estimator.export`. Its ops
                become part of the SavedModel, in front of the model.
            assets_extra: Dict from paths below `assets.extra` in the export to
                the files to copy there. Defaults to none.
            as_text: Whether the graphs are written as text. Defaults to
                `False`.
            checkpoint_path: The checkpoint to export. Defaults to the latest,
                or else to the checkpoint of `warm_start_from`.
            experimental_mode: The mode of the model. Defaults to PREDICT.

        Returns:
            The path of the new folder.

        Raises:
            ValueError: No checkpoint exists, or the model does not fit the
                checkpoint, the receivers or TensorFlow.
            TypeError: An argument has a wrong type.
            RuntimeError: All names for the folder exist.
            TimeoutError: The test run exceeded `RunConfig.export_timeout_secs`.
        """
        receiver_fns = {experimental_mode: serving_input_receiver_fn}
        export = registry.part("export").Export(
            export_dir_base, receiver_fns, assets_extra, as_text
        )
        return self._export(export, checkpoint_path)

    @typing_extensions.deprecated(
        "`export_savedmodel` is the older name of `export_saved_model`, which "
        "takes the same arguments except `strip_default_attrs`."
    )
    def export_savedmodel(
        self,
        export_dir_base: PathLike,
        serving_input_receiver_fn: Callable[[], Any],
        assets_extra: Mapping[str, str] | None = None,
        as_text: bool = False,
        checkpoint_path: PathLike | None = None,
        strip_default_attrs: bool | None = None,
    ) -> str:
        """Exports as `export_saved_model` does, under its older name.

        It is deprecated, as in TensorFlow.

        Args:
            export_dir_base: As in `export_saved_model`.
            serving_input_receiver_fn: As in `export_saved_model`.
            assets_extra: As in `export_saved_model`.
            as_text: As in `export_saved_model`.
            checkpoint_path: As in `export_saved_model`.
            strip_default_attrs: Whether attributes with default values are
                removed from the graphs. Defaults to `None`, which is `True`.

        Returns:
            The path of the new folder.

        Raises:
            ValueError: As in `export_saved_model`.
            TypeError: As in `export_saved_model`.
            RuntimeError: As in `export_saved_model`.
        """
        export = registry.part("export").Export(
            export_dir_base,
            {ModeKeys.PREDICT: serving_input_receiver_fn},
            assets_extra,
            as_text,
            strip_default_attrs is not False,
        )
        return self._export(export, checkpoint_path)

    def experimental_export_all_saved_models(
        self,
        export_dir_base: PathLike,
        input_receiver_fn_map: Mapping[str, Callable[[], Any]],
        assets_extra: Mapping[str, str] | None = None,
        as_text: bool = False,
        checkpoint_path: PathLike | None = None,
    ) -> str:
        """Exports the model in several modes, as metagraphs of one SavedModel.

        Args:
            export_dir_base: As in `export_saved_model`.
            input_receiver_fn_map: Dict from modes to receiver functions. In
                TRAIN and EVAL they return a `SupervisedInputReceiver`.
            assets_extra: As in `export_saved_model`.
            as_text: As in `export_saved_model`.
            checkpoint_path: As in `export_saved_model`.

        Returns:
            The path of the new folder.

        Raises:
            ValueError: The map is empty, or as in `export_saved_model`.
            TypeError: As in `export_saved_model`.
            RuntimeError: As in `export_saved_model`.
        """
        export = registry.part("export").Export(
            export_dir_base, input_receiver_fn_map, assets_extra, as_text
        )
        return self._export(export, checkpoint_path)

    @UserFrames()
    def _export(self, export: Any, checkpoint_path: PathLike | None) -> str:
        if (receiver := call_receiver.receiver()) is not None:
            return receiver.export(self._context, export)
        this_process.check_not_forked()
        path = checkpoint_path or self.latest_checkpoint()
        if path is None and self._context.warm_start is not None:
            start = self._context.warm_start.ckpt_to_initialize_from
            path = None if isinstance(start, Mapping) else start
        checkpoint = (
            self._existing_checkpoint() if path is None else location.resolve(path)
        )
        context, exporting = self._context, registry.part("export")
        targets = dataclasses.astuple(self._export_targets)
        settings = exporting.ExportSettings.from_config(context.config, *targets)
        model_fn = BoundModelFn(
            context.model_fn,
            context.params,
            context.config,
            embeddings=context.embeddings,
        )
        with context.hosts.call("export_saved_model") as call:
            path = call.by_chief(
                lambda: exporting.run_export(
                    export,
                    settings,
                    exporting.builder_of(context.front_end, model_fn, settings),
                    checkpoint,
                )
            )
        return str(path)
