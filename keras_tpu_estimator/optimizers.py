"""TF1 optimizers that Keras lacks, and optax optimizers.

>>> from keras_tpu_estimator.optimizers import LAMB
>>> optimizer = LAMB(learning_rate=1e-3)
"""

from keras_tpu_estimator.api.optimizers.adam_weight_decay import (
    AdamWeightDecay,
)
from keras_tpu_estimator.api.optimizers.layer_wise import LAMB, LARS
from keras_tpu_estimator.api.optimizers.momentum import Momentum, RMSProp
from keras_tpu_estimator.api.optimizers.optax_optimizer import Optax
from keras_tpu_estimator.api.optimizers.sm3 import SM3

__all__ = [
    "LAMB",
    "LARS",
    "SM3",
    "AdamWeightDecay",
    "Momentum",
    "Optax",
    "RMSProp",
]
