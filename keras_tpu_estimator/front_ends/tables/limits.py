"""What tables cannot be combined with."""

from typing import Any

from keras_tpu_estimator.front_ends.tables.config_spec import (
    EmbeddingConfigSpec,
)


def check_usable(
    spec: object, why_none: str | None, config: Any, **others: Any
) -> None:
    """Checks that an estimator can have tables.

    Args:
        spec: The value of `embedding_config_spec`; `None` passes.
        why_none: Why `model_fn` takes none, or `None` where it does.
        **others: Other arguments of the estimator that have to be `None`.

    Raises:
        ValueError: It is no `EmbeddingConfigSpec`.
        NotImplementedError: Something is set that does not go with it.
    """
    if spec is None:
        return
    if not isinstance(spec, EmbeddingConfigSpec):
        raise ValueError(
            "`embedding_config_spec` should be a "
            f"kte.experimental.EmbeddingConfigSpec. Received: {spec!r} of type "
            f"{type(spec).__name__}. Make one of tables and features."
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
            "With embedding_config_spec some settings should have their "
            f"defaults. Received others for {received}. Leave them out."
        )
