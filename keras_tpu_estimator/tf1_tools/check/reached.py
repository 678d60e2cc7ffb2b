"""The code of a script that runs, as far as it can be followed.

The search begins with the code that runs when the script starts and with each
`model_fn`, and follows calls. Code is needed if its only conditions are the mode and
flags that are on by default. Under any other condition, it is in a branch.
"""

import ast
import dataclasses
import enum
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from typing_extensions import TypeIs

from keras_tpu_estimator.base.common.sources import from_module
from keras_tpu_estimator.tf1_tools.check.conditions import (
    Condition,
    FlagsOn,
    condition_of,
)
from keras_tpu_estimator.tf1_tools.check.scopes import (
    Families,
    Found,
    Scope,
    bases_of,
    canonical,
)

# Functions that call their arguments in a step.
_CALLERS = (
    "functools.partial",
    "tf.case",
    "tf.cond",
    "tf.contrib.tpu.repeat",
    "tf.custom_gradient",
    "tf.foldl",
    "tf.make_template",
    "tf.map_fn",
    "tf.recompute_grad",
    "tf.scan",
    "tf.while_loop",
)
# Functions that call the script's `main` if they receive no other function.
_STARTERS = ("absl.app.run", "tf.app.run")
# Methods that frameworks call by themselves.
_UNNAMED = ("build", "call", "input_fn", "model_fn")


class Grade(enum.IntEnum):
    """The certainty that code runs.

    Attributes:
        IN_BRANCH: A condition chooses it, or no caller is known.
        NEEDED: It runs, unless a flag that is on by default is turned off.
    """

    IN_BRANCH = 1
    NEEDED = 2


