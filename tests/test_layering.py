"""Tests that imports point downward, are declared, and stay in place.

Heavy and private imports are allowed in few files. A new module needs a floor here and
a line in the table of `docs/contributing.md`.
"""

import ast
import collections
import dataclasses
import functools
import graphlib
import pathlib
import re
import sys
import tomllib
from collections.abc import Callable, Iterable, Iterator

import pytest

PACKAGE = pathlib.Path(__file__).parents[1] / "keras_tpu_estimator"
CONTRIBUTING = PACKAGE.parent / "docs" / "contributing.md"

# From the ground up: each imports only what is below it.
FLOORS = (
    ("base",),
    ("files",),
    ("api",),
    ("engine",),
    ("export",),
    ("front_ends",),
    ("tf1",),
    ("runs",),
    ("planning",),
    ("estimator",),
    ("tf1_tools", "workflow"),
    ("parts",),
    ("__init__", "__main__"),
)
# The public modules contain only lists of names, like `__init__`, and share its floor.
LISTS = {
    "checkpoints",
    "errors",
    "experimental",
    "hooks",
    "metrics",
    "optimizers",
    "summary",
    "typing",
}
# The same within the rooms that have inner rooms.
INNER_FLOORS = {
    "base": (
        ("common",),
        ("upstream",),
        ("cpu", "hosts", "storage"),
        ("mesh", "tracing"),
        ("tpu",),
    ),
    "files": (
        ("atomic", "summary"),
        ("directory",),
        ("formats",),
        ("warm_start",),
        ("checkpoints",),
        ("inspection",),
    ),
    "api": (("config", "hooks", "metrics", "optimizers"), ("model_fn",)),
    "engine": (("inputs",), ("program",), ("device",)),
    "front_ends": (
        ("front_end",),
        ("tables",),
        ("keras",),
        ("compiled",),
        ("keras_model",),
    ),
    "tf1_tools": (("tf_estimator",), ("check",), ("port",)),
    "workflow": (
        ("exporters", "from_keras", "stopping_hooks"),
        ("best_exporter", "specs", "steps_exporter"),
        ("evaluations",),
        ("continuous",),
        ("train_and_evaluate",),
        ("comparing",),
    ),
}
# Nobody remembers more than this.
MOST_ARROWS, MOST_ENTRIES = 80, 16
# Modules that import TensorFlow, imported when one of their names is used.
WRITTEN = (
    "tf1.reimplemented.",
    "tf1_tools.tf_estimator.baseline",
    "tf1_tools.tf_estimator.class_heads",
    "tf1_tools.tf_estimator.head_functions",
    "tf1_tools.tf_estimator.heads",
    "tf1_tools.tf_estimator.keras_models",
    "tf1_tools.tf_estimator.logit_fns",
    "tf1_tools.tf_estimator.multi_head",
    "tf1_tools.tf_estimator.premade",
    "tf1_tools.tf_estimator.public_head",
)
# The extras whose libraries are imported when they are used.
OPTIONAL = ("orbax", "remote", "safetensors", "tf1")
# Libraries whose distribution and module have different names.
DISTRIBUTIONS = {
    "google": "protobuf",
    "orbax": "orbax-checkpoint",
}


@dataclasses.dataclass(frozen=True)
class Import:
    """One imported module, and whether the import is at module level."""

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


@functools.cache
def imports_of(module: str) -> tuple[Import, ...]:
    """All imports of a module."""
    return tuple(imports(source(module)))


@functools.cache
def imported_here(name: str) -> set[str]:
    """The modules of this package that one of its modules imports."""
    found = (_own_module(each.module) for each in imports_of(name))
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


def room(module: str) -> str:
    """The folder of a module at the root of the package, or the module itself.

    All lists of public names are one room.
    """
    first = module.split(".")[0]
    return "__init__" if first in LISTS else first


def inner_room(module: str) -> str | None:
    """The same within its room, if that has inner rooms."""
    first, *others = module.split(".")
    has_room = first in INNER_FLOORS and others not in ([], ["__init__"])
    return others[0] if has_room else None


def upward(
    arrows: Iterable[tuple[str, str]], floors: tuple[tuple[str, ...], ...]
) -> set[tuple[str, str]]:
    """The arrows between rooms that do not point downward."""
    floor_of = {room: i for i, rooms in enumerate(floors) for room in rooms}
    assert len(floor_of) == sum(map(len, floors))
    return {
        (start, end)
        for start, end in arrows
        if start != end and floor_of[end] >= floor_of[start]
    }


