"""One export, from a receiver function to a folder that a server can load."""

import contextlib
import functools
import logging
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from keras_tpu_estimator.base.common.modes import ModeKeys
from keras_tpu_estimator.base.storage.transfers import has_wildcards
from keras_tpu_estimator.engine.program.bound_model_fn import BoundModelFn
from keras_tpu_estimator.export import folders, saved_model, stablehlo
from keras_tpu_estimator.export.checking import FirstRequest
from keras_tpu_estimator.export.export_plans import (
    SERVING,
    SUPERVISED,
    TAGS,
    Export,
    ExportSettings,
    GraphBuilder,
    GraphPlan,
)
from keras_tpu_estimator.export.lowering import LoweredModel
from keras_tpu_estimator.export.program_graphs import ProgramGraphs
from keras_tpu_estimator.export.receivers import ReceiverFn
from keras_tpu_estimator.export.serving_graph import ServingGraph

_logger = logging.getLogger("keras_tpu_estimator")


__all__ = ["Export", "ExportSettings", "builder_of", "run_export"]


def builder_of(
    front_end: Any, model_fn: BoundModelFn, settings: ExportSettings
) -> GraphBuilder:
    """Returns the graph builder of a `FrontEnd`, or one for its program."""
    builder: GraphBuilder | None = front_end.graph_builder(model_fn, settings)
    return builder or ProgramGraphs(front_end.make_program, model_fn, settings)


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
            folder, {module: stablehlo.without_lines(module) for module in modules}
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
    for mode, tag in TAGS.items():
        if mode not in receiver_fns:
            continue
        kinds = SERVING if mode == ModeKeys.PREDICT else SUPERVISED
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