class Reached:
    """The code that is reached, with the grades of nodes, classes and bodies.

    With `in_steps`, it follows only the code of steps on devices. Functions that a step
    only passes on, such as a `metric_fn`, then count as host code.

    Attributes:
        classes: The grades of classes that have instances.
        bodies: The grades of modules and functions.
        model_fns: The functions that estimators receive as `model_fn`.
    """

    def __init__(
        self,
        program: Mapping[str, Scope],
        families: Families,
        entries: Iterable[Scope] = (),
        in_steps: bool = False,
        objects: Mapping[Scope, Grade] | None = None,
    ):
        self._program = program
        self._entries = {*entries}
        self._flags_on = FlagsOn.from_modules(
            module.node for module in program.values()
        )
        self._in_steps = in_steps
        self.grades: dict[ast.AST, Grade] = {}
        self.classes: dict[Scope, Grade] = {}
        self.bodies: dict[Scope, Grade] = {}
        self.model_fns: set[Scope] = set()
        self._called_names: dict[str, Grade] = {}
        self._own_names: dict[tuple[Scope, str], Grade] = {}
        self._families = families
        self._waiting: list[tuple[Scope, Grade]] = []
        self._objects = objects or {}

    def add(self, roots: Iterable[Scope], grade: Grade = Grade.NEEDED) -> None:
        """Follows the scopes of modules and functions."""
        self._waiting += [(scope, grade) for scope in roots]
        while self._waiting:
            scope, grade = self._waiting.pop()
            if self._raise(self.bodies, scope, grade):
                for node in _body(scope.node):
                    self._walk(scope, node, grade)

    def _walk(self, scope: Scope, node: ast.AST, grade: Grade) -> None:
        if self._in_steps and self._counts_metrics(scope, node):
            return  # Metrics run on the host, together with their arguments.
        self._raise(self.grades, node, grade)
        if isinstance(node, ast.If | ast.IfExp):
            self._choose(scope, node, grade)
            return
        self._follow(scope, node, grade)
        if isinstance(node, ast.ExceptHandler):
            grade = Grade.IN_BRANCH
        children = ast.iter_child_nodes(node)
        if is_function(node):
            children = _evaluated_with(node)
        inner = scope.children.get(node, scope)
        for child in children:
            if isinstance(node, ast.Dict) and self._is_callable(scope, child):
                # A table from which the script chooses one entry.
                self._refer(scope, child, Grade.IN_BRANCH)
            else:
                self._walk(inner, child, grade)

    def _follow(self, scope: Scope, node: ast.AST, grade: Grade) -> None:
        """Follows the calls and names of a single node."""
        if isinstance(node, ast.Import | ast.ImportFrom):
            self._import(scope, node, grade)
        elif isinstance(node, ast.Call):
            self._call(scope, node, grade)
        elif isinstance(node, ast.Return | ast.Assign) and node.value:
            self._refer(scope, node.value, grade)
        elif isinstance(node, ast.Name | ast.Attribute):
            self._mention(scope, node, grade)

    def _counts_metrics(self, scope: Scope, node: ast.AST) -> bool:
        if isinstance(node, ast.keyword):
            return node.arg in ("eval_metric_ops", "eval_metrics")
        if not isinstance(node, ast.Call):
            return False
        called = scope.meaning(node.func)
        return isinstance(called, str) and ".metrics." in called

    def _is_callable(self, scope: Scope, node: ast.AST) -> bool:
        return isinstance(scope.meaning(node), Found)

    def _choose(self, scope: Scope, node: ast.If | ast.IfExp, grade: Grade) -> None:
        self._walk(scope, node.test, grade)
        condition = condition_of(node.test)
        branches = list(_nodes(node.body)), list(_nodes(node.orelse))
        if condition is Condition.IS_STARTED:
            if not {scope, *_around(scope)} & self._entries:
                branches = [], branches[1]
        grades = [grade, grade]
        if condition is Condition.OTHER:
            is_on = self._flags_on.decide(node.test)
            grades = [grade if is_on else Grade.IN_BRANCH, Grade.IN_BRANCH]
        for nodes, branch_grade in zip(branches, grades, strict=True):
            for child in nodes:
                self._walk(scope, child, branch_grade)

    def _import(
        self, scope: Scope, node: ast.Import | ast.ImportFrom, grade: Grade
    ) -> None:
        names = [alias.name for alias in node.names]
        if isinstance(node, ast.ImportFrom):
            module = from_module(node, scope.source)
            names = [module, *(f"{module}.{name}" for name in names)]
        for name in names:
            for full in (name, f"{scope.source.package}.{name}"):
                parts = full.split(".")
                for number in range(1, len(parts) + 1):
                    imported = self._program.get(".".join(parts[:number]))
                    if imported is not None:
                        self._waiting.append((imported, grade))

    def _call(self, scope: Scope, node: ast.Call, grade: Grade) -> None:
        self._refer(scope, node.func, grade)
        self._note_model_fn(scope, node)
        callee = scope.meaning(node.func)
        if isinstance(callee, str) and canonical(callee) in _STARTERS:
            if not node.args and all(k.arg != "main" for k in node.keywords):
                self._refer(scope, ast.Name("main", ast.Load()), grade)
        if isinstance(callee, str) and canonical(callee) not in _CALLERS:
            return
        for value in (*node.args, *(keyword.value for keyword in node.keywords)):
            self._refer(scope, value, grade)

    def _note_model_fn(self, scope: Scope, node: ast.Call) -> None:
        """Records the `model_fn` that an estimator receives."""
        model_fns = [e.value for e in node.keywords if e.arg == "model_fn"]
        if ast.unparse(node.func).endswith("Estimator"):
            model_fns += node.args[:1]
        for value in model_fns:
            meaning = scope.meaning(value)
            if isinstance(meaning, Found) and is_function(meaning.node):
                self.model_fns.add(meaning.scope.children[meaning.node])

    def _mention(
        self, scope: Scope, node: ast.Name | ast.Attribute, grade: Grade
    ) -> None:
        if not self._in_steps:
            self._refer(scope, node, grade)
        if not isinstance(node, ast.Attribute):
            return
        if isinstance(scope.meaning(node.value), str):
            return  # An attribute of a module, such as `tf.train`, is no method.
        if node.attr.startswith("__"):
            return  # `super().__init__` refers to no other class.
        owner = _class_around(scope) if _is_self(node.value) else None
        if owner is not None:
            self._call_methods(owner, [node.attr], grade)
            for relative in self._families.around(owner):
                if self._raise(self._own_names, (relative, node.attr), grade):
                    self._call_on_objects([relative], node.attr, grade)
        elif self._raise(self._called_names, node.attr, grade):
            self._call_on_objects({*self._objects, *self.classes}, node.attr, grade)

    def _call_on_objects(
        self, classes: Iterable[Scope], name: str, grade: Grade
    ) -> None:
        for owner in classes:
            owner_grade = self._grade_of(owner)
            if owner_grade is not None:
                self._call_methods(owner, [name], min(owner_grade, grade))

    def _grade_of(self, scope: Scope) -> Grade | None:
        """Returns the grade of a class that has instances here or in all code."""
        kinds = (self._objects, self.classes)
        return max((grades[scope] for grades in kinds if scope in grades), default=None)

    def _call_methods(self, scope: Scope, names: Iterable[str], grade: Grade) -> None:
        for node, inner in scope.children.items():
            if is_function(node) and node.name in names and self._follows(node):
                self._waiting.append((inner, grade))

    def _follows(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
        """Returns `False` for functions that run on the host, whatever calls them."""
        is_host = "metric" in node.name or is_named(node, "input_fn")
        return not (self._in_steps and is_host)

    def _refer(self, scope: Scope, node: ast.AST, grade: Grade) -> None:
        """Follows a function or class that an expression refers to."""
        meaning = scope.meaning(node)
        if not isinstance(meaning, Found):
            return
        inner = meaning.scope.children[meaning.node]
        if isinstance(meaning.node, ast.ClassDef):
            self._make_object(inner, grade)
        elif not self._follows(meaning.node):
            return
        elif is_named(meaning.node, "model_fn", "input_fn"):
            self._waiting.append((inner, Grade.NEEDED))
        else:
            self._waiting.append((inner, grade))

    def _make_object(self, scope: Scope, grade: Grade) -> None:
        if not self._raise(self.classes, scope, grade):
            return
        if scope.parent is not None and isinstance(scope.node, ast.ClassDef):
            for base in bases_of(scope.parent, scope.node):
                self._make_object(base, grade)
        names = [function.name for function in filter(is_function, scope.children)]
        unnamed = [n for n in names if n.startswith("__") or n in _UNNAMED]
        self._call_methods(scope, unnamed, grade)
        class_grade = self._grade_of(scope) or grade
        for name in names:
            for called in (
                self._called_names.get(name),
                self._own_names.get((scope, name)),
            ):
                if called is not None:
                    self._call_methods(scope, [name], min(class_grade, called))

    def _raise(self, grades: dict[Any, Grade], key: object, grade: Grade) -> bool:
        if grades.get(key, 0) >= grade:
            return False
        grades[key] = grade
        return True


def is_function(
    node: ast.AST,
) -> TypeIs[ast.FunctionDef | ast.AsyncFunctionDef]:
    """Returns whether a node defines a named function."""
    return isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)


