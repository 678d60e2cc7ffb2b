"""The step of training: forward pass, backward pass and update."""

import contextlib
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import jax

from keras_tpu_estimator.api.model_fn.update import Update
from keras_tpu_estimator.api.model_fn.updates import TrainOp, single_optimizers
from keras_tpu_estimator.base.common.types import Features, Labels, PyTree
from keras_tpu_estimator.base.mesh import replica_context
from keras_tpu_estimator.base.mesh.cores import Cores
from keras_tpu_estimator.base.mesh.replica_context import (
    ReplicaShards,
    gathered_variables,
    own_of,
    specs_of,
)
from keras_tpu_estimator.base.tracing import foreign_calls
from keras_tpu_estimator.base.tracing.capture import Captured
from keras_tpu_estimator.base.tracing.jaxprs import mark_gradient
from keras_tpu_estimator.base.tracing.variables import ArraysByPath
from keras_tpu_estimator.engine.program.capturing import capture_over, enter
from keras_tpu_estimator.engine.program.steps import (
    FEATURE_GRADIENTS,
    LOSS,
    NAMED,
    REPORTS,
    Outputs,
    Step,
    StepFunction,
    of_all_cores,
)
from keras_tpu_estimator.engine.program.store import GLOBAL_STEP, VariableStore
from keras_tpu_estimator.front_ends.keras.differentiation import (
    Differentiation,
    check_features,
    feature_gradients,
    trace_for_gradients,
)
from keras_tpu_estimator.front_ends.keras.forward_checks import (
    check_can_be_sharded,
    warn_of_fixed_weights,
    warn_of_label_shapes,
)
from keras_tpu_estimator.front_ends.keras.micro_batches import check_cut
from keras_tpu_estimator.front_ends.keras.synchronization import (
    fold_seeds,
    seed_paths,
    synchronize,
)
from keras_tpu_estimator.front_ends.keras.traced_model_fn import TracedModelFn

_Compute: TypeAlias = Callable[
    [ArraysByPath, Features, Labels], tuple[ArraysByPath, Outputs]
]
# Intermediate outputs: the inputs of the train op's updates, and scalars.
_REDUCED = "reduced"


def trace_train_step(store: VariableStore, call: TracedModelFn) -> Step:
    """Traces `model_fn` in TRAIN, adds new variables to the store, and makes a step of
    its train op that returns all changed values.

    Raises `ValueError` if several replicas do not combine gradients, the batch cannot
    be divided into micro-batches, or trained variables are assigned for each of them.
    """
    cores = call.example.cores
    check_cut(call.example, call.micro_batches)
    args = call.example.of_one_call(call.micro_batches)
    forward = trace_for_gradients(store, call, args)
    enter(store, forward.last, *args, forward.example_answers)
    check_can_be_sharded(call, forward.last)
    warn_of_label_shapes(store.warned, forward.last, *args, forward.example_answers)
    warn_of_fixed_weights(forward.last)
    ops = [op for op in call.spec.train_op if isinstance(op, Update)]
    seeds = seed_paths(forward.last.objects)
    check_features(call, ops, len(forward.partial))
    _check_reduced(call, ops, forward.last, seeds)
    _check_assigned(call, forward.last)
    update = _trace_update(store, call, ops, forward.last)
    differing, changed = forward.last.varying(seeds, cores.axes)
    is_grouped = _is_grouped(call, ops)
    # The same holds for the weights, which any computation may use.
    if is_grouped:
        changed = dict.fromkeys(changed, True)
    scalars_differ = bool(cores.axes) and any(map(any, differing["scalars"]))
    shards = forward.shards
    # A step outlives the data of its trace.
    example = call.example.without_data()

    def gradients_of(
        values: ArraysByPath, features: Features, labels: Labels
    ) -> tuple[ArraysByPath, Outputs]:
        current = fold_seeds(values, seeds, cores, 1)
        current |= gathered_variables(shards, current, forward.last.assigned)
        gradients, by_feature, outputs, updates = forward.differentiate(
            current, (features, labels), ops, example.differentiated
        )
        if example.differentiated:
            outputs[FEATURE_GRADIENTS] = feature_gradients(example, ops, by_feature)
        scalars = outputs.pop("scalars")
        if scalars_differ:
            scalars = [tuple(map(cores.mean, op_scalars)) for op_scalars in scalars]
        outputs[_REDUCED] = (
            _reduced(cores, ops, shards, gradients, outputs.pop("carried")),
            scalars,
        )
        outputs[LOSS] = cores.mean(outputs[LOSS])
        outputs[NAMED] = of_all_cores(cores, outputs[NAMED], differing[NAMED])
        objects = forward.last.objects
        shared = synchronize(updates, current, objects, cores, changed)
        return own_of(shards, shared), outputs

    function = _of_all_cores(call, forward, ops, update, gradients_of)
    reads = {GLOBAL_STEP, *forward.last.objects, *update.objects}
    assigned = {GLOBAL_STEP, *forward.last.assigned, *update.assigned}
    return call.step(function, reads, assigned, is_grouped)