def arrows_between(
    room_of: Callable[[str], str | None],
) -> dict[tuple[str, str], list[str]]:
    """The imports between rooms that make each arrow."""
    found: dict[tuple[str, str], list[str]] = {}
    for module in modules():
        for other in imported_here(module):
            start, end = room_of(module), room_of(other)
            if start and end and start != end:
                found.setdefault((start, end), []).append(f"{module}->{other}")
    return found


def test_every_room_has_a_floor() -> None:
    assert {name for names in FLOORS for name in names} == {
        room(module) for module in modules()
    }
    for name, floors in INNER_FLOORS.items():
        inner = {inner_room(m) for m in modules() if room(m) == name}
        assert {i for names in floors for i in names} == inner - {
            None,
            "__init__",
        }


def test_imports_point_downward() -> None:
    arrows = arrows_between(room)
    up = {arrow: arrows[arrow] for arrow in upward(arrows, FLOORS)}
    for name, floors in INNER_FLOORS.items():

        def within(module: str, name: str = name) -> str | None:
            return inner_room(module) if room(module) == name else None

        inner = arrows_between(within)
        up |= {arrow: inner[arrow] for arrow in upward(inner, floors)}
    assert not up, f"{up}. Move what is needed down, or pass it in from above."


def test_number_of_rooms_and_arrows_is_limited() -> None:
    assert len(arrows_between(room)) <= MOST_ARROWS
    entries = [p for p in PACKAGE.iterdir() if p.name != "__pycache__"]
    assert len(entries) <= MOST_ENTRIES + len(LISTS)


def test_public_modules_contain_only_imports() -> None:
    for module in modules():
        if module.split(".")[0] in LISTS:
            names, *lazily = [
                node
                for node in source(module).body[1:]
                if not isinstance(node, ast.ImportFrom) and not _is_for_types_only(node)
            ]
            assert isinstance(names, ast.Assign)
            assert ast.unparse(names.targets[0]) == "__all__"
            # Names of optional parts are imported at first use.
            assert not lazily or "imported_at_use" in ast.unparse(
                ast.Module(lazily, [])
            )


def test_imports_have_no_cycle() -> None:
    graph = {module: imported_here(module) for module in modules()}
    order = tuple(graphlib.TopologicalSorter(graph).static_order())
    assert order[-1] == "__init__"


def test_tensorflow_and_tensorboard_are_imported_only_when_needed() -> None:
    heavy = [
        f"{module}:{each.line}"
        for module in modules()
        for each in imports_of(module)
        if each.at_module_level
        and each.module.split(".")[0] in ("tensorflow", "tensorboard")
        and not module.startswith(WRITTEN)
    ]
    assert not heavy


def test_shims_for_tf1_are_imported_only_by_name() -> None:
    importers = {
        module
        for module in modules()
        for other in imported_here(module)
        if other.startswith(WRITTEN) and not module.startswith(WRITTEN)
    }
    assert not importers


def third_party(module: str) -> Iterator[tuple[str, bool]]:
    """The distributions that a module imports, and whether at module level."""
    for each in imports_of(module):
        top = each.module.split(".")[0]
        if top not in sys.stdlib_module_names | {PACKAGE.name, "_typeshed"}:
            name = DISTRIBUTIONS.get(top, top.replace("_", "-"))
            yield name, each.at_module_level


def is_imported_lazily(module: str) -> bool:
    """Returns whether only a function of a command imports a module."""
    return module.startswith("tf1_tools.port.")


def test_all_imported_distributions_are_declared() -> None:
    project = tomllib.loads((PACKAGE.parent / "pyproject.toml").read_text())
    extras = project["project"]["optional-dependencies"]
    always, lazily = (
        {re.match(r"[\w-]+", each).group() for each in requirements}
        for requirements in (
            project["project"]["dependencies"],
            [name for extra in OPTIONAL for name in extras[extra]],
        )
    )
    undeclared = {
        (module, name)
        for module in modules()
        for name, at_module_level in third_party(module)
        if name
        not in (
            always
            if at_module_level and not is_imported_lazily(module)
            else always | lazily
        )
    }
    assert not undeclared


@pytest.mark.parametrize(
    ("private", "expected"),
    [
        ("keras.src", set()),
        ("jax._src", set()),
        ("jaxlib", set()),
        (
            "jax.interpreters",
            {"base.tracing.jaxprs", "tf1.lift.jax_internals"},
        ),
        ("tensorflow.python", set()),
    ],
)
def test_private_modules_are_imported_in_few_files(
    private: str, expected: set[str]
) -> None:
    importers = {
        module
        for module in modules()
        for each in imports_of(module)
        if each.module.startswith(private)
    }
    assert importers == expected


