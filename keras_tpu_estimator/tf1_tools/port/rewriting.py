"""A file of a program, rewritten from its expressions outward.

An expression is replaced by its rule. Where Keras needs no counterpart, it becomes
`NOTHING`, which takes its argument, statement or `with` block along. What cannot be
replaced stays as it was, and its statement gets a marker.
"""

import ast
import dataclasses
from collections.abc import Sequence

import libcst as cst
from libcst import matchers
from libcst.metadata import CodePosition, CodeRange, MetadataWrapper, PositionProvider

from keras_tpu_estimator.base.common.sources import Source
from keras_tpu_estimator.tf1.names import porting
from keras_tpu_estimator.tf1_tools.port import (
    batches,
    layout,
    methods,
    references,
    special,
)
from keras_tpu_estimator.tf1_tools.port.arg_scopes import ArgScope
from keras_tpu_estimator.tf1_tools.port.imports import ShortNames, with_imports
from keras_tpu_estimator.tf1_tools.port.kinds import Kind
from keras_tpu_estimator.tf1_tools.port.markers import Marker
from keras_tpu_estimator.tf1_tools.port.program import (
    Program,
    Site,
    entry_of,
)
from keras_tpu_estimator.tf1_tools.port.regions import Region
from keras_tpu_estimator.tf1_tools.port.special import NOTHING, is_nothing
from keras_tpu_estimator.tf1_tools.port.surroundings import (
    Surroundings,
    has_nothing,
    is_empty,
)
from keras_tpu_estimator.tf1_tools.port.values import UnportableError, source_of


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


