"""Steps, programs and outputs: the terms between `model_fn` and the device loop."""

import collections
import dataclasses
import functools
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol, TypeAlias, TypeVar, runtime_checkable

import jax
import jax.numpy as jnp

from keras_tpu_estimator.api.hooks.session_run_hook import Hook
from keras_tpu_estimator.api.model_fn.scaffold import Scaffold
from keras_tpu_estimator.api.model_fn.spec_checks import HostFunction
from keras_tpu_estimator.base.common.modes import ModeKeys
from keras_tpu_estimator.base.common.types import Features, Labels, PyTree
from keras_tpu_estimator.base.mesh.cores import ONE_CORE, Cores
from keras_tpu_estimator.base.tracing.variables import AnyArraysByPath, ArraysByPath
from keras_tpu_estimator.engine.inputs.deployment import TPUContext
from keras_tpu_estimator.engine.inputs.input_shapes import Cut
from keras_tpu_estimator.engine.inputs.unbatched import batch_size
from keras_tpu_estimator.engine.program.additions import NO_ADDITIONS, StepAdditions
from keras_tpu_estimator.engine.program.store import VariableStore

Outputs: TypeAlias = dict[str, PyTree]
StepFunction: TypeAlias = Callable[
    [AnyArraysByPath, Features, Labels], tuple[ArraysByPath, Outputs]
]
Partition: TypeAlias = Callable[[Cut, Features, Labels], tuple[Features, Labels]]
Arrange: TypeAlias = Callable[[Features, Labels], tuple[Features, Labels]]
T = TypeVar("T")

# The feature of PREDICT that marks padding rows.
IS_PADDING = "is_padding"

# The names of a step's outputs, which front ends return and the device loop, hooks and
# the host's functions read. In TRAIN and EVAL a step returns its loss, in PREDICT its
# predictions. Tensors for functions of the host have the name of that function's field
# in the spec.
LOSS, PREDICTIONS = "loss", "predictions"
HOST_CALL, TRAIN_METRICS, EVAL_METRICS = "host_call", "train_metrics", "eval_metrics"
# The metrics over all steps so far, if the program accumulates them itself.
METRIC_VALUES = "metric_values"
# Outputs that are equal on all cores; the others are concatenated.
SAME_ON_ALL_CORES = frozenset({LOSS, METRIC_VALUES})

# Outputs that only the last step returns, as it does these metrics: a list of
# `Collected`, tensors by the names that hooks fetch, and numbers to report.
SUMMARIES, NAMED, REPORTS = "summaries", "named", "reports"
# The loss of one step; `loss` is the mean up to it.
STEP_LOSS = "step_loss"
# The gradients with respect to features, by key.
FEATURE_GRADIENTS = "feature_gradients"
NEWEST = (SUMMARIES, NAMED, REPORTS, METRIC_VALUES)
# The global step after each step of a program that assigns it.
STEP_NUMBERS = "step_numbers"


class Names(Protocol):
    """Names, such as a set of them."""

    def intersection(self, names: Iterable[str], /) -> Iterable[str]:
        """Returns the given names that are among these."""