def is_named(node: ast.AST, *suffixes: str) -> bool:
    """Returns whether a node is a function whose name has one of these suffixes."""
    return is_function(node) and node.name.strip("_").endswith(suffixes)


def _body(node: ast.AST) -> Iterable[ast.AST]:
    """Returns the nodes that run when a module or function is called."""
    if isinstance(node, ast.Lambda):
        return [node.body]
    return getattr(node, "body", [])


def _nodes(body: ast.AST | list[ast.stmt]) -> Iterable[ast.AST]:
    return body if isinstance(body, list) else [body]


def _evaluated_with(
    node: ast.FunctionDef | ast.AsyncFunctionDef,
) -> Iterator[ast.AST]:
    """Yields the expressions that a definition evaluates."""
    yield from node.decorator_list
    yield from node.args.defaults
    yield from (default for default in node.args.kw_defaults if default is not None)


def _around(scope: Scope) -> Iterator[Scope]:
    outer = scope.parent
    while outer is not None:
        yield outer
        outer = outer.parent


def _class_around(scope: Scope) -> Scope | None:
    for candidate in (scope, *_around(scope)):
        if isinstance(candidate.node, ast.ClassDef):
            return candidate
    return None


def _is_self(node: ast.AST) -> bool:
    return isinstance(node, ast.Name) and node.id == "self"


