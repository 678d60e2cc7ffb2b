"""The TPUEstimator programming model on Keras 3 and JAX.

>>> import keras_tpu_estimator as kte
>>> kte.ModeKeys.TRAIN
'train'
"""

__version__ = "0.1.0"

from typing import TYPE_CHECKING as _TYPE_CHECKING

from keras_tpu_estimator import parts as _parts
from keras_tpu_estimator.base.common import command_line as _command_line

_command = _command_line.running_command(__version__, _parts.COMMANDS)

from keras_tpu_estimator.base.common import backend as _backend
from keras_tpu_estimator.base.common import lazy_names as _lazy_names
from keras_tpu_estimator.base.common import registry as _registry

_backend.import_keras(is_used=_command not in _parts.COMMANDS_WITHOUT_KERAS)
_registry.offer(_parts.PARTS)

if _TYPE_CHECKING:
    from keras_tpu_estimator import (
        checkpoints,
        errors,
        experimental,
        export,
        front_ends,
        hooks,
        metrics,
        optimizers,
        summary,
        tf1,
        typing,
    )
    from keras_tpu_estimator.api.config.run_config import RunConfig
    from keras_tpu_estimator.api.config.tpu_config import InputPipelineConfig, TPUConfig
    from keras_tpu_estimator.api.model_fn.attention import dot_product_attention
    from keras_tpu_estimator.api.model_fn.batch_normalization import (
        BatchNormalization,
    )
    from keras_tpu_estimator.api.model_fn.clipping import clip_by_global_norm
    from keras_tpu_estimator.api.model_fn.cross_shard_optimizer import (
        CrossShardOptimizer,
        apply_gradients,
        minimize,
    )
    from keras_tpu_estimator.api.model_fn.initialization import (
        init_from_checkpoint,
    )
    from keras_tpu_estimator.api.model_fn.jax_params import (
        assign_jax_params,
        jax_params,
    )
    from keras_tpu_estimator.api.model_fn.known_variables import (
        AUTO_REUSE,
        get_global_step,
        get_variable,
        global_variables,
        trainable_variables,
        unique_name,
        variable_scope,
    )
    from keras_tpu_estimator.api.model_fn.moving_averages import (
        ExponentialMovingAverage,
    )
    from keras_tpu_estimator.api.model_fn.outside_compilation import (
        outside_compilation,
    )
    from keras_tpu_estimator.api.model_fn.scaffold import Scaffold
    from keras_tpu_estimator.api.model_fn.spec import EstimatorSpec, TPUEstimatorSpec
    from keras_tpu_estimator.api.model_fn.updates import TrainOp
    from keras_tpu_estimator.base.common.modes import ModeKeys
    from keras_tpu_estimator.base.hosts.failures import HostError
    from keras_tpu_estimator.base.hosts.starting import initialize
    from keras_tpu_estimator.base.mesh.replica_context import (
        cross_replica_mean,
        cross_replica_sum,
    )
    from keras_tpu_estimator.base.tracing.gradient_requests import gradients
    from keras_tpu_estimator.base.tracing.identity import identity
    from keras_tpu_estimator.estimator.tpu_estimator import TPUEstimator
    from keras_tpu_estimator.files.directory.location import latest_checkpoint
    from keras_tpu_estimator.files.formats.latest_checkpoints import (
        checkpoints_iterator,
    )
    from keras_tpu_estimator.files.formats.loading import (
        list_variables,
        load_checkpoint,
        load_variable,
    )
    from keras_tpu_estimator.files.warm_start.settings import (
        VocabInfo,
        WarmStartSettings,
    )
    from keras_tpu_estimator.front_ends.keras.keras_file import export_keras
    from keras_tpu_estimator.front_ends.keras_model.estimator_model import (
        EstimatorModel,
    )
    from keras_tpu_estimator.workflow.best_exporter import BestExporter
    from keras_tpu_estimator.workflow.comparing.compare import compare
    from keras_tpu_estimator.workflow.comparing.report import ComparisonReport
    from keras_tpu_estimator.workflow.continuous import evaluate_continuously
    from keras_tpu_estimator.workflow.exporters import (
        Exporter,
        FinalExporter,
        LatestExporter,
    )
    from keras_tpu_estimator.workflow.from_keras import from_keras
    from keras_tpu_estimator.workflow.specs import EvalSpec, TrainSpec
    from keras_tpu_estimator.workflow.train_and_evaluate import train_and_evaluate


