"""One export, from a receiver function to a folder that a server can load."""

import contextlib
import dataclasses
import functools
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Protocol, Self

from keras_tpu_estimator.api.config.run_config import RunConfig
from keras_tpu_estimator.base.common.modes import ModeKeys
from keras_tpu_estimator.base.common.shown import shown
from keras_tpu_estimator.base.common.types import PathLike
from keras_tpu_estimator.base.storage.transfers import has_wildcards
from keras_tpu_estimator.engine.program.bound_model_fn import TraceOptions
from keras_tpu_estimator.export import folders, saved_model, stablehlo
from keras_tpu_estimator.export.checking import FirstRequest
from keras_tpu_estimator.export.lowering import LoweredModel
from keras_tpu_estimator.export.receivers import (
    Receiver,
    ReceiverFn,
    ServingInputReceiver,
    SupervisedInputReceiver,
    TensorServingInputReceiver,
)
from keras_tpu_estimator.export.serving_graph import ServingGraph

_logger = logging.getLogger("keras_tpu_estimator")
_TAGS = {
    ModeKeys.TRAIN: "train",
    ModeKeys.EVAL: "eval",
    ModeKeys.PREDICT: "serve",
}
_SERVING = (ServingInputReceiver, TensorServingInputReceiver)
_SUPERVISED = (SupervisedInputReceiver,)


@dataclasses.dataclass(frozen=True)
class ExportSettings:
    """The settings of an estimator's exports.

    Attributes:
        to_cpu: Whether to write a metagraph with only the tag 'serve'.
        to_tpu: Whether to write a metagraph with the tags 'serve' and 'tpu'.
        api_version: 1 if both metagraphs contain the same model, or 2 if `model_fn` is
            called for each, for TPU with `params["use_tpu"]`.
        seed: The seed of the estimator's programs, or `None`.
        options: The options of their traces. Defaults to `None`.
        backend: The form of Keras layers: "jax" for one operation with an XLA module,
            or "tensorflow" for TensorFlow operations, in mode 'infer'. Defaults to
            "jax".
        timeout_secs: The maximum seconds of each of its processes: the test of the
            export, and the rebuilding. Defaults to `None`: no limit.
    """

    to_cpu: bool
    to_tpu: bool
    api_version: int
    seed: int | None
    options: TraceOptions | None = None
    backend: str = "jax"
    timeout_secs: float | None = None

    @classmethod
    def of(
        cls, config: RunConfig, to_cpu: bool, to_tpu: bool, api_version: int
    ) -> Self:
        """Returns the settings of an estimator."""
        return cls(
            to_cpu,
            to_tpu,
            api_version,
            config.tf_random_seed,
            dataclasses.replace(TraceOptions.of(config), records=False),
            config.export_backend,
            config.export_timeout_secs,
        )


@dataclasses.dataclass(frozen=True)
class Export:
    """The content of an export and its format.

    Attributes:
        base: The folder of exports.
        receiver_fns: Receiver functions by mode.
        assets_extra: A dict from paths below `assets.extra` to files, or `None`.
        as_text: Whether graphs are written as text. Defaults to `False`.
        strip_default_attrs: Whether to omit attributes with default values. Defaults to
            `True`.
    """

    base: PathLike
    receiver_fns: Mapping[str, ReceiverFn]
    assets_extra: Mapping[str, PathLike] | None = None
    as_text: bool = False
    strip_default_attrs: bool = True

    def __post_init__(self) -> None:
        if not self.receiver_fns:
            raise ValueError(
                "An export must have a receiver function for at least one mode. "
                "Received: an empty map. Pass {ModeKeys.PREDICT: receiver_fn}."
            )
        for mode, receiver_fn in self.receiver_fns.items():
            _check_receiver_fn(mode, receiver_fn)
        assets = folders.check_assets_extra(self.assets_extra)
        object.__setattr__(self, "assets_extra", assets)


@dataclasses.dataclass(frozen=True)
class GraphPlan:
    """One graph to build, and the arguments of `model_fn` in it.

    Attributes:
        mode: The mode of `model_fn`.
        tag_sets: The tags of each metagraph with this graph.
        use_tpu: The value of `params["use_tpu"]`.
        receiver_fn: The user's function, called in the graph.
        kinds: The types that the receiver function may return.
    """

    mode: str
    tag_sets: Sequence[tuple[str, ...]]
    use_tpu: bool
    receiver_fn: ReceiverFn
    kinds: tuple[type[Receiver], ...]


class GraphBuilder(Protocol):
    """Builds the graphs of an export; each front end has an implementation.

    Attributes:
        is_tried: Whether the graphs are other programs than the model's own, so that
            each is tested once.
    """

    is_tried: bool

    def build(self, plan: GraphPlan, checkpoint: str) -> ServingGraph:
        """Builds one graph.

        Args:
            plan: The plan of the graph.
            checkpoint: The prefix of the checkpoint.

        Raises:
            TypeError: A function returned a wrong type.
            ValueError: Receivers, model, signatures or checkpoint do not match.
        """


