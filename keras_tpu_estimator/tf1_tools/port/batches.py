"""Inputs that read a batch: `features, labels = iterator.get_next()`.

Without a graph, such a statement would read one batch for all steps. An input returns
its dataset instead. The statements that follow become a function that maps it.
"""

import ast
import collections
import dataclasses
from collections.abc import Iterator, Mapping

import libcst as cst

from keras_tpu_estimator.tf1_tools.check.reached import is_function
from keras_tpu_estimator.tf1_tools.check.scopes import Found, Scope, canonical
from keras_tpu_estimator.tf1_tools.port.regions import Region, Regions
from keras_tpu_estimator.tf1_tools.port.values import UnportableError

_ITERATORS = ("make_initializable_iterator", "make_one_shot_iterator")
_MAPPING = "prepare"
_BY_HAND = (
    "without a graph it is called once; return the dataset, and move what follows "
    "into `dataset.map`"
)


@dataclasses.dataclass(frozen=True)
class Reading:
    """A call that returns a batch in TensorFlow 1, and a dataset in the port.

    Attributes:
        dataset: The dataset whose iterator it reads, or `None` for a call of a
            function of the program.
        parameters: The names of the batch's parts, or none where it is returned.
        iterator: The call that makes an iterator with a name, or `None`.
        problem: What a person has to write; empty if nothing.
    """

    call: ast.Call
    dataset: ast.expr | None
    parameters: tuple[str, ...] = ()
    iterator: ast.expr | None = None
    problem: str = ""

    @property
    def is_mapped(self) -> bool:
        """Whether the statements after it become a function that maps the dataset."""
        return bool(self.parameters) and not self.problem

    def ported(self, call: cst.Call) -> cst.BaseExpression:
        """Returns the dataset.

        Raises:
            UnportableError: The source does not show how to map the dataset.
        """
        if self.problem:
            raise UnportableError(self.problem)
        if self.dataset is None:
            return call
        iterator = call.func.value if isinstance(call.func, cst.Attribute) else None
        if not isinstance(iterator, cst.Call):
            return cst.parse_expression(ast.unparse(self.dataset))
        if iterator.args:
            return iterator.args[0].value
        function = iterator.func
        return function.value if isinstance(function, cst.Attribute) else call


