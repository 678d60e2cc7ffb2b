"""Imports point downward, are declared, and stay in place if heavy or private.

Whoever adds a module gives it a floor here and a line in the table of
`docs/contributing.md`.
"""

import ast
import dataclasses
import functools
import graphlib
import pathlib
import re
import sys
import tomllib
from collections.abc import Iterator

import pytest

PACKAGE = pathlib.Path(__file__).parents[1] / "keras_tpu_estimator"
CONTRIBUTING = PACKAGE.parent / "docs" / "contributing.md"

# From the ground up. A sub-package's name stands for its modules.
FLOORS = (
    ("_terminal",),
    ("_backend", "base"),
    ("counterparts", "cpu", "hosts", "storage"),
    ("launch", "optimizers"),
    ("checkpoints", "mesh", "metrics", "summary", "tracing"),
    ("config", "hooks"),
    ("inspection",),
    ("inputs",),
    ("model_fn",),
    ("program",),
    ("embeddings", "keras_program", "tf1"),
    ("front_ends",),
    ("device",),
    ("export", "loops"),
    ("planning",),
    ("estimator",),
    ("keras_models", "tf_estimator", "workflow"),
    ("check", "experimental"),
    ("__init__", "__main__"),
)
# Modules that import TensorFlow, imported when one of their names is used.
WRITTEN = "tf1.written."
# What is installed under another name than it is imported under.
DISTRIBUTIONS = {"google": "protobuf", "tensorflow": "tensorflow-cpu"}
FLOOR_OF = {name: floor for floor, names in enumerate(FLOORS) for name in names}


@dataclasses.dataclass(frozen=True)
class Import:
    """One imported module, and whether importing its importer imports it."""

    module: str
    line: int
    at_module_level: bool


@functools.cache
def modules() -> dict[str, pathlib.Path]:
    """The files of the package's modules by name, such as `loops.plan`."""
    return {
        ".".join(path.relative_to(PACKAGE).with_suffix("").parts): path
        for path in sorted(PACKAGE.rglob("*.py"))
    }


@functools.cache
def source(module: str) -> ast.Module:
    """A parsed module."""
    return ast.parse(modules()[module].read_text())


def parsed() -> Iterator[tuple[str, ast.Module]]:
    """All modules by name."""
    return ((module, source(module)) for module in modules())