# Functions whose arguments become bodies of branches and loops.
_BRANCHING = (
    "tf.case",
    "tf.cond",
    "tf.foldl",
    "tf.foldr",
    "tf.map_fn",
    "tf.scan",
    "tf.switch_case",
    "tf.while_loop",
)


@dataclasses.dataclass(frozen=True)
class RunningCode:
    """The nodes that run in each part of a script, with grades.

    Nodes in `in_branches` run in a branch or loop of a step's graph.
    """

    anywhere: Mapping[ast.AST, Grade]
    in_steps: Mapping[ast.AST, Grade]
    in_branches: Mapping[ast.AST, Grade]
    in_host_calls: Mapping[ast.AST, Grade]

    @classmethod
    def from_program(
        cls, program: Mapping[str, Scope], start: Scope | None
    ) -> "RunningCode":
        """Follows a script from the file that is run, or from all files that can be."""
        entries = [start] if start else _started(program)
        families = Families(program)
        reached = Reached(program, families, entries or program.values())
        reached.add(entries or program.values())
        everywhere = [*_functions(program, "")]
        if not any(_is_started(entry) for entry in entries):
            # These are functions for other scripts, or functions of an estimator.
            named = [*_functions(program, "model_fn", "input_fn")]
            reached.add(named or everywhere)
        steps = Reached(program, families, in_steps=True, objects=reached.classes)
        model_fns = reached.model_fns | {*_functions(program, "model_fn")}
        for scope in model_fns & reached.bodies.keys():
            steps.add([scope])
        for scope in model_fns - reached.bodies.keys():
            steps.add([scope], Grade.IN_BRANCH)
        branches = Reached(program, families, in_steps=True, objects=reached.classes)
        for scope, grade in _branches(program, steps.grades):
            branches.add([scope], grade)
        host_calls = Reached(program, families, in_steps=True, objects=reached.classes)
        for scope in _functions(program, "host_call", "host_call_fn"):
            grade = reached.bodies.get(scope, Grade.IN_BRANCH)
            host_calls.add([scope], grade)
        return cls(reached.grades, steps.grades, branches.grades, host_calls.grades)


def _started(program: Mapping[str, Scope]) -> list[Scope]:
    """Returns the modules that can be run, except tests."""
    return [
        module
        for module in program.values()
        if _is_started(module)
        and not module.source.path.stem.startswith("test_")
        and not module.source.path.stem.endswith("_test")
    ]


def _is_started(module: Scope) -> bool:
    return any(
        isinstance(node, ast.If) and condition_of(node.test) is Condition.IS_STARTED
        for node in ast.iter_child_nodes(module.node)
    )


def _functions(program: Mapping[str, Scope], *suffixes: str) -> Iterator[Scope]:
    """Yields the functions and methods whose name has one of these suffixes."""
    for module in program.values():
        for scope, node in module.walk():
            if is_function(node) and is_named(node, *suffixes):
                yield scope.children[node]


def _branches(
    program: Mapping[str, Scope], in_steps: Mapping[ast.AST, Grade]
) -> Iterator[tuple[Scope, Grade]]:
    """Yields the functions that become branches and loops of a step."""
    for module in program.values():
        for scope, node in module.walk():
            if node not in in_steps or not isinstance(node, ast.Call):
                continue
            called = scope.meaning(node.func)
            if not isinstance(called, str):
                continue
            if canonical(called) in _BRANCHING:
                arguments = (*node.args, *(keyword.value for keyword in node.keywords))
                for function in _passed_functions(scope, arguments):
                    yield function, in_steps[node]


def _passed_functions(scope: Scope, arguments: Iterable[ast.expr]) -> Iterator[Scope]:
    for value in arguments:
        meaning = scope.meaning(value)
        if isinstance(value, ast.Lambda):
            yield scope.children[value]
        elif isinstance(value, ast.List | ast.Tuple):
            yield from _passed_functions(scope, value.elts)
        elif isinstance(meaning, Found) and is_function(meaning.node):
            yield meaning.scope.children[meaning.node]
