"""A check of settings that embedding tables do not support."""

from typing import Any

from keras_tpu_estimator.front_ends.tables.config_spec import (
    EmbeddingConfigSpec,
)


def check_usable(
    spec: object, why_none: str | None, config: Any, **others: Any
) -> None:
    """Checks that an estimator supports embedding tables.

    Args:
        spec: The value of `embedding_config_spec`; `None` passes.
        why_none: The reason why `model_fn` does not support it, or `None`.
        **others: Other arguments of the estimator, which must be `None`.

    Raises:
        ValueError: It is not an `EmbeddingConfigSpec`.
        NotImplementedError: An unsupported setting is set.
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
        **{name: value is not None for name, value in others.items()},
    }
    received = [name for name, is_set in unfit.items() if is_set]
    if received:
        raise NotImplementedError(
            "With embedding_config_spec some settings must have their "
            f"defaults. Received others for {received}. Leave them out."
        )
