"""Resolves the dependencies for each platform and Python; installs nothing.

Needs `pip install uv` and a package index. It takes about a minute, because
each of the 48 resolutions asks the index again.
"""

import concurrent.futures
import dataclasses
import itertools
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).parents[1]
# uv's names. Those of Linux have glibc 2.28.
PLATFORMS = (
    "x86_64-unknown-linux-gnu",
    "aarch64-unknown-linux-gnu",
    "aarch64-apple-darwin",
    "x86_64-pc-windows-msvc",
)
EXTRAS = ("", "examples", "tf1", "test")
PYTHONS = ("3.11", "3.12", "3.13")
# The wheels of libtpu, which the extra `test` needs there, want glibc 2.31.
NEWER_GLIBC = {("x86_64-unknown-linux-gnu", "test"): "x86_64-manylinux_2_31"}
# Most of a resolution is waiting for the index.
AT_ONCE = 6


@dataclasses.dataclass(frozen=True)
class Combination:
    """One installation that must be possible."""

    platform: str
    extra: str
    python: str

    def __str__(self) -> str:
        extra = self.extra or "base"
        return f"Python {self.python} {self.platform:26} {extra:8}"

    def resolve(self) -> subprocess.CompletedProcess[str]:
        """Returns what uv says; its output has a line for each package."""
        target = NEWER_GLIBC.get((self.platform, self.extra), self.platform)
        options = ["--extra", self.extra] if self.extra else []
        return subprocess.run(
            [
                *(sys.executable, "-m", "uv", "pip", "compile", "--quiet"),
                *("--no-header", "--no-annotate", "--only-binary", ":all:"),
                # Another Python's packages are found by this one.
                *("--python", sys.executable),
                *("--python-version", self.python),
                *("--python-platform", target),
                *options,
                "pyproject.toml",
            ],
            cwd=ROOT,
            capture_output=True,
            encoding="utf-8",
        )


def main() -> None:
    """Prints a line for each combination, and fails if one does."""
    combinations = [
        Combination(platform, extra, python)
        for python, platform, extra in itertools.product(PYTHONS, PLATFORMS, EXTRAS)
    ]
    failed = 0
    with concurrent.futures.ThreadPoolExecutor(AT_ONCE) as pool:
        answers = pool.map(Combination.resolve, combinations)
        for combination, answer in zip(combinations, answers, strict=True):
            if answer.returncode:
                failed += 1
                print(f"{combination} FAILS:\n{answer.stderr}", flush=True)
            else:
                packages = len(answer.stdout.splitlines())
                print(f"{combination} {packages} packages", flush=True)
    if failed:
        raise SystemExit(
            f"{failed} of {len(combinations)} combinations cannot be "
            "installed. Change the markers in pyproject.toml."
        )


if __name__ == "__main__":
    main()
