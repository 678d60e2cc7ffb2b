"""The command `port`: its entry point, and its report."""

import argparse
import dataclasses
import pathlib
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from keras_tpu_estimator.base.common import registry, sources
from keras_tpu_estimator.tf1_tools.port.program import Program

if TYPE_CHECKING:
    from keras_tpu_estimator.tf1_tools.port.rewriting import Ported

_DESCRIPTION = """\
Writes a TensorFlow 1 program as a Keras program, without running it. Comments and
formatting stay. Places that no rule covers stay, too, below a comment that says what to
write.
"""


@dataclasses.dataclass(frozen=True)
class PortedProgram:
    """A ported program.

    Attributes:
        files: The ported files, by their paths below the new folder.
        elsewhere: The modules in other folders that the program imports, and that
            use TensorFlow. They are not ported.
    """

    files: dict[pathlib.Path, "Ported"]
    elsewhere: tuple[pathlib.Path, ...] = ()

    @property
    def sites(self) -> int:
        """The number of uses of TensorFlow that had to change."""
        return sum(file.sites for file in self.files.values())

    @property
    def rewritten(self) -> int:
        """The number of uses that were changed."""
        return sum(file.rewritten for file in self.files.values())

    def write(self, folder: pathlib.Path) -> None:
        """Writes the files into a folder, and overwrites none.

        Raises:
            ValueError: One of the files exists.
        """
        for path in self.files:
            if (folder / path).exists():
                raise ValueError(
                    f"`--to` must not contain {str(path)!r}. Received: "
                    f"{str(folder)!r}. Pass another folder, or remove the file."
                )
        for path, file in self.files.items():
            target = folder / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(file.code, "utf-8")

    def text(self) -> str:
        """Returns the report."""
        total = self.sites
        share = f", {self.rewritten / total:.0%}" if total else ""
        lines = [
            f"{len(self.files)} files, {total} uses of TensorFlow to change: "
            f"{self.rewritten} rewritten{share}."
        ]
        marked = {path: file for path, file in self.files.items() if file.markers}
        if marked:
            lines += ["", "Write these by hand, below their comments `# port:`"]
        for path, file in marked.items():
            for marker in file.markers:
                lines.append(f"  {path}:{marker.line}  {marker.text}")
        if self.elsewhere:
            lines += ["", "Not ported, because they are in other folders"]
        lines += [f"  {path}" for path in self.elsewhere]
        return "\n".join(lines)


def port(path: pathlib.Path) -> PortedProgram:
    """Ports a folder, or a script with the modules that it imports from its folder.

    Raises:
        ValueError: `path` has no Python file, or libcst is not installed.
    """
    try:
        from keras_tpu_estimator.tf1_tools.port.rewriting import port_file
    except ModuleNotFoundError as error:
        raise ValueError(
            f"`port` needs libcst. Received: {error}. Run `pip install libcst`."
        ) from error
    program = Program(path)
    root = (path if path.is_dir() else path.parent).resolve()
    files, elsewhere = {}, []
    for source in program.sources:
        resolved = source.path.resolve()
        if resolved.is_relative_to(root):
            files[resolved.relative_to(root)] = port_file(program, source)
        elif "tensorflow" in {
            name.partition(".")[0] for name in sources.imported_modules(source)
        }:
            elsewhere.append(source.path)
    return PortedProgram(files, tuple(sorted(elsewhere)))


def main(name: str, arguments: Sequence[str]) -> int:
    """Runs the command.

    Returns:
        The exit status: 0, 1 if a site must be written by hand or the programs
        differ, and 2 without a program.
    """
    parser = argparse.ArgumentParser(
        prog=f"python -m keras_tpu_estimator {name}", description=_DESCRIPTION
    )
    parser.add_argument("path", metavar="PATH", type=pathlib.Path)
    parser.add_argument("--to", metavar="FOLDER", type=pathlib.Path, required=True)
    parser.add_argument(
        "--prove",
        metavar="ARG",
        nargs=argparse.REMAINDER,
        help="then compare both programs, which get these arguments",
    )
    options = parser.parse_args(arguments)
    try:
        program = port(options.path)
        program.write(options.to)
    except ValueError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    sys.stdout.write(f"{program.text()}\n")
    status = int(program.rewritten < program.sites)
    if options.prove is None:
        return status
    new = options.to / options.path.name
    compare = registry.part("command compare")
    proof: int = compare.main(
        "compare",
        [str(options.path), *options.prove, "--to", str(new), *options.prove],
    )
    return max(status, proof)
