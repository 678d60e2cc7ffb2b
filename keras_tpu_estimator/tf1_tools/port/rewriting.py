"""A file of a program, rewritten from its expressions outward.

An expression without a counterpart takes its argument, statement or `with` block along.
A statement with something that cannot be replaced gets a marker.
"""

import ast
import dataclasses
from collections.abc import Sequence

import libcst as cst
from libcst.metadata import CodePosition, CodeRange, MetadataWrapper, PositionProvider

from keras_tpu_estimator.base.common.sources import Source
from keras_tpu_estimator.tf1_tools.port import batches, layout
from keras_tpu_estimator.tf1_tools.port.expressions import Expressions
from keras_tpu_estimator.tf1_tools.port.imports import ShortNames, with_imports
from keras_tpu_estimator.tf1_tools.port.kinds import Kind
from keras_tpu_estimator.tf1_tools.port.markers import Marker
from keras_tpu_estimator.tf1_tools.port.program import Program
from keras_tpu_estimator.tf1_tools.port.regions import Region
from keras_tpu_estimator.tf1_tools.port.special import NOTHING, is_nothing
from keras_tpu_estimator.tf1_tools.port.surroundings import has_nothing, is_empty
from keras_tpu_estimator.tf1_tools.port.values import source_of


@dataclasses.dataclass(frozen=True)
class Ported:
    """A ported file.

    Attributes:
        code: The new source.
        sites: The number of uses of TensorFlow that had to change.
        markers: The places that a person has to write.
    """

    source: Source
    code: str
    sites: int
    markers: tuple[Marker, ...]

    @property
    def rewritten(self) -> int:
        """The number of uses that were changed."""
        return self.sites - len(self.markers)


def port_file(program: Program, source: Source) -> Ported:
    """Returns a file of a program as Keras code."""
    text = source.path.read_text("utf-8")
    wrapper = MetadataWrapper(cst.parse_module(text))
    rewriting = _Rewriting(program, source, layout.width_of(text))
    module = wrapper.visit(rewriting).visit(rewriting.names)
    module = with_imports(module, source, rewriting.names)
    return Ported(source, module.code, rewriting.sites, tuple(rewriting.markers))


