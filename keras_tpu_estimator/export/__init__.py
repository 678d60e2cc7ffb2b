"""From a trained model to a SavedModel that TensorFlow's servers run."""

from keras_tpu_estimator.export.batching import BatchConfig
from keras_tpu_estimator.export.batching import inference_on_tpu
from keras_tpu_estimator.export.batching import model_fn_inference_on_tpu
from keras_tpu_estimator.export.receiver_builders import (
    build_parsing_serving_input_receiver_fn,
)
from keras_tpu_estimator.export.receiver_builders import (
    build_raw_serving_input_receiver_fn,
)
from keras_tpu_estimator.export.receiver_builders import (
    build_raw_supervised_input_receiver_fn,
)
from keras_tpu_estimator.export.receiver_builders import (
    build_supervised_input_receiver_fn_from_input_fn,
)
from keras_tpu_estimator.export.receivers import ServingInputReceiver
from keras_tpu_estimator.export.receivers import SupervisedInputReceiver
from keras_tpu_estimator.export.receivers import TensorServingInputReceiver
from keras_tpu_estimator.export.stablehlo import UnservableError
from keras_tpu_estimator.spec.model_fn.export_outputs import (
    ClassificationOutput,
)
from keras_tpu_estimator.spec.model_fn.export_outputs import ExportOutput
from keras_tpu_estimator.spec.model_fn.export_outputs import PredictOutput
from keras_tpu_estimator.spec.model_fn.export_outputs import RegressionOutput

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
