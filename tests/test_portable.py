"""Tests that the code runs without POSIX's modules, functions and encodings.

`tests/windows.py` lists what Windows lacks. Each exception here is a file that handles
the absence.
"""

import ast
import dataclasses
import functools
import pathlib
from collections.abc import Iterator

import pytest

from tests import windows

_ROOT = pathlib.Path(__file__).parents[1]
_FOLDERS = ("keras_tpu_estimator", "examples", "benchmarks", ".ci", "docs")
# Files that handle the absence of what they use.
_GUARDED = {
    "keras_tpu_estimator/files/atomic/commit.py": {
        "fcntl",
        "register_at_fork",
    },
    "keras_tpu_estimator/base/hosts/this_process.py": {"register_at_fork"},
    "keras_tpu_estimator/base/common/waiting.py": {"register_at_fork"},
    "keras_tpu_estimator/base/common/ledger.py": {"register_at_fork", "sysconf"},
    "keras_tpu_estimator/runs/preemption.py": {"register_at_fork"},
    "keras_tpu_estimator/runs/run_ledger.py": {"register_at_fork"},
    "keras_tpu_estimator/base/storage/shared_files.py": {"preadv", "pwrite"},
    # It measures on Linux only, like everything that reads /proc.
    "benchmarks/checkpoints.py": {"posix_fadvise"},
    # They raise an error on Windows before they use these.
    "keras_tpu_estimator/base/storage/trusted.py": {"O_NOFOLLOW", "geteuid"},
    "keras_tpu_estimator/base/hosts/forwarding.py": {"SIGHUP"},
    "keras_tpu_estimator/base/hosts/output_lines.py": {"fcntl", "select", "termios"},
    "keras_tpu_estimator/base/hosts/started_processes.py": {
        "SIGKILL",
        "killpg",
        "process_group",
    },
}
_POSIX = {"os": {*windows.OS_NAMES}, "signal": {*windows.SIGNAL_NAMES}}
_POSIX["select"] = {"select", "poll", "epoll", "kqueue"}
_POSIX["socket"] = {"AF_UNIX"}
_STARTED = {"process_group", "preexec_fn", "start_new_session", "pass_fds"}
_TEXT_METHODS = {"read_text": 0, "write_text": 1}
# The modules that rename or delete. `shared_files` handles the refusals of Windows.
_RENAMES = {"replace", "rename", "renames", "link", "symlink", "unlink"}
# The last two link directories with names that are invalid on Windows.
_RENAMES_TOO = {
    "keras_tpu_estimator/base/storage/shared_files.py",
    "keras_tpu_estimator/base/storage/transfers.py",
    "keras_tpu_estimator/export/checking.py",
}


def files() -> list[str]:
    """All modules and scripts, relative to the root."""
    found = [
        path.relative_to(_ROOT).as_posix()
        for folder in _FOLDERS
        for path in sorted((_ROOT / folder).rglob("*.py"))
    ]
    return sorted({*found, "noxfile.py"})


@dataclasses.dataclass(frozen=True)
class Use:
    """A line of a file, and the name that it uses."""

    file: str
    line: int
    name: str


@functools.cache
def tree_of(file: str) -> ast.Module:
    return ast.parse((_ROOT / file).read_text("utf-8"))


def posix_uses(file: str, tree: ast.AST) -> Iterator[Use]:
    """The names in a file that only POSIX has."""
    for node in ast.walk(tree):
        for name in _posix_names(node):
            place = node.value if isinstance(node, ast.keyword) else node
            yield Use(file, place.lineno, name)


def _posix_names(node: ast.AST) -> list[str]:
    if isinstance(node, ast.Import):
        return [a.name for a in node.names if a.name in windows.MODULES]
    if isinstance(node, ast.ImportFrom):
        known = _POSIX.get(node.module, set())
        names = [alias.name for alias in node.names if alias.name in known]
        return names + [m for m in windows.MODULES if m == node.module]
    if isinstance(node, ast.Attribute) and _is_of(node.value, _POSIX):
        return [node.attr] if node.attr in _POSIX[node.value.id] else []
    if isinstance(node, ast.keyword):
        return [node.arg] if node.arg in _STARTED else []
    return []


def renames(file: str, tree: ast.AST) -> Iterator[Use]:
    """The lines of a file that rename files with `os`."""
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Attribute)
            and _is_of(node.value, {"os"})
            and node.attr in _RENAMES
        ):
            yield Use(file, node.lineno, node.attr)


