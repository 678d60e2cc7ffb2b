"""All tables of a model: `EmbeddingConfigSpec`."""

import dataclasses
import logging
from collections.abc import Callable
from collections.abc import Mapping
from typing import Any

from keras_tpu_estimator.engine.program.store import GLOBAL_STEP
from keras_tpu_estimator.front_ends.tables.parameters import (
    OptimizationParameters,
)
from keras_tpu_estimator.front_ends.tables.tables import FeatureConfig
from keras_tpu_estimator.front_ends.tables.tables import TableConfig
from keras_tpu_estimator.front_ends.tables.tables import check_parameters
from keras_tpu_estimator.ground.base.named_tuple_like import NamedTupleLike

_logger = logging.getLogger("keras_tpu_estimator")

_WITHOUT_EFFECT = (
    "clipping_limit",
    "pipeline_execution_with_tensor_core",
    "profile_data_directory",
)


@dataclasses.dataclass(frozen=True)
class EmbeddingConfigSpec(NamedTupleLike):
    """The tables of a model, and the features that are looked up in them.

    Args:
        feature_columns: Has to be `None`: tables are said by the two dicts.
        optimization_parameters: Such as `AdagradParameters`, for tables that
            have none of their own. Defaults to `None`.
        experimental_gradient_multiplier_fn: Function of the global step, a
            scalar tensor, by whose value the gradients of all tables are
            multiplied. Defaults to `None`.
        feature_to_config_dict: A `FeatureConfig` for each feature of ids.
        table_to_config_dict: A `TableConfig` for each table, by its name,
            which is that of its variable, too.
        partition_strategy: "div" (the default) or "mod", which is the same
            here: a checkpoint has the rows in their order.
        clipping_limit: Accepted for compatibility: it had no effect.
        pipeline_execution_with_tensor_core: Accepted for compatibility.
        profile_data_directory: Accepted for compatibility.

    Raises:
        ValueError: A table has no optimizer or no feature, or a feature no
            table; two variables would have one name; or a value is wrong.
        TypeError: A table or a feature is of a wrong type.
        NotImplementedError: There are `feature_columns`.

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
                "Tables should be said by `feature_to_config_dict` and "
                "`table_to_config_dict`. Received: feature_columns="
                f"{self.feature_columns!r}. In place of embedding_column("
                "categorical_column_with_identity('key', size), dimension) "
                "write TableConfig(size, dimension) and FeatureConfig of that "
                "table for 'key'; model_fn finds the activations in "
                "features['key']."
            )
        if not self.feature_to_config_dict or not self.table_to_config_dict:
            raise ValueError(
                "`feature_to_config_dict` and `table_to_config_dict` should "
                "have an entry each, at least. Received: "
                f"{self.feature_to_config_dict!r} and "
                f"{self.table_to_config_dict!r}. Pass both."
            )
        if self.partition_strategy not in ("div", "mod"):
            raise ValueError(
                "`partition_strategy` should be 'div' or 'mod'. Received: "
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
                "Each table should be that of some feature. Received tables "
                f"without one: {unused}. Leave them out."
            )
        for name in _WITHOUT_EFFECT:
            if getattr(self, name):
                _logger.warning("`%s` has no effect here. Leave it out.", name)

    @property
    def tables(self) -> Mapping[str, TableConfig]:
        """The tables by name."""
        return self.table_to_config_dict or {}

    @property
    def features(self) -> Mapping[str, FeatureConfig]:
        """The features of ids by name."""
        return self.feature_to_config_dict or {}

    def optimizer_of(self, table: str) -> OptimizationParameters:
        """How the rows of a table are updated."""
        own = self.tables[table].optimization_parameters
        return own or self.optimization_parameters  # type: ignore[return-value]

    def slots_of(self, table: str) -> dict[str, str]:
        """The paths of what a table's optimizer keeps, by the slots' names."""
        slots = self.optimizer_of(table).slots
        return {name: f"{table}/{name}" for name in slots}

    def _check_names(self) -> None:
        """Checks that each variable has a name of its own."""
        owners: dict[str, str] = {}
        for table in self.tables:
            if not _is_name(table):
                raise ValueError(
                    "The name of a table should be one for a variable, such "
                    "as 'words' or 'users/new', and that of no other. "
                    f"Received: {table!r}. Choose another key in "
                    "table_to_config_dict."
                )
            for path in (table, *self.slots_of(table).values()):
                other = owners.setdefault(path, table)
                if other != table:
                    raise ValueError(
                        "Tables, and what their optimizers keep, should have "
                        f"names of their own. Received {other!r} and "
                        f"{table!r}, which both have a variable {path!r}. "
                        "Rename one of the tables."
                    )

    def _check_tables(self, tables: Mapping[str, Any]) -> None:
        for name, table in tables.items():
            if not isinstance(table, TableConfig):
                raise TypeError(
                    f"The table {name!r} should be a TableConfig. Received: "
                    f"{table!r} of type {type(table).__name__}. Make one of "
                    "its size and dimension."
                )
            if self.optimizer_of(name) is None:
                raise ValueError(
                    f"The table {name!r} should have an optimizer. Received "
                    "None here and there. Set optimization_parameters of the "
                    "EmbeddingConfigSpec, or of the table."
                )

    def _check_features(self, features: Mapping[str, Any]) -> None:
        for name, feature in features.items():
            if not isinstance(feature, FeatureConfig):
                raise TypeError(
                    f"The feature {name!r} should have a FeatureConfig. "
                    f"Received: {feature!r} of type {type(feature).__name__}. "
                    "Make one of the name of its table."
                )
            if feature.table_id not in self.tables:
                raise ValueError(
                    f"The feature {name!r} should be of one of the tables "
                    f"{sorted(self.tables)}. Received: {feature.table_id!r}. "
                    "Add that to table_to_config_dict."
                )
        keys = [f.weight_key for f in features.values() if f.weight_key]
        if len({*keys, *features}) < len(keys) + len(features):
            raise ValueError(
                "Each feature should have weights of its own, under another "
                f"key. Received the keys of weights {keys} for the features "
                f"{[*features]}. Copy what several share."
            )


def _is_name(table: object) -> bool:
    """Whether a variable can be called so, also in a checkpoint."""
    if not isinstance(table, str) or table == GLOBAL_STEP or ":" in table:
        return False
    # Of which HDF5 makes nothing.
    return not {"", "."}.intersection(table.split("/"))
