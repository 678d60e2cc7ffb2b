"""The state of optimizers by what it is, in TensorFlow, BERT, Keras and optax.

The idea: a name such as `dense/kernel/Adam_1` or `adam/dense_kernel_velocity` has a
variable, its owner, and a word whose meaning the tables of this file have. Two
optimizers share the state that means the same.
"""

import collections
import dataclasses
import enum
import re
from collections.abc import Collection, Mapping

from keras_tpu_estimator.files.warm_start.pairing import Described


class Meaning(enum.StrEnum):
    """The content of a variable's state."""

    AVERAGE = "average of the variable"
    FIRST = "mean gradient"
    LARGEST = "largest second moment"
    LINEAR = "linear term"
    NORM = "largest gradient"
    SECOND = "second moment"
    SQUARED_UPDATES = "mean of squared updates"
    STEPS = "sum of steps"
    SUM = "sum of gradients"
    SUM_OF_SQUARES = "sum of squared gradients"


_M = Meaning
# The last part of `dense/kernel/Adam_1`.
_TENSORFLOW = {
    "adadelta": _M.SECOND,
    "adadelta_1": _M.SQUARED_UPDATES,
    "adagrad": _M.SUM_OF_SQUARES,
    "adam": _M.FIRST,
    "adam_1": _M.SECOND,
    "adam_m": _M.FIRST,
    "adam_v": _M.SECOND,
    "adamax": _M.FIRST,
    "adamax_1": _M.NORM,
    "adamw": _M.FIRST,
    "adamw_1": _M.SECOND,
    "exponentialmovingaverage": _M.AVERAGE,
    "ftrl": _M.SUM_OF_SQUARES,
    "ftrl_1": _M.LINEAR,
    "larsoptimizer": _M.STEPS,
    "lamb_m": _M.FIRST,
    "lamb_v": _M.SECOND,
    "m": _M.FIRST,
    "momentum": _M.SUM,
    "momentumw": _M.SUM,
    "proximaladagrad": _M.SUM_OF_SQUARES,
    "rmsprop": _M.SECOND,
    "rmsprop_1": _M.STEPS,
    "rmsprop_2": _M.STEPS,
    "v": _M.SECOND,
}
# The end of `adam/dense_kernel_velocity`.
_KERAS = {
    "accumulated_delta_var": _M.SQUARED_UPDATES,
    "accumulated_grad": _M.SECOND,
    "accumulator": _M.SUM_OF_SQUARES,
    "average": _M.AVERAGE,
    "average_gradient": _M.FIRST,
    "linear": _M.LINEAR,
    "momentum": _M.FIRST,
    "norm": _M.NORM,
    "velocity": _M.SECOND,
    "velocity_hat": _M.LARGEST,
}
# The middle of `optax/mu/dense/kernel`.
_OPTAX = {
    "e_g": _M.SECOND,
    "e_x": _M.SQUARED_UPDATES,
    "mu": _M.FIRST,
    "nu": _M.SECOND,
    "nu_max": _M.LARGEST,
    "sum_of_squares": _M.SUM_OF_SQUARES,
    "trace": _M.SUM,
}
# Keras's optimizers whose momentum is a sum of steps, which they subtract.
_WITH_STEPS = ("rm_sprop", "rms_prop", "rmsprop", "lars")
# The number of steps that optimizers count.
_GLOBAL_STEP = "global_step"
_COUNTS = ("iteration", "iterations", "count")


@dataclasses.dataclass(frozen=True)
class State:
    """One variable's state in one optimizer.

    Attributes:
        path: Its path.
        meaning: Its content; a word of the optimizer's that no table has otherwise.
        rate_path: The path of the learning rate, if the state is the content times the
            negative rate, as Keras's `SGD` has it; otherwise `None`.
    """

    path: str
    meaning: str
    rate_path: str | None = None


def states_of(owners: Mapping[str, str]) -> dict[str, dict[str, State]]:
    """Returns the state of variables, by their paths and by its meaning.

    Args:
        owners: The paths of variables by those of their state.
    """
    words: dict[str, dict[str, str]] = collections.defaultdict(dict)
    for path, owner in owners.items():
        words[owner][path] = _word(path, owner)
    return {
        owner: {
            state.meaning: state
            for state in (
                _state(path, owner, word, of_owner.values())
                for path, word in of_owner.items()
            )
        }
        for owner, of_owner in words.items()
    }


