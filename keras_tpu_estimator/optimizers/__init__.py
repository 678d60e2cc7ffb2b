"""Optimizers of programs of TF1 that Keras lacks."""

from keras_tpu_estimator.optimizers.adam_weight_decay import AdamWeightDecay
from keras_tpu_estimator.optimizers.lamb import LAMB
from keras_tpu_estimator.optimizers.lars import LARS
from keras_tpu_estimator.optimizers.sm3 import SM3

__all__ = ["LAMB", "LARS", "SM3", "AdamWeightDecay"]
