"""The configuration of all embedding tables of a model."""

import dataclasses
import logging
from collections.abc import Callable, Mapping
from typing import Any

from keras_tpu_estimator.base.common.named_tuple_like import NamedTupleLike
from keras_tpu_estimator.engine.program.store import GLOBAL_STEP
from keras_tpu_estimator.front_ends.tables.parameters import (
    OptimizationParameters,
)
from keras_tpu_estimator.front_ends.tables.tables import (
    FeatureConfig,
    TableConfig,
    check_parameters,
)

_logger = logging.getLogger("keras_tpu_estimator")

_WITHOUT_EFFECT = (
    "clipping_limit",
    "pipeline_execution_with_tensor_core",
    "profile_data_directory",
)


@dataclasses.dataclass(frozen=True)
class EmbeddingConfigSpec(NamedTupleLike):
    """The embedding tables of a model, and the features that use them.

    Args:
        feature_columns: Must be `None`, because the two dicts define the
            tables.
        optimization_parameters: An object such as `AdagradParameters`, for
            tables without their own. Defaults to `None`.
        experimental_gradient_multiplier_fn: Function of the global step, a
            scalar tensor, which returns a factor of the gradients of all
            tables. Defaults to `None`.
        feature_to_config_dict: A `FeatureConfig` for each feature of ids.
        table_to_config_dict: A `TableConfig` for each table, by its name, which
            is also that of its variable.
        partition_strategy: "div" (the default) or "mod", without a difference
            here: checkpoints contain the rows in order.
        clipping_limit: Accepted for compatibility; it had no effect.
        pipeline_execution_with_tensor_core: Accepted for compatibility.
        profile_data_directory: Accepted for compatibility.

    Raises:
        ValueError: A table has no optimizer or no feature, a feature has no
            table, two variables have the same name, or a value is wrong.
        TypeError: A table or a feature has a wrong type.
        NotImplementedError: `feature_columns` is set.

    Example:

    >>> import keras_tpu_estimator as kte
    >>> spec = kte.experimental.EmbeddingConfigSpec(
    ...     optimization_parameters=kte.experimental.AdagradParameters(0.1),
    ...     table_to_config_dict={
    ...         "words": kte.experimental.TableConfig(1000, 16)},
    ...     feature_to_config_dict={
    ...         "title": kte.experimental.FeatureConfig("words")})
    >>> spec.optimizer_of("words").learning_rate
    0.1
    """

    feature_columns: Any = None
    optimization_parameters: OptimizationParameters | None = None
    clipping_limit: float | None = None
    pipeline_execution_with_tensor_core: bool = False
    experimental_gradient_multiplier_fn: Callable[[Any], Any] | None = None
    feature_to_config_dict: Mapping[str, FeatureConfig] | None = None
    table_to_config_dict: Mapping[str, TableConfig] | None = None
    partition_strategy: str = "div"
    profile_data_directory: str | None = None

    def __post_init__(self) -> None:
        if self.feature_columns:
            raise NotImplementedError(
                "Tables must be defined by `feature_to_config_dict` and "
                "`table_to_config_dict`. Received: "
                f"feature_columns={self.feature_columns!r}. Instead of "
                "embedding_column(categorical_column_with_identity('key', "
                "size), dimension) write TableConfig(size, dimension) and "
                "FeatureConfig of that table for 'key'; model_fn reads the "
                "activations from features['key']."
            )
        if not self.feature_to_config_dict or not self.table_to_config_dict:
            raise ValueError(
                "`feature_to_config_dict` and `table_to_config_dict` must "
                "each have at least one entry. Received: "
                f"{self.feature_to_config_dict!r} and "
                f"{self.table_to_config_dict!r}. Pass both."
            )
        if self.partition_strategy not in ("div", "mod"):
            raise ValueError(
                "`partition_strategy` must be 'div' or 'mod'. Received: "
                f"{self.partition_strategy!r}. Leave it out."
            )
        check_parameters(self.optimization_parameters)
        self._check_tables(self.table_to_config_dict)
        self._check_names()
        self._check_features(self.feature_to_config_dict)
        used = {feature.table_id for feature in self.features.values()}
        unused = sorted(self.tables.keys() - used)
        if unused:
            raise ValueError(
                "Each table must be used by a feature. Received unused "
                f"tables: {unused}. Leave them out."
            )
        for name in _WITHOUT_EFFECT:
            if getattr(self, name):
                _logger.warning("`%s` has no effect here. Leave it out.", name)

    @property
    def tables(self) -> Mapping[str, TableConfig]:
        """The embedding tables by name."""
        return self.table_to_config_dict or {}

    @property
    def features(self) -> Mapping[str, FeatureConfig]:
        """The features of ids by name."""
        return self.feature_to_config_dict or {}

    def optimizer_of(self, table: str) -> OptimizationParameters:
        """Returns the optimization parameters of a table."""
        of_table = self.tables[table].optimization_parameters
        return of_table or self.optimization_parameters  # type: ignore[return-value]

    def slots_of(self, table: str) -> dict[str, str]:
        """Returns the paths of a table's optimizer state by slot name."""
        slots = self.optimizer_of(table).slots
        return {name: f"{table}/{name}" for name in slots}

    def _check_names(self) -> None:
        """Checks that the names of variables are distinct."""
        owners: dict[str, str] = {}
        for table in self.tables:
            if not _is_name(table):
                raise ValueError(
                    "The name of a table must be a valid and unused name of "
                    "a variable, such as 'words' or 'users/new'. Received: "
                    f"{table!r}. Choose another key in table_to_config_dict."
                )
            for path in (table, *self.slots_of(table).values()):
                other = owners.setdefault(path, table)
                if other != table:
                    raise ValueError(
                        "Tables and their optimizer state must have distinct "
                        f"names. Received {other!r} and {table!r}, which both "
                        f"have a variable {path!r}. Rename one of the tables."
                    )

    def _check_tables(self, tables: Mapping[str, Any]) -> None:
        for name, table in tables.items():
            if not isinstance(table, TableConfig):
                raise TypeError(
                    f"The table {name!r} must be a TableConfig. Received: "
                    f"{table!r} of type {type(table).__name__}. Make one with "
                    "its size and dimension."
                )
            if self.optimizer_of(name) is None:
                raise ValueError(
                    f"The table {name!r} must have an optimizer. Received "
                    "None in both places. Set optimization_parameters of the "
                    "EmbeddingConfigSpec, or of the table."
                )

    def _check_features(self, features: Mapping[str, Any]) -> None:
        for name, feature in features.items():
            if not isinstance(feature, FeatureConfig):
                raise TypeError(
                    f"The feature {name!r} must have a FeatureConfig. "
                    f"Received: {feature!r} of type {type(feature).__name__}. "
                    "Make one with the name of its table."
                )
            if feature.table_id not in self.tables:
                raise ValueError(
                    f"The feature {name!r} must use one of the tables "
                    f"{sorted(self.tables)}. Received: {feature.table_id!r}. "
                    "Add that to table_to_config_dict."
                )
        keys = [f.weight_key for f in features.values() if f.weight_key]
        if len({*keys, *features}) < len(keys) + len(features):
            raise ValueError(
                "Each feature must have its own weights, under another key. "
                f"Received the keys of weights {keys} for the features "
                f"{[*features]}. Copy shared weights."
            )