def _state(path: str, owner: str, word: str, words: Collection[str]) -> State:
    if path.startswith(f"{owner}/"):
        if word == "rmsprop_1" and "rmsprop_2" in words:
            # If it is centered.
            return State(path, _M.FIRST)
        return State(path, _TENSORFLOW.get(word, word))
    if path.endswith(f"/{owner}"):
        is_steps = word == "trace" and "nu" in words
        # The trace of `optax.rmsprop` has the sign of an update.
        return State(path, word if is_steps else _OPTAX.get(word, word))
    optimizer = path.rpartition("/")[0]
    if word == "momentum" and optimizer.startswith(_WITH_STEPS):
        return State(path, _M.STEPS)
    is_sgd = word == "momentum" and not {"velocity", "norm"}.intersection(words)
    if is_sgd and optimizer.startswith("momentum"):
        return State(path, _M.SUM)  # Of `kte.optimizers.Momentum`.
    if is_sgd and not optimizer.startswith("lion"):
        return State(path, _M.SUM, f"{optimizer}/learning_rate")
    return State(path, _KERAS.get(word, word))


def _word(path: str, owner: str) -> str:
    """Returns the word of a state's name that says what it is.

    >>> _word("dense/kernel/Adam_1", "dense/kernel")
    'adam_1'
    >>> _word("adam/dense_kernel_velocity", "dense/kernel")
    'velocity'
    >>> _word("optax/mu/dense/kernel", "dense/kernel")
    'mu'
    """
    if path.startswith(f"{owner}/"):
        return path.removeprefix(f"{owner}/").lower()
    if path.endswith(f"/{owner}"):
        return path.removesuffix(f"/{owner}").rpartition("/")[2].lower()
    name = re.sub(f".*{re.escape(owner.replace('/', '_'))}_", "", path)
    return name.lower()


def owners_by_name(variables: Mapping[str, Described]) -> dict[str, str]:
    """Returns the paths of variables by those of their state, by names and shapes.

    Only state whose names the tables have is among them.
    """
    flat = {path.replace("/", "_"): path for path in variables}
    owners = {}
    for path in variables:
        for owner in _possible_owners(path, flat):
            described = variables.get(owner)
            if described is not None and _has_shape(variables[path], described):
                owners[path] = owner
                break
    return owners


def _has_shape(one: Described, other: Described) -> bool:
    return tuple(one.shape) == tuple(other.shape)


def _possible_owners(path: str, flat: Mapping[str, str]) -> list[str]:
    folder, _, last = path.rpartition("/")
    possible = []
    if last.lower() in _TENSORFLOW:
        possible.append(folder)
    for word in _KERAS:
        if folder and last.endswith(f"_{word}"):
            possible.append(flat.get(last.removesuffix(f"_{word}"), ""))
    parts = path.split("/")
    for position, part in enumerate(parts[:-1]):
        if part in _OPTAX:
            possible.append("/".join(parts[position + 1 :]))
    return possible


def factor_between(old: State, new: State, rates: Mapping[str, float]) -> float | None:
    """Returns the number by which old state is multiplied to get the new one.

    It is `None` if it depends on a learning rate that is not constant.

    Args:
        rates: The constant learning rates by path.
    """
    if (old.rate_path is None) == (new.rate_path is None):
        return 1.0
    rate = rates.get(old.rate_path or new.rate_path or "")
    if not rate:
        return None
    return -rate if old.rate_path is None else -1 / rate


def counterparts(
    names: Mapping[str, str],
    variables: Mapping[str, Described],
    stored: Mapping[str, Described],
    rates: Mapping[str, float],
) -> dict[str, tuple[str, float]]:
    """Returns names and factors of optimizer state that a checkpoint names otherwise.

    Args:
        names: Names in the checkpoint by paths of a model's variables.
        variables: The variables of the model, by path.
        stored: The variables of the checkpoint, by name.
        rates: The constant learning rates of the model, by path.
    """
    missing = [path for path, name in names.items() if name not in stored]
    if not missing:
        return {}
    owners = owners_by_name(variables)
    old, new = states_of(owners_by_name(stored)), states_of(owners)
    result = {}
    for path in missing:
        if is_count(path, variables[path]) and _GLOBAL_STEP in stored:
            result[path] = _GLOBAL_STEP, 1.0
        owner = owners.get(path)
        if owner is None:
            continue
        of_old = old.get(names.get(owner, owner), {})
        state = next(s for s in new[owner].values() if s.path == path)
        if state.meaning in of_old:
            other = of_old[state.meaning]
            factor = factor_between(other, state, rates)
            if factor is not None:
                result[path] = other.path, factor
    return result


def is_count(path: str, variable: Described) -> bool:
    """Returns whether a variable is an optimizer's count of steps."""
    return "/" in path and path.split("/")[-1] in _COUNTS and not tuple(variable.shape)