# The modules that use private attributes of other libraries, except Python's frames.
PRIVATE_ATTRIBUTES = {
    "base.upstream.jax_clusters",
    # The protected attributes for subclasses of Keras's and TensorFlow's optimizers.
    "api.optimizers.adam_weight_decay",
    "api.optimizers.layer_wise",
    "api.optimizers.momentum",
    "api.optimizers.sm3",
    "tf1.reimplemented.opt",
    # The protected attributes for subclasses of cells.
    "tf1.reimplemented.rnn",
}
_OF_PYTHON = {"_getframe", "_current_frames", "_exit"}


def names_made(tree: ast.AST) -> Iterator[str]:
    """Names of functions, classes and attributes that a module makes."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.attr
        elif isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
            yield str(node.slice.value)  # Such as in `__dict__`.


def test_private_attributes_of_others_are_used_in_few_files() -> None:
    own = {name for _, tree in parsed() for name in names_made(tree)} | _OF_PYTHON
    users = {
        module
        for module, tree in parsed()
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute)
        and re.match("_[^_]", node.attr)
        and node.attr not in own
    }
    assert users == PRIVATE_ATTRIBUTES


_PRIVATE_PATH = re.compile(r"(?:keras\.src|jax\._src|jaxlib|tensorflow\.python)\.\w")
_PRIVATE_NAME = re.compile(r"_[a-z]\w*")
# The modules with private names of libraries in strings, besides those of TF1 programs,
# which contain such names themselves.
PRIVATE_STRINGS = {
    # Grain's transformations, and masks in the process that makes a TensorFlow graph.
    "engine.inputs.other_libraries",
    "export.tensorflow_graph",
}


def strings_of_names(tree: ast.AST) -> Iterator[str]:
    """The private names in strings: paths, and attributes that are read by name."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            if _PRIVATE_PATH.match(node.value):
                yield node.value
        elif (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Name)
            and node.func.id in ("getattr", "setattr", "hasattr", "delattr")
            and isinstance(node.args[1], ast.Constant)
            and _PRIVATE_NAME.fullmatch(str(node.args[1].value))
        ):
            yield node.args[1].value


# The public attributes of named tuples.
_OF_TUPLES = {"_fields", "_asdict", "_replace"}


