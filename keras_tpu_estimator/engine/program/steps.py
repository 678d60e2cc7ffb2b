"""What a step is: the vocabulary between `model_fn` and the device loop."""

import dataclasses
import functools
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol, TypeAlias, TypeVar

import jax

from keras_tpu_estimator.engine.inputs.context import TPUContext
from keras_tpu_estimator.engine.inputs.partition import Cut
from keras_tpu_estimator.engine.inputs.unbatched import batch_size
from keras_tpu_estimator.ground.base.source_line import SourceLine
from keras_tpu_estimator.ground.base.types import Features, Labels, Nest
from keras_tpu_estimator.ground.mesh.cores import ONE_CORE, Cores
from keras_tpu_estimator.ground.tracing.variables import AnyArraysByPath, ArraysByPath
from keras_tpu_estimator.spec.hooks.graph_session import HookedGraph
from keras_tpu_estimator.spec.hooks.session_run_hook import Hook
from keras_tpu_estimator.spec.model_fn.scaffold import Scaffold
from keras_tpu_estimator.spec.model_fn.spec_checks import HostFunction

Outputs: TypeAlias = dict[str, Nest]
StepFunction: TypeAlias = Callable[
    [AnyArraysByPath, Features, Labels], tuple[ArraysByPath, Outputs]
]
Partition: TypeAlias = Callable[[Cut, Features, Labels], tuple[Features, Labels]]
Arrange: TypeAlias = Callable[[Features, Labels], tuple[Features, Labels]]
T = TypeVar("T")

# The feature that tells in PREDICT which rows are padding.
IS_PADDING = "is_padding"

# The metrics over all steps so far, where a program counts them itself.
METRIC_VALUES = "metric_values"
# The scope of the operations of a TensorFlow graph in XLA's names.
GRAPH_SCOPE = "tf1_step"
# Outputs that are equal on all cores; the others are concatenated.
SAME_ON_ALL_CORES = frozenset({"loss", METRIC_VALUES})

# Outputs that are wanted of the last step only, beside those metrics: a list of
# `Collected`, tensors by the names that hooks fetch them under, and numbers to
# report.
SUMMARIES, NAMED, REPORTS = "summaries", "named", "reports"
# The loss of a step, beside the mean over the steps before it.
STEP_LOSS = "step_loss"
# Of the features by which a step differentiates, by their keys.
FEATURE_GRADIENTS = "feature_gradients"
# Flags of 64-bit integers that were cut off, by name: see `cut_integers`.
CUT = "cut"
NEWEST = (SUMMARIES, NAMED, REPORTS, METRIC_VALUES)
# The global step after each step that does not count itself once.
STEP_NUMBERS = "step_numbers"


class Names(Protocol):
    """Names, such as a set of them."""

    def intersection(self, names: Iterable[str], /) -> Iterable[str]:
        """Those of some names that are among these."""


@dataclasses.dataclass(frozen=True)
class BatchLayout:
    """How the cores share the batches of a mode.

    Attributes:
        cores: The cores that run a step. Defaults to one core.
        is_split: Whether each core gets its slice of a batch, or each the
            whole. Defaults to `True`.
        use_tpu: The value of `params["use_tpu"]`, and whether `params` has a
            `context`. Defaults to `False`.
        arrange: Makes one core's features and labels what the user gave: with
            the batch axes where they were, and nothing marked as shared. By
            default nothing is done.
        partition: Has the cores of a replica share its features and labels,
            given `Cores.cut`. By default all of them have them whole.
    """

    cores: Cores = ONE_CORE
    is_split: bool = True
    use_tpu: bool = False
    arrange: Arrange | None = None
    partition: Partition | None = None

    def cores_for(self, size: int) -> Cores:
        """The cores that run a batch of this size.

        A batch that they cannot share evenly, such as the last one of an
        evaluation, is run whole, as on one core.
        """
        shares = self.cores.topology.num_replicas if self.is_split else 1
        return self.cores.as_one() if size % shares else self.cores

    def sharding(self, size: int, axis: int = 0) -> jax.sharding.Sharding:
        """Where a tensor with a batch of this size on an axis is put."""
        if self.is_split:
            return self.cores_for(size).batch_sharding(axis)
        return self.cores.replicated

    def step_input(self, features: Features, labels: Labels) -> "StepInput":
        """What a step is given of a batch."""
        size = batch_size((features, labels))
        cores = self.cores_for(size)
        split = self.is_split and cores.axes
        own = size // cores.topology.num_replicas if split else size
        additional: dict[str, Any] = {
            "batch_size": own,
            "use_tpu": self.use_tpu,
        }
        if self.use_tpu:
            # Of the cores that share this batch: one, if they cannot.
            additional["context"] = TPUContext(cores.topology)
        return StepInput(
            features,
            labels,
            cores,
            self.is_split,
            additional,
            self.arrange,
            self.partition,
        )


