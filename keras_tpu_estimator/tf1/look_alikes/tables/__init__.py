"""The names of TF1 that programs use and TensorFlow lacks, as data."""

from keras_tpu_estimator.tf1.look_alikes.tables import contrib
from keras_tpu_estimator.tf1.look_alikes.tables import contrib_tpu
from keras_tpu_estimator.tf1.look_alikes.tables import estimator
from keras_tpu_estimator.tf1.look_alikes.tables import root
from keras_tpu_estimator.tf1.look_alikes.tables.area import Area

_MODULES = (contrib, contrib_tpu, estimator, root)
AREAS: tuple[Area, ...] = tuple(
    value
    for module in _MODULES
    for value in vars(module).values()
    if isinstance(value, Area)
)