def run_export(
    export: Export,
    settings: ExportSettings,
    builder: GraphBuilder,
    checkpoint: str,
) -> str:
    """Exports a model, tests the export, and returns the path of the new folder.

    Args:
        checkpoint: The prefix of the checkpoint.

    Raises:
        ValueError: The model does not match the receivers, the checkpoint or
            TensorFlow.
        TypeError: A value has a wrong type.
        RuntimeError: No name for the folder is free.
        TimeoutError: The test exceeds the time limit.
    """
    plans = list(_plans(export.receiver_fns, settings))
    with (
        _first_request(settings, builder) as first_request,
        folders.export_folder(export.base) as (temporary, final),
    ):
        graphs = [(builder.build(plan, checkpoint), plan.tag_sets) for plan in plans]
        saved_model.write(temporary, graphs, export.as_text, export.strip_default_attrs)
        folders.copy_assets(temporary, export.assets_extra or {})
        if first_request is not None:
            first_request.check(temporary, graphs)
        _leave_out_lines(temporary, graphs)
    _logger.info("SavedModel written to: %s", final)
    if has_wildcards(final):
        _logger.warning(
            "TensorFlow cannot load the SavedModel %r from this path, because it "
            "reads brackets and backslashes as a pattern. Copy the folder to a "
            "path without them.",
            final,
        )
    return final


def _leave_out_lines(
    folder: str, graphs: Iterable[tuple[ServingGraph, object]]
) -> None:
    """Removes the source lines of errors from modules.

    This keeps paths of this machine private, and makes files of equal models equal.
    """
    modules = {
        graph.model.module
        for graph, _ in graphs
        if isinstance(graph.model, LoweredModel)
    }
    if modules:
        saved_model.replace_modules(
            folder, {each: stablehlo.without_lines(each) for each in modules}
        )


def _first_request(
    settings: ExportSettings, builder: GraphBuilder
) -> contextlib.AbstractContextManager[FirstRequest | None]:
    """Returns the test of an export, or a null context if none is needed."""
    if not builder.is_tried:
        return contextlib.nullcontext()
    return FirstRequest(settings.timeout_secs)


def _plans(
    receiver_fns: Mapping[str, ReceiverFn], settings: ExportSettings
) -> Iterator[GraphPlan]:
    """Yields the graphs of an export, TRAIN first and PREDICT last."""
    if not settings.to_cpu and not settings.to_tpu:
        raise ValueError(
            "`export_to_cpu` or `export_to_tpu` must be True, because an export "
            "has at least one metagraph. Received: False for both. Set one of "
            "them."
        )
    for mode, tag in _TAGS.items():
        if mode not in receiver_fns:
            continue
        kinds = _SERVING if mode == ModeKeys.PREDICT else _SUPERVISED
        plan = functools.partial(
            GraphPlan, mode, receiver_fn=receiver_fns[mode], kinds=kinds
        )
        if mode != ModeKeys.PREDICT:
            if settings.to_tpu:
                _logger.warning(
                    "`export_to_tpu` affects only mode 'infer': the metagraph "
                    "of mode %r has only the tag %r.",
                    mode,
                    tag,
                )
            yield plan([(tag,)], use_tpu=False)
            continue
        cpu: list[tuple[str, ...]] = [(tag,)] if settings.to_cpu else []
        tpu: list[tuple[str, ...]] = [(tag, "tpu")] if settings.to_tpu else []
        if settings.api_version == 1:
            yield plan(cpu + tpu, use_tpu=False)
            continue
        if cpu:
            yield plan(cpu, use_tpu=False)
        if tpu:
            yield plan(tpu, use_tpu=True)


def _check_receiver_fn(mode: str, receiver_fn: object) -> None:
    if mode not in _TAGS:
        raise ValueError(
            f"The modes of an export must be {sorted(_TAGS)}. Received: {mode!r}. "
            "Use the values of ModeKeys."
        )
    if receiver_fn is None:
        raise ValueError(
            "The serving input receiver function must not be None. Received: "
            "None. Make one with export.build_raw_serving_input_receiver_fn."
        )
    if isinstance(receiver_fn, _SERVING + _SUPERVISED):
        raise TypeError(
            "The serving input receiver must be a function. Received: its "
            f"result, a {type(receiver_fn).__name__}. Omit the parentheses after "
            "the function's name."
        )
    if not callable(receiver_fn):
        raise TypeError(
            "The serving input receiver must be a function without "
            f"arguments. Received: {shown(receiver_fn)}. Pass a function."
        )