class Batches:
    """The readings of a program.

    Attributes:
        iterators: The calls that only make an iterator for a reading.
    """

    def __init__(self, modules: Mapping[str, Scope], regions: Regions):
        self._regions = regions
        self._functions = [
            scope.children[node]
            for module in modules.values()
            for scope, node in module.walk()
            if is_function(node)
        ]
        self._by_name: dict[str, list[Scope]] = {}
        for function in self._functions:
            self._add_name(function)
        self._readings: dict[ast.Call, Reading] = {}
        # Functions that return a dataset in the port, but a batch in TensorFlow 1.
        self._returning: set[Scope] = set()
        is_settled = False
        while not is_settled:
            before = len(self._returning)
            self._readings = {}
            for function in self._functions:
                self._read(function)
            is_settled = len(self._returning) == before
        self.iterators = {
            reading.iterator
            for reading in self._readings.values()
            if reading.iterator is not None and not reading.problem
        }

    def reading(self, node: ast.AST) -> Reading | None:
        """Returns the reading that a call is, if it is one."""
        return self._readings.get(node) if isinstance(node, ast.Call) else None

    def _add_name(self, function: Scope) -> None:
        """Records the name by which code of other modules calls a function."""
        node, owner = function.node, function.parent
        name = getattr(node, "name", "")
        if name == "__call__" and owner and isinstance(owner.node, ast.ClassDef):
            name = f"{owner.node.name}()"
        self._by_name.setdefault(name, []).append(function)

    def _read(self, function: Scope) -> None:
        calls = [
            node
            for scope, node in function.walk()
            if isinstance(node, ast.Call) and scope is function
        ]
        readings = []
        for call in calls:
            dataset = self._dataset_of(function, call)
            is_used = not isinstance(_statement_of(function.node, call), ast.Expr)
            if dataset is not None or (
                is_used and self._returns_dataset(function, call)
            ):
                readings.append(self._reading_of(function, call, dataset))
        if len(readings) > 1 and any(reading.parameters for reading in readings):
            readings = [dataclasses.replace(r, problem=_BY_HAND) for r in readings]
        self._readings |= {reading.call: reading for reading in readings}
        if readings and not any(reading.problem for reading in readings):
            self._returning.add(function)

    def _dataset_of(self, scope: Scope, call: ast.Call) -> ast.expr | None:
        """Returns the dataset of `dataset.make_one_shot_iterator().get_next()`."""
        function = call.func
        if not isinstance(function, ast.Attribute) or function.attr != "get_next":
            return None
        iterator, _ = scope.value(function.value)
        if not isinstance(iterator, ast.Call):
            return None
        dataset = None
        name = scope.meaning(iterator.func)
        if isinstance(iterator.func, ast.Attribute):
            if iterator.func.attr in _ITERATORS:
                dataset = iterator.func.value
        if isinstance(name, str) and canonical(name).rpartition(".")[2] in _ITERATORS:
            dataset = iterator.args[0] if iterator.args else None
        return dataset

    def _returns_dataset(self, scope: Scope, call: ast.Call) -> bool:
        callees = self._callees(scope, call)
        return bool(callees) and {*callees} <= self._returning

    def _callees(self, scope: Scope, call: ast.Call) -> list[Scope]:
        """Returns the functions of the program that a call may run."""
        function, suffix = call.func, ""
        if isinstance(function, ast.Call):
            function, suffix = function.func, "()"
        meaning = scope.meaning(function)
        if isinstance(meaning, str) or isinstance(function, ast.Call):
            return []
        if isinstance(meaning, Found):
            inner = meaning.scope.children[meaning.node]
            return [*_called(inner)] if suffix else [inner]
        if isinstance(function, ast.Attribute):
            return self._by_name.get(f"{function.attr}{suffix}", [])
        return []

    def _reading_of(
        self, function: Scope, call: ast.Call, dataset: ast.expr | None
    ) -> Reading:
        """Returns a reading, with its problem if the source does not show its port."""
        is_input = self._regions.region(function) is Region.INPUT
        statement = _statement_of(function.node, call)
        if isinstance(statement, ast.Return) and statement.value is call:
            problem = "" if is_input or dataset is None else _BY_HAND
            return self._with_iterator(function, Reading(call, dataset), problem)
        names = _targets(statement, call)
        following = _following(function.node, statement)
        is_shown = is_input and _is_movable(names, function, following)
        problem = "" if is_shown else _BY_HAND
        reading = Reading(call, dataset, (*names,))
        return self._with_iterator(function, reading, problem)

    @staticmethod
    def _with_iterator(function: Scope, reading: Reading, problem: str) -> Reading:
        """Returns a reading whose iterator, if it has a name, disappears."""
        owner = getattr(reading.call.func, "value", None)
        if reading.dataset is not None and isinstance(owner, ast.Name):
            iterator, _ = function.value(owner)
            if not _is_unchanged(function, reading.dataset, iterator):
                problem = problem or _BY_HAND
            reading = dataclasses.replace(reading, iterator=iterator)
        return dataclasses.replace(reading, problem=problem)


def _is_unchanged(function: Scope, dataset: ast.expr, iterator: ast.expr) -> bool:
    """Returns whether the name of a dataset keeps its value after an iterator."""
    return isinstance(dataset, ast.Name) and not any(
        _stored(node) == dataset.id and node.lineno > iterator.lineno
        for node in ast.walk(function.node)
        if isinstance(node, ast.Name)
    )


def _called(owner: Scope) -> Iterator[Scope]:
    """Yields the functions that a call of an object or of a result runs."""
    if isinstance(owner.node, ast.ClassDef):
        for node, inner in owner.children.items():
            if is_function(node) and node.name == "__call__":
                yield inner
        return
    for scope, node in owner.walk():
        if isinstance(node, ast.Return) and node.value and scope is owner:
            meaning = scope.meaning(node.value)
            if isinstance(meaning, Found):
                yield meaning.scope.children[meaning.node]


def _statement_of(node: ast.AST, call: ast.Call) -> ast.stmt | None:
    """Returns the innermost statement that contains a call."""
    return next(
        (
            statement
            for statement in ast.walk(node)
            if isinstance(statement, ast.Assign | ast.Return | ast.Expr)
            and statement.value is call
        ),
        None,
    )


def _targets(statement: ast.stmt | None, call: ast.Call) -> list[str]:
    """Returns the different names that a statement gives to the parts of a batch."""
    if not isinstance(statement, ast.Assign) or len(statement.targets) != 1:
        return []
    (target,) = statement.targets
    if isinstance(target, ast.Name):
        return [target.id]
    elements = target.elts if isinstance(target, ast.Tuple | ast.List) else []
    names = [element.id for element in elements if isinstance(element, ast.Name)]
    return names if len({*names}) == len(elements) else []