def _of_all_cores(
    call: TracedModelFn,
    forward: Differentiation,
    ops: Sequence[Update],
    update: Captured,
    gradients_of: _Compute,
) -> StepFunction:
    """Makes a step of all replicas of the gradients of one."""
    cores, shards = call.example.cores, forward.shards
    updated_by: Any = functools.partial(_updated_by, cores, ops, update)
    if not cores.shards_optimizer:
        return call.on_cores(updated_by(gradients_of), {REPORTS: False})
    compute = call.on_cores(
        gradients_of,
        {_REDUCED: (_specs(ops, shards), False)},
        reads=specs_of(shards, forward.last.objects),
        changes=specs_of(shards, forward.last.assigned),
    )
    function: StepFunction = updated_by(compute)
    return function


def _specs(ops: Sequence[Update], shards: Mapping[str, ReplicaShards]) -> list[PyTree]:
    """Returns the sharding of the inputs of each op, for `Cores.per_core`."""
    return [
        [shards[v.path].spec if v.path in shards else False for v in op.variables]
        if isinstance(op, TrainOp)
        else False
        for op in ops
    ]


def _updated_by(
    cores: Cores, ops: Sequence[Update], update: Captured, compute: _Compute
) -> _Compute:
    """Makes a step of a function that computes gradients."""
    trained = {v.path for op in _of_optimizers(ops) for v in op.variables}

    def step(
        values: ArraysByPath, features: Features, labels: Labels
    ) -> tuple[ArraysByPath, Outputs]:
        changed, outputs = compute(values, features, labels)
        outputs = dict(outputs)
        reduced, scalars = outputs.pop(_REDUCED)
        before = {**values, **changed}
        before |= {p: cores.like_slot(before[p], p) for p in trained}
        reduced = _of_variables(ops, reduced, cores.like_slot)
        outputs[REPORTS], updated = update(before, reduced, scalars)
        updated |= {p: cores.gathered(updated[p], p) for p in trained & updated.keys()}
        step = {GLOBAL_STEP: values[GLOBAL_STEP] + 1}
        return {**changed, **updated, **step}, outputs

    return step


def _reduced(
    cores: Cores,
    ops: Sequence[Update],
    shards: Mapping[str, ReplicaShards],
    minimized: Sequence[PyTree],
    carried: Sequence[PyTree],
) -> list[PyTree]:
    """Returns the inputs of each op, combined over the replicas."""
    gradients, carried_inputs = iter(minimized), iter(carried)
    with replica_context.replica_scope(cores.context):
        reduced = [
            op.reduced(next(carried_inputs if op.loss is None else gradients), shards)
            for op in ops
        ]

    def laid(gradient: jax.Array, path: str) -> jax.Array:
        return mark_gradient(cores.like_variable(gradient, path), path)

    return _of_variables(ops, reduced, laid)


def _of_variables(
    ops: Sequence[Update],
    reduced: Sequence[PyTree],
    laid: Callable[[jax.Array, str], jax.Array],
) -> list[PyTree]:
    """Returns the inputs of ops, sharded like their variables."""
    return [
        [laid(g, v.path) for g, v in zip(op_inputs, op.variables, strict=True)]
        if isinstance(op, TrainOp)
        else op_inputs
        for op, op_inputs in zip(ops, reduced, strict=True)
    ]


