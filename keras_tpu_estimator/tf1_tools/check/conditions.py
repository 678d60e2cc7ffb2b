"""The condition of a branch: the mode, a flag, or something unknown.

A flag is certain if it is on by default and nothing in the script changes it. Scripts
copy flags under the same name, with `HParams(use_tpu=FLAGS.use_tpu)` or with `getattr`
over a list of names. Such a copy is as certain as the flag. A setting that only shares
the name of a flag is not.
"""

import ast
import dataclasses
import enum
from collections.abc import Iterable, Iterator, Set
from typing import Any

_DEFINE = ("DEFINE_bool", "DEFINE_boolean")
# Names of the objects to which scripts copy flags.
_SETTINGS = ("hparams", "params")


@dataclasses.dataclass(frozen=True)
class FlagsOn:
    """The flags that are on by default and never changed, with copies in `settings`."""

    flags: Set[str]
    settings: Set[str]

    @classmethod
    def from_modules(cls, modules: Iterable[ast.AST]) -> "FlagsOn":
        """Finds the flags of a script in the syntax of its modules."""
        nodes = [node for module in modules for node in ast.walk(module)]
        defined = [flag for node in nodes for flag in _defined(node)]
        off = {name for name, is_on in defined if not is_on}
        off |= {*_changed(nodes)}
        flags = {name for name, _ in defined} - off
        copied = {name for node in nodes for name in _copied(node)}
        if any(map(_reads_by_name, nodes)):
            copied |= {name for node in nodes for name in _listed(node)}
        return cls(flags, flags & copied)

    def decide(self, test: ast.expr) -> bool:
        """Returns whether a condition is one of these flags."""
        holder, name = _setting(test)
        if holder == "FLAGS":
            return name in self.flags
        return holder in _SETTINGS and name in self.settings


def _defined(node: ast.AST) -> Iterator[tuple[str, bool]]:
    """Yields the flag that a call defines, and whether it is on by default."""
    if not isinstance(node, ast.Call) or _last(node.func) not in _DEFINE:
        return
    arguments: dict[str | None, ast.expr]
    arguments = dict(zip(("name", "default"), node.args, strict=False))
    arguments |= {keyword.arg: keyword.value for keyword in node.keywords}
    name, default = _constant(arguments.get("name")), arguments.get("default")
    if isinstance(name, str):
        yield name, _constant(default) is True


def _changed(nodes: Iterable[ast.AST]) -> Iterator[str]:
    """Yields flags and settings that get a value other than the flag's."""
    copies: set[ast.AST] = set()
    for node in nodes:  # A statement comes before its parts.
        if isinstance(node, ast.Assign):
            copies |= {
                target
                for target in node.targets
                if _setting(node.value) == ("FLAGS", _setting(target)[1])
            }
        elif isinstance(node, ast.Call) and _last(node.func) == "set_default":
            yield from filter(None, map(_name, node.args[:1]))
        elif isinstance(getattr(node, "ctx", None), ast.Store):
            holder, name = _setting(node)
            if holder in ("FLAGS", *_SETTINGS) and node not in copies:
                yield name


def _copied(node: ast.AST) -> Iterator[str]:
    """Yields flags that are copied under the same name."""
    if isinstance(node, ast.keyword):
        pairs: list[tuple[Any, ast.expr]] = [(node.arg, node.value)]
    elif isinstance(node, ast.Dict):
        pairs = [*zip(map(_constant, node.keys), node.values, strict=True)]
    elif isinstance(node, ast.Assign):
        pairs = [(_setting(target)[1], node.value) for target in node.targets]
    else:
        return
    yield from (key for key, value in pairs if _setting(value) == ("FLAGS", key))


def _reads_by_name(node: ast.AST) -> bool:
    """Returns whether a node is `getattr(FLAGS, name)`."""
    return (
        isinstance(node, ast.Call)
        and _last(node.func) == "getattr"
        and [_last(argument) for argument in node.args[:1]] == ["FLAGS"]
    )


def _listed(node: ast.AST) -> Iterator[str]:
    """Yields the strings of a list."""
    if isinstance(node, ast.List | ast.Tuple):
        yield from filter(None, map(_name, node.elts))


def _setting(node: ast.AST) -> tuple[str, str]:
    """Returns the holder and name of `FLAGS.a` or `self.params["a"]`, or ""."""
    if isinstance(node, ast.Attribute):
        return _last(node.value), node.attr
    if isinstance(node, ast.Subscript):
        return _last(node.value), _name(node.slice)
    return "", ""


def _last(node: ast.AST) -> str:
    """Returns the last part of a dotted name."""
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def _name(node: ast.AST) -> str:
    """Returns the value of a string, or "" for anything else."""
    value = _constant(node)
    return value if isinstance(value, str) else ""


def _constant(node: ast.AST | None) -> Any:
    return node.value if isinstance(node, ast.Constant) else None


# Names for the mode in scripts, and other names in comparisons with it.
_MODES = {"is_training", "mode", "training"}
_BESIDE = {
    "EVAL",
    "INFER",
    "ModeKeys",
    "PREDICT",
    "TRAIN",
    "contrib",
    "estimator",
    "learn",
    "model_fn",
    "params",
    "self",
    "tf",
    "tf_estimator",
}


class Condition(enum.Enum):
    """The subject of a condition.

    Attributes:
        IS_STARTED: The file is the one that runs.
        MODE: The mode. A script that trains and evaluates takes both branches.
        OTHER: A setting, or anything else that the source does not decide.
    """

    IS_STARTED = "is started"
    MODE = "mode"
    OTHER = "other"


def condition_of(test: ast.expr) -> Condition:
    """Returns the subject of the condition of an `if`."""
    names = {*_names(test)}
    if "__name__" in names:
        return Condition.IS_STARTED
    if names & _MODES and names <= _MODES | _BESIDE:
        return Condition.MODE
    return Condition.OTHER


def _names(test: ast.expr) -> Iterator[str]:
    for node in ast.walk(test):
        if isinstance(node, ast.Name):
            yield node.id
        elif isinstance(node, ast.Attribute):
            yield node.attr
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            if node.value in _MODES:
                yield node.value