def attributes_made(tree: ast.AST) -> Iterator[str]:
    """Names of attributes and methods of the classes of a module."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            if isinstance(node.value, ast.Name) and node.value.id in ("self", "cls"):
                yield node.attr
        elif isinstance(node, ast.ClassDef):
            yield from names_made(ast.Module(node.body, []))


def test_private_names_in_strings_are_in_few_files() -> None:
    own = {name for _, tree in parsed() for name in attributes_made(tree)}
    users = {
        module
        for module, tree in parsed()
        for name in strings_of_names(tree)
        if name not in own | _OF_TUPLES
        and module.split(".")[0] not in ("tf1", "tf1_tools")
        and not module.startswith("base.upstream.")
    }
    assert users == PRIVATE_STRINGS


# The modules that assign to the modules and classes of others.
ASSIGNERS = {
    # A process that makes a TensorFlow graph, and ends with it.
    "export.tensorflow_graph",
    # The process of one script of a comparison, which must not wait for others.
    # The constructors of this package's configuration classes.
    "base.common.field_checks",
}


def assigned_to_others(tree: ast.AST) -> Iterator[str]:
    """The attributes of imported modules and of classes that a module replaces."""
    imported = {
        alias.asname or alias.name.partition(".")[0]
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
        for alias in node.names
        if isinstance(node, ast.Import)
        or str(node.module).partition(".")[0] != PACKAGE.name
    }
    for node in ast.walk(tree):
        targets = node.targets if isinstance(node, ast.Assign) else []
        for target in targets:
            for part in ast.walk(target):
                if not (
                    isinstance(part, ast.Attribute) and isinstance(part.ctx, ast.Store)
                ):
                    continue
                root = part.value
                while isinstance(root, ast.Attribute):
                    root = root.value
                is_method = part.attr in ("__call__", "__init__", "__new__")
                is_other = isinstance(root, ast.Name) and root.id in imported
                if is_other or is_method:
                    yield part.attr


def test_few_modules_assign_to_the_names_of_others() -> None:
    assigners = {module for module, tree in parsed() if any(assigned_to_others(tree))}
    assert assigners == ASSIGNERS


def test_devices_and_hosts_are_queried_in_one_place() -> None:
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
    # The other modules answer scripts that ask for the machine itself.
    of_users = {
        "planning.dry_run",
        "tf1.reimplemented.cluster_resolver",
        "tf1_tools.tf_estimator.estimators",
    }
    assert asking == {"base.common.machine", *of_users}


# The modules that remove files. No other module may, because it could delete a user's
# file.
REMOVERS = {
    # All of them call this module, which supports remote stores.
    "base.storage.paths",
    # That module calls this one, which handles the refusals of Windows.
    "base.storage.shared_files",
    # In a directory of checkpoints: files of saves, unfinished and lock files, the
    # marker of a completed training, and the directory itself if it is empty.
    "files.directory.stale_files",
    "files.atomic.commit",
    "files.directory.state_file",
    # Folders that the same module has made.
    "export.folders",
    # Its own folders, partly uploaded exports, and old exports.
    "base.storage.transfers",
    "workflow.exporters",
}
_REMOVES = {"unlink", "rmdir", "rmtree", "removedirs", "rm", "rm_file"}
_REMOVES_FILES = {"remove"}
_FILE_MODULES = {"os", "shutil", "paths", "filesystem", "shared_files"}


def removals(tree: ast.AST) -> Iterator[int]:
    """The lines that remove files or pass on a function that does."""
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


def test_few_modules_remove_files() -> None:
    removers = {module for module, tree in parsed() if any(removals(tree))}
    assert removers == REMOVERS


def test_contributing_page_lists_every_room() -> None:
    rows = [
        line.split("`")[1].removesuffix(".py").removesuffix("/")
        for line in CONTRIBUTING.read_text().splitlines()
        if line.startswith("| `")
    ]
    inner = {f"{n}/{r}" for n, fs in INNER_FLOORS.items() for f in fs for r in f}
    folders = {name for name in inner if (PACKAGE / name).is_dir()}
    assert sorted(rows) == sorted(
        {room(module) for module in modules()} | folders | {"files/inspection"}
    )


def test_files_that_the_contributing_page_names_exist() -> None:
    named = re.findall(r"`([\w/.]+\.py)\b", CONTRIBUTING.read_text())
    places = (PACKAGE, PACKAGE.parent)
    assert named
    assert not [
        name for name in named if not any((place / name).is_file() for place in places)
    ]


def test_names_of_test_files_are_unique() -> None:
    # `pytest` imports files by their names without folders.
    folder = pathlib.Path(__file__).parent
    names = collections.Counter(
        file.name
        for file in folder.rglob("*.py")
        if not file.relative_to(folder).as_posix().startswith(("tf1/golden", "tf1/pro"))
    )
    names.pop("conftest.py")
    names.pop("__main__.py")
    assert not [name for name, count in names.items() if count > 1]


# Tests of the helpers above.


def test_lazy_import_is_not_at_module_level() -> None:
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


def test_private_names_in_strings_are_found() -> None:
    tree = ast.parse(
        'PrivateName("", ("keras.src.tree.map",))\n'
        'getattr(x, "_mask", None)\n'
        'getattr(x, "mask")\n'
        '"about keras.src"\n'
    )
    assert sorted(strings_of_names(tree)) == ["_mask", "keras.src.tree.map"]


def test_assignments_to_names_of_others_are_found() -> None:
    tree = ast.parse(
        "import keras\n"
        "import jax as j\n"
        "keras.layers.Layer.build = f\n"
        "j.devices, own.name = f, g\n"
        "cls.__call__ = f\n"
        "self.value = 1\n"
    )
    assert sorted(assigned_to_others(tree)) == ["__call__", "build", "devices"]


def test_calls_that_remove_files_are_found() -> None:
    tree = ast.parse(
        "os.remove(a)\n"
        "weakref.finalize(self, shutil.rmtree, folder)\n"
        "names.remove(a)\n"
        "pathlib.Path(a).unlink()\n"
        "paths.remove(a)\n"
    )
    assert sorted(removals(tree)) == [1, 2, 4, 5]


def test_upward_arrows_are_found() -> None:
    floors = (("base",), ("left", "right"))
    fine = {("left", "base"), ("right", "right")}
    wrong = {("base", "left"), ("left", "right")}
    assert upward(fine | wrong, floors) == wrong


@pytest.mark.parametrize(
    ("imported", "module"),
    [
        ("numpy.float32", None),
        ("base.common.modes", "base.common.modes"),
        ("base.common.modes.ModeKeys", "base.common.modes"),
        ("api.hooks", "api.hooks.__init__"),
        ("api.hooks.SessionRunHook", "api.hooks.__init__"),
        ("api.hooks.timer", "api.hooks.timer"),
        ("api.hooks.timer.SecondOrStepTimer", "api.hooks.timer"),
        ("TPUEstimator", "__init__"),
    ],
)
def test_imported_names_are_traced_to_modules(
    imported: str, module: str | None
) -> None:
    prefix = "" if module is None else f"{PACKAGE.name}."
    assert _own_module(prefix + imported) == module