def _is_name(table: object) -> bool:
    """Returns whether a name is valid for a variable, also in a checkpoint."""
    if not isinstance(table, str) or table == GLOBAL_STEP or ":" in table:
        return False
    # HDF5 does not treat these parts as names.
    return not {"", "."}.intersection(table.split("/"))


def check_usable(
    spec: object, why_none: str | None, config: Any, **settings: Any
) -> None:
    """Checks that an estimator supports embedding tables: `why_none` is the reason why
    `model_fn` does not, or `None`, and `settings` are arguments that must be `None`.
    """
    if spec is None:
        return
    if not isinstance(spec, EmbeddingConfigSpec):
        raise ValueError(
            "`embedding_config_spec` must be a "
            f"kte.experimental.EmbeddingConfigSpec. Received: {spec!r} of "
            f"type {type(spec).__name__}. Make one of tables and features."
        )
    if why_none is not None:
        raise NotImplementedError(why_none)
    partition_dims = config.tpu_config.input_partition_dims
    unfit = {
        "TPUConfig.input_partition_dims": partition_dims is not None,
        "RunConfig.export_backend": config.export_backend != "jax",
        **{name: value is not None for name, value in settings.items()},
    }
    received = [name for name, is_set in unfit.items() if is_set]
    if received:
        raise NotImplementedError(
            "With embedding_config_spec some settings must have their "
            f"defaults. Received others for {received}. Leave them out."
        )
