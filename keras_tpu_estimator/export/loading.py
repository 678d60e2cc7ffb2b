"""A `model_fn` with the values of a checkpoint, and its results in JAX."""

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend import core as jex

from keras_tpu_estimator.base.common.machine import Machine
from keras_tpu_estimator.base.common.modes import ModeKeys
from keras_tpu_estimator.base.common.types import Features, PyTree, TensorLike
from keras_tpu_estimator.base.common.user_code import SourceLine
from keras_tpu_estimator.base.tracing.jaxprs import place_of
from keras_tpu_estimator.base.tracing.variables import AnyArraysByPath, is_accumulator
from keras_tpu_estimator.engine.device.distributed_program import (
    DistributedProgram,
)
from keras_tpu_estimator.engine.device.runtime import Runtime
from keras_tpu_estimator.engine.inputs.unbatched import batch_size
from keras_tpu_estimator.engine.program.steps import (
    PREDICTIONS,
    BatchLayout,
    Program,
    Step,
)
from keras_tpu_estimator.export import shapes
from keras_tpu_estimator.export.served_model_fn import ServedModelFn


@dataclasses.dataclass(frozen=True)
class Request:
    """Flat features for testing an exported model, and JAX's flat outputs."""

    features: Sequence[np.ndarray]
    outputs: Sequence[np.ndarray]


@dataclasses.dataclass(frozen=True)
class LoadedModel:
    """A model for one set of features, a pytree of `FeatureSpec`s.

    `initial` has the values of all existing variables. `paths` are those of the
    variables that the model reads: `local` ones belong to no checkpoint, and `assigned`
    ones get new values. `trial` has successive requests for testing the model.
    """

    served: ServedModelFn
    program: Program
    features: PyTree
    initial: Mapping[str, jax.Array]
    paths: Sequence[str]
    local: Sequence[str]
    assigned: Sequence[str]
    trial: Sequence[Request]

    @functools.cached_property
    def values(self) -> dict[str, np.ndarray]:
        """The values by path of the variables that the model reads."""
        return {
            path: np.asarray(self.initial[path])
            for path in self.paths
            if path not in self.local
        }

    def step(self, features: Sequence[jax.ShapeDtypeStruct]) -> Step:
        """Returns the step for other shapes of the flat features."""
        inputs = self._in_tree(features)
        rows = jax.ShapeDtypeStruct((batch_size(inputs),), bool)
        example = BatchLayout().step_input(inputs, rows)
        return self.program.step(ModeKeys.PREDICT, example)

    def function(self, step: Step) -> Callable[..., PyTree]:
        """Returns a step as a function of values by path and flat features.

        The function returns the predictions, and the assigned values by path.
        """
        local = {path: np.asarray(self.initial[path]) for path in self.local}
        assigned = self.assigned

        def function(
            values: AnyArraysByPath, features: Sequence[TensorLike]
        ) -> tuple[PyTree, AnyArraysByPath]:
            inputs = _inputs(self._in_tree(features))
            new, outputs = step.function({**values, **local}, *inputs)
            state = {path: new.get(path, values[path]) for path in assigned}
            # The dict is sorted by name, as TensorFlow flattens it.
            return dict(outputs[PREDICTIONS]), state

        return function

    def lines(self) -> list[SourceLine | None]:
        """Returns the user's lines of flat outputs, and then of assigned values."""
        features = [
            jax.ShapeDtypeStruct(array.shape, array.dtype)
            for array in self.trial[0].features
        ]
        function = self.function(self.step(features))
        traced = jax.make_jaxpr(function)(self.values, features).jaxpr
        places_by_result = {
            variable: place_of(equation.source_info)
            for equation in traced.eqns
            for variable in equation.outvars
        }
        # A result may also be an argument or a constant.
        results = (
            places_by_result.get(result) if isinstance(result, jex.Var) else None
            for result in traced.outvars
        )
        return [source.line if source else None for source in results]

    def _in_tree(self, features: Sequence[TensorLike | jax.ShapeDtypeStruct]) -> PyTree:
        return jax.tree.unflatten(jax.tree.structure(self.features), features)


def load_model(
    served: ServedModelFn,
    program: Program,
    checkpoint: str,
    features: PyTree,
) -> LoadedModel:
    """Traces a model, reads its values, and runs it on samples of `FeatureSpec`s."""
    specs, tree = jax.tree.flatten(features)
    samples, *later_samples = shapes.samples(specs)
    distributed = DistributedProgram(program)
    step = distributed.prepare(
        ModeKeys.PREDICT, *_inputs(jax.tree.unflatten(tree, samples))
    )
    try:
        runtime = Runtime.from_program(distributed)
        with runtime.values.borrowed(step, checkpoint) as values:
            initial = dict(values)
    except ValueError as error:
        raise ValueError(f"In mode {served.mode!r}: {error}") from error
    local = tuple(
        path for path in step.reads if is_accumulator(program.store.variables[path])
    )
    loaded = LoadedModel(
        served=served,
        program=program,
        features=features,
        initial=initial,
        paths=step.reads,
        local=local,
        assigned=[path for path in step.assigned if path not in local],
        trial=(),
    )
    function, current = loaded.function(step), loaded.values
    trial = []
    for sample in (samples, *later_samples):
        outputs, state = _run_on_host(function, current, sample)
        current = current | state
        trial.append(Request(sample, jax.tree.leaves(outputs)))
    return dataclasses.replace(loaded, trial=trial)


def _inputs(features: Features) -> tuple[Features, jax.Array]:
    """Returns features, and a mask without padding rows."""
    return features, jnp.zeros((batch_size(features),), bool)


def _run_on_host(
    function: Callable[..., PyTree],
    values: Mapping[str, np.ndarray],
    features: Sequence[np.ndarray],
) -> tuple[PyTree, dict[str, np.ndarray]]:
    """Calls the function on the CPU if JAX has one."""
    try:
        device = jax.local_devices(backend="cpu")[0]
    except RuntimeError:
        device = Machine.from_jax().first
    with jax.default_device(device):
        returned = jax.jit(function)(values, features)
    return jax.tree.map(np.asarray, returned)
