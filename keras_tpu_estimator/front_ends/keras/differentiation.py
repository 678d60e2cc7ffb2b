"""Traces of `model_fn` in training, and the gradients of its loss."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TypeAlias

import jax
import jax.numpy as jnp

from keras_tpu_estimator.api.model_fn.update import Update
from keras_tpu_estimator.api.model_fn.updates import TrainOp
from keras_tpu_estimator.base.common.types import Features, Labels, PyTree
from keras_tpu_estimator.base.mesh.replica_context import (
    ReplicaShards,
    dtype_of_sum,
    gathered_variables,
)
from keras_tpu_estimator.base.tracing.capture import Captured
from keras_tpu_estimator.base.tracing.gradient_requests import (
    GradientAnswers,
    GradientRequest,
    pull_back,
)
from keras_tpu_estimator.base.tracing.variables import ArraysByPath
from keras_tpu_estimator.engine.program.bound_model_fn import widened
from keras_tpu_estimator.engine.program.capturing import capture_over
from keras_tpu_estimator.engine.program.steps import (
    NAMED,
    SUMMARIES,
    Outputs,
    StepInput,
)
from keras_tpu_estimator.engine.program.store import VariableStore
from keras_tpu_estimator.front_ends.keras.micro_batches import (
    over_micro_batches,
    with_features,
)
from keras_tpu_estimator.front_ends.keras.traced_model_fn import TracedModelFn

Batch: TypeAlias = tuple[Features, Labels]
# Averaged, concatenated and assigned values, for `over_micro_batches`.
Results: TypeAlias = tuple[PyTree, PyTree, ArraysByPath]


@dataclasses.dataclass(frozen=True)
class _Partial:
    """A trace of `model_fn` up to a request for gradients, which returns the loss to
    differentiate; `reduction` combines the gradients of micro-batches.
    """

    captured: Captured
    paths: tuple[str, ...]
    reduction: str

    def __call__(
        self, differentiated: PyTree, values: ArraysByPath, batch: Batch
    ) -> tuple[list[jax.Array], Results]:
        """Returns the loss, given the trainable values and earlier answers."""
        trainable, answers = differentiated
        loss, updates = self.captured({**values, **trainable}, *batch, answers)
        return [loss], ((), (), updates)


@dataclasses.dataclass(frozen=True)
class Differentiation:
    """Traces of `model_fn` up to each request for gradients, and to its end.

    Attributes:
        last: The trace of all of `model_fn`, given all answers.
        example_answers: Answers of the right shapes.
        shards: The variables that are sharded over the replicas, by path.
    """

    partial: Sequence[_Partial]
    last: Captured
    example_answers: Sequence[ArraysByPath]
    micro_batches: int
    shards: Mapping[str, ReplicaShards]

    def differentiate(
        self,
        values: ArraysByPath,
        batch: Batch,
        ops: Sequence[Update],
        by: Sequence[str] = (),
    ) -> tuple[list[PyTree], list[PyTree], Outputs, ArraysByPath]:
        """Computes one forward and backward pass; `by` are keys of features of which
        gradients are also computed.

        Returns the gradients of the variables of each op that minimizes a loss; the
        gradients of the features by key, of that loss, or without one, of the first
        requested loss; the outputs; and the assigned values.
        """
        minimized = [op for op in ops if op.loss is not None]
        paths = {v.path for op in minimized for v in op.variables}
        run = over_micro_batches(self._to_the_end, self.micro_batches, by)

        def objectives(inputs: PyTree) -> PyTree:
            trainable, features = inputs
            current_batch = with_features(batch, features)
            current = {**values, **trainable}
            answers = self._answers(len(self.partial), current, current_batch)
            losses, results = run((trainable, answers), values, current_batch)
            scaled = [
                self._combined(loss, op.reduction)
                for loss, op in zip(losses, minimized, strict=True)
            ]
            return scaled, results

        inputs = (
            {path: values[path] for path in sorted(paths)},
            {key: batch[0][key] for key in by},
        )
        if minimized:
            gradients, results = pull_back(objectives, inputs)
        else:
            gradients, (_, results) = [], objectives(inputs)
        means, rows, updates = results
        means["loss"] = self._combined(means["loss"], self._reduction(ops))
        by_op = [
            tuple(gradient[v.path] for v in op.variables)
            for op, (gradient, _) in zip(minimized, gradients, strict=True)
        ]
        by_feature = [of_features for _, of_features in gradients]
        if by and not minimized:
            by_feature = [self._by_features(values, batch, by)]
        return by_op, by_feature, _together(means, rows), updates

    def _to_the_end(
        self, differentiated: PyTree, values: ArraysByPath, batch: Batch
    ) -> tuple[list[jax.Array], Results]:
        trainable, answers = differentiated
        outputs, updates = self.last({**values, **trainable}, *batch, answers)
        objectives = outputs.pop("objectives")
        return objectives, (*_apart(outputs), updates)

    def _answers(
        self, count: int, values: ArraysByPath, batch: Batch
    ) -> list[ArraysByPath]:
        """Returns the first answers, with the functions that compute them; each request
        receives the earlier answers, so that every trace is evaluated once.
        """
        if not count:
            return []
        partial = self.partial[count - 1]
        run = over_micro_batches(partial, self.micro_batches)

        def loss(trainable: ArraysByPath) -> PyTree:
            current = {**values, **trainable}
            answers = self._answers(count - 1, current, batch)
            (loss,), _ = run((trainable, answers), values, batch)
            return self._combined(loss, partial.reduction), answers

        # `model_fn` uses the gradients of this replica.
        gradient, answers = jax.grad(loss, has_aux=True)(
            gathered_variables(self.shards, values, partial.paths)
        )
        return [*answers, gradient]

    def _by_features(
        self, values: ArraysByPath, batch: Batch, by: Sequence[str]
    ) -> PyTree:
        """Returns the gradients of the features, of the first requested loss; XLA
        removes the computations that these share with the answers.
        """
        first = self.partial[0]
        run = over_micro_batches(first, self.micro_batches, by)

        def loss(features: PyTree) -> jax.Array:
            current_batch = with_features(batch, features)
            (loss,), _ = run(({}, []), values, current_batch)
            return self._combined(loss, first.reduction)

        gradients: PyTree = jax.grad(loss)({key: batch[0][key] for key in by})
        return gradients

    def _combined(self, mean: jax.Array, reduction: str | None) -> jax.Array:
        """Combines micro-batches: their mean or their sum."""
        return mean * self.micro_batches if reduction == "sum" else mean

    def _reduction(self, ops: Sequence[Update]) -> str:
        """Returns the reduction of the logged loss."""
        reductions: set[str | None] = {
            *(op.reduction for op in ops if op.loss is not None),
            *(partial.reduction for partial in self.partial),
        }
        return "sum" if reductions == {"sum"} else "mean"


def trace_for_gradients(
    store: VariableStore, call: TracedModelFn, args: Batch
) -> Differentiation:
    """Traces `model_fn` in TRAIN, once more for each request for gradients."""
    partial: list[_Partial] = []
    answers: list[ArraysByPath] = []
    requested: list[GradientRequest] = []
    connected: list[frozenset[str]] = []
    sizes = call.example.cores.axis_sizes

    def run(features: Features, labels: Labels, answers: list[ArraysByPath]) -> PyTree:
        try:
            with GradientAnswers(answers, connected):
                outputs = call(features, labels)
        except GradientRequest as request:
            requested.append(request)
            return widened(request.loss)
        return outputs | _to_differentiate(call.spec.train_op)

    while True:
        requested.clear()
        captured = capture_over(store, run, *args, answers, axis_sizes=sizes)
        if requested:
            connected.append(_paths_behind(captured, answers, connected))
        shards = call.example.cores.shards(captured.objects)
        if not requested:
            shards = _summed_as_asked(shards, call)
        captured = captured.gathering(shards, call.options.remat, sizes)
        if not requested:
            count = call.micro_batches
            return Differentiation(partial, captured, answers, count, shards)
        paths = requested[-1].paths
        partial.append(_Partial(captured, paths, requested[-1].reduction))
        variables = captured.objects
        answers = [
            *answers,
            {
                path: jnp.zeros(variables[path].shape, variables[path].dtype)
                for path in paths
            },
        ]


def _paths_behind(
    captured: Captured,
    answers: Sequence[ArraysByPath],
    connected: Sequence[frozenset[str]],
) -> frozenset[str]:
    """Returns the variables on which a loss depends, also through earlier gradients."""
    paths, used = captured.behind_result()
    for answer, behind in zip(reversed(answers), reversed(connected), strict=True):
        of_answer = used[len(used) - len(answer) :]
        used = used[: len(used) - len(answer)]
        if any(of_answer):
            paths |= behind
    return paths


def _summed_as_asked(
    shards: Mapping[str, ReplicaShards], call: TracedModelFn
) -> dict[str, ReplicaShards]:
    """Returns shards whose gradients are summed in the dtypes of train ops."""
    platform = call.example.cores.platform
    dtypes = {
        variable.path: dtype_of_sum(op.reduce_dtype, platform)
        for op in call.spec.train_op
        if isinstance(op, TrainOp) and op.reduce_dtype is not None
        for variable in op.variables
    }
    return {
        path: dataclasses.replace(shard, dtype=dtypes.get(path, shard.dtype))
        for path, shard in shards.items()
    }


def _to_differentiate(train_ops: Sequence[object]) -> Outputs:
    ops = [op for op in train_ops if isinstance(op, Update)]
    return {
        "objectives": [widened(op.loss) for op in ops if op.loss is not None],
        "carried": [op.carried for op in ops if op.loss is None],
        "scalars": [op.scalars for op in ops],
    }


def _apart(outputs: Outputs) -> tuple[Outputs, Outputs]:
    """Splits outputs into averaged ones and those with rows."""
    rows = dict(outputs)
    means = {name: rows.pop(name) for name in ("loss", "carried", "scalars")}
    named = rows.pop(NAMED)
    means[NAMED] = {n: t for n, t in named.items() if not t.ndim}
    rows[NAMED] = {n: t for n, t in named.items() if t.ndim}
    summaries = rows.pop(SUMMARIES)
    means[SUMMARIES] = [summary.averaged() for summary in summaries]
    rows[SUMMARIES] = [summary.concatenated() for summary in summaries]
    return means, rows


def _together(means: Outputs, rows: Outputs) -> Outputs:
    """Merges outputs that were split."""
    outputs = means | rows
    outputs[NAMED] = means[NAMED] | rows[NAMED]
    outputs[SUMMARIES] = [
        mean.with_rows(row)
        for mean, row in zip(means[SUMMARIES], rows[SUMMARIES], strict=True)
    ]
    return outputs


def check_features(call: TracedModelFn, ops: Sequence[Update], requests: int) -> None:
    """Checks that the loss of the features' gradients is unambiguous."""
    differentiated = call.example.differentiated
    if not differentiated or any(op.loss is not None for op in ops):
        return
    reductions = [op.reduction for op in ops]
    is_combined = not call.example.cores.axes or None not in reductions
    if len(ops) != 1 or requests != 1 or not is_combined:
        raise ValueError(
            "With embedding_config_spec the train op must have a loss, for "
            f"the gradients of {list(differentiated)}. Received one without a loss, of "
            f"{requests} calls for gradients, with reductions {reductions}. "
            "Return CrossShardOptimizer(optimizer).minimize(loss), or "
            "apply_gradients of the result of its compute_gradients."
        )


def feature_gradients(
    example: StepInput, ops: Sequence[Update], gradients: Sequence[PyTree]
) -> PyTree:
    """Returns the gradients of features by key, of the loss of all replicas, from this
    replica's gradients of `Differentiation.differentiate`.
    """
    cores = example.cores
    minimized = [op for op in ops if op.loss is not None] or ops[:1]
    replicas = cores.topology.num_replicas
    total: PyTree = {}
    for op, gradient in zip(minimized, gradients, strict=True):
        share = 1 / replicas if op.reduction == "mean" else 1.0
        scaled = {key: share * g for key, g in gradient.items()}
        total = {key: g + total.get(key, 0.0) for key, g in scaled.items()}
    if example.is_split:
        return total
    # All replicas have the same batch, so each loss is a part of the sum.
    return {key: replicas * cores.mean(g) for key, g in total.items()}