@dataclasses.dataclass(frozen=True)
class StepInput:
    """What one step is given, and how the cores share it.

    Attributes:
        features: Nest of arrays, or of anything with a shape and a dtype; the
            first axis is the batch, but in those that are `Unbatched`.
        labels: The same, or `None`.
        is_split: Whether each core gets its slice, or each the whole.
        additional: What `params` holds besides the user's own values.
        arrange: As in `BatchLayout`.
        differentiated: Keys of features whose gradients are an output of
            TRAIN, too. Defaults to none.
    """

    features: Features
    labels: Labels
    cores: Cores
    is_split: bool
    additional: Mapping[str, Any]
    arrange: Arrange | None
    partition: Partition | None
    differentiated: tuple[str, ...] = ()

    @property
    def key(self) -> tuple[Any, ...]:
        """Equal for inputs that one traced step serves."""
        leaves, structure = jax.tree.flatten((self.features, self.labels))
        avals = tuple(
            (leaf.shape, jax.dtypes.canonicalize_dtype(leaf.dtype)) for leaf in leaves
        )
        use_tpu = self.additional["use_tpu"]
        way = (self.cores, self.is_split)
        return avals, structure, way, use_tpu, self.differentiated

    def sharing(self) -> Arrange:
        """Has the cores of a replica share their inputs, in a trace.

        Returns:
            A function of features and labels, which keeps none of these here.
        """
        partition, cut = self.partition, self.cores.cut
        if partition is None:
            return lambda features, labels: (features, labels)
        return functools.partial(partition, cut)

    def without_data(self) -> "StepInput":
        """The same for who only has to know how it is shared."""
        return dataclasses.replace(self, features=None, labels=None)

    def of_one_call(self, micro_batches: int = 1) -> tuple[Features, Labels]:
        """The features and labels that `model_fn` sees on the first core.

        Args:
            micro_batches: Into how many parts each core cuts its batch.
                Defaults to 1.
        """
        replicas = self.cores.topology.num_replicas if self.is_split else 1
        parts = replicas * micro_batches

        def part(leaf: Any) -> Any:
            # A scalar is never cut.
            size = leaf.shape[0] // parts if parts > 1 else None
            if isinstance(leaf, jax.core.Tracer | jax.ShapeDtypeStruct):
                shape = leaf.shape if size is None else (size, *leaf.shape[1:])
                return jax.ShapeDtypeStruct(shape, leaf.dtype)
            return leaf if size is None else leaf[:size]

        return jax.tree.map(part, (self.features, self.labels))


@dataclasses.dataclass(frozen=True, eq=False)
class Step:
    """One step of a mode as a pure function.

    Attributes:
        function: Takes values by path, features and labels, all whole. Returns
            the values that changed and a dict of outputs: `loss`,
            `predictions`, `eval_metrics`, `train_metrics`, `host_call`,
            `metric_values`, `summaries`, `named`, `reports`.
        reads: Paths of the variables it takes.
        assigned: Paths of those among them that it may give new values.
        metric_fn: What makes metrics of the output `eval_metrics`, or in TRAIN
            of `train_metrics`.
        host_call: What is given the output `host_call`.
        scaffold: What is done before the first step.
        named: The names of tensors that may be fetched.
        graph: What hooks of TensorFlow use of the graph that it was made of.
            Defaults to `None`.
        is_grouped: Whether cores come to have values of their own, in groups.
            Those of the first core are the model's. Defaults to `False`.
        counts_once: Whether each step of TRAIN increments the global step by
            one. If not, the global step is the value that the step assigns.
            Defaults to `True`.
        records: Whether its outputs may have summaries. Defaults to `True`.
        directions: Which Keras metrics among the `metric_values` should rise
            ("up") or fall ("down"), by name. Defaults to none.
        line_in_graph: Returns the user's line that made an operation of the
            graph, by its name, or `None` if that is not known. Defaults to
            `None`: there is no graph.
    """

    mode: str
    function: StepFunction
    reads: tuple[str, ...]
    assigned: tuple[str, ...]
    metric_fn: HostFunction | None
    host_call: HostFunction | None
    hooks: tuple[Hook, ...]
    scaffold: Scaffold
    named: Names
    graph: HookedGraph | None = None
    is_grouped: bool = False
    counts_once: bool = True
    records: bool = True
    directions: Mapping[str, str] = dataclasses.field(default_factory=dict)
    line_in_graph: Callable[[str], SourceLine | None] | None = None

    def split(self, values: Mapping[str, T]) -> tuple[dict[str, T], dict[str, T]]:
        """The values that it assigns, and the others that it reads."""
        return (
            {path: values[path] for path in self.assigned},
            {path: values[path] for path in self._only_read},
        )

    @functools.cached_property
    def _only_read(self) -> tuple[str, ...]:
        return tuple(sorted({*self.reads} - {*self.assigned}))

    def named_among(self, names: Iterable[str]) -> tuple[str, ...]:
        """The names that are those of tensors to fetch."""
        return tuple(sorted(self.named.intersection(names)))