class _Rewriting(Expressions):
    """Replaces the expressions of a file, and marks and removes statements."""

    def __init__(self, program: Program, source: Source, width: int):
        super().__init__(program, source)
        self._lines = source.path.read_text("utf-8").splitlines()
        self._width = width
        # The statements that read a batch.
        self._readings: dict[cst.CSTNode, batches.Reading] = {}
        # For each `with` around a node, the updates that must run before its body.
        self._first: list[list[str]] = []
        self.names = ShortNames.from_source(source)
        self.markers: list[Marker] = []

    def visit_SimpleStatementLine(self, node: cst.SimpleStatementLine) -> None:
        self._pending.append([])

    def leave_SimpleStatementLine(
        self,
        original_node: cst.SimpleStatementLine,
        updated_node: cst.SimpleStatementLine,
    ) -> cst.BaseStatement | cst.RemovalSentinel:
        markers = self._pending.pop()
        statements = [
            statement
            for statement in map(self._joined, original_node.body, updated_node.body)
            if not self._is_removed(statement)
        ]
        if not statements:
            return cst.RemoveFromParent()
        result = updated_node.with_changes(body=statements)
        if has_nothing(result):
            markers = markers or [self._unfinished(original_node)]
            result = original_node
        if not result.deep_equals(original_node):
            indent = self._start(original_node).column
            short = result.visit(self.names)
            if isinstance(short, cst.SimpleStatementLine):
                result = layout.fitted(short, indent, self._width)
        line = self._marked(result, markers)
        reading, self._reading = self._reading, None
        if reading is not None and reading.is_mapped:
            self._readings[line] = reading
        return line

    def _joined(
        self, original: cst.BaseSmallStatement, updated: cst.BaseSmallStatement
    ) -> cst.BaseSmallStatement:
        """Returns a statement whose update runs after those of the `with` around it."""
        first = self._first[-1] if self._first else []
        if (
            not first
            or not isinstance(original, cst.Assign | cst.Return)
            or not isinstance(updated, cst.Assign | cst.Return)
        ):
            return updated
        site = self._site_at(original.value) if original.value else None
        if site is None or site.kind is not Kind.UPDATE:
            return updated
        updates = [*first]
        if updated.value is not None and not is_nothing(updated.value):
            updates.append(source_of(updated.value))
        first.clear()
        source = updates[0] if len(updates) == 1 else f"[{', '.join(updates)}]"
        return updated.with_changes(value=cst.parse_expression(source))

    def _is_removed(self, statement: cst.BaseSmallStatement) -> bool:
        value = getattr(statement, "value", None)
        target = _target(statement)
        if target and isinstance(value, cst.Name) and value.value == target:
            return True  # For example, `train_op = train_op`.
        if value is None or not is_nothing(value):
            if source_of(value or NOTHING) == "None" and target in self._empty:
                return True
            self._empty.discard(target)
            return False
        if target:
            self._empty.add(target)
            return True
        return isinstance(statement, cst.Expr | cst.Return)

    def _unfinished(self, node: cst.CSTNode) -> Marker:
        line = self._start(node).line
        text = self._lines[line - 1].strip()
        return Marker(line, text, "Keras has no counterpart of its value")

    def _start(self, node: cst.CSTNode) -> CodePosition:
        where: CodeRange = self.get_metadata(PositionProvider, node)
        return where.start

    def _marked(
        self, node: cst.SimpleStatementLine, markers: Sequence[Marker]
    ) -> cst.SimpleStatementLine:
        self.markers += markers
        comments = [line for m in markers for line in m.lines(self._width)]
        return node.with_changes(leading_lines=[*node.leading_lines, *comments])

    def visit_If(self, node: cst.If) -> None:
        self._pending.append([])

    def leave_If(
        self, original_node: cst.If, updated_node: cst.If
    ) -> cst.BaseStatement | cst.RemovalSentinel:
        other = updated_node.orelse
        is_alone = other is None or (
            isinstance(other, cst.Else) and is_empty(other.body)
        )
        if is_empty(updated_node.body) and is_alone:
            self.markers += self._pending.pop()
            return cst.RemoveFromParent()
        return self._compound(original_node, updated_node, "test")

    def visit_While(self, node: cst.While) -> None:
        self._pending.append([])

    def leave_While(
        self, original_node: cst.While, updated_node: cst.While
    ) -> cst.BaseStatement:
        return self._compound(original_node, updated_node, "test")

    def visit_For(self, node: cst.For) -> None:
        self._pending.append([])

    def leave_For(
        self, original_node: cst.For, updated_node: cst.For
    ) -> cst.BaseStatement:
        return self._compound(original_node, updated_node, "iter")

    def visit_FunctionDef(self, node: cst.FunctionDef) -> None:
        self._pending.append([])
        self._empty_names.append({*self._empty})

    def leave_FunctionDef(
        self, original_node: cst.FunctionDef, updated_node: cst.FunctionDef
    ) -> cst.BaseStatement:
        self._empty_names.pop()
        for statement in updated_node.body.body:
            reading = self._readings.pop(statement, None)
            if reading is not None and isinstance(statement, cst.SimpleStatementLine):
                updated_node = batches.mapped(updated_node, reading, statement)
        return self._compound(original_node, updated_node, "params")

    def visit_ClassDef(self, node: cst.ClassDef) -> None:
        self._pending.append([])

    def leave_ClassDef(
        self, original_node: cst.ClassDef, updated_node: cst.ClassDef
    ) -> cst.BaseStatement:
        bases = [base for base in updated_node.bases if not is_nothing(base.value)]
        if not bases and original_node.bases:
            updated_node = updated_node.with_changes(
                lpar=cst.MaybeSentinel.DEFAULT, rpar=cst.MaybeSentinel.DEFAULT
            )
        updated_node = updated_node.with_changes(bases=bases)
        return self._compound(original_node, updated_node, "bases")

    def visit_With(self, node: cst.With) -> None:
        self._pending.append([])
        self._first.append(
            [
                ast.unparse(update)
                for item in node.items
                if (site := self._site_at(item.item)) is not None
                and site.value.name == "tf.control_dependencies"
                and site.region is Region.STEP
                for update in site.updates
            ]
        )

    def leave_With(
        self, original_node: cst.With, updated_node: cst.With
    ) -> cst.BaseStatement | cst.FlattenSentinel[cst.BaseStatement]:
        items = [
            item
            for item in updated_node.items
            if item.asname is not None or not is_nothing(item.item)
        ]
        if items:
            items[-1] = items[-1].with_changes(comma=cst.MaybeSentinel.DEFAULT)
            updated_node = updated_node.with_changes(items=items)
            self._first.pop()
            return self._compound(original_node, updated_node, "items")
        markers = self._pending.pop()
        if updates := self._first.pop():
            line = self._start(original_node).line
            advice = f"`train_op` must be a list that contains `{', '.join(updates)}`"
            markers.append(Marker(line, "tf.control_dependencies", advice))
        self.markers += markers
        comments = [line for m in markers for line in m.lines(self._width)]
        statements = [*updated_node.body.body]
        if statements and isinstance(statements[0], _WithLeadingLines):
            first = statements[0]
            lines = (*updated_node.leading_lines, *comments, *first.leading_lines)
            statements[0] = first.with_changes(leading_lines=lines)
        return cst.FlattenSentinel(statements)

    def _compound(
        self,
        original: cst.BaseCompoundStatement,
        updated: cst.BaseCompoundStatement,
        header: str,
    ) -> cst.BaseCompoundStatement:
        """Returns a statement with a body, and marks what its header left."""
        markers = self._pending.pop()
        values = getattr(updated, header)
        parts = values if isinstance(values, Sequence) else [values]
        if any(map(has_nothing, parts)):
            markers = markers or [self._unfinished(original)]
            updated = updated.with_changes(**{header: getattr(original, header)})
        self.markers += markers
        comments = [line for m in markers for line in m.lines(self._width)]
        lines = (*updated.leading_lines, *comments)
        return updated.with_changes(leading_lines=lines)


_WithLeadingLines = (cst.SimpleStatementLine, cst.BaseCompoundStatement)


def _target(statement: cst.BaseSmallStatement) -> str:
    """Returns the only name that a statement assigns, or ""."""
    if isinstance(statement, cst.Assign) and len(statement.targets) == 1:
        target = statement.targets[0].target
        return target.value if isinstance(target, cst.Name) else ""
    return ""
