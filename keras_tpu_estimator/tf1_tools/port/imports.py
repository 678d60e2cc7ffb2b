"""The imports of a ported file."""

import ast
import re
from collections.abc import Sequence

import libcst as cst

from keras_tpu_estimator.base.common.sources import Source

_NOTE = "# Import Keras after this package, so that Keras runs on JAX."
_TENSORFLOW = "tensorflow.compat.v1"
# The modules of Keras that files import by themselves.
_PARTS = ("layers", "ops")
_CONTRIB = re.compile(r"tf\.contrib(\.\w+)*")


class ShortNames(cst.CSTTransformer):
    """Writes `ops.add` for `keras.ops.add`, where a file does not use that name."""

    def __init__(self, parts: Sequence[str]):
        super().__init__()
        self.parts = parts
        self._long_names = frozenset(f"keras.{part}" for part in parts)

    @classmethod
    def from_source(cls, source: Source) -> "ShortNames":
        """Finds the names that a file does not use."""
        names = {n.id for n in ast.walk(source.tree) if isinstance(n, ast.Name)}
        names |= {n.arg for n in ast.walk(source.tree) if isinstance(n, ast.arg)}
        names |= {
            node.attr
            for node in ast.walk(source.tree)
            if isinstance(node, ast.Attribute) and ast.unparse(node.value) == "keras"
        }
        names |= {
            alias.asname or alias.name
            for node in ast.walk(source.tree)
            if isinstance(node, ast.Import | ast.ImportFrom)
            for alias in node.names
        }
        return cls([part for part in _PARTS if part not in names])

    def leave_Attribute(
        self, original_node: cst.Attribute, updated_node: cst.Attribute
    ) -> cst.BaseExpression:
        if cst.Module([]).code_for_node(updated_node) in self._long_names:
            return updated_node.attr
        return updated_node


def with_imports(
    module: cst.Module, source: Source, short_names: ShortNames
) -> cst.Module:
    """Returns a file that imports what it uses now, and no longer what it used."""
    tree = ast.parse(module.code)
    names = _read_names(tree)
    roots = {name.partition(".")[0] for name in names}
    new = names - _read_names(source.tree)
    new_roots = {name.partition(".")[0] for name in new}
    parts = [part for part in short_names.parts if part in new_roots]
    added = []
    if new_roots & {"kte", "keras", *parts}:
        added += [_NOTE, "import keras_tpu_estimator as kte"]
    if "jax" in new_roots:
        added.append("import jax")
    if "keras" in new_roots:
        added.append("import keras")
    if parts:
        added.append(f"from keras import {', '.join(parts)}")
    rewriting = _Imports(added, roots, _loaded(tree))
    result = module.visit(rewriting)
    if added and not rewriting.is_added:
        result = result.with_changes(body=[*_lines(added), *result.body])
    return result


class _Imports(cst.CSTTransformer):
    """Replaces the imports of TensorFlow."""

    def __init__(self, added: list[str], roots: set[str], loaded: set[str]):
        super().__init__()
        self._loaded = loaded
        self._added = added
        self._added_names = {line.rpartition(" ")[2] for line in added}
        self._roots = roots
        self.is_added = False

    def leave_SimpleStatementLine(
        self,
        original_node: cst.SimpleStatementLine,
        updated_node: cst.SimpleStatementLine,
    ) -> (
        cst.BaseStatement | cst.FlattenSentinel[cst.BaseStatement] | cst.RemovalSentinel
    ):
        statement = updated_node.body[0]
        if self._is_unused_alias(statement):
            return cst.RemoveFromParent()
        if not isinstance(statement, cst.Import | cst.ImportFrom):
            return updated_node
        if not re.search(r"\btensorflow\b", cst.Module([]).code_for_node(statement)):
            return updated_node
        lines = [] if self.is_added else _lines(self._added)
        self.is_added = True
        remaining = self._still_used(statement)
        if remaining is not None:
            lines.append(cst.SimpleStatementLine([remaining]))
        if not lines:
            return cst.RemoveFromParent()
        first = lines[0]
        lines[0] = first.with_changes(
            leading_lines=[*updated_node.leading_lines, *first.leading_lines]
        )
        return cst.FlattenSentinel(lines)

    def _is_unused_alias(self, statement: cst.BaseSmallStatement) -> bool:
        """Returns whether it is `slim = tf.contrib.slim`, and no code reads it."""
        if not isinstance(statement, cst.Assign) or len(statement.targets) != 1:
            return False
        target = statement.targets[0].target
        source = cst.Module([]).code_for_node(statement.value)
        if not isinstance(target, cst.Name) or not _CONTRIB.fullmatch(source):
            return False
        return target.value not in self._loaded

    def _still_used(
        self, statement: cst.Import | cst.ImportFrom
    ) -> cst.Import | cst.ImportFrom | None:
        """Returns the part of an import that the file still uses."""
        if not isinstance(statement.names, Sequence):
            return statement  # It imports all names.
        used = self._roots - self._added_names
        aliases = [alias for alias in statement.names if _bound(alias) in used]
        if not aliases:
            return None
        aliases[-1] = aliases[-1].with_changes(comma=cst.MaybeSentinel.DEFAULT)
        alias = aliases[0]
        if isinstance(statement, cst.Import) and alias.evaluated_name == "tensorflow":
            name = cst.parse_expression(_TENSORFLOW)
            aliases[0] = alias.with_changes(name=name) if alias.asname else alias
        return statement.with_changes(names=aliases)


def _bound(alias: cst.ImportAlias) -> str:
    name = alias.evaluated_alias or alias.evaluated_name
    return name.partition(".")[0]


def _lines(sources: Sequence[str]) -> list[cst.SimpleStatementLine]:
    """Returns import statements; a comment precedes the next one."""
    module = cst.parse_module("\n".join(sources))
    lines = [line for line in module.body if isinstance(line, cst.SimpleStatementLine)]
    if lines:
        lines[0] = lines[0].with_changes(leading_lines=module.header)
    return lines


def _loaded(tree: ast.AST) -> set[str]:
    """Returns the names whose values a file reads."""
    return {
        node.id
        for node in ast.walk(tree)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)
    }


def _read_names(tree: ast.AST) -> set[str]:
    """Returns the names and dotted names that a file reads outside its imports."""
    return {
        node.id if isinstance(node, ast.Name) else ast.unparse(node)
        for node in ast.walk(tree)
        if isinstance(node, ast.Name | ast.Attribute)
    }