class _Rewriting(Surroundings):
    """Replaces the expressions of a file, and marks statements."""

    METADATA_DEPENDENCIES = (PositionProvider,)

    def __init__(self, program: Program, source: Source, width: int):
        super().__init__()
        self._program = program
        self._sites_by_position = program.sites_in(program.modules[source.module])
        self._lines = source.path.read_text("utf-8").splitlines()
        self._width = width
        self._uses: dict[cst.CSTNode, str] = {}
        self._callees: set[cst.CSTNode] = set()
        # The batch that the last statement reads, and the statements that read one.
        self._reading: batches.Reading | None = None
        self._readings: dict[cst.CSTNode, batches.Reading] = {}
        # Parts of longer names; the first part of each is among the roots.
        self._parts: set[cst.CSTNode] = set()
        self._roots: set[cst.CSTNode] = set()
        self._pending: list[list[Marker]] = []
        # For each `with` around a node, the updates that must run before its body.
        self._first: list[list[str]] = []
        # The arguments of each `arg_scope`, as Keras code.
        self._arguments: dict[ArgScope, Sequence[cst.Arg]] = {}
        # The statements and calls around a node whose values only a person reads.
        self._shown: list[cst.CSTNode] = []
        self._empty_names: list[set[str]] = [set()]
        self.names = ShortNames.from_source(source)
        self.sites = 0
        self.markers: list[Marker] = []

    @property
    def _empty(self) -> set[str]:
        """The names of this function whose values have no counterpart."""
        return self._empty_names[-1]

    # Names.

    def visit_Call(self, node: cst.Call) -> None:
        self._callees.add(node.func)
        site = self._site_at(node)
        if site is not None and self._program.arg_scopes.at(site.node):
            self._callees |= {*matchers.findall(node.args[0], _NAMES)}
        if methods.is_log(source_of(node.func)):
            self._shown.append(node)

    def visit_Raise(self, node: cst.Raise) -> None:
        self._shown.append(node)

    def leave_Raise(
        self, original_node: cst.Raise, updated_node: cst.Raise
    ) -> cst.BaseSmallStatement:
        self._shown.remove(original_node)
        return updated_node

    def visit_Attribute(self, node: cst.Attribute) -> None:
        self._find(node)

    def visit_AssignTarget(self, node: cst.AssignTarget) -> None:
        if isinstance(node.target, cst.Name):
            self._parts.add(node.target)

    def visit_Name(self, node: cst.Name) -> None:
        self._find(node)

    def _find(self, node: cst.Name | cst.Attribute) -> None:
        """Records the longest part of a dotted name that the catalogue has."""
        if node in self._parts:
            return
        site = self._site_at(node)
        inner: cst.CSTNode = node
        while isinstance(inner, cst.Attribute):
            self._parts |= {inner.value, inner.attr}
            inner = inner.value
        self._roots.add(inner)
        if site is None or not site.name.startswith("tf."):
            return
        if isinstance(node, cst.Name) and not site.is_imported:
            return  # It was assigned, and the assignment is rewritten.
        name, part = site.name, node
        while name.startswith("tf."):
            if references.is_listed(name):
                self._uses[part] = name
                return
            if not isinstance(part, cst.Attribute) or not isinstance(
                part.value, cst.Name | cst.Attribute
            ):
                break
            name, part = name.rpartition(".")[0], part.value
        if porting.find(site.name) or site.region is Region.STEP:
            self._uses[node] = site.name

    def leave_Name(
        self, original_node: cst.Name, updated_node: cst.Name
    ) -> cst.BaseExpression:
        is_value = original_node in self._roots or original_node not in self._parts
        if updated_node.value in self._empty and is_value:
            return NOTHING
        return self._uncalled(original_node, updated_node)

    def leave_Attribute(
        self, original_node: cst.Attribute, updated_node: cst.Attribute
    ) -> cst.BaseExpression:
        result = self._uncalled(original_node, updated_node)
        site = self._site_at(original_node)
        if has_nothing(updated_node):
            return result  # Its statement gets a marker.
        if result is updated_node and site and site.region is Region.STEP:
            return self._tried(
                site, updated_node, lambda: self._attribute(site, updated_node)
            )
        return result

    def leave_BinaryOperation(
        self, original_node: cst.BinaryOperation, updated_node: cst.BinaryOperation
    ) -> cst.BaseExpression:
        site = self._site_at(original_node)
        if site is None or site.region is not Region.STEP:
            return updated_node
        return methods.formatted(site, updated_node)

    def _attribute(self, site: Site, node: cst.Attribute) -> cst.BaseExpression:
        is_name = node.attr.value == "name" and isinstance(node.value, cst.Name)
        if self._shown and is_name:
            # A person reads it, and the name in the source says as much.
            owner = source_of(node.value)
            has_shape = f"{owner}.shape" in source_of(self._shown[-1])
            if has_shape or site.value.kind is Kind.TENSOR:
                return cst.SimpleString(f'"{owner}"')
        return methods.attribute(site, node)

    def _uncalled(
        self, original: cst.Name | cst.Attribute, updated: cst.Name | cst.Attribute
    ) -> cst.BaseExpression:
        """Returns the counterpart of a name that is not called."""
        name = self._uses.get(original, "")
        site = self._site_at(original)
        if not name or original in self._callees or site is None:
            return updated
        if not references.changes(name, site.region):
            return updated
        return self._tried(site, updated, lambda: references.reference(name), name)

    # Calls.

    def leave_Call(
        self, original_node: cst.Call, updated_node: cst.Call
    ) -> cst.BaseExpression:
        if original_node in self._shown:
            self._shown.remove(original_node)
        site = self._site_at(original_node)
        if site is None:
            return updated_node
        if not updated_node.args:
            space = cst.SimpleWhitespace("")
            updated_node = updated_node.with_changes(whitespace_before_args=space)
        opened = self._opened(site, updated_node)
        if opened is not None:
            return opened
        if has_nothing(updated_node.func):
            return updated_node
        if site.value.name == "tf.add_to_collection" and has_nothing(updated_node):
            return NOTHING  # The initializer of an iterator that is gone.
        name = self._uses.get(original_node.func, "")
        if name:
            if not references.changes(name, site.region):
                return updated_node
            return self._tried(
                site,
                updated_node,
                lambda: self._called(name, site, updated_node),
                name,
            )
        if any(is_nothing(argument.value) for argument in updated_node.args):
            # For example, `hooks.append(...)` of a hook that is not needed.
            function = updated_node.func
            is_append = isinstance(function, cst.Attribute) and (
                function.attr.value == "append"
            )
            return NOTHING if is_append else updated_node
        return self._tried(site, updated_node, lambda: methods.call(site, updated_node))

    def _opened(self, site: Site, call: cst.Call) -> cst.BaseExpression | None:
        """Returns the counterpart of an iterator or of a scope, if a call is one."""
        reading = self._program.batches.reading(site.node)
        if reading is not None:
            self._reading = reading
            return self._tried(site, call, lambda: reading.ported(call))
        if site.node in self._program.batches.iterators:
            return NOTHING
        arg_scope = self._program.arg_scopes.at(site.node)
        if arg_scope is not None:
            self._arguments[arg_scope] = call.args
            return self._tried(site, call, lambda: special.opened(arg_scope))
        return None

    def _called(self, name: str, site: Site, call: cst.Call) -> cst.BaseExpression:
        """Returns the counterpart of a call."""
        scopes = self._program.arg_scopes.around(site.scope, site.node, name)
        for arg_scope in reversed(scopes):
            call = special.completed(name, call, arg_scope, self._arguments[arg_scope])
        if name in special.CALLS:
            return special.CALLS[name](site, call.args)
        entry = entry_of(name)
        if entry and entry.rule:
            return layout.arranged(call, references.expanded(entry.rule, call))
        if any(is_nothing(argument.value) for argument in call.args):
            raise UnportableError(porting.advice(name))
        reference = references.reference(name)
        if is_nothing(reference):
            return NOTHING
        return call.with_changes(func=reference)

    def _tried(
        self,
        site: Site,
        node: cst.BaseExpression,
        replace: "special.Replace",
        name: str = "",
    ) -> cst.BaseExpression:
        """Returns a replacement, or the node and a marker where none is certain."""
        try:
            if site.region is Region.BOTH and name:
                raise UnportableError(
                    "`input_fn` and the model both use it; write two functions"
                )
            result = replace()
        except UnportableError as error:
            self.sites += 1
            label = name or site.value.name or site.name or source_of(node)
            line = getattr(site.node, "lineno", 0)
            marker = Marker(line, label, str(error))
            self._pending[-1].append(marker)
            return node
        if result is not node:
            self.sites += 1
        return result

    def _site_at(self, node: cst.CSTNode) -> Site | None:
        where = self.get_metadata(PositionProvider, node, None)
        if not isinstance(where, CodeRange):
            return None
        start, end = where.start, where.end
        kind = "BinOp" if isinstance(node, cst.BinaryOperation) else type(node).__name__
        key = (start.line, start.column, end.line, end.column, kind)
        return self._sites_by_position.get(key)

    # Statements.

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


_NAMES = matchers.Name() | matchers.Attribute()
_WithLeadingLines = (cst.SimpleStatementLine, cst.BaseCompoundStatement)


def _target(statement: cst.BaseSmallStatement) -> str:
    """Returns the only name that a statement assigns, or ""."""
    if isinstance(statement, cst.Assign) and len(statement.targets) == 1:
        target = statement.targets[0].target
        return target.value if isinstance(target, cst.Name) else ""
    return ""
