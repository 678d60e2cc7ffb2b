"""A program that is ported: its sources, and what its names mean at each position."""

import ast
import dataclasses
import functools
import pathlib
from collections.abc import Iterator, Mapping

from keras_tpu_estimator.base.common.sources import (
    current_folder,
    folders_on_path,
    read_program,
)
from keras_tpu_estimator.tf1.names import porting
from keras_tpu_estimator.tf1.names.catalogue import Entry
from keras_tpu_estimator.tf1_tools.check.scopes import Scope, canonical, scopes_of
from keras_tpu_estimator.tf1_tools.port.arg_scopes import ArgScopes, in_layers
from keras_tpu_estimator.tf1_tools.port.batches import Batches
from keras_tpu_estimator.tf1_tools.port.kinds import Kind, Kinds
from keras_tpu_estimator.tf1_tools.port.regions import Region, Regions

# Packages that `tf.contrib` contained, by their names.
_LIBRARIES = {"tensorflow_gan": "tf.contrib.gan", "tf_slim": "tf.contrib.slim"}
# The line and column of the first and of the last character, and the kind of node.
Position = tuple[int, int, int, int, str]


@dataclasses.dataclass(frozen=True)
class Site:
    """An expression of a file, with the scope that gives names their meaning."""

    node: ast.expr
    scope: Scope
    program: "Program" = dataclasses.field(repr=False)

    @property
    def name(self) -> str:
        """The full name that the expression means, such as "tf.nn.relu", or ""."""
        meaning = self.scope.meaning(self.node)
        if not isinstance(meaning, str):
            return ""
        package, dot, name = meaning.partition(".")
        if package in _LIBRARIES:
            meaning = f"{_LIBRARIES[package]}{dot}{name}"
        full = canonical(meaning)
        return in_layers(full) if entry_of(in_layers(full)) else full

    @property
    def is_imported(self) -> bool:
        """Whether an import of this file binds the name."""
        node = self.node
        return isinstance(node, ast.Name) and self.scope.imports(node.id)

    @property
    def kind(self) -> Kind | None:
        """The kind of object that the expression refers to, if it is certain."""
        return self.program.kinds.kind(self.scope, self.node)

    @property
    def updates(self) -> Iterator[ast.expr]:
        """The updates that a call of `tf.control_dependencies` runs first."""
        inputs = self.argument(0, "control_inputs")
        elements = inputs.elts if isinstance(inputs, ast.List | ast.Tuple) else ()
        for element in elements:
            if self.program.kinds.kind(self.scope, element) is Kind.UPDATE:
                yield element

    @property
    def region(self) -> Region:
        """The region of the code."""
        return self.program.regions.region(self.scope)

    def argument(self, position: int, name: str) -> ast.expr | None:
        """Returns an argument of the call in the old source, if it is passed."""
        if not isinstance(self.node, ast.Call):
            return None
        for keyword in self.node.keywords:
            if keyword.arg == name:
                return keyword.value
        return self.node.args[position] if position < len(self.node.args) else None

    @property
    def value(self) -> "Site":
        """The expression whose attribute or item this is, or that this calls."""
        node = self.node
        if isinstance(node, ast.Call):
            return dataclasses.replace(self, node=node.func)
        if isinstance(node, ast.Attribute | ast.Subscript):
            return dataclasses.replace(self, node=node.value)
        return self


class Program:
    """The modules of a program, by name."""

    def __init__(self, path: pathlib.Path):
        current, on_path = current_folder(), folders_on_path()
        folders = [current, *on_path] if current and not path.is_dir() else []
        self.path = path
        self.sources = read_program(path, folders)
        self.modules: Mapping[str, Scope] = scopes_of(self.sources)
        self.regions = Regions.from_program(self.modules)
        self.kinds = Kinds(self.modules)
        self.arg_scopes = ArgScopes(self.modules)
        self.batches = Batches(self.modules, self.regions)

    def is_unique(self, constant: ast.Constant) -> bool:
        """Returns whether a program uses a string or number only to read a collection.

        Docstrings and the names of other things do not count as uses of it.
        """
        return not any(
            isinstance(node, ast.Call)
            and not ast.unparse(node.func).endswith("get_collection")
            and any(
                isinstance(part, ast.Constant) and part.value == constant.value
                for argument in (*node.args, *(k.value for k in node.keywords))
                for part in ast.walk(argument)
            )
            for module in self.modules.values()
            for _, node in module.walk()
        )

    def sites_in(self, module: Scope) -> dict[Position, Site]:
        """Returns the expressions of a module, by position."""
        lines = module.source.path.read_text("utf-8").splitlines()

        def column(line: int, offset: int) -> int:
            text = lines[line - 1]
            if text.isascii():
                return offset
            return len(text.encode()[:offset].decode())

        return {
            (
                node.lineno,
                column(node.lineno, node.col_offset),
                node.end_lineno or 0,
                column(node.end_lineno or 0, node.end_col_offset or 0),
                type(node).__name__,
            ): Site(node, scope, self)
            for scope, node in module.walk()
            if isinstance(node, ast.expr)
        }


@functools.cache
def entry_of(name: str) -> Entry | None:
    """Returns the entry with the port of a TensorFlow name itself."""
    return porting.entry_with_port(name.removeprefix("tf."))


def is_supplied(name: str) -> bool:
    """Returns whether `tensorflow.compat.v1` still has a name."""
    path = name.removeprefix("tf.")
    if path.startswith(("contrib.", "python.", "layers.", "nn.rnn_cell.")):
        return False
    entry = porting.entry_of_name(path)
    return not (entry and (entry.missing or entry.source))