def without_encoding(file: str, tree: ast.AST) -> Iterator[Use]:
    """The lines of a file that open text with the platform's default encoding."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        given = {keyword.arg: keyword.value for keyword in node.keywords}
        if "encoding" in given or None in given:
            continue
        name = _called(node.func)
        if name in _TEXT_METHODS:
            is_text = len(node.args) <= _TEXT_METHODS[name]
        elif name in ("open", "fdopen", "NamedTemporaryFile"):
            is_text = _opens_text(node, given)
        else:
            is_text = _is_true(given, "text", "universal_newlines")
        if is_text:
            yield Use(file, node.lineno, name)


def _called(function: ast.expr) -> str:
    """The name of a function, or "" for a method that only looks like `open`."""
    if isinstance(function, ast.Name):
        return function.id
    if not isinstance(function, ast.Attribute):
        return ""
    is_file_method = function.attr != "open" or _is_of(
        function.value, {"io", "builtins"}
    )
    return function.attr if is_file_method else ""


def _opens_text(call: ast.Call, given: dict[str | None, ast.expr]) -> bool:
    is_temporary = _called(call.func) == "NamedTemporaryFile"
    place = 0 if is_temporary else 1
    mode = given.get("mode", call.args[place] if call.args[place:] else None)
    if mode is None:
        return not is_temporary
    return isinstance(mode, ast.Constant) and "b" not in str(mode.value)


def _is_true(given: dict[str | None, ast.expr], *names: str) -> bool:
    values = (given.get(name) for name in names)
    return any(isinstance(v, ast.Constant) and v.value for v in values)


def _is_of(node: ast.expr, names: object) -> bool:
    return isinstance(node, ast.Name) and node.id in names


@pytest.mark.parametrize("folder", [*_FOLDERS, "noxfile.py"])
def test_text_is_opened_with_an_encoding(folder):
    uses = [
        use
        for file in files()
        if file.startswith(folder)
        for use in without_encoding(file, tree_of(file))
    ]
    assert uses == []


def test_only_guarded_files_use_posix():
    found: dict[str, set[str]] = {}
    for file in files():
        for use in posix_uses(file, tree_of(file)):
            found.setdefault(file, set()).add(use.name)
    assert found == _GUARDED


def test_no_module_imports_posix_modules():
    """No import at module level needs POSIX, unless a failure is caught."""
    uses = [
        use
        for file in files()
        for node in tree_of(file).body
        if isinstance(node, ast.Import | ast.ImportFrom)
        for use in posix_uses(file, node)
        if use.name in windows.MODULES
    ]
    assert uses == []


def test_files_are_renamed_in_one_place():
    found = {
        file
        for file in files()
        if file.startswith("keras_tpu_estimator") and any(renames(file, tree_of(file)))
    }
    assert found == _RENAMES_TOO


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("open(path)", ["open"]),
        ("open(path, 'w')", ["open"]),
        ("open(path, mode='a')", ["open"]),
        ("open(path, 'rb')", []),
        ("open(path, 'w', encoding='utf-8')", []),
        ("io.open(path)", ["open"]),
        ("session.open(path)", []),
        ("path.read_text()", ["read_text"]),
        ("path.read_text('utf-8')", []),
        ("path.write_text(text)", ["write_text"]),
        ("subprocess.run(command, text=True)", ["run"]),
        ("tempfile.NamedTemporaryFile()", []),
        ("tempfile.NamedTemporaryFile('w')", ["NamedTemporaryFile"]),
        ("function(**given)", []),
    ],
)
def test_text_without_encoding_is_found(code, expected):
    found = without_encoding("file", ast.parse(code))
    assert [use.name for use in found] == expected


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("import fcntl", ["fcntl"]),
        ("from resource import getrusage", ["resource"]),
        ("from os import fork", ["fork"]),
        ("os.killpg(1, 2)", ["killpg"]),
        ("signal.SIGKILL", ["SIGKILL"]),
        ("signal.SIGTERM", []),
        ("subprocess.Popen(c, start_new_session=True)", ["start_new_session"]),
        ("from importlib import resources", []),
        ("fork.spoon", []),
    ],
)
def test_uses_of_posix_are_found(code, expected):
    found = posix_uses("file", ast.parse(code))
    assert [use.name for use in found] == expected