def _trace_update(
    store: VariableStore,
    call: TracedModelFn,
    ops: Sequence[Update],
    forward: Captured,
) -> Captured:
    """Traces the updates, given gradients and other inputs."""
    cores = call.example.cores
    if cores.shards_optimizer:
        # Each replica has a shard of the optimizer state; XLA inserts the
        # communication.
        cores = cores.as_one()

    def update(reduced: Sequence[PyTree], scalars: Sequence[PyTree]) -> ArraysByPath:
        with contextlib.ExitStack() as stack:
            for op, at in zip(ops, scalars, strict=True):
                stack.enter_context(op.at(at))
            stack.enter_context(replica_context.replica_scope(cores.context))
            stack.enter_context(foreign_calls.rejected())
            rates: dict[str, Any] = {}
            for op, tensors in zip(ops, reduced, strict=True):
                rates |= op.apply(tensors)
        if len(rates) == 1:
            return {"learning_rate": rates.popitem()[1]}
        return {f"learning_rate/{name}": rate for name, rate in rates.items()}

    def like(tensors: Sequence[Any]) -> tuple[jax.ShapeDtypeStruct, ...]:
        return tuple(jax.ShapeDtypeStruct(t.shape, t.dtype) for t in tensors)

    examples = (
        [like(op.carried if op.loss is None else op.variables) for op in ops],
        [like(op.scalars) for op in ops],
    )
    captured = capture_over(
        store,
        update,
        *examples,
        objects=forward.objects,
        axis_sizes=cores.axis_sizes,
    )
    enter(store, captured, *examples)
    for op in _of_optimizers(ops):
        store.slots.update(v.path for v in op.optimizer.variables)
        store.optimizers.setdefault(op.optimizer.name, op.optimizer)
        rates = {
            f"{optimizer.name}/learning_rate"
            for optimizer in single_optimizers(op.optimizer)
        }
        store.constants.update(rates & forward.objects.keys())
    return captured


def _is_grouped(call: TracedModelFn, ops: Sequence[Update]) -> bool:
    """Returns whether groups of replicas train separate models."""
    cores = call.example.cores
    is_asked_for = any(op.groups for op in _of_optimizers(ops))
    if is_asked_for and cores.layout is not None:
        raise ValueError(
            "With several groups in `group_assignment` each core trains its "
            "own model, so a replica must be one core with its own optimizer "
            "state. Received: "
            f"num_cores_per_replica={cores.topology.cores_per_replica}, "
            f"shard_optimizer={cores.layout.optimizer_is_sharded}, "
            f"fsdp={cores.layout.is_fsdp}. Leave `group_assignment` or these out."
        )
    if is_asked_for and cores.mesh is not None and not cores.axes:
        raise ValueError(
            "With several groups in `group_assignment`, each batch must be "
            f"divisible by the {cores.mesh.size} cores, because each group "
            "trains its own model. Received a batch of "
            f"{call.example.additional['batch_size']} examples. Drop a last, "
            "smaller batch with batch(..., drop_remainder=True)."
        )
    return is_asked_for and bool(cores.axes)


def _of_optimizers(ops: Sequence[Update]) -> list[TrainOp]:
    return [op for op in ops if isinstance(op, TrainOp)]


def _check_reduced(
    call: TracedModelFn,
    ops: Sequence[Update],
    forward: Captured,
    seeds: Sequence[str],
) -> None:
    """Checks that changes of trained variables are equal on all replicas."""
    axes = call.example.cores.axes
    if not axes:
        return
    outputs, assigned = forward.varying(seeds, axes)
    differing = [
        path
        for path, differs in assigned.items()
        if differs and forward.objects[path].trainable
    ]
    carried = iter(outputs["carried"])
    for op in ops:
        differs = op.loss is not None or any(next(carried))
        if differs and op.reduction is None:
            differing += [variable.path for variable in op.variables]
    if differing or not (ops or assigned.keys() - set(seeds)):
        names = sorted(set(differing))
        raise ValueError(
            "On several cores gradients must be combined over them. Received "
            "a train op without CrossShardOptimizer that changes "
            f"{names or 'nothing'} on each core separately: wrap the "
            "optimizer, CrossShardOptimizer(optimizer).minimize(loss), or "
            "pass TrainOp(..., reduction='mean'), or combine the gradients "
            "with cross_replica_mean, or set use_tpu=False to train on one "
            "core."
        )


def _check_assigned(call: TracedModelFn, forward: Captured) -> None:
    """Checks that all micro-batches see the same weights."""
    assigned = [p for p in forward.assigned if forward.objects[p].trainable]
    if call.micro_batches > 1 and assigned:
        raise ValueError(
            f"With micro_batches={call.micro_batches} model_fn must not "
            "assign trainable variables, because it would do so for every "
            f"micro-batch. Received assignments to {assigned}. Return a train "
            "op of CrossShardOptimizer, which updates once in a step, or set "
            "micro_batches=1."
        )