__all__ = [
    "AUTO_REUSE",
    "BatchNormalization",
    "BestExporter",
    "ComparisonReport",
    "CrossShardOptimizer",
    "EstimatorModel",
    "EstimatorSpec",
    "EvalSpec",
    "ExponentialMovingAverage",
    "Exporter",
    "FinalExporter",
    "HostError",
    "InputPipelineConfig",
    "LatestExporter",
    "ModeKeys",
    "RunConfig",
    "Scaffold",
    "TPUConfig",
    "TPUEstimator",
    "TPUEstimatorSpec",
    "TrainOp",
    "TrainSpec",
    "VocabInfo",
    "WarmStartSettings",
    "apply_gradients",
    "assign_jax_params",
    "checkpoints",
    "checkpoints_iterator",
    "clip_by_global_norm",
    "compare",
    "cross_replica_mean",
    "cross_replica_sum",
    "dot_product_attention",
    "errors",
    "evaluate_continuously",
    "experimental",
    "export",
    "export_keras",
    "from_keras",
    "front_ends",
    "get_global_step",
    "get_variable",
    "global_variables",
    "gradients",
    "hooks",
    "identity",
    "init_from_checkpoint",
    "initialize",
    "jax_params",
    "latest_checkpoint",
    "list_variables",
    "load_checkpoint",
    "load_variable",
    "metrics",
    "minimize",
    "optimizers",
    "outside_compilation",
    "summary",
    "tf1",
    "train_and_evaluate",
    "trainable_variables",
    "typing",
    "unique_name",
    "variable_scope",
]

# The modules of the public names, imported at first use.
_MODULES = {
    "AUTO_REUSE": "api.model_fn.known_variables",
    "BatchNormalization": "api.model_fn.batch_normalization",
    "BestExporter": "workflow.best_exporter",
    "ComparisonReport": "workflow.comparing.report",
    "CrossShardOptimizer": "api.model_fn.cross_shard_optimizer",
    "EstimatorModel": "front_ends.keras_model.estimator_model",
    "EstimatorSpec": "api.model_fn.spec",
    "EvalSpec": "workflow.specs",
    "ExponentialMovingAverage": "api.model_fn.moving_averages",
    "Exporter": "workflow.exporters",
    "FinalExporter": "workflow.exporters",
    "HostError": "base.hosts.failures",
    "InputPipelineConfig": "api.config.tpu_config",
    "LatestExporter": "workflow.exporters",
    "ModeKeys": "base.common.modes",
    "RunConfig": "api.config.run_config",
    "Scaffold": "api.model_fn.scaffold",
    "TPUConfig": "api.config.tpu_config",
    "TPUEstimator": "estimator.tpu_estimator",
    "TPUEstimatorSpec": "api.model_fn.spec",
    "TrainOp": "api.model_fn.updates",
    "TrainSpec": "workflow.specs",
    "VocabInfo": "files.warm_start.settings",
    "WarmStartSettings": "files.warm_start.settings",
    "apply_gradients": "api.model_fn.cross_shard_optimizer",
    "assign_jax_params": "api.model_fn.jax_params",
    "checkpoints": "checkpoints",
    "checkpoints_iterator": "files.formats.latest_checkpoints",
    "clip_by_global_norm": "api.model_fn.clipping",
    "compare": "workflow.comparing.compare",
    "cross_replica_mean": "base.mesh.replica_context",
    "cross_replica_sum": "base.mesh.replica_context",
    "dot_product_attention": "api.model_fn.attention",
    "errors": "errors",
    "evaluate_continuously": "workflow.continuous",
    "experimental": "experimental",
    "export": "export",
    "export_keras": "front_ends.keras.keras_file",
    "from_keras": "workflow.from_keras",
    "front_ends": "front_ends",
    "get_global_step": "api.model_fn.known_variables",
    "get_variable": "api.model_fn.known_variables",
    "global_variables": "api.model_fn.known_variables",
    "gradients": "base.tracing.gradient_requests",
    "hooks": "hooks",
    "identity": "base.tracing.identity",
    "init_from_checkpoint": "api.model_fn.initialization",
    "initialize": "base.hosts.starting",
    "jax_params": "api.model_fn.jax_params",
    "latest_checkpoint": "files.directory.location",
    "list_variables": "files.formats.loading",
    "load_checkpoint": "files.formats.loading",
    "load_variable": "files.formats.loading",
    "metrics": "metrics",
    "minimize": "api.model_fn.cross_shard_optimizer",
    "optimizers": "optimizers",
    "outside_compilation": "api.model_fn.outside_compilation",
    "summary": "summary",
    "tf1": "tf1",
    "train_and_evaluate": "workflow.train_and_evaluate",
    "trainable_variables": "api.model_fn.known_variables",
    "typing": "typing",
    "unique_name": "api.model_fn.known_variables",
    "variable_scope": "api.model_fn.known_variables",
}
__getattr__ = _lazy_names.imported_at_use(
    __name__, {name: f"{__name__}.{module}" for name, module in _MODULES.items()}
)


def __dir__() -> list[str]:
    """Returns the public names, without the modules that imports add."""
    return [*__all__, "__all__", "__doc__", "__version__"]
