"""The names of TF1 that programs use and TensorFlow lacks, as data."""

from keras_tpu_estimator.tf1.shims.tables import contrib
from keras_tpu_estimator.tf1.shims.tables import contrib_data
from keras_tpu_estimator.tf1.shims.tables import contrib_nn
from keras_tpu_estimator.tf1.shims.tables import contrib_slim
from keras_tpu_estimator.tf1.shims.tables import contrib_summary
from keras_tpu_estimator.tf1.shims.tables import contrib_tpu
from keras_tpu_estimator.tf1.shims.tables import estimator
from keras_tpu_estimator.tf1.shims.tables import python
from keras_tpu_estimator.tf1.shims.tables import root
from keras_tpu_estimator.tf1.shims.tables.area import Area

_MODULES = (
    contrib,
    contrib_data,
    contrib_nn,
    contrib_slim,
    contrib_summary,
    contrib_tpu,
    estimator,
    python,
    root,
)
LOST = python.LOST
AREAS: tuple[Area, ...] = (
    *(
        value
        for module in _MODULES
        for value in vars(module).values()
        if isinstance(value, Area)
    ),
    *LOST,
    *contrib.OTHERS,
)
