"""Resolves the dependencies for each platform and Python, and installs nothing.

The script needs uv and a package index. It takes about a minute because uv queries
the index for each of the 48 resolutions.
"""

import concurrent.futures
import dataclasses
import itertools
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).parents[1]
# uv's names of the platforms. The Linux platforms have glibc 2.28.
PLATFORMS = (
    "x86_64-unknown-linux-gnu",
    "aarch64-unknown-linux-gnu",
    "aarch64-apple-darwin",
    "x86_64-pc-windows-msvc",
)
EXTRAS = ("", "examples", "tf1", "test")
PYTHONS = ("3.11", "3.12", "3.13")
# On this platform the extra `test` needs libtpu, whose wheels need glibc 2.31.
NEWER_GLIBC = {("x86_64-unknown-linux-gnu", "test"): "x86_64-manylinux_2_31"}
# A resolution spends most of its time waiting for the index.
AT_ONCE = 6


@dataclasses.dataclass(frozen=True)
class Combination:
    """A platform, an extra and a Python version that must be installable."""

    platform: str
    extra: str
    python: str

    def __str__(self) -> str:
        extra = self.extra or "base"
        return f"Python {self.python} {self.platform:26} {extra:8}"

    def resolve(self) -> subprocess.CompletedProcess[str]:
        """Returns the ended uv process, which prints one line per package."""
        target = NEWER_GLIBC.get((self.platform, self.extra), self.platform)
        options = ["--extra", self.extra] if self.extra else []
        return subprocess.run(
            [
                *(sys.executable, "-m", "uv", "pip", "compile", "--quiet"),
                *("--no-header", "--no-annotate", "--only-binary", ":all:"),
                # uv resolves for other Python versions, but needs one to run.
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
    """Prints a line for each combination, and fails if a combination fails."""
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