def _following(node: ast.AST, statement: ast.stmt | None) -> list[ast.stmt]:
    """Returns the statements that follow one in the body of a function."""
    body = getattr(node, "body", [])
    return body[body.index(statement) + 1 :] if statement in body else []


def _is_movable(names: list[str], function: Scope, statements: list[ast.stmt]) -> bool:
    """Returns whether statements mean the same in a function of a batch's parts."""
    if not names or not statements or not isinstance(statements[-1], ast.Return):
        return False
    nodes = [node for statement in statements for node in ast.walk(statement)]
    if any(isinstance(n, ast.Global | ast.Nonlocal | ast.Yield) for n in nodes):
        return False
    if len(names) == 1 and not _reads_keys(names[0], nodes):
        return False  # A dataset of tuples passes several arguments.
    counts = collections.Counter(_stored(node) for node in ast.walk(function.node))
    after = collections.Counter(_stored(node) for node in nodes)
    are_local = all(counts[name] == after[name] for name in {*after} - {None, *names})
    returned = [n.value for n in nodes if isinstance(n, ast.Return)]
    return are_local and not any(_has_list(function, value) for value in returned)


def _stored(node: ast.AST) -> str | None:
    """Returns the name that a node binds."""
    if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
        return node.id
    return node.arg if isinstance(node, ast.arg) else getattr(node, "name", None)


def _reads_keys(name: str, nodes: list[ast.AST]) -> bool:
    """Returns whether all uses of a name read a key, as of a dict."""
    keys = [
        node.value
        for node in nodes
        if isinstance(node, ast.Subscript)
        and isinstance(node.value, ast.Name)
        and isinstance(node.slice, ast.Constant)
        and isinstance(node.slice.value, str)
    ]
    return all(
        node in keys for node in nodes if isinstance(node, ast.Name) and node.id == name
    )


def _has_list(function: Scope, value: ast.expr | None) -> bool:
    """Returns whether a result may have a list, which a dataset would stack."""
    if value is None:
        return True
    if isinstance(value, ast.Name):
        stored = [
            node.value
            for scope, node in function.walk()
            if isinstance(node, ast.Assign | ast.AnnAssign | ast.AugAssign)
            and any(_stored(part) == value.id for part in ast.walk(node))
        ]
        lists = ast.List | ast.ListComp
        return any(isinstance(node, lists) for node in stored)
    if isinstance(value, ast.Tuple):
        return any(_has_list(function, part) for part in value.elts)
    if isinstance(value, ast.Dict):
        return any(_has_list(function, part) for part in value.values)
    return isinstance(value, ast.List | ast.ListComp)


def mapped(
    function: cst.FunctionDef, reading: Reading, statement: cst.SimpleStatementLine
) -> cst.FunctionDef:
    """Returns a function that maps a dataset by what follows one of its statements.

    Args:
        statement: The statement that assigned the batch, and now assigns the dataset.
    """
    body = function.body
    (assignment,) = statement.body
    if not isinstance(body, cst.IndentedBlock) or not isinstance(
        assignment, cst.Assign
    ):
        return function
    index = body.body.index(statement)
    first, *more = body.body[index + 1 :]
    block = cst.IndentedBlock([_without_empty_lines(first), *more], indent=body.indent)
    parameters = cst.Parameters([cst.Param(cst.Name(p)) for p in reading.parameters])
    space = [] if index == 0 else [cst.EmptyLine(indent=False)]
    comments = [line for line in statement.leading_lines if line.comment is not None]
    definition = cst.FunctionDef(
        cst.Name(_MAPPING), parameters, block, leading_lines=[*space, *comments]
    )
    result = cst.SimpleStatementLine(
        [
            cst.Return(
                cst.Call(
                    cst.Attribute(assignment.value, cst.Name("map")),
                    [cst.Arg(cst.Name(_MAPPING))],
                )
            )
        ],
        leading_lines=[cst.EmptyLine(indent=False)],
    )
    statements = [*body.body[:index], definition, result]
    return function.with_changes(body=body.with_changes(body=statements))


def _without_empty_lines(statement: cst.BaseStatement) -> cst.BaseStatement:
    """Returns a statement without the empty lines before it."""
    if not isinstance(statement, cst.SimpleStatementLine | cst.BaseCompoundStatement):
        return statement
    lines = [line for line in statement.leading_lines if line.comment is not None]
    return statement.with_changes(leading_lines=lines)
