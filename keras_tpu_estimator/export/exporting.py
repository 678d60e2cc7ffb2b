"""One export, from a receiver function to a folder that a server can load."""

import contextlib
import dataclasses
import functools
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Protocol, Self

from keras_tpu_estimator.engine.program.options import TraceOptions
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
from keras_tpu_estimator.ground.base.modes import ModeKeys
from keras_tpu_estimator.ground.base.shown import shown
from keras_tpu_estimator.ground.base.types import PathLike
from keras_tpu_estimator.ground.storage.copies import has_wildcards
from keras_tpu_estimator.spec.config.run_config import RunConfig

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
    """What an estimator knows about its exports.

    Attributes:
        to_cpu: Whether there is a metagraph with the tag 'serve' alone.
        to_tpu: Whether there is one with the tags 'serve' and 'tpu'.
        api_version: 1, where both are the same model, or 2, where `model_fn`
            is called for each, for the latter with `params["use_tpu"]`.
        seed: The seed of the estimator's programs, or `None`.
        options: How they are traced. Defaults to `None`.
        backend: What Keras's layers become: "jax", for one op that holds a
            module of XLA, or "tensorflow", for ops of TensorFlow, in mode
            'infer'. Defaults to "jax".
        timeout_secs: Seconds that each of its processes may take: the one that
            tries it, and the one that rebuilds it. Defaults to `None`, for any
            time.
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
        """The settings of an estimator.

        Args:
            config: The run configuration.
            to_cpu: As the attribute.
            to_tpu: The same.
            api_version: The same.
        """
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
    """What is to be exported, and how it is written.

    Attributes:
        base: The folder of exports.
        receiver_fns: Receiver functions by mode.
        assets_extra: Dict from paths below `assets.extra` to files, or `None`.
        as_text: Whether graphs are written as text. Defaults to `False`.
        strip_default_attrs: Whether attributes with default values are left
            out. Defaults to `True`.
    """

    base: PathLike
    receiver_fns: Mapping[str, ReceiverFn]
    assets_extra: Mapping[str, PathLike] | None = None
    as_text: bool = False
    strip_default_attrs: bool = True

    def __post_init__(self) -> None:
        if not self.receiver_fns:
            raise ValueError(
                "There should be a receiver function for one mode at least. "
                "Received an empty map. Pass {ModeKeys.PREDICT: receiver_fn}."
            )
        for mode, receiver_fn in self.receiver_fns.items():
            _check_receiver_fn(mode, receiver_fn)
        assets = folders.check_assets_extra(self.assets_extra)
        object.__setattr__(self, "assets_extra", assets)


@dataclasses.dataclass(frozen=True)
class GraphPlan:
    """One graph to build, and how `model_fn` is called in it.

    Attributes:
        mode: The mode that it is called in.
        tag_sets: The tags of each metagraph that it is.
        use_tpu: The value of `params["use_tpu"]`.
        receiver_fn: The user's function, called in the graph.
        kinds: The types that it should return.
    """

    mode: str
    tag_sets: Sequence[tuple[str, ...]]
    use_tpu: bool
    receiver_fn: ReceiverFn
    kinds: tuple[type[Receiver], ...]


class GraphBuilder(Protocol):
    """Builds the graphs of an export; each front end has its own.

    Attributes:
        is_tried: Whether they are other programs than the model's own, so that
            they are tried once.
    """

    is_tried: bool

    def build(self, plan: GraphPlan, checkpoint: str) -> ServingGraph:
        """Builds one graph.

        Args:
            plan: What it is.
            checkpoint: The prefix of the checkpoint.

        Raises:
            TypeError: A function returned something else than it should.
            ValueError: Receivers, model, signatures or checkpoint do not fit
                each other.
        """


def run_export(
    export: Export,
    settings: ExportSettings,
    builder: GraphBuilder,
    checkpoint: str,
) -> str:
    """Exports a model, and tries what was exported.

    Args:
        export: What is to be exported.
        settings: What the estimator says about it.
        builder: Builds its graphs.
        checkpoint: The prefix of the checkpoint.

    Returns:
        The path of the new folder.

    Raises:
        ValueError: The model does not fit the receivers, the checkpoint or
            TensorFlow.
        TypeError: Something is of a wrong type.
        RuntimeError: There is no free name for the folder.
        TimeoutError: The trial took too long.
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
            "TensorFlow cannot load the SavedModel %r from there, because it "
            "takes brackets and backslashes in a path for a pattern. Copy the "
            "folder to a path without them.",
            final,
        )
    return final


def _leave_out_lines(
    folder: str, graphs: Iterable[tuple[ServingGraph, object]]
) -> None:
    """Takes out the lines of source files, which an error would have named.

    So paths of this machine are not handed on, and the same model makes the
    same files.
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
    """What tries an export, if that is wanted."""
    if not builder.is_tried:
        return contextlib.nullcontext()
    return FirstRequest(settings.timeout_secs)


def _plans(
    receiver_fns: Mapping[str, ReceiverFn], settings: ExportSettings
) -> Iterator[GraphPlan]:
    """The graphs of an export, TRAIN first and PREDICT last."""
    if not settings.to_cpu and not settings.to_tpu:
        raise ValueError(
            "`export_to_cpu` and `export_to_tpu` are both False. Expected one "
            "of them to be True: an export has one metagraph at least."
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
                    "`export_to_tpu` is for mode 'infer' only: the metagraph "
                    "of mode %r gets the tag %r alone.",
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
            f"The modes of an export are {sorted(_TAGS)}. Received: {mode!r}. "
            "Use the values of ModeKeys."
        )
    if receiver_fn is None:
        raise ValueError(
            "An export needs a serving input receiver function. Received: "
            "None. Make one with export.build_raw_serving_input_receiver_fn."
        )
    if isinstance(receiver_fn, _SERVING + _SUPERVISED):
        raise TypeError(
            "The serving input receiver function was called. Expected the "
            f"function itself. Received a {type(receiver_fn).__name__}: leave "
            "out the parentheses after its name."
        )
    if not callable(receiver_fn):
        raise TypeError(
            "The serving input receiver should be a function without "
            f"arguments. Received: {shown(receiver_fn)}"
        )
