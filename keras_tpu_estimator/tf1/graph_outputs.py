"""What leaves the devices of a TF1 graph, as far as anybody wants it.

Hooks may ask for any tensor of the graph. A step is compiled when it is run
first; once more, if more is asked for after that.
"""

import dataclasses
import logging
from collections.abc import Iterable, Sequence
from typing import Any

from keras_tpu_estimator.tf1.graph import ModelGraph
from keras_tpu_estimator.tf1.lifting import Lifted, Pruned
from keras_tpu_estimator.tf1.step_checks import check_variables
from keras_tpu_estimator.tf1.summaries import Recorded

_logger = logging.getLogger("keras_tpu_estimator")


@dataclasses.dataclass(frozen=True, eq=False)
class Compiled:
    """A compiled step, and what the tensors are that it returns.

    Attributes:
        lifted: The step.
        varying: The variables that cores come to have different values of.
        summaries: After the first outputs, what is recorded.
        names: After these, the names of the tensors that hooks ask for.
        tensors: These tensors.
    """

    lifted: Lifted
    varying: frozenset[str]
    summaries: Sequence[Recorded]
    names: Sequence[str]
    tensors: Sequence[Any]


class GraphOutputs:
    """The outputs of one graph.

    Args:
        model: The graph.
        first: The tensors that always leave the devices.
        done: Operations or tensors that are run, too.
        summaries: What is recorded.
        is_split: Whether each core feeds inputs of its own.
        counts: Whether hooks and summaries may count in any variable of the
            call; else only in those of the step.

    Attributes:
        pruned: The step without what hooks ask for.
        local: The names of the variables of the call that it may have.

    Raises:
        ValueError: An operation can be run by no device.
    """

    def __init__(
        self,
        model: ModelGraph,
        first: Sequence[Any],
        done: Sequence[Any],
        summaries: Sequence[Recorded],
        is_split: bool,
        counts: bool,
    ):
        self._model = model
        self._first = first
        self._done = done
        self._is_split = is_split
        self.pruned = self._prune([])
        used = {*self.pruned.body.variables}
        self.local = tuple(n for n in model.local if counts or n in used)
        self._summaries = self._possible(summaries)
        self._named: dict[str, Any] = {}
        self._compiled: Compiled | None = None

    @property
    def records(self) -> bool:
        """Whether there are summaries to write."""
        return bool(self._summaries)

    def intersection(self, names: Iterable[str]) -> set[str]:
        """Those of some names that are tensors, which leave the devices then.

        Their ":0" may be missing. It refuses what no device can compute.
        """
        found = {name: self._tensor(name) for name in names}
        wanted = {n: tensor for n, tensor in found.items() if tensor is not None}
        new = {n: t for n, t in wanted.items() if n not in self._named}
        if new:
            self._check(new)
            self._named |= new
            self._compiled = None
        return {*wanted}

    def compiled(self) -> Compiled:
        """The step with all that was asked for so far."""
        if self._compiled is None:
            try:
                self._compiled = self._compile(self._summaries)
            except ValueError as error:
                if not self._summaries:
                    raise
                self._compiled = self._compile([])
                _logger.warning("No summaries are written: %s", error)
        return self._compiled

    def _compile(self, summaries: Sequence[Recorded]) -> Compiled:
        more = [each.tensor for each in summaries] + [*self._named.values()]
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
        pruned = Pruned.of(model.graph, model.inputs, self._first, self._done, more)
        check_variables(model, pruned)
        return pruned

    def _possible(self, summaries: Sequence[Recorded]) -> list[Recorded]:
        """The summaries of what devices compute."""
        found, left = [], [[*summaries]] if summaries else []
        while left:
            some = left.pop()
            try:
                # All at once: there may be one for each variable.
                self._check({e.summary.tag: e.tensor for e in some})
                found += some
            except ValueError as error:
                if len(some) > 1:
                    half = len(some) // 2
                    left += [some[half:], some[:half]]
                    continue
                tag = some[0].summary.tag
                _logger.warning("The summary %r is not written: %s", tag, error)
        return found

    def _check(self, tensors: dict[str, Any]) -> None:
        """Checks that tensors are computed without other effects."""
        model = self._model
        pruned = Pruned.of(model.graph, model.inputs, [*tensors.values()])
        own = {*self.local, *model.variables}
        unknown = sorted({*pruned.body.variables} - own)
        if unknown:
            raise ValueError(
                "What hooks fetch in evaluation and prediction should come of "
                f"no metrics of the graph. Received one of {sorted(tensors)}, "
                f"which counts in {unknown}. Make it one of `eval_metrics`."
            )
        known = {*self.pruned.effects.last_writes, *self.local}
        others = sorted(pruned.effects.last_writes.keys() - known)
        if others:
            raise ValueError(
                "What hooks fetch should assign no variable of the model. "
                f"Received one of {sorted(tensors)}, which assigns {others}. "
                "Make it part of train_op."
            )

    def _tensor(self, name: str) -> Any:
        """The tensor of a name; `None` if there is none."""
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
