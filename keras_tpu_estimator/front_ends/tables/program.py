"""A program with embedding tables, around the program of `model_fn`.

The program of `model_fn` has no tables. It has the activations as features, and
computes their gradients. This program looks up the activations before its step,
and updates the used rows after it.
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from keras_tpu_estimator.base.common.dtype_changes import abstract_array
from keras_tpu_estimator.base.common.modes import ModeKeys
from keras_tpu_estimator.base.common.shown import shown
from keras_tpu_estimator.base.common.types import Features, Labels
from keras_tpu_estimator.base.mesh.cores import Cores
from keras_tpu_estimator.base.mesh.sharded_rows import ShardedRows
from keras_tpu_estimator.base.tracing.variables import AnyArraysByPath, ArraysByPath
from keras_tpu_estimator.engine.program.steps import (
    FEATURE_GRADIENTS,
    Outputs,
    Program,
    Step,
    StepInput,
)
from keras_tpu_estimator.engine.program.store import GLOBAL_STEP
from keras_tpu_estimator.front_ends.tables.config_spec import (
    EmbeddingConfigSpec,
)
from keras_tpu_estimator.front_ends.tables.lookups import IdFeature, Lookups
from keras_tpu_estimator.front_ends.tables.rows import looked_up, updated
from keras_tpu_estimator.front_ends.tables.variables import TableVariables


class TablesProgram:
    """The program of a `model_fn` and its embedding tables.

    Args:
        program: The program of `model_fn`, which receives activations in place
            of ids.
        cores: The devices that rows are sharded over.
        inside: The location of the features in a step's features, or `None` if
            they are all of them.
    """

    def __init__(
        self,
        program: Program,
        spec: EmbeddingConfigSpec,
        cores: Cores,
        seed: int | None = None,
        inside: str | None = None,
    ):
        self.store = program.store
        self._inside = inside
        self._program = program
        self._spec = spec
        self._variables = TableVariables(spec, cores, seed)
        self._variables.enter_into(self.store)
        self._features = tuple(
            IdFeature(name, config, spec.tables[config.table_id])
            for name, config in sorted(spec.features.items())
        )
        self._steps: dict[Any, Step] = {}

    def step(self, mode: str, example: StepInput) -> Step:
        """Returns the step for inputs of this shape, made if it is new; the features
        must fit the tables, and the train op must determine their gradients.
        """
        key = (mode, example.key)
        if key not in self._steps:
            self._check(example)
            self._steps[key] = self._embedded_step(mode, example)
        return self._steps[key]

    def _inner_features(self, features: Features) -> Any:
        """Returns the features themselves."""
        return features if self._inside is None else features[self._inside]

    def _with_inner(self, features: Features, inner: Features) -> Features:
        """Returns a step's features, with other ones inside."""
        return inner if self._inside is None else {**features, self._inside: inner}

    def _check(self, example: StepInput) -> None:
        features = self._inner_features(example.features)
        if not isinstance(features, dict):
            raise ValueError(
                "With embedding_config_spec the features must be a dict, "
                f"with the ids {[feature.name for feature in self._features]}. "
                f"Received: {type(features).__name__}. Return a dict from "
                "input_fn."
            )
        for feature in self._features:
            feature.check(features)

    def _embedded_step(self, mode: str, example: StepInput) -> Step:
        sharded = ShardedRows(example.cores, example.is_split)
        is_training = mode == ModeKeys.TRAIN
        names = tuple(feature.name for feature in self._features)
        step = self._program.step(
            mode,
            dataclasses.replace(
                example,
                features=self._with_inner(
                    example.features,
                    self._activated_example(self._inner_features(example.features)),
                ),
                differentiated=names if is_training else (),
            ),
        )
        self._check_step(step)

        def function(
            values: AnyArraysByPath, features: Features, labels: Labels
        ) -> tuple[ArraysByPath, Outputs]:
            ids = self._inner_features(features)
            lookups = {f.name: f.lookups(ids) for f in self._features}
            inputs = self._dense_features(ids) | {
                name: tensor
                for feature in self._features
                for name, tensor in feature.lengths(ids).items()
            }
            inputs |= self._looked_up(sharded, values, lookups)
            read_values = {path: values[path] for path in step.reads}
            changed, outputs = step.function(
                read_values, self._with_inner(features, inputs), labels
            )
            if not is_training:
                return changed, outputs
            outputs = dict(outputs)
            gradients = outputs.pop(FEATURE_GRADIENTS)
            new = self._updated(sharded, values, lookups, gradients)
            return {**changed, **new}, outputs

        changes = self._variables.paths if is_training else set()
        reads = {*step.reads, *self._spec.tables, *changes}
        return dataclasses.replace(
            step,
            function=function,
            reads=tuple(sorted(reads)),
            assigned=tuple(sorted({*step.assigned, *changes})),
        )

    def _check_step(self, step: Step) -> None:
        if step.is_grouped:
            raise ValueError(
                "With embedding_config_spec all cores must train one model. "
                "Received several groups in `group_assignment`. Leave it out."
            )

    def _dense_features(self, features: Mapping[str, Any]) -> dict[str, Any]:
        """Returns features except ids and their weights."""
        id_keys = {key for feature in self._features for key in feature.keys}
        return {k: v for k, v in features.items() if k not in id_keys}

    def _activated_example(self, features: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the shapes of the inputs of `model_fn`."""
        inputs = self._dense_features(features)
        for feature in self._features:
            size = features[feature.name].shape[0]
            inputs[feature.name] = feature.activations(size)
            inputs |= jax.eval_shape(
                feature.lengths,
                {
                    key: abstract_array(features[key].shape, features[key].dtype)
                    for key in feature.keys
                },
            )
        return inputs

    def _looked_up(
        self,
        sharded: ShardedRows,
        values: AnyArraysByPath,
        lookups: Mapping[str, Lookups],
    ) -> dict[str, jax.Array]:
        def on_core(
            tables: ArraysByPath, lookups: Mapping[str, Lookups], _: Any
        ) -> dict[str, jax.Array]:
            return {
                feature.name: looked_up(
                    sharded,
                    tables[feature.config.table_id],
                    lookups[feature.name],
                    feature.is_sequence,
                )
                for feature in self._features
            }

        tables = {
            name: sharded.with_all_rows(values[name]) for name in self._spec.tables
        }
        run = sharded.per_core(on_core, returns_rows=False)
        activations: dict[str, jax.Array] = run(tables, lookups, ())
        return activations

    def _updated(
        self,
        sharded: ShardedRows,
        values: AnyArraysByPath,
        lookups: Mapping[str, Lookups],
        gradients: Mapping[str, jax.Array],
    ) -> ArraysByPath:
        """Returns the new values of tables and slots."""
        rows = {p: sharded.with_all_rows(values[p]) for p in self._variables.paths}
        states = {
            table: (
                rows[table],
                {n: rows[p] for n, p in self._spec.slots_of(table).items()},
            )
            for table in self._spec.tables
        }
        step = jnp.asarray(values[GLOBAL_STEP])
        multiplier = multiplier_of(self._spec, step)
        rates = {t: rate_of(self._spec, t, step) for t in self._spec.tables}
        batch = {
            name: (lookup, multiplier * gradients[name])
            for name, lookup in lookups.items()
        }

        def on_core(states: Any, batch: Any, rates: Any) -> Any:
            new = {}
            for table, state in states.items():
                of_table = [
                    batch[feature.name]
                    for feature in self._features
                    if feature.config.table_id == table
                ]
                optimizer = self._spec.optimizer_of(table)
                new[table] = updated(sharded, optimizer, state, of_table, rates[table])
            return new

        new = sharded.per_core(on_core, returns_rows=True)(states, batch, rates)
        changed = {}
        for table, (of_table, slots) in new.items():
            changed[table] = of_table
            for name, path in self._spec.slots_of(table).items():
                changed[path] = slots[name]
        # Keras's own loops do not copy them.
        return {p: padded[: len(values[p])] for p, padded in changed.items()}


def multiplier_of(spec: EmbeddingConfigSpec, step: jax.Array) -> jax.Array:
    """Returns the factor of the gradients of all tables, a scalar."""
    of_step = spec.experimental_gradient_multiplier_fn
    if of_step is None:
        return jnp.float32(1)
    return _number("experimental_gradient_multiplier_fn", of_step, step)


def rate_of(spec: EmbeddingConfigSpec, table: str, step: jax.Array) -> jax.Array:
    """Returns the learning rate of the table of a name, a scalar."""
    config = spec.tables[table]
    if config.learning_rate_fn is not None:
        name = f"learning_rate_fn of the table {table!r}"
        return _number(name, config.learning_rate_fn, step)
    rate = config.learning_rate
    if rate is None:
        rate = spec.optimizer_of(table).learning_rate
    return jnp.float32(rate)


def _number(name: str, of_step: Callable[[Any], Any], step: jax.Array) -> jax.Array:
    returned = of_step(step)
    # TensorFlow scripts return a list, or a tensor of one element.
    is_number = not isinstance(returned, str) and returned is not None
    if not is_number or np.size(returned) != 1:
        raise ValueError(
            f"{name} must return a number, or a tensor of one element. "
            f"Received: {shown(returned)}. Return one number for the step."
        )
    return jnp.asarray(returned, "float32").reshape(())
