"""A TF1 `model_fn` as named variables and pure step functions."""

import dataclasses
import functools
import secrets
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from keras_tpu_estimator.engine.inputs.hosted import Hosted
from keras_tpu_estimator.engine.program.options import TraceOptions
from keras_tpu_estimator.engine.program.steps import BatchLayout, Step, StepInput
from keras_tpu_estimator.engine.program.store import VariableStore
from keras_tpu_estimator.ground.base.modes import ModeKeys
from keras_tpu_estimator.ground.base.types import Features, Labels, Nest
from keras_tpu_estimator.ground.base.waiting import tell
from keras_tpu_estimator.tf1.graph import ModelGraph, build
from keras_tpu_estimator.tf1.graph_metrics import GraphMetrics
from keras_tpu_estimator.tf1.graph_step import GraphStep
from keras_tpu_estimator.tf1.host_part import HostPart
from keras_tpu_estimator.tf1.sparse_features import SparseArray, from_parts
from keras_tpu_estimator.tf1.strings import normalized
from keras_tpu_estimator.tf1.variables import enter, enter_repeats, enter_seed


class TF1Program:
    """The program of a `model_fn` that builds TF1 graphs.

    Args:
        call_model_fn: A function of features, labels, mode and the additional `params`
            that returns a spec of `tf1`.
        seed: Makes initial values and random ops repeatable. Defaults to `None`.
        options: Tracing options, most of which graphs do not support. Defaults to
            `TraceOptions()`.

    Attributes:
        store: The variables.

    Raises:
        NotImplementedError: An option is set that graphs do not support.
    """

    def __init__(
        self,
        call_model_fn: Callable[..., Any],
        seed: int | None = None,
        options: TraceOptions | None = None,
    ):
        self._options = TraceOptions() if options is None else options
        _check_options(self._options)
        self.store = VariableStore(seed)
        self._call_model_fn = call_model_fn
        self._seed = seed
        enter_seed(self.store, secrets.randbits(32) if seed is None else seed)
        self._steps: dict[Any, Step] = {}
        self._host_parts: dict[Any, HostPart] = {}
        self._metrics = GraphMetrics()

    def step(self, mode: str, example: StepInput) -> Step:
        """Returns the step for inputs of this shape, which is converted once."""
        key = (mode, example.key)
        if key not in self._steps:
            model = self._model(mode, example)
            step = GraphStep(
                model, mode, example, self._metrics, self._options.random_bits
            )
            enter(self.store, model, step.local)
            if not step.counts_once:
                enter_repeats(self.store)
            self._steps[key] = step.of_all_cores()
        return self._steps[key]

    def read(
        self, mode: str, layout: BatchLayout, features: Features, labels: Labels
    ) -> tuple[Features, Labels]:
        """Returns what the devices receive for a batch; see `ReadsOnHost`."""
        try:
            features, labels = from_parts((features, labels))
        except (TypeError, ValueError):  # The checks of batches explain it.
            return features, labels
        if not _needs_host((features, labels)):
            return features, labels
        if mode == ModeKeys.PREDICT:
            labels = None
        features, labels = jax.tree.map(_as_fed, (features, labels))
        example = _without_values(layout.step_input(features, labels))
        key = mode, _key(example)
        if key not in self._host_parts:
            make = functools.partial(self._model, mode, example)
            self._host_parts[key] = HostPart(make, mode, example)
        part = self._host_parts[key]
        return Hosted(part.tensors(features, labels), part), None

    def _model(self, mode: str, example: StepInput) -> ModelGraph:
        """The graph for inputs of this shape."""
        tell(f"Calling model_fn for mode {mode!r}")
        if isinstance(example.features, Hosted):
            features, _ = example.of_one_call()
            return features.part.model(features.tensors)
        return build(self._call_model_fn, mode, example, self._seed)


def _needs_host(nest: Nest) -> bool:
    """Returns whether a batch has examples that no device can hold."""
    leaves = jax.tree.leaves(nest)
    return any(
        isinstance(leaf, SparseArray) or _has_strings(leaf) for leaf in leaves
    ) and all(np.shape(leaf)[:1] != (0,) for leaf in leaves)


def _has_strings(leaf: Any) -> bool:
    dtype = getattr(leaf, "dtype", None)
    if not isinstance(dtype, np.dtype):
        return getattr(dtype, "name", None) == "string"
    if dtype.kind == "O":
        return leaf.size > 0 and isinstance(leaf.flat[0], str | bytes)
    return dtype.kind in "SU"


def _as_fed(leaf: Any) -> Any:
    """A feature as a session takes it."""
    if isinstance(leaf, SparseArray):
        is_string = leaf.values.dtype.kind in "OSU"
        values = normalized(leaf.values) if is_string else leaf.values
        return SparseArray(leaf.indices, values, leaf.shape)
    return normalized(np.asarray(leaf)) if _has_strings(leaf) else np.asarray(leaf)


def _without_values(example: StepInput) -> StepInput:
    """The same input without what is in it."""
    features, labels = jax.tree.map(_empty, (example.features, example.labels))
    return dataclasses.replace(example, features=features, labels=labels)


def _empty(leaf: Any) -> Any:
    if not isinstance(leaf, SparseArray):
        return np.broadcast_to(np.zeros((), leaf.dtype), leaf.shape)
    cells = np.zeros([0, len(leaf.shape)], "int64")
    return SparseArray(cells, np.zeros(0, leaf.dtype), leaf.shape)


def _key(example: StepInput) -> Any:
    """Equal for batches that one graph serves, however many cells they have."""
    leaves, structure = jax.tree.flatten((example.features, example.labels))
    forms = tuple(
        ("sparse", leaf.shape[0], len(leaf.shape), leaf.dtype)
        if isinstance(leaf, SparseArray)
        else (leaf.shape, leaf.dtype)
        for leaf in leaves
    )
    return (
        forms,
        structure,
        example.cores,
        example.is_split,
        example.additional["use_tpu"],
    )


def _check_options(options: TraceOptions) -> None:
    received = {
        "dtype_policy": options.dtype_policy,
        "remat": options.remat,
        "micro_batches": None if options.micro_batches == 1 else True,
    }
    for name, value in received.items():
        if value is not None:
            raise NotImplementedError(
                f"RunConfig.{name} must not be set, because a TF1 model_fn builds "
                "its own graph, which does not support it. Leave it out."
            )
