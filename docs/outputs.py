"""Runs examples and keeps what they print, for the pages that show it.

    python docs/outputs.py            # All of them, some minutes.
    python docs/outputs.py digits     # One.

`tests/test_examples.py` compares the form of what examples print with it.
"""

import os
import pathlib
import re
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).parents[1]
OUTPUTS = ROOT / "docs" / "outputs"
_LAUNCH = ("-m", "keras_tpu_estimator", "launch", "--processes", "2")
_TF1 = ("-m", "keras_tpu_estimator", "tf1")
COMMANDS = {
    "digits": ("examples/digits.py",),
    "bert_tiny": ("examples/bert_tiny.py",),
    "resnet": ("examples/resnet.py",),
    "gan": ("examples/gan.py",),
    "jax_model": ("examples/jax_model.py",),
    "from_keras": ("examples/from_keras.py",),
    "many_hosts": (*_LAUNCH, "examples/many_hosts.py"),
    "tf1_mnist": (*_TF1, "examples/tf1_mnist.py", "--use_tpu"),
    "ported_mnist": ("examples/ported_mnist.py", "--use_tpu"),
}
# Lines of libraries about the machine and themselves.
_NOISE = re.compile(
    r"(\[\d+\] )?(WARNING: All log messages|[IWEF]\d{4} |\d{4}-\d\d-\d\d "
    r"|\[Gloo\]|WARNING:tensorflow:|Instructions for updating|Colocations )"
)
_TEMPORARY = re.compile(re.escape(tempfile.gettempdir()) + r"/\w+")


def run(name: str) -> str:
    """Yields the lines that an example prints and logs."""
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "PYTHONUNBUFFERED": "1",
        "PYTHONWARNINGS": "ignore",
        "TF_CPP_MIN_LOG_LEVEL": "3",
    }
    done = subprocess.run(
        [sys.executable, *COMMANDS[name]],
        cwd=ROOT,
        env=environment,
        check=True,
        encoding="utf-8",
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    lines = [
        _TEMPORARY.sub("/tmp/run", line)
        for line in done.stdout.splitlines()
        if line.strip() and not _NOISE.match(line)
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    for name in sys.argv[1:] or COMMANDS:
        (OUTPUTS / f"{name}.txt").write_text(run(name), "utf-8")
