"""A TF1 `model_fn` as named variables and pure step functions."""

import secrets
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from keras_tpu_estimator.base.modes import ModeKeys
from keras_tpu_estimator.base.types import Features
from keras_tpu_estimator.base.types import Labels
from keras_tpu_estimator.model_fn.scaffold import Scaffold
from keras_tpu_estimator.model_fn.spec_checks import HostFunction
from keras_tpu_estimator.program.options import TraceOptions
from keras_tpu_estimator.program.steps import NAMED
from keras_tpu_estimator.program.steps import REPORTS
from keras_tpu_estimator.program.steps import SAME_ON_ALL_CORES
from keras_tpu_estimator.program.steps import SUMMARIES
from keras_tpu_estimator.program.steps import Outputs
from keras_tpu_estimator.program.steps import Step
from keras_tpu_estimator.program.steps import StepInput
from keras_tpu_estimator.program.store import GLOBAL_STEP
from keras_tpu_estimator.program.store import VariableStore
from keras_tpu_estimator.tf1 import primitive
from keras_tpu_estimator.tf1.graph import ModelGraph
from keras_tpu_estimator.tf1.graph import build
from keras_tpu_estimator.tf1.lifting import Lifted
from keras_tpu_estimator.tf1.lifting import lift
from keras_tpu_estimator.tf1.metric_session import MetricFn
from keras_tpu_estimator.tf1.refusals import check_platform
from keras_tpu_estimator.tf1.variables import enter
from keras_tpu_estimator.tracing.variables import Values

# Odd, so that multiples of it are distinct modulo 2**32.
_SEED_STRIDE = 0x9E3779B1
# Graphs have no such outputs.
_NOTHING: Outputs = {SUMMARIES: [], NAMED: {}, REPORTS: {}}


class TF1Program:
    """The program of a `model_fn` that builds TF1 graphs.

    Args:
        call_model_fn: Called with features, labels, mode and the additional
            `params`; returns a `tf1.TPUEstimatorSpec`.
        seed: Makes initial values and random ops repeatable. Defaults to
            `None`.
        options: How it is traced, of which graphs know nothing. Defaults to
            `TraceOptions()`.

    Attributes:
        store: The variables.

    Raises:
        NotImplementedError: An option is set that graphs know nothing of.
    """

    def __init__(
        self,
        call_model_fn: Callable[..., Any],
        seed: int | None = None,
        options: TraceOptions | None = None,
    ):
        _check_options(TraceOptions() if options is None else options)
        self.store = VariableStore(seed)
        self._call_model_fn = call_model_fn
        self._seed = seed
        self._own_seed = secrets.randbits(32) if seed is None else seed
        self._steps: dict[Any, Step] = {}

    def step(self, mode: str, example: StepInput) -> Step:
        """The step for inputs of this shape, lifted if it is the first.

        Args:
            mode: A value of `ModeKeys`.
            example: As in `Program`.

        Returns:
            A `Step`.

        Raises:
            ValueError: The graph cannot be run by the devices, or gradients
                are not combined over the cores.
        """
        key = (mode, example.key)
        if key not in self._steps:
            model = build(self._call_model_fn, mode, example, self._seed)
            step = _Step(model, mode, example, self._own_seed)
            enter(self.store, model)
            self._steps[key] = step.of_all_cores()
        return self._steps[key]


