"""Ready-made estimators, whose models a person writes as a `model_fn`."""

from collections.abc import Sequence

import libcst as cst

from keras_tpu_estimator.tf1_tools.port.program import Site
from keras_tpu_estimator.tf1_tools.port.values import UnportableError

_LINEAR = "`wide`, and `keras.optimizers.Ftrl(0.2)`"
_DNN = "`deep`, and `keras.optimizers.Adagrad(0.05, epsilon=0)`"
_BOTH = (
    "`wide` and `deep`, with `keras.optimizers.Ftrl(0.005)` and "
    "`keras.optimizers.Adagrad(0.001, epsilon=0)`"
)
# The parts of docs/wide_and_deep.md that each of them consists of.
PARTS = {
    "DNNClassifier": _DNN,
    "DNNLinearCombinedClassifier": _BOTH,
    "DNNLinearCombinedRegressor": _BOTH,
    "DNNRegressor": _DNN,
    "LinearClassifier": _LINEAR,
    "LinearRegressor": _LINEAR,
}


def premade(site: Site, arguments: Sequence[cst.Arg]) -> cst.BaseExpression:
    """Raises an error that names the parts of the `model_fn` to write.

    Raises:
        UnportableError: Always, because columns become code in `input_fn`, too.
    """
    parts = PARTS[site.value.name.rpartition(".")[2]]
    raise UnportableError(
        f"write the `model_fn` of docs/wide_and_deep.md with {parts}; replace its "
        "feature columns in `input_fn` and there, as in docs/feature_columns.md"
    )
