"""Flags of a program that are on unless its command line says otherwise.

Programs hand flags on under their names: `HParams(use_tpu=FLAGS.use_tpu)`, or
a list of names that are read with `getattr`. What is handed on so is as certain
as the flag. A setting that only has the name of a flag is not.
"""

import ast
import dataclasses
from collections.abc import Iterable, Iterator, Set
from typing import Any

_DEFINE = ("DEFINE_bool", "DEFINE_boolean")
# How programs call what flags are handed on in.
_SETTINGS = ("hparams", "params")


@dataclasses.dataclass(frozen=True)
class FlagsOn:
    """The flags that are on by default, and nothing in the program changes.

    Attributes:
        flags: Their names.
        settings: The names of those that are handed on.

    Example:

    >>> import ast
    >>> source = "flags.DEFINE_bool('use_tpu', True, 'Use a TPU.')"
    >>> on = FlagsOn.of([ast.parse(source)])
    >>> on.decide(ast.parse("FLAGS.use_tpu").body[0].value)
    True
    """

    flags: Set[str]
    settings: Set[str]

    @classmethod
    def of(cls, modules: Iterable[ast.AST]) -> "FlagsOn":
        """Those of a program, from the syntax of its modules."""
        nodes = [node for module in modules for node in ast.walk(module)]
        defined = [each for node in nodes for each in _defined(node)]
        off = {name for name, is_on in defined if not is_on}
        off |= {*_changed(nodes)}
        flags = {name for name, _ in defined} - off
        handed_on = {name for node in nodes for name in _handed_on(node)}
        if any(map(_reads_by_name, nodes)):
            handed_on |= {name for node in nodes for name in _listed(node)}
        return cls(flags, flags & handed_on)

    def decide(self, test: ast.expr) -> bool:
        """Whether a condition is nothing but one of them."""
        holder, name = _setting(test)
        if holder == "FLAGS":
            return name in self.flags
        return holder in _SETTINGS and name in self.settings


def _defined(node: ast.AST) -> Iterator[tuple[str, bool]]:
    """The flag that a call defines, and whether it is on by default."""
    if not isinstance(node, ast.Call) or _last(node.func) not in _DEFINE:
        return
    given: dict[str | None, ast.expr]
    given = dict(zip(("name", "default"), node.args, strict=False))
    given |= {each.arg: each.value for each in node.keywords}
    name, default = _constant(given.get("name")), given.get("default")
    if isinstance(name, str):
        yield name, _constant(default) is True


def _changed(nodes: Iterable[ast.AST]) -> Iterator[str]:
    """Flags and settings that are given another value than the flag's."""
    own: set[ast.AST] = set()
    for node in nodes:  # Statements come before what is in them.
        if isinstance(node, ast.Assign):
            own |= {
                target
                for target in node.targets
                if _setting(node.value) == ("FLAGS", _setting(target)[1])
            }
        elif isinstance(node, ast.Call) and _last(node.func) == "set_default":
            yield from filter(None, map(_name, node.args[:1]))
        elif isinstance(getattr(node, "ctx", None), ast.Store):
            holder, name = _setting(node)
            if holder in ("FLAGS", *_SETTINGS) and node not in own:
                yield name


def _handed_on(node: ast.AST) -> Iterator[str]:
    """Flags that something gets under their names."""
    if isinstance(node, ast.keyword):
        pairs: list[tuple[Any, ast.expr]] = [(node.arg, node.value)]
    elif isinstance(node, ast.Dict):
        pairs = [*zip(map(_constant, node.keys), node.values, strict=True)]
    elif isinstance(node, ast.Assign):
        pairs = [(_setting(each)[1], node.value) for each in node.targets]
    else:
        return
    yield from (key for key, of in pairs if _setting(of) == ("FLAGS", key))


def _reads_by_name(node: ast.AST) -> bool:
    """Whether a node is `getattr(FLAGS, name)`."""
    return (
        isinstance(node, ast.Call)
        and _last(node.func) == "getattr"
        and [_last(each) for each in node.args[:1]] == ["FLAGS"]
    )


def _listed(node: ast.AST) -> Iterator[str]:
    """The strings of a list."""
    if isinstance(node, ast.List | ast.Tuple):
        yield from filter(None, map(_name, node.elts))


def _setting(node: ast.AST) -> tuple[str, str]:
    """The holder and the name of `FLAGS.a` or `self.params["a"]`; else ""."""
    if isinstance(node, ast.Attribute):
        return _last(node.value), node.attr
    if isinstance(node, ast.Subscript):
        return _last(node.value), _name(node.slice)
    return "", ""


def _last(node: ast.AST) -> str:
    """The last name of a dotted one."""
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def _name(node: ast.AST) -> str:
    """A string; "" of anything else."""
    value = _constant(node)
    return value if isinstance(value, str) else ""


def _constant(node: ast.AST | None) -> Any:
    return node.value if isinstance(node, ast.Constant) else None