def imports(tree: ast.AST, at_module_level: bool = True) -> Iterator[Import]:
    """All imports below a node of the syntax tree."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(alias.name, node.lineno, at_module_level)
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                name = f"{node.module}.{alias.name}"
                yield Import(name, node.lineno, at_module_level)
        else:
            is_lazy = isinstance(
                node, ast.FunctionDef | ast.AsyncFunctionDef
            ) or _is_for_types_only(node)
            yield from imports(node, at_module_level and not is_lazy)


def _is_for_types_only(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test)


def imported_here(name: str) -> set[str]:
    """The modules of this package that one of its modules imports."""
    found = (_own_module(each.module) for each in imports(source(name)))
    return {module for module in found if module is not None}


def _own_module(imported: str) -> str | None:
    """The module of an imported name, if it is one of this package."""
    top, *parts = imported.split(".")
    if top != PACKAGE.name:
        return None
    # The name of a module, of a sub-package, or of something in either.
    for candidate in (parts, [*parts, "__init__"], parts[:-1]):
        if ".".join(candidate) in modules():
            return ".".join(candidate)
    return ".".join([*parts[:-1], "__init__"])


def floor(module: str) -> int:
    """The floor of a module, or else that of its sub-package."""
    return FLOOR_OF[module if module in FLOOR_OF else room(module)]


def room(module: str) -> str:
    """The sub-package of a module, or the module itself."""
    return module.split(".")[0]


def test_the_table_has_every_module_once() -> None:
    names = [name for names in FLOORS for name in names]
    assert len(names) == len(FLOOR_OF)
    assert {room(name) for name in names} == {room(m) for m in modules()}
    own = {name for name in names if "." in name}
    assert own <= set(modules())


@pytest.mark.parametrize("module", sorted(modules()))
def test_imports_point_downward(module: str) -> None:
    wrong = {
        other: floor(other)
        for other in imported_here(module)
        if floor(other) > floor(module)
        or (floor(other) == floor(module) and room(other) != room(module))
    }
    assert not wrong, (
        f"{module} on floor {floor(module)} imports {wrong}. Move what it "
        "needs down, or pass it in from above."
    )


def test_no_module_imports_itself_in_a_circle() -> None:
    graph = {module: imported_here(module) for module in modules()}
    order = tuple(graphlib.TopologicalSorter(graph).static_order())
    assert order[-1] == "__init__"


def test_tensorflow_and_tensorboard_are_imported_only_when_needed() -> None:
    heavy = [
        f"{module}:{each.line}"
        for module, tree in parsed()
        for each in imports(tree)
        if each.at_module_level
        and each.module.split(".")[0] in ("tensorflow", "tensorboard")
        and not module.startswith(WRITTEN)
    ]
    assert not heavy


def test_what_is_written_for_tf1_is_imported_only_by_name() -> None:
    importers = {
        module
        for module in modules()
        for other in imported_here(module)
        if other.startswith(WRITTEN) and not module.startswith(WRITTEN)
    }
    assert not importers


def third_party(tree: ast.AST) -> Iterator[tuple[str, bool]]:
    """Distributions that a module imports, and whether at its own import."""
    for each in imports(tree):
        top = each.module.split(".")[0]
        if top not in sys.stdlib_module_names | {PACKAGE.name, "_typeshed"}:
            name = DISTRIBUTIONS.get(top, top.replace("_", "-"))
            yield name, each.at_module_level


def test_all_that_is_imported_is_declared() -> None:
    project = tomllib.loads((PACKAGE.parent / "pyproject.toml").read_text())
    extras = project["project"]["optional-dependencies"]
    always, lazily = (
        {re.match(r"[\w-]+", each).group() for each in requirements}
        for requirements in (
            project["project"]["dependencies"],
            extras["remote"],
        )
    )
    undeclared = {
        (module, name)
        for module, tree in parsed()
        for name, at_module_level in third_party(tree)
        if name not in (always if at_module_level else always | lazily)
    }
    assert not undeclared


@pytest.mark.parametrize(
    ("private", "expected"),
    [
        ("keras.src", {"tracing.keras_internals"}),
        ("jax._src", {"hosts.jax_internals"}),
        ("jax.interpreters", {"tf1.jax_internals"}),
        # One for each front end.
        (
            "tensorflow.python",
            {"tf1.internals", "tracing.tensorflow_internals"},
        ),
    ],
)
def test_private_modules_are_imported_in_few_files(
    private: str, expected: set[str]
) -> None:
    importers = {
        module
        for module, tree in parsed()
        for each in imports(tree)
        if each.module.startswith(private)
    }
    assert importers == expected


def test_devices_and_hosts_are_asked_for_in_one_place() -> None:
    asking = {
        module
        for module, tree in parsed()
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and node.value.id == "jax"
        and node.attr
        in {
            "default_backend",
            "device_count",
            "devices",
            "local_device_count",
            "process_count",
            "process_index",
        }
    }
    # The others answer who asks for the machine itself.
    of_users = {"tf1.written.cluster_resolver", "tf_estimator.estimators"}
    assert asking == {"base.machine", *of_users}


# Who removes files: nobody else may take a user's for the package's own.
REMOVERS = {
    # All of them by way of this one, which knows stores.
    "storage.paths",
    # In a directory of checkpoints: those of saves, what is half written, the
    # mark that is this file's own, and the directory itself if it is empty.
    "checkpoints.save_files",
    "checkpoints.partial_files",
    "checkpoints.completion",
    "checkpoints.lock",
    # Folders that were made by the same file.
    "storage.copies",
    "export.folders",
    # Exports: one that is half uploaded, and old ones.
    "storage.transfers",
    "workflow.exporters",
}
_REMOVES = {"unlink", "rmdir", "rmtree", "removedirs", "rm", "rm_file"}
_REMOVES_FILES = {"remove", "remove_tree"}
_FILE_MODULES = {"os", "shutil", "paths", "filesystem"}


def removals(tree: ast.AST) -> Iterator[int]:
    """The lines that remove files, or pass on what does."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and (
            node.attr in _REMOVES
            or (
                node.attr in _REMOVES_FILES
                and isinstance(node.value, ast.Name)
                and node.value.id in _FILE_MODULES
            )
        ):
            yield node.lineno


def test_files_are_removed_in_few_places() -> None:
    removers = {module for module, tree in parsed() if any(removals(tree))}
    assert removers == REMOVERS


def test_the_contributing_page_lists_every_room() -> None:
    rows = [
        line.split("`")[1].removesuffix(".py").removesuffix("/")
        for line in CONTRIBUTING.read_text().splitlines()
        if line.startswith("| `")
    ]
    assert sorted(rows) == sorted({room(module) for module in modules()})


# What the checks above rest on.


def test_a_lazy_import_is_not_at_module_level() -> None:
    tree = ast.parse(
        "import a\n"
        "if TYPE_CHECKING:\n"
        "    import b\n"
        "def function():\n"
        "    from c import d\n"
        "class Class:\n"
        "    import e\n"
    )
    found = {each.module: each.at_module_level for each in imports(tree)}
    assert found == {"a": True, "b": False, "c.d": False, "e": True}


def test_what_removes_files_is_seen() -> None:
    tree = ast.parse(
        "os.remove(a)\n"
        "weakref.finalize(self, shutil.rmtree, folder)\n"
        "names.remove(a)\n"
        "pathlib.Path(a).unlink()\n"
        "paths.remove_tree(a)\n"
    )
    assert sorted(removals(tree)) == [1, 2, 4, 5]


@pytest.mark.parametrize(
    ("imported", "module"),
    [
        ("numpy.float32", None),
        ("keras_tpu_estimator.base.modes", "base.modes"),
        ("keras_tpu_estimator.base.modes.ModeKeys", "base.modes"),
        ("keras_tpu_estimator.hooks", "hooks.__init__"),
        ("keras_tpu_estimator.hooks.SessionRunHook", "hooks.__init__"),
        ("keras_tpu_estimator.hooks.timer", "hooks.timer"),
        ("keras_tpu_estimator.hooks.timer.SecondOrStepTimer", "hooks.timer"),
        ("keras_tpu_estimator.TPUEstimator", "__init__"),
    ],
)
def test_imported_names_are_traced_to_modules(
    imported: str, module: str | None
) -> None:
    assert _own_module(imported) == module
