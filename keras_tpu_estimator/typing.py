"""The types for annotations in scripts, besides the classes of other namespaces.

>>> import keras_tpu_estimator as kte
>>> def loss_of(
...     estimator: kte.TPUEstimator, input_fn: kte.typing.InputFn
... ) -> float:
...     return estimator.evaluate(input_fn)["loss"]
"""

from typing import TYPE_CHECKING

from keras_tpu_estimator.api.hooks.session import Session
from keras_tpu_estimator.api.model_fn.known_variables import Reuse
from keras_tpu_estimator.api.model_fn.scaffold import InitSession
from keras_tpu_estimator.api.optimizers.optax_optimizer import (
    GradientTransformation,
)
from keras_tpu_estimator.base.common.lazy_names import imported_at_use
from keras_tpu_estimator.base.common.types import (
    CheckpointLike,
    Features,
    InputFn,
    Labels,
    MetricFn,
    PathLike,
    PyTree,
    TensorLike,
)
from keras_tpu_estimator.base.mesh.cores import Cores
from keras_tpu_estimator.files.directory.state_file import CheckpointState, Saved
from keras_tpu_estimator.files.formats.reader import StoredVariable
from keras_tpu_estimator.files.summary.kinds import Summary
from keras_tpu_estimator.files.warm_start.pairing import Pairing
from keras_tpu_estimator.front_ends.tables.parameters import (
    OptimizationParameters,
)

if TYPE_CHECKING:
    from keras_tpu_estimator.planning.plans import Plan, Refusal

__all__ = [
    "CheckpointLike",
    "CheckpointState",
    "Cores",
    "Features",
    "GradientTransformation",
    "InitSession",
    "InputFn",
    "Labels",
    "MetricFn",
    "OptimizationParameters",
    "Pairing",
    "PathLike",
    "Plan",
    "PyTree",
    "Refusal",
    "Reuse",
    "Saved",
    "Session",
    "StoredVariable",
    "Summary",
    "TensorLike",
]

# The results of `TPUEstimator.plan`, without which this package may be installed.
_PLANS = f"{__package__}.planning.plans"
__getattr__ = imported_at_use(__name__, {"Plan": _PLANS, "Refusal": _PLANS})


def __dir__() -> list[str]:
    """Returns the public names."""
    return [*__all__, "__all__", "__doc__"]
