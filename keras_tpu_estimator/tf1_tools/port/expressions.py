"""The expressions of a file, rewritten from the innermost outward.

An expression is replaced by its rule. Where Keras needs no counterpart, it becomes
`NOTHING`. What cannot be replaced stays as it was, and its statement gets a marker.
"""

from collections.abc import Sequence

import libcst as cst
from libcst import matchers
from libcst.metadata import CodeRange, PositionProvider

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
from keras_tpu_estimator.tf1_tools.port.kinds import Kind
from keras_tpu_estimator.tf1_tools.port.markers import Marker
from keras_tpu_estimator.tf1_tools.port.program import Program, Site, entry_of
from keras_tpu_estimator.tf1_tools.port.regions import Region
from keras_tpu_estimator.tf1_tools.port.special import NOTHING, is_nothing
from keras_tpu_estimator.tf1_tools.port.surroundings import Surroundings, has_nothing
from keras_tpu_estimator.tf1_tools.port.values import UnportableError, source_of

_NAMES = matchers.Name() | matchers.Attribute()


class Expressions(Surroundings):
    """Replaces the expressions of a file.

    Attributes:
        sites: The number of uses of TensorFlow that had to change.
    """

    METADATA_DEPENDENCIES = (PositionProvider,)

    def __init__(self, program: Program, source: Source):
        super().__init__()
        self._program = program
        self._sites_by_position = program.sites_in(program.modules[source.module])
        self._uses: dict[cst.CSTNode, str] = {}
        self._callees: set[cst.CSTNode] = set()
        # The batch that the last statement reads.
        self._reading: batches.Reading | None = None
        # Parts of longer names; the first part of each is among the roots.
        self._parts: set[cst.CSTNode] = set()
        self._roots: set[cst.CSTNode] = set()
        # The markers of each statement around a node.
        self._pending: list[list[Marker]] = []
        # The arguments of each `arg_scope`, as Keras code.
        self._arguments: dict[ArgScope, Sequence[cst.Arg]] = {}
        # The statements and calls around a node whose values only a person reads.
        self._shown: list[cst.CSTNode] = []
        self._empty_names: list[set[str]] = [set()]
        self.sites = 0

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
