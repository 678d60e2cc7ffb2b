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
        backend: The form of Keras layers: "jax" for one operation with an XLA module,
            or "tensorflow" for TensorFlow operations, in mode 'infer'.
        timeout_secs: The maximum seconds of each of its processes: the test of the
            export, and the rebuilding. `None` means no limit.
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
    """The content of an export below the folder `base`, and its format.

    `assets_extra` are files by their paths below `assets.extra`.
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
    """One graph for one or several sets of tags, and the arguments of `model_fn` in it.

    The receiver function may return the types `kinds`.
    """

    mode: str
    tag_sets: Sequence[tuple[str, ...]]
    use_tpu: bool
    receiver_fn: ReceiverFn
    kinds: tuple[type[Receiver], ...]


class GraphBuilder(Protocol):
    """A builder of the graphs of an export; each front end has an implementation.

    If `is_tried`, the graphs are other programs than the model's own, and are tested.
    """

    is_tried: bool

    def build(self, plan: GraphPlan, checkpoint: str) -> ServingGraph:
        """Builds one graph from the checkpoint at a prefix."""


def run_export(
    export: Export,
    settings: ExportSettings,
    builder: GraphBuilder,
    checkpoint: str,
) -> str:
    """Exports a model, tests the export, and returns the path of the new folder."""
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
    """Removes source lines from modules, so that these are private and reproducible."""
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
