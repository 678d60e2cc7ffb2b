"""Building the graph of a TF1 `model_fn` for one mode and shape."""

import contextlib
import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import jax

from keras_tpu_estimator.base.common.modes import ModeKeys
from keras_tpu_estimator.base.common.types import Features, Labels
from keras_tpu_estimator.engine.program.steps import StepInput
from keras_tpu_estimator.tf1.graph import internals
from keras_tpu_estimator.tf1.graph.building import building
from keras_tpu_estimator.tf1.graph.lookups import batches_of
from keras_tpu_estimator.tf1.graph.scaffolds import GraphScaffold, scaffold_of
from keras_tpu_estimator.tf1.graph.sparse_features import fed_for, placeholder_for
from keras_tpu_estimator.tf1.spec import Spec


@dataclasses.dataclass(frozen=True, eq=False)
class ModelGraph:
    """The graph that one call of `model_fn` built.

    Attributes:
        inputs: The placeholders of features and labels, as a flat list.
        local: The variables of one estimator call: metric counters, and the `loose`
            variables, which are in no collection. Hooks assign these, as those of
            Mesh TensorFlow do.
        trainable: The names of the trainable variables.
        scaffold: The fields of `tf.train.Scaffold` that the script has set.
    """

    graph: Any
    spec: Spec
    inputs: list[Any]
    variables: dict[str, Any]
    local: dict[str, Any]
    trainable: frozenset[str]
    scaffold: GraphScaffold
    loose: dict[str, Any] = dataclasses.field(default_factory=dict)

    def made_since(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Returns variables that were made later, by name: global, then local ones."""
        import tensorflow as tf

        v1 = tf.compat.v1
        earlier_names = {*self.variables, *self.local}
        with self.graph.as_default():
            new, local = (
                {
                    v.op.name: v
                    for v in variables
                    if v.op.name not in earlier_names and v.dtype != tf.string
                }
                for variables in (v1.global_variables(), v1.local_variables())
            )
        return new, local


def build(
    call_model_fn: Callable[..., Any],
    mode: str,
    example: StepInput,
    seed: int | None,
) -> ModelGraph:
    """Calls a `model_fn`, which returns a spec of `tf1`, in a new graph."""
    import tensorflow as tf

    v1 = tf.compat.v1
    cores = example.cores.topology.num_replicas
    rows = example.additional["batch_size"]
    with (
        building(seed, cores) as graph,
        internals.for_xla(graph),
        batches_of(rows),
        _recorded_variables() as recorded,
    ):
        features, labels = _placeholders(mode, example)
        # The script may replace the features or labels.
        inputs = fed_for((features, labels))
        additional = dict(example.additional)
        use_tpu = additional["use_tpu"]
        with internals.xla_context(graph) if use_tpu else contextlib.nullcontext():
            spec = call_model_fn(features, labels, mode, additional)
        if not isinstance(spec, Spec):
            raise TypeError(
                "A TF1 model_fn must return a tf1.TPUEstimatorSpec or a "
                f"tf1.EstimatorSpec. Received: {spec!r} of type "
                f"{type(spec).__name__}"
            )
        scaffold = scaffold_of(spec, use_tpu)
        # Hooks make it in the first graph, and read it in the graphs for batches
        # of other sizes.
        internals.make_step_read()
        if mode == ModeKeys.EVAL:
            internals.make_eval_step()
        variables = {v.op.name: v for v in v1.global_variables()}
        local = {v.op.name: v for v in v1.local_variables()}
        trainable = frozenset(v.op.name for v in v1.trainable_variables())
        loose = {
            v.op.name: v
            for v in recorded
            if getattr(v, "graph", None) is graph
            and v.op.name not in {*variables, *local}
            and v.dtype != tf.string
        }
    return ModelGraph(
        graph=graph,
        spec=spec,
        inputs=inputs,
        variables=variables,
        local={**local, **loose},
        trainable=trainable,
        scaffold=scaffold,
        loose=loose,
    )


@contextlib.contextmanager
def _recorded_variables() -> Iterator[list[Any]]:
    """Records the variables that are made in the `with` block."""
    import tensorflow as tf

    variables = []

    def record(create: Callable[..., Any], **settings: Any) -> Any:
        variables.append(create(**settings))
        return variables[-1]

    with tf.compat.v1.variable_creator_scope(record):
        yield variables


def _placeholders(mode: str, example: StepInput) -> tuple[Features, Labels]:
    """Returns the features and labels of one device as placeholders."""
    import tensorflow as tf

    features, labels = example.of_one_call()
    if mode == ModeKeys.PREDICT:
        labels = None
    leaves, structure = jax.tree.flatten((features, labels))
    shapes = [leaf.shape for leaf in leaves]
    if example.arrange is not None:
        # JAX has no strings and no sparse tensors, but these have shapes.
        shaped = [jax.ShapeDtypeStruct(leaf.shape, bool) for leaf in leaves]
        arranged = jax.eval_shape(
            example.arrange, *jax.tree.unflatten(structure, shaped)
        )
        structure = jax.tree.structure(arranged)
        shapes = [leaf.shape for leaf in jax.tree.leaves(arranged)]
    with tf.name_scope("kte_infeed"):
        tensors = [
            placeholder_for(leaf, shape)
            for leaf, shape in zip(leaves, shapes, strict=True)
        ]
    placeholders: tuple[Features, Labels] = jax.tree.unflatten(structure, tensors)
    return placeholders
