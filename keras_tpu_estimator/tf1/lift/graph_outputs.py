"""The outputs of a TF1 graph that leave the devices.

Hooks may fetch any tensor of the graph. A step is compiled on its first run, and again
if hooks request more later.
"""

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any

from keras_tpu_estimator.base.common.logs import warn_once
from keras_tpu_estimator.base.common.modes import ModeKeys
from keras_tpu_estimator.engine.program.steps import StepInput
from keras_tpu_estimator.engine.program.store import GLOBAL_STEP
from keras_tpu_estimator.tf1.graph.model_graph import ModelGraph
from keras_tpu_estimator.tf1.graph.variables import is_wide
from keras_tpu_estimator.tf1.host.summaries import Recorded
from keras_tpu_estimator.tf1.lift.lifting import Lifted, Pruned


def check_variables(model: ModelGraph, step: Pruned) -> None:
    """Checks that all variables of a step are global or local."""
    uncollected = sorted({*step.body.variables} - {*model.variables, *model.local})
    if uncollected:
        raise ValueError(
            "The variables of a model_fn must be global variables, which belong "
            "to the model, or local variables, which belong to a call. Received: "
            f"{uncollected}. Leave `collections` out where they are made."
        )


def warn_of_writes(model: ModelGraph, step: Pruned, mode: str) -> None:
    """Warns if a step that does not train writes variables that its results read.

    For example, a condition chooses between batch normalization for training and for
    evaluation. The first writes averages that the second reads.
    """
    written = step.effects.last_writes.keys() & model.variables.keys()
    read_and_written = sorted(written & _read_by(step.fetches) - {GLOBAL_STEP})
    if not read_and_written:
        return
    line = step.line_of(step.effects.last_writes[read_and_written[0]])
    call = "evaluate" if mode == ModeKeys.EVAL else "predict"
    warn_once(
        f"In {call}, model_fn assigns variables that its results depend on: "
        f"{', '.join(read_and_written[:5])}{'' if line is None else f' (at {line})'}. "
        "Each batch changes what the next ones are computed with; in "
        "TensorFlow 1.15 it is left to chance whether a batch reads old or "
        "new values. Assign them only in mode 'train', such as by "
        "batch_norm(is_training=mode == tf.estimator.ModeKeys.TRAIN)."
    )


def _read_by(fetches: Sequence[Any]) -> set[str]:
    """Returns the names of the variables from which tensors are computed."""
    visited, stack = set(), [tensor.op for tensor in fetches]
    names = set()
    while stack:
        op = stack.pop()
        if op.name in visited:
            continue
        visited.add(op.name)
        stack += [tensor.op for tensor in op.inputs]
        if op.type == "VarHandleOp":
            names.add(op.name)
    return names


def check_trained(model: ModelGraph, step: Pruned, example: StepInput) -> None:
    """Checks that a step trains, with the same result on all devices."""
    changes = step.effects.last_writes
    if GLOBAL_STEP not in changes:
        raise ValueError(
            "`train_op` must increment the global step. Received one that "
            f"assigns {sorted(changes)}. Use "
            "`optimizer.minimize(loss, tf.train.get_global_step())`."
        )
    check_replicated(model, step, example)


def check_replicated(model: ModelGraph, step: Pruned, example: StepInput) -> None:
    """Checks that a step has the same result on all devices."""
    varying = step.varying(example.is_split)
    if varying.sums and example.cores.axes:
        raise ValueError(_sums_that_differ(step, varying.sums))
    differing = sorted(varying.variables & model.trainable)
    if differing and example.cores.axes:
        raise ValueError(
            "On several cores gradients must be combined over them. "
            "Received a train op without CrossShardOptimizer that changes "
            f"{differing} on each device separately. Wrap the optimizer: "
            "tf.compat.v1.tpu.CrossShardOptimizer(optimizer), or sum the "
            "gradients with tf.compat.v1.tpu.cross_replica_sum, or set "
            "use_tpu=False to train on one device."
        )


def _sums_that_differ(step: Pruned, names: Sequence[str]) -> str:
    lines = [(name, step.line_of(name)) for name in names]
    sums = ", ".join(
        name if line is None else f"{name}, made at {line}" for name, line in lines
    )
    return (
        "All devices must run each sum over devices, such as "
        "that of a CrossShardOptimizer. Received a sum in a branch or a loop "
        f"that depends on the batch of each device: {sums}. Use the same value "
        "in the condition on all devices, such as "
        "tf.compat.v1.tpu.cross_replica_sum(loss) > 1.0, or set use_tpu=False "
        "to train on one device."
    )


@dataclasses.dataclass(frozen=True, eq=False)
class Compiled:
    """A compiled step, and its outputs.

    The summaries follow the first outputs, and the tensors `names` that hooks fetch
    follow the summaries. The values of the variables in `varying` differ between
    devices after the step.
    """

    lifted: Lifted
    varying: frozenset[str]
    summaries: Sequence[Recorded]
    names: Sequence[str]
    tensors: Sequence[Any]


