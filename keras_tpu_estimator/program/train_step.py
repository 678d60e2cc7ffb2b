"""One step of training: forward, backward, update, on every core."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from keras import ops as keras_ops

from keras_tpu_estimator import distribution
from keras_tpu_estimator.capture import Captured
from keras_tpu_estimator.gradient_requests import GradientAnswers
from keras_tpu_estimator.gradient_requests import GradientRequest
from keras_tpu_estimator.gradient_requests import pull_back
from keras_tpu_estimator.optimizers import TrainOp
from keras_tpu_estimator.optimizers import Update
from keras_tpu_estimator.program.model_call import ModelCall
from keras_tpu_estimator.program.steps import REPORTS
from keras_tpu_estimator.program.steps import Step
from keras_tpu_estimator.program.store import GLOBAL_STEP
from keras_tpu_estimator.program.store import Values
from keras_tpu_estimator.program.store import VariableStore
from keras_tpu_estimator.program.synchronization import fold_seeds
from keras_tpu_estimator.program.synchronization import seed_paths
from keras_tpu_estimator.program.synchronization import synchronize


def trace_train_step(store: VariableStore, call: ModelCall) -> Step:
    """Traces `model_fn` in TRAIN and makes a step of its train op.

    Args:
        store: The program's variables; new ones are entered.
        call: The call of `model_fn`.

    Returns:
        A `Step` whose function returns all values that changed.

    Raises:
        ValueError: On several cores, gradients are not combined over them.
    """
    cores = call.example.cores
    args = call.example.of_one_core()
    forward = _trace_forward(store, call, args)
    store.enter(forward.last, *args, forward.example_answers)
    ops = [op for op in call.spec.train_op if isinstance(op, Update)]
    _check_reduced(call, ops)
    update = _trace_update(store, call, ops, forward.last)
    seeds = seed_paths(forward.last.objects)

    def per_core(values: Values, features: Any, labels: Any) -> Any:
        own = fold_seeds(values, seeds, cores, 1)
        gradients, outputs, updates = forward.differentiate(
            own, (features, labels), ops
        )
        carried = outputs.pop("carried")
        outputs["loss"] = cores.mean(outputs["loss"])
        changed = fold_seeds(updates, seeds, cores, -1)
        free = {p: v for p, v in changed.items() if p not in seeds}
        changed |= synchronize(free, own, store.variables, cores)
        outputs[REPORTS], updated = update(
            {**values, **changed}, gradients, carried
        )
        step = {GLOBAL_STEP: values[GLOBAL_STEP] + 1}
        return {**changed, **updated, **step}, outputs

    reads = {GLOBAL_STEP, *forward.last.objects, *update.objects}
    return call.step(per_core, tuple(sorted(reads)))


@dataclasses.dataclass(frozen=True)
class _Forward:
    """`model_fn` up to each gradient it asks for, and then to its end.

    Attributes:
        partial: The traces that ended at a request, with the paths of the
            variables it was about.
        last: The trace that came to the end, given all answers.
        example_answers: Answers of the right shapes.
    """

    partial: Sequence[tuple[Captured, tuple[str, ...]]]
    last: Captured
    example_answers: Sequence[Values]

    def differentiate(
        self, values: Values, args: tuple[Any, Any], ops: Sequence[Update]
    ) -> tuple[list[Any], dict[str, Any], Values]:
        """One forward and backward pass.

        Returns:
            For each op that minimises a loss, the gradients of its variables;
            the outputs; and the values assigned on the way.
        """
        minimized = [op for op in ops if op.loss is not None]
        paths = {v.path for op in minimized for v in op.variables}

        def objectives(trainable: Values) -> Any:
            current = {**values, **trainable}
            answers = self._answers(len(self.partial), current, args)
            outputs, updates = self.last(current, *args, answers)
            return outputs.pop("objectives"), (outputs, updates)

        wanted = {path: values[path] for path in sorted(paths)}
        if not minimized:
            _, (outputs, updates) = objectives(wanted)
            return [], outputs, updates
        gradients, (outputs, updates) = pull_back(objectives, wanted)
        chosen = [
            tuple(gradient[v.path] for v in op.variables)
            for op, gradient in zip(minimized, gradients, strict=True)
        ]
        return chosen, outputs, updates

    def _answers(
        self, count: int, values: Values, args: tuple[Any, Any]
    ) -> list[Values]:
        """The first answers, as functions of the values they are taken at.

        Each request may depend on the answers before it; they are carried
        along, so that every trace is evaluated once.
        """
        if not count:
            return []
        captured, paths = self.partial[count - 1]

        def loss(trainable: Values) -> Any:
            current = {**values, **trainable}
            answers = self._answers(count - 1, current, args)
            return captured(current, *args, answers)[0], answers

        gradient, answers = jax.grad(loss, has_aux=True)(
            {path: values[path] for path in paths}
        )
        return [*answers, gradient]


def _trace_forward(
    store: VariableStore, call: ModelCall, args: tuple[Any, Any]
) -> _Forward:
    """Traces `model_fn`, once more for each gradient that it asks for."""
    partial: list[tuple[Captured, tuple[str, ...]]] = []
    answers: list[Values] = []
    requested: list[tuple[str, ...]] = []

    def run(features: Any, labels: Any, answers: list[Values]) -> Any:
        try:
            with GradientAnswers(answers):
                outputs = call(features, labels)
        except GradientRequest as request:
            requested.append(request.paths)
            return request.loss
        return outputs | _to_differentiate(call.spec.train_op)

    while True:
        requested.clear()
        captured = store.capture(
            run, *args, answers, axis_sizes=call.example.cores.axis_sizes
        )
        if not requested:
            return _Forward(partial, captured, answers)
        partial.append((captured, requested[-1]))
        variables = captured.objects
        answers = [
            *answers,
            {
                path: jnp.zeros(variables[path].shape, variables[path].dtype)
                for path in requested[-1]
            },
        ]


def _to_differentiate(train_ops: Sequence[Any]) -> dict[str, Any]:
    ops = [op for op in train_ops if isinstance(op, Update)]
    return {
        "objectives": [op.loss for op in ops if op.loss is not None],
        "carried": [op.carried for op in ops if op.loss is None],
    }


def _trace_update(
    store: VariableStore,
    call: ModelCall,
    ops: Sequence[Update],
    forward: Captured,
) -> Captured:
    """Traces what the ops do with the gradients and what else they need."""

    def update(minimized: list[Any], carried: list[Any]) -> dict[str, Any]:
        minimized, carried = list(minimized), list(carried)
        rates = _learning_rates(_of_optimizers(ops))
        with distribution.replica_scope(call.example.cores.context):
            for op in ops:
                op.apply((carried if op.loss is None else minimized).pop(0))
        return rates

    def like(tensors: Sequence[Any]) -> tuple[Any, ...]:
        return tuple(jnp.zeros(t.shape, t.dtype) for t in tensors)

    gradients = (
        [like(op.variables) for op in ops if op.loss is not None],
        [like(op.carried) for op in ops if op.loss is None],
    )
    captured = store.capture(
        update,
        *gradients,
        objects=forward.objects,
        axis_sizes=call.example.cores.axis_sizes,
    )
    store.enter(captured, *gradients)
    for op in _of_optimizers(ops):
        store.slots.update(v.path for v in op.optimizer.variables)
        store.optimizers.setdefault(op.optimizer.name, op.optimizer)
        rate = f"{op.optimizer.name}/learning_rate"
        if rate in forward.objects:
            store.constants.add(rate)
    return captured


def _of_optimizers(ops: Sequence[Update]) -> list[TrainOp]:
    return [op for op in ops if isinstance(op, TrainOp)]


def _learning_rates(train_ops: Sequence[TrainOp]) -> dict[str, Any]:
    """The learning rate of this step, or those of several optimizers."""
    rates = {
        op.optimizer.name: keras_ops.cast(op.optimizer.learning_rate, "float32")
        for op in train_ops
    }
    if len(rates) == 1:
        return {"learning_rate": rates.popitem()[1]}
    return {f"learning_rate/{name}": rate for name, rate in rates.items()}


def _check_reduced(call: ModelCall, ops: Sequence[Update]) -> None:
    """Several cores must combine their gradients, or they drift apart."""
    reduces = _of_optimizers(ops) or call.context.reduced
    if call.example.cores.axes and not reduces:
        raise ValueError(
            "On several cores gradients should be combined over them. "
            "Received a train op without CrossShardOptimizer: wrap the "
            "optimizer, CrossShardOptimizer(optimizer).minimize(loss), or set "
            "use_tpu=False to train on one core."
        )