@dataclasses.dataclass(frozen=True)
class BatchLayout:
    """The distribution of a mode's batches over the cores.

    Attributes:
        is_split: Whether each core receives a slice of the batch. Otherwise each
            receives the complete batch.
        use_tpu: The value of `params["use_tpu"]`, and whether `params` has a
            `context`.
        arrange: Restores the user's form of one core's features and labels:
            the original batch axes, and nothing marked as shared.
        partition: Shards a replica's features and labels over its cores, given
            `Cores.cut`. By default they are replicated.
    """

    cores: Cores = ONE_CORE
    is_split: bool = True
    use_tpu: bool = False
    arrange: Arrange | None = None
    partition: Partition | None = None

    def cores_for(self, size: int) -> Cores:
        """Returns the cores for a batch; one core if it does not divide evenly."""
        shares = self.cores.topology.num_replicas if self.is_split else 1
        return self.cores.as_one() if size % shares else self.cores

    def sharding(self, size: int, axis: int = 0) -> jax.sharding.Sharding:
        """Returns the sharding of a tensor with a batch of this size on an axis."""
        if self.is_split:
            return self.cores_for(size).batch_sharding(axis)
        return self.cores.replicated

    def step_input(self, features: Features, labels: Labels) -> "StepInput":
        """Returns the input of a step for a batch."""
        size = batch_size((features, labels))
        cores = self.cores_for(size)
        split = self.is_split and cores.axes
        own = size // cores.topology.num_replicas if split else size
        additional: dict[str, Any] = {
            "batch_size": own,
            "use_tpu": self.use_tpu,
        }
        if self.use_tpu:
            # For the cores that share this batch, or for one core.
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
    """The input of one step, and its distribution over the cores.

    Attributes:
        features: Pytree of arrays, or of objects with a shape and a dtype. The
            first axis is the batch, except in `Unbatched` leaves.
        additional: The entries of `params` besides the user's own values.
        differentiated: Keys of features whose gradients TRAIN also outputs.
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
        """A key that is equal for inputs of the same traced step."""
        leaves, structure = jax.tree.flatten((self.features, self.labels))
        avals = tuple(
            (leaf.shape, jax.dtypes.canonicalize_dtype(leaf.dtype)) for leaf in leaves
        )
        use_tpu = self.additional["use_tpu"]
        way = (self.cores, self.is_split)
        return avals, structure, way, use_tpu, self.differentiated

    def sharing(self) -> Arrange:
        """Returns a function that shards a replica's inputs over its cores.

        It is called in a trace, and holds no reference to this input.
        """
        partition, cut = self.partition, self.cores.cut
        if partition is None:
            return lambda features, labels: (features, labels)
        return functools.partial(partition, cut)

    def arranged(self, features: Features, labels: Labels) -> tuple[Features, Labels]:
        """Returns one core's inputs in the form of the user's batch."""
        if self.arrange is None:
            return features, labels
        return self.arrange(features, labels)

    def on_cores(self, per_core: StepFunction, outputs_split: PyTree) -> StepFunction:
        """Returns a step's function of complete batches.

        Args:
            per_core: The function of values by path and of one core's features and
                labels. The values that it returns must be equal on all cores.
            outputs_split: For each of its outputs, whether the cores' tensors are
                concatenated, as from `splits`. Otherwise they must be equal.
        """
        split, share = self.is_split, self.sharing()

        def of_parts(
            values: AnyArraysByPath, features: Features, labels: Labels
        ) -> tuple[ArraysByPath, Outputs]:
            return per_core(values, *share(features, labels))

        return self.cores.per_core(
            of_parts,
            split=(False, split, split),
            outputs_split=(False, outputs_split),
        )

    def without_data(self) -> "StepInput":
        """Returns this input without features and labels."""
        return dataclasses.replace(self, features=None, labels=None)

    def of_one_call(self, micro_batches: int = 1) -> tuple[Features, Labels]:
        """Returns the features and labels that `model_fn` sees on the first core."""
        replicas = self.cores.topology.num_replicas if self.is_split else 1
        parts = replicas * micro_batches

        def part(leaf: Any) -> Any:
            # A scalar is never divided.
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
        function: Takes values by path, features and labels of the complete
            batch. Returns the changed values and a dict of outputs: `loss`,
            `predictions`, `eval_metrics`, `train_metrics`, `host_call`,
            `metric_values`, `summaries`, `named`, `reports`.
        reads: Paths of the variables that the function takes.
        assigned: Paths among them that the function may assign.
        metric_fn: Computes metrics from the output `eval_metrics`, or in TRAIN
            from `train_metrics`.
        scaffold: The user's actions before the first step.
        named: The names of tensors that hooks may fetch.
        is_grouped: Whether groups of cores have different values. The values of
            the first core are the model's.
        directions: The Keras metrics among the `metric_values` that should rise
            ("up") or fall ("down"), by name.
        additions: Everything that only its front end needs.
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
    is_grouped: bool = False
    records: bool = True
    directions: Mapping[str, str] = dataclasses.field(default_factory=dict)
    additions: StepAdditions = NO_ADDITIONS

    def __post_init__(self) -> None:
        unread = {*self.assigned} - {*self.reads}
        if unread:
            raise ValueError(
                "`reads` must contain all paths that the step assigns. Received "
                f"{sorted(self.reads)} without {sorted(unread)}. Add them."
            )
        # JAX orders the values of a dict by their keys.
        object.__setattr__(self, "reads", tuple(sorted(self.reads)))
        object.__setattr__(self, "assigned", tuple(sorted(self.assigned)))

    def split(self, values: Mapping[str, T]) -> tuple[dict[str, T], dict[str, T]]:
        """Returns the values that the step assigns, and those it only reads."""
        return (
            {path: values[path] for path in self.assigned},
            {path: values[path] for path in self._only_read},
        )

    @functools.cached_property
    def _only_read(self) -> tuple[str, ...]:
        return tuple(sorted({*self.reads} - {*self.assigned}))

    def named_among(self, names: Iterable[str]) -> tuple[str, ...]:
        """Returns the given names that are tensors to fetch."""
        return tuple(sorted(self.named.intersection(names)))


class Program(Protocol):
    """The variables and the steps that a `model_fn` defines.

    Front ends make programs; the users of a program do not depend on them. A program
    that also `ReadsBatches` prepares them on the host.
    """

    store: VariableStore

    def step(self, mode: str, example: StepInput) -> Step:
        """Returns the step for inputs of this shape, traced at the first call.

        Initial values that depend on the input are computed from the example.
        """


class ReadAgainError(ValueError):
    """The input must be read again, because the program now reads each batch.

    A program that `ReadsBatches` raises it before its first step. From then on it
    `reads_all`.
    """


@runtime_checkable
class ReadsBatches(Protocol):
    """A program that computes tensors of each batch on the host.

    `reads_all` means that it does so for batches of dense numbers too.
    """

    reads_all: bool

    def read(
        self,
        mode: str,
        layout: BatchLayout,
        features: Features,
        labels: Labels,
        size: int | None = None,
    ) -> tuple[Features, Labels]:
        """Returns the tensors that the devices receive for a batch of the user.

        The reading thread calls this method. A smaller batch is later padded to `size`.
        """


_METRICS = {ModeKeys.TRAIN: TRAIN_METRICS, ModeKeys.EVAL: EVAL_METRICS}


def outputs_of(spec: Any, mode: str, fed: Callable[[HostFunction], PyTree]) -> Outputs:
    """Returns the tensors of a spec that leave the devices in a mode.

    Its `eval_metric_ops` are not among them. `fed` returns the tensors that a function
    on the host receives in each step.
    """
    if mode == ModeKeys.PREDICT:
        predictions = spec.predictions
        if isinstance(predictions, Mapping):
            # JAX sorts the keys of a dict.
            predictions = collections.OrderedDict(predictions)
        outputs = {PREDICTIONS: predictions}
    else:
        outputs = {LOSS: spec.loss}
    metrics = metrics_of(spec, mode)
    if metrics is not None:
        outputs[_METRICS[mode]] = fed(metrics)
    if spec.host_call is not None:
        outputs[HOST_CALL] = fed(spec.host_call)
    return outputs


def metrics_of(spec: Any, mode: str) -> HostFunction | None:
    """Returns the function that computes metrics on the host, if there is one."""
    metrics: HostFunction | None = getattr(spec, _METRICS.get(mode, ""), None)
    return metrics


def metrics_name(mode: str) -> str:
    """Returns the name of the output that `metrics_of` a mode are fed with."""
    return _METRICS.get(mode, "")


def splits(names: Iterable[str], is_split: bool) -> dict[str, bool]:
    """Returns by name whether outputs are concatenated over the cores."""
    return {name: is_split and name not in SAME_ON_ALL_CORES for name in names}


def check_concatenable(
    outputs: Outputs,
    example: StepInput,
    rank_of: Callable[[Any], int | None],
    micro_batches: int = 1,
) -> None:
    """Raises an error if an output that is concatenated is a scalar.

    With `use_tpu` this check also runs on one core, so that a program does not fail
    only on several. `rank_of` returns `None` for an unknown rank.
    """
    is_split = example.additional["use_tpu"] and example.is_split
    if not is_split and micro_batches == 1:
        return
    for name, tensors in outputs.items():
        if name in SAME_ON_ALL_CORES:
            continue
        for path, leaf in jax.tree_util.tree_leaves_with_path(tensors):
            if rank_of(leaf) == 0:
                raise RuntimeError(
                    f"The tensors of `{name}` must have a first axis, along "
                    "which those of cores and micro-batches are concatenated. "
                    f"Received: a scalar at {jax.tree_util.keystr(path)}. Reshape "
                    "it to [1]."
                )


def same_on_all(cores: Cores, value: jax.Array) -> jax.Array:
    """Returns one value for a tensor that differs between cores."""
    if jnp.issubdtype(value.dtype, jnp.inexact):
        return cores.mean(value)
    return cores.of_first(value)


def of_all_cores(
    cores: Cores,
    tensors: Mapping[str, jax.Array],
    differing: Mapping[str, bool],
) -> dict[str, jax.Array]:
    """Returns one value for each named scalar over all cores.

    Floats are averaged. Integers that may differ between cores are summed, and such
    booleans are true if any is true. Other tensors are returned unchanged.
    """

    def one(value: jax.Array, differs: bool) -> jax.Array:
        if jnp.issubdtype(value.dtype, jnp.inexact):
            return cores.mean(value)
        return cores.sum(value).astype(value.dtype) if differs else value

    return {
        name: value if value.ndim else one(value, differing[name])
        for name, value in tensors.items()
    }
