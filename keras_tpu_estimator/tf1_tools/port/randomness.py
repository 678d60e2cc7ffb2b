"""Random numbers: a step draws others each time, and an initializer draws once."""

from collections.abc import Sequence

import libcst as cst

from keras_tpu_estimator.tf1_tools.check.reached import is_function
from keras_tpu_estimator.tf1_tools.port.program import Site, entry_of
from keras_tpu_estimator.tf1_tools.port.rules import Rule, expand

_NORMAL = (
    "(shape, mean, stddev=1.0, dtype, seed, name-) -> keras.initializers.{}("
    "mean=..., stddev=stddev, seed=...)(shape, dtype=dtype)"
)
_UNIFORM = (
    "(shape, minval=0.0, maxval=1.0, dtype, seed, name-) -> keras.initializers."
    "RandomUniform(minval, maxval, seed=...)(shape, dtype=dtype)"
)
# The rules of calls inside of initializers.
_RULES = {
    "random.normal": _NORMAL.format("RandomNormal"),
    "random.truncated_normal": _NORMAL.format("TruncatedNormal"),
    "random.uniform": _UNIFORM,
    "random_normal": _NORMAL.format("RandomNormal"),
    "random_uniform": _UNIFORM,
    "truncated_normal": _NORMAL.format("TruncatedNormal"),
}
NAMES = tuple(f"tf.{name}" for name in _RULES)


def drawn(site: Site, arguments: Sequence[cst.Arg]) -> cst.BaseExpression:
    """Returns random numbers: those of an initializer, or of each step."""
    name = site.value.name
    entry = entry_of(name)
    source = entry.rule if entry else ""
    if _is_in_initializer(site):
        source = _RULES[name.removeprefix("tf.")]
    return expand(Rule.from_source(source), arguments)


def _is_in_initializer(site: Site) -> bool:
    """Returns whether the code is in a function that initializes a variable."""
    scope = site.scope
    while scope.parent is not None and not is_function(scope.node):
        scope = scope.parent
    parameters = scope.node.args.args if is_function(scope.node) else []
    return any(parameter.arg == "partition_info" for parameter in parameters)