class _Step:
    """A lifted graph as a step.

    Args:
        model: The graph.
        mode: A value of `ModeKeys`.
        example: What the step is given.
        seed: Of random ops.
    """

    def __init__(
        self, model: ModelGraph, mode: str, example: StepInput, seed: int
    ):
        self._mode, self._example = mode, example
        self._seed = seed % 2**32
        self._spec = model.spec
        tensors = self._outputs()
        flat, self._structure = jax.tree.flatten(tensors)
        training = mode == ModeKeys.TRAIN
        self._lifted = lift(
            model.graph,
            model.inputs,
            flat,
            [model.spec.train_op] if training else [],
            is_split=example.is_split,
        )
        _check_variables(model, self._lifted)
        if training:
            _check_trained(model, self._lifted, example)
        check_platform(self._lifted.module, example.cores.platform)
        self._outputs_split: dict[str, Any] = {
            name: example.is_split and name != "loss" for name in tensors
        }
        self._outputs_split |= _NOTHING

    def of_all_cores(self) -> Step:
        """The step that runs on all cores."""
        split, lifted = self._example.is_split, self._lifted
        metrics = self._spec.eval_metrics
        return Step(
            mode=self._mode,
            function=self._example.cores.per_core(
                self._per_core,
                split=(False, split, split),
                outputs_split=(False, self._outputs_split),
            ),
            reads=tuple(sorted({GLOBAL_STEP, *lifted.reads, *lifted.changes})),
            assigned=tuple(sorted(lifted.changes)),
            metric_fn=(
                HostFunction(*MetricFn.of(metrics))
                if metrics is not None and self._mode == ModeKeys.EVAL
                else None
            ),
            host_call=None,
            hooks=self._spec.hooks,
            scaffold=Scaffold(),
            named=frozenset(),
        )

    def _per_core(
        self, values: Values, features: Features, labels: Labels
    ) -> tuple[Values, Outputs]:
        lifted, cores = self._lifted, self._example.cores
        if self._mode == ModeKeys.PREDICT:
            labels = None
        if self._example.arrange is not None:
            features, labels = self._example.arrange(features, labels)
        core = cores.core_index().astype("uint32") * jnp.uint32(_SEED_STRIDE)
        step = values[GLOBAL_STEP].astype("uint32")
        key = jnp.stack([jnp.uint32(self._seed) + core, step])
        args = jax.tree.leaves((features, labels))
        args += [values[name] for name in lifted.reads]
        results = primitive.run(lifted, key, args, cores.axes)
        count = len(lifted.avals) - len(lifted.changes)
        outputs = jax.tree.unflatten(self._structure, results[:count])
        if "loss" in outputs:
            outputs["loss"] = cores.mean(outputs["loss"])
        changed = dict(zip(lifted.changes, results[count:], strict=True))
        for name in lifted.varying:
            changed[name] = self._same_on_all_cores(changed[name])
        return changed, outputs | _NOTHING

    def _same_on_all_cores(self, value: jax.Array) -> jax.Array:
        """One value for what cores have different ones of."""
        cores = self._example.cores
        if jnp.issubdtype(value.dtype, jnp.floating):
            return cores.mean(value)
        return cores.of_first(value)

    def _outputs(self) -> dict[str, Any]:
        """The tensors of the graph that leave the device."""
        spec = self._spec
        if self._mode == ModeKeys.PREDICT:
            outputs = {"predictions": spec.predictions}
        else:
            outputs = {"loss": spec.loss}
        if self._mode == ModeKeys.EVAL and spec.eval_metrics:
            outputs["eval_metrics"] = spec.eval_metrics.tensors
        example = self._example
        if example.additional["use_tpu"] and example.is_split:
            _check_concatenable(outputs)
        return outputs


def _check_options(options: TraceOptions) -> None:
    received = {
        "dtype_policy": options.dtype_policy,
        "remat": options.remat,
        "micro_batches": None if options.micro_batches == 1 else True,
    }
    for name, value in received.items():
        if value is not None:
            raise NotImplementedError(
                f"RunConfig.{name} should not be set: a TF1 model_fn builds "
                "its graph itself, and knows nothing of it. Leave it out."
            )


def _check_concatenable(outputs: dict[str, Any]) -> None:
    for name, tensors in outputs.items():
        for path, leaf in jax.tree_util.tree_leaves_with_path(tensors):
            if leaf.shape.rank == 0 and name not in SAME_ON_ALL_CORES:
                raise RuntimeError(
                    f"The tensors of `{name}` are concatenated over cores "
                    "along their first axis, so each should have one. Received "
                    f"a scalar at {jax.tree_util.keystr(path)}: reshape it to "
                    "[1]."
                )


def _check_variables(model: ModelGraph, lifted: Lifted) -> None:
    used = {*lifted.reads, *lifted.changes}
    others = sorted(used - model.variables.keys())
    if others:
        raise ValueError(
            "The variables of a model_fn should be global ones, which belong "
            f"to the model. Received: {others}. Leave `collections` out where "
            "they are made; tf.metrics belongs into metric_fn."
        )


def _check_trained(
    model: ModelGraph, lifted: Lifted, example: StepInput
) -> None:
    if GLOBAL_STEP not in lifted.changes:
        raise ValueError(
            "`train_op` should increment the global step. Expected "
            "`optimizer.minimize(loss, tf.train.get_global_step())`. Received "
            f"one that assigns {sorted(lifted.changes)}."
        )
    differing = sorted(lifted.varying & model.trainable)
    if differing and example.cores.axes:
        raise ValueError(
            "On several cores gradients should be combined over them. "
            "Received a train op without CrossShardOptimizer that changes "
            f"{differing}, each core by itself: wrap the optimizer, "
            "tf.compat.v1.tpu.CrossShardOptimizer(optimizer), or sum the "
            "gradients with tf.compat.v1.tpu.cross_replica_sum, or set "
            "use_tpu=False to train on one core."
        )
