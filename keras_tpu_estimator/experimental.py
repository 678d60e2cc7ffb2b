"""The names of `tf.estimator.experimental` and `tf.tpu.experimental`."""

from keras_tpu_estimator.api.hooks.in_memory_evaluator import (
    InMemoryEvaluatorHook,
)
from keras_tpu_estimator.api.hooks.needless_hooks import (
    make_stop_at_checkpoint_step_hook,
)
from keras_tpu_estimator.front_ends.tables.config_spec import (
    EmbeddingConfigSpec,
)
from keras_tpu_estimator.front_ends.tables.optimizers import (
    AdagradParameters,
    AdamParameters,
    FtrlParameters,
    MomentumParameters,
    ProximalAdagradParameters,
    RMSPropParameters,
    StochasticGradientDescentParameters,
)
from keras_tpu_estimator.front_ends.tables.tables import FeatureConfig, TableConfig
from keras_tpu_estimator.workflow.stopping_hooks import (
    make_early_stopping_hook,
    read_eval_metrics,
    stop_if_higher_hook,
    stop_if_lower_hook,
    stop_if_no_decrease_hook,
    stop_if_no_increase_hook,
)

__all__ = [
    "AdagradParameters",
    "AdamParameters",
    "EmbeddingConfigSpec",
    "FeatureConfig",
    "FtrlParameters",
    "InMemoryEvaluatorHook",
    "MomentumParameters",
    "ProximalAdagradParameters",
    "RMSPropParameters",
    "StochasticGradientDescentParameters",
    "TableConfig",
    "make_early_stopping_hook",
    "make_stop_at_checkpoint_step_hook",
    "read_eval_metrics",
    "stop_if_higher_hook",
    "stop_if_lower_hook",
    "stop_if_no_decrease_hook",
    "stop_if_no_increase_hook",
]
