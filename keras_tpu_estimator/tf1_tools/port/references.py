"""The counterparts of names: of functions that are passed on, classes and constants."""

import re

import keras
import libcst as cst

from keras_tpu_estimator.tf1.names import porting
from keras_tpu_estimator.tf1.names.catalogue import catalogue
from keras_tpu_estimator.tf1_tools.port import special
from keras_tpu_estimator.tf1_tools.port.program import entry_of, is_supplied
from keras_tpu_estimator.tf1_tools.port.regions import Region
from keras_tpu_estimator.tf1_tools.port.rules import Rule, expand
from keras_tpu_estimator.tf1_tools.port.special import NOTHING, is_nothing
from keras_tpu_estimator.tf1_tools.port.values import UnportableError, source_of

# The sections of `docs/migrating.md` whose names whole scripts have, and not only
# their steps.
_OF_SCRIPTS = (
    "1-imports-and-settings",
    "6-optimizer",
    "7-metrics-hooks-and-summaries",
    "8-checkpoints",
)
# Names that `tensorflow.compat.v1` has, and that work without a graph.
_OF_INPUTS = ("tf.app.", "tf.data.", "tf.flags", "tf.gfile.", "tf.logging.")
_DOTTED = re.compile(r"`((?:keras|kte|jax|absl)(?:\.\w+)+)`")
_LITERAL = re.compile(r"`(\"\w+\"|None)`")


def changes(name: str, region: Region) -> bool:
    """Returns whether code of a region uses another name in a port."""
    counterpart, entry = porting.find(name), entry_of(name)
    section = catalogue().rows[entry.row].section if entry and entry.row else ""
    is_of_scripts = section in _OF_SCRIPTS and (
        # Files of summaries are written into graphs.
        not name.startswith("tf.summary.") or name == "tf.summary.FileWriter"
    )
    if name.startswith(_OF_INPUTS):
        return False
    if name.startswith("tf.keras.") and region is not Region.STEP:
        return is_of_scripts
    if counterpart and counterpart.port.startswith("the same"):
        return region is Region.STEP and "`input_fn`" in counterpart.port
    if is_of_scripts or region is Region.STEP:
        return True
    if region is Region.BOTH:
        return bool(entry and entry.port)
    return not is_supplied(name)


def is_listed(name: str) -> bool:
    """Returns whether the catalogue has a counterpart of a name itself."""
    is_keras = name.startswith("tf.keras.") and name.count(".") > 2
    return is_keras or name in special.CALLS or entry_of(name) is not None


def reference(name: str) -> cst.BaseExpression:
    """Returns the counterpart of a name that is passed on, or called as it was."""
    entry = entry_of(name)
    if entry and entry.rule:
        return _function(entry.rule, name)
    if name.startswith("tf.keras."):
        return _of_keras(name)
    counterpart = porting.find(name)
    text = counterpart.port if counterpart else ""
    if text == "nothing":
        return NOTHING
    constant, dotted = _LITERAL.fullmatch(text), _DOTTED.fullmatch(text)
    if constant:
        return cst.parse_expression(constant[1])
    # The entry of a module gives the counterpart of the module, not of each name in it.
    is_for_name = entry or (dotted and dotted[1].endswith(f".{name.split('.')[-1]}"))
    if dotted and counterpart and counterpart.same and is_for_name:
        return cst.parse_expression(dotted[1])
    raise UnportableError(porting.advice(name))


def _of_keras(name: str) -> cst.BaseExpression:
    """Returns a name of Keras, which TensorFlow contained."""
    path = name.removeprefix("tf.keras.").split(".")
    owner: object = keras
    for part in path:
        owner = getattr(owner, part, None)
    if owner is None:
        raise UnportableError(porting.advice(name))
    return cst.parse_expression(f"keras.{'.'.join(path)}")


def _function(rule_source: str, name: str) -> cst.BaseExpression:
    """Returns the function that a rule calls with the original's arguments."""
    rule = Rule.from_source(rule_source)
    if rule.code == "nothing":
        return NOTHING
    template = cst.parse_expression(rule.code)
    if rule.is_renaming or isinstance(template, cst.SimpleString):
        return template
    needed = [p.name for p in rule.parameters if not p.is_optional]
    if isinstance(template, cst.Call) and isinstance(template.func, cst.Attribute):
        values = [source_of(argument.value) for argument in template.args]
        if values and values[0] == needed[0]:
            return template.func
        if not values or values[0] in ("stddev", "1.0"):
            return template.func
    raise UnportableError(porting.advice(name))


def expanded(rule_source: str, call: cst.Call) -> cst.BaseExpression:
    rule = Rule.from_source(rule_source)
    if rule.code == "nothing":
        return NOTHING
    if any(is_nothing(argument.value) for argument in call.args):
        raise UnportableError("one of its arguments has no counterpart")
    return expand(rule, call.args)