class GraphOutputs:
    """The outputs of one graph, all of whose operations devices must be able to run.

    Args:
        first: The tensors that always leave the devices.
        targets: Operations or tensors that run without being returned.
        is_split: Whether each device receives its own inputs.
        counts: Whether hooks and summaries may use all local variables, or only those
            of the step.

    Attributes:
        pruned: The step without the fetches of hooks.
        local: The names of the local variables that the step may have.
        used: The names of the variables that the step uses, without its summaries.
        on_host: The names of the variables that nothing on the devices uses, and that
            devices cannot hold in their dtypes.
    """

    def __init__(
        self,
        model: ModelGraph,
        first: Sequence[Any],
        targets: Sequence[Any],
        summaries: Sequence[Recorded],
        is_split: bool,
        counts: bool,
    ):
        self._model = model
        self._first = first
        self._targets = targets
        self._is_split = is_split
        self.pruned = self._prune([])
        self.used = frozenset(self.pruned.body.variables)
        used_or_loose = self.used | {*model.loose}
        self.local = tuple(n for n in model.local if counts or n in used_or_loose)
        self.on_host = frozenset[str]()
        self._summaries = self._possible(summaries)
        self.on_host = self._left_on_host()
        self._named: dict[str, Any] = {}
        self._compiled: Compiled | None = None

    @property
    def records(self) -> bool:
        """Whether there are summaries to write."""
        return bool(self._summaries)

    def intersection(self, names: Iterable[str]) -> set[str]:
        """Returns the names that are tensors, and makes these leave the devices.

        Names may lack their ":0". A tensor that no device can compute raises an error.
        """
        candidates = {name: self._tensor(name) for name in names}
        tensors = {n: tensor for n, tensor in candidates.items() if tensor is not None}
        new = {n: t for n, t in tensors.items() if n not in self._named}
        if new:
            self._check(new)
            self._named |= new
            self._compiled = None
        return {*tensors}

    def compiled(self) -> Compiled:
        """Returns the step with all that has been requested so far."""
        if self._compiled is None:
            try:
                self._compiled = self._compile(self._summaries)
            except ValueError as error:
                if not self._summaries:
                    raise
                self._compiled = self._compile([])
                warn_once(f"No summaries are written: {error}")
        return self._compiled

    def _compile(self, summaries: Sequence[Recorded]) -> Compiled:
        more = [summary.tensor for summary in summaries] + [*self._named.values()]
        pruned = self._prune(more) if more else self.pruned
        return Compiled(
            pruned.compiled(),
            pruned.varying(self._is_split).variables,
            summaries,
            [*self._named],
            [*self._named.values()],
        )

    def _prune(self, more: Sequence[Any]) -> Pruned:
        model = self._model
        pruned = Pruned.from_graph(
            model.graph, model.inputs, self._first, self._targets, more
        )
        check_variables(model, pruned)
        return pruned

    def _left_on_host(self) -> frozenset[str]:
        """Returns the names for `on_host`."""
        model = self._model
        variables = {**model.variables, **{n: model.local[n] for n in self.local}}
        unused = variables.keys() - self.used - {GLOBAL_STEP}
        wide = {name for name in unused if is_wide(variables[name])}
        if wide and self._summaries:
            tensors = [summary.tensor for summary in self._summaries]
            wide -= {*self._prune(tensors).body.variables}
        return frozenset(wide)

    def _possible(self, summaries: Sequence[Recorded]) -> list[Recorded]:
        """Returns the summaries of tensors that devices can compute."""
        possible, groups = [], [[*summaries]] if summaries else []
        while groups:
            group = groups.pop()
            try:
                # Checks all together, because there may be one for each variable.
                self._check({e.summary.tag: e.tensor for e in group})
                possible += group
            except ValueError as error:
                if len(group) > 1:
                    half = len(group) // 2
                    groups += [group[half:], group[:half]]
                    continue
                tag = group[0].summary.tag
                warn_once(f"The summary {tag!r} is not written: {error}")
        return possible

    def _check(self, tensors: dict[str, Any]) -> None:
        """Checks that tensors can be computed without other effects."""
        model = self._model
        pruned = Pruned.from_graph(model.graph, model.inputs, [*tensors.values()])
        readable = {*self.local, *model.variables}
        unknown = sorted({*pruned.body.variables} - readable)
        if unknown:
            raise ValueError(
                "Hooks in evaluation and prediction must not fetch tensors that "
                f"metrics of the graph update. Received one of {sorted(tensors)}, "
                f"which reads {unknown}. Return it in `eval_metrics`."
            )
        hosted = sorted(self.on_host & {*pruned.body.variables})
        if hosted:
            raise ValueError(
                "A hook must fetch 64-bit variables that only hooks use without "
                "tensors of the step, because they stay on the host. Received one of "
                f"{sorted(tensors)}, which reads {hosted}. Fetch both separately, or "
                "give these variables a dtype of 32 bits."
            )
        assignable = {*self.pruned.effects.last_writes, *self.local}
        assigned = sorted(pruned.effects.last_writes.keys() - assignable)
        if assigned:
            raise ValueError(
                "Tensors that hooks fetch must not assign variables of the model. "
                f"Received one of {sorted(tensors)}, which assigns {assigned}. "
                "Make it part of train_op."
            )

    def _tensor(self, name: str) -> Any:
        """Returns the tensor with a name, or `None` if it does not exist."""
        import tensorflow as tf

        if name in self._model.variables or name in self._model.local:
            return None
        predictions = self._model.spec.predictions
        if isinstance(predictions, dict) and name in predictions:
            return predictions[name]
        try:
            element = self._model.graph.as_graph_element(name)
        except (KeyError, ValueError):
            return None
        if hasattr(element, "outputs"):
            if len(element.outputs) != 1:
                return None
            (element,) = element.outputs
        # Hooks have made variables since.
        return None if element.dtype == tf.resource else element
