"""A user's program: its source files, and its execution in this process."""

import ast
import contextlib
import dataclasses
import functools
import os
import pathlib
import runpy
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Any


@dataclasses.dataclass(frozen=True)
class Source:
    """A file of a program, and the name by which others import it.

    If it is not valid Python 3, the tree is empty, and `error` has the syntax error.
    """

    path: pathlib.Path
    module: str
    tree: ast.Module
    error: str = ""
    line: int = 1

    @property
    def package(self) -> str:
        """The package that relative imports refer to."""
        if self.path.name == "__init__.py":
            return self.module
        return self.module.rpartition(".")[0]


def read_program(
    path: pathlib.Path, folders: Sequence[pathlib.Path] = ()
) -> tuple[Source, ...]:
    """Reads the source files of a program, in the order of their paths.

    A folder contributes all its Python files. A file contributes itself and those that
    it imports from its folder and from `folders`, except installed libraries. A path
    without any is an error.
    """
    if path.is_dir():
        files = [file for file in path.rglob("*.py") if not _is_hidden(file)]
        sources = [_read(file, path) for file in files]
    elif path.is_file():
        sources = _with_imports(path, folders)
    else:
        sources = []
    if not sources:
        raise ValueError(
            "`PATH` must be a Python file, or a folder that contains some. "
            f"Received: {str(path)!r}. Pass the path of a program."
        )
    return tuple(sorted(sources, key=lambda source: source.path))


def imported_modules(source: Source) -> Iterator[str]:
    """Yields the names of the modules and members that a file imports."""
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            module = from_module(node, source)
            yield module
            yield from (f"{module}.{alias.name}" for alias in node.names)


def from_module(node: ast.ImportFrom, source: Source) -> str:
    """Returns the module that names are imported from."""
    if not node.level:
        return node.module or ""
    outer = source.package.split(".")
    packages = outer[: len(outer) - node.level + 1]
    return ".".join(filter(None, [*packages, node.module]))


# Packages that are not part of a program, even if a folder of the program has them.
_NOT_FOLLOWED = ("keras_tpu_estimator", "tensorflow")


def _with_imports(path: pathlib.Path, folders: Sequence[pathlib.Path]) -> list[Source]:
    root = path.parent
    # A file in a package imports it by name, from the package's folder.
    while (root / "__init__.py").exists() and root != root.parent:
        root = root.parent
    # The folders that contain modules, and those that their names begin in.
    roots = {root: root, path.parent: root, **{folder: folder for folder in folders}}
    own_top = path.relative_to(root).parts[0]
    sources: dict[pathlib.Path, Source] = {}
    waiting = [(path, root)]
    while waiting:
        file, above = waiting.pop()
        if file.resolve() in sources:
            continue
        source = sources[file.resolve()] = _read(file, above)
        for name in imported_modules(source):
            top = name.partition(".")[0]
            if top in _NOT_FOLLOWED:
                continue
            for folder, above in roots.items():
                if top == own_top or top not in _installed_in(folder):
                    waiting += ((file, above) for file in _files_of(name, folder))
    return list(sources.values())


@functools.cache
def _installed_in(folder: pathlib.Path) -> frozenset[str]:
    """Returns the modules of a folder that an installer has put there.

    They are libraries, such as pandas, even if the folder is on `PYTHONPATH`.
    """
    records = [*folder.glob("*.dist-info/RECORD")]
    paths = [line.partition(",")[0] for r in records for line in _lines(r)]
    return frozenset(path.partition("/")[0].removesuffix(".py") for path in paths)


def _lines(path: pathlib.Path) -> list[str]:
    return path.read_text("utf-8", errors="replace").splitlines()


def _files_of(module: str, root: pathlib.Path) -> list[pathlib.Path]:
    """Returns the existing files that the import of a module runs."""
    *outer, name = module.split(".")
    folder = root.joinpath(*outer)
    candidates = [
        root.joinpath(*outer[: count + 1], "__init__.py") for count in range(len(outer))
    ]
    candidates += [folder / f"{name}.py", folder / name / "__init__.py"]
    return [candidate for candidate in candidates if name and candidate.is_file()]


def _read(path: pathlib.Path, root: pathlib.Path) -> Source:
    parts = path.relative_to(root).with_suffix("").parts
    if parts[-1] == "__init__":
        parts = parts[:-1]
    module = ".".join(parts)
    with warnings.catch_warnings():
        # The program may contain invalid escapes in strings.
        warnings.simplefilter("ignore")
        try:
            return Source(path, module, ast.parse(path.read_bytes()))
        except (SyntaxError, ValueError) as error:
            line = getattr(error, "lineno", None) or 1
            nothing = ast.Module(body=[], type_ignores=[])
            return Source(path, module, nothing, str(error), line)


def _is_hidden(path: pathlib.Path) -> bool:
    return any(part.startswith(".") for part in path.parts[1:])


def imported_packages(script: str) -> set[str]:
    """Returns the names of the packages that the files of a script import."""
    return {
        name.partition(".")[0]
        for source in read_program(pathlib.Path(script))
        for name in imported_modules(source)
    }


def run(
    script: str,
    arguments: Sequence[str] = (),
    is_module: bool = False,
    names: Mapping[str, Any] | None = None,
) -> None:
    """Runs a script as `python SCRIPT ARGUMENTS` does, with additional globals."""
    script_globals = dict(names or {})
    with _arguments(script, arguments, folder_of(script, is_module)):
        if is_module:
            runpy.run_module(script, script_globals, "__main__", alter_sys=True)
        else:
            runpy.run_path(script, script_globals, "__main__")


def folders_on_path() -> list[pathlib.Path]:
    """Returns the folders on `PYTHONPATH`."""
    names = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    return [pathlib.Path(name) for name in names if name]


def current_folder() -> pathlib.Path | None:
    """Returns the current folder if Python searches it, as with `python -m`."""
    folder = pathlib.Path.cwd()
    return None if {str(folder), ""}.isdisjoint(sys.path) else folder


def folder_of(script: str, is_module: bool) -> pathlib.Path:
    """Returns the folder whose modules a script imports."""
    return pathlib.Path() if is_module else pathlib.Path(script).parent


@contextlib.contextmanager
def _arguments(
    script: str, arguments: Sequence[str], folder: pathlib.Path
) -> Iterator[None]:
    before = sys.argv[:], sys.path[:]
    sys.argv[:] = [script, *arguments]
    sys.path.insert(0, str(folder.resolve()))
    try:
        yield
    finally:
        sys.argv[:], sys.path[:] = before
