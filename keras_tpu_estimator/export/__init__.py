"""Exports of trained models as SavedModels for TensorFlow's servers."""

from keras_tpu_estimator.api.model_fn.export_outputs import (
    ClassificationOutput,
    ExportOutput,
    PredictOutput,
    RegressionOutput,
)
from keras_tpu_estimator.export.batching import (
    BatchConfig,
    inference_on_tpu,
    model_fn_inference_on_tpu,
)
from keras_tpu_estimator.export.receiver_functions import (
    build_parsing_serving_input_receiver_fn,
    build_raw_serving_input_receiver_fn,
    build_raw_supervised_input_receiver_fn,
    build_supervised_input_receiver_fn_from_input_fn,
)
from keras_tpu_estimator.export.receivers import (
    ServingInputReceiver,
    SupervisedInputReceiver,
    TensorServingInputReceiver,
)
from keras_tpu_estimator.export.stablehlo import UnservableError

__all__ = [
    "BatchConfig",
    "ClassificationOutput",
    "ExportOutput",
    "PredictOutput",
    "RegressionOutput",
    "ServingInputReceiver",
    "SupervisedInputReceiver",
    "TensorServingInputReceiver",
    "UnservableError",
    "build_parsing_serving_input_receiver_fn",
    "build_raw_serving_input_receiver_fn",
    "build_raw_supervised_input_receiver_fn",
    "build_supervised_input_receiver_fn_from_input_fn",
    "inference_on_tpu",
    "model_fn_inference_on_tpu",
]
