"""The exceptions of this package, for `except` clauses.

>>> from keras_tpu_estimator import errors
>>> try:
...     raise errors.VariableNotFoundError("dense/kernel")
... except errors.VariableNotFoundError:
...     print("not in the checkpoint")
not in the checkpoint

Wrong arguments raise Python's own `ValueError` and `TypeError`.
"""

from typing import TYPE_CHECKING

from keras_tpu_estimator.api.hooks.stopping import NanLossDuringTrainingError
from keras_tpu_estimator.base.common.lazy_names import imported_at_use
from keras_tpu_estimator.base.hosts.failures import HostError
from keras_tpu_estimator.base.tracing.variables import (
    LeakedTensorError,
    NoScopeError,
    TwoUnderOnePathError,
)
from keras_tpu_estimator.base.upstream.private_names import UnsupportedVersionError
from keras_tpu_estimator.files.formats.reader import VariableNotFoundError
from keras_tpu_estimator.files.warm_start.values import WarmStartError

if TYPE_CHECKING:
    from keras_tpu_estimator.export.stablehlo import UnservableError
    from keras_tpu_estimator.planning.errors import CompileError, DoesNotFitError
    from keras_tpu_estimator.tf1.foreign_calls import TF1CallError
    from keras_tpu_estimator.tf1.shims.resolving import MissingNameError

__all__ = [
    "CompileError",
    "DoesNotFitError",
    "HostError",
    "LeakedTensorError",
    "MissingNameError",
    "NanLossDuringTrainingError",
    "NoScopeError",
    "TF1CallError",
    "TwoUnderOnePathError",
    "UnservableError",
    "UnsupportedVersionError",
    "VariableNotFoundError",
    "WarmStartError",
]

# The errors of exports and tools, without which this package may be installed.
_OF_TOOLS = {
    "CompileError": "planning.errors",
    "DoesNotFitError": "planning.errors",
    "MissingNameError": "tf1.shims.resolving",
    "TF1CallError": "tf1.foreign_calls",
    "UnservableError": "export.stablehlo",
}
__getattr__ = imported_at_use(
    __name__,
    {name: f"{__package__}.{module}" for name, module in _OF_TOOLS.items()},
)


def __dir__() -> list[str]:
    """Returns the public names."""
    return [*__all__, "__all__", "__doc__"]
