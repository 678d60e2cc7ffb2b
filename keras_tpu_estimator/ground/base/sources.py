"""The files of a program: a folder, or a file and what it imports there."""

import ast
import dataclasses
import pathlib
import warnings
from collections.abc import Iterator


@dataclasses.dataclass(frozen=True)
class Source:
    """A file of a program.

    Attributes:
        path: Where it is.
        module: What its folder's files import it as, such as "utils.files".
        tree: Its syntax, which is empty if it is no Python 3.
        error: Why it cannot be read, or "".
        line: Where that is.
    """

    path: pathlib.Path
    module: str
    tree: ast.Module
    error: str = ""
    line: int = 1

    @property
    def package(self) -> str:
        """What relative imports start from."""
        if self.path.name == "__init__.py":
            return self.module
        return self.module.rpartition(".")[0]


def read_program(path: pathlib.Path) -> tuple[Source, ...]:
    """Reads a program.

    Args:
        path: A folder, of which all files are read, or a file, with which
            those are read that it imports from its folder.

    Returns:
        Its files, by path.

    Raises:
        ValueError: There is no Python file at the path.
    """
    if path.is_dir():
        files = [each for each in path.rglob("*.py") if not _is_hidden(each)]
        sources = [_read(file, path) for file in files]
    elif path.is_file():
        sources = _with_imports(path)
    else:
        sources = []
    if not sources:
        raise ValueError(
            "`PATH` should be a Python file, or a folder of some. Received: "
            f"{str(path)!r}, which has none."
        )
    return tuple(sorted(sources, key=lambda source: source.path))


def imported_modules(source: Source) -> Iterator[str]:
    """The names of all that a file imports, modules or what is in them."""
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            module = from_module(node, source)
            yield module
            yield from (f"{module}.{alias.name}" for alias in node.names)


def from_module(node: ast.ImportFrom, source: Source) -> str:
    """The module that names are imported from."""
    if not node.level:
        return node.module or ""
    outer = source.package.split(".")
    kept = outer[: len(outer) - node.level + 1]
    return ".".join(filter(None, [*kept, node.module]))


def _with_imports(path: pathlib.Path) -> list[Source]:
    root = path.parent
    # A file of a package imports it by name, from where the package is.
    while (root / "__init__.py").exists():
        root = root.parent
    found: dict[pathlib.Path, Source] = {}
    waiting = [path]
    while waiting:
        file = waiting.pop()
        if file in found:
            continue
        found[file] = _read(file, root)
        for name in imported_modules(found[file]):
            waiting += _files_of(name, root)
            if root != path.parent:
                waiting += _files_of(name, path.parent)
    return list(found.values())


def _files_of(module: str, root: pathlib.Path) -> list[pathlib.Path]:
    """The files that an import of a module runs, as far as there are some."""
    *outer, name = module.split(".")
    folder = root.joinpath(*outer)
    candidates = [
        root.joinpath(*outer[: count + 1], "__init__.py")
        for count in range(len(outer))
    ]
    candidates += [folder / f"{name}.py", folder / name / "__init__.py"]
    return [each for each in candidates if name and each.is_file()]


def _read(path: pathlib.Path, root: pathlib.Path) -> Source:
    parts = path.relative_to(root).with_suffix("").parts
    if parts[-1] == "__init__":
        parts = parts[:-1]
    module = ".".join(parts)
    with warnings.catch_warnings():
        # Of escapes in strings, which are not our concern.
        warnings.simplefilter("ignore")
        try:
            return Source(path, module, ast.parse(path.read_bytes()))
        except (SyntaxError, ValueError) as error:
            line = getattr(error, "lineno", None) or 1
            nothing = ast.Module(body=[], type_ignores=[])
            return Source(path, module, nothing, str(error), line)


def _is_hidden(path: pathlib.Path) -> bool:
    return any(part.startswith(".") for part in path.parts[1:])
