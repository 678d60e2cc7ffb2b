"""The time that importing this package adds to importing Keras."""

import subprocess
import sys
from collections.abc import Callable, Iterator

from benchmarks.table import Goal, Row
from benchmarks.timing import median_seconds


def rows() -> Iterator[Row]:
    """Returns rows for the time of an import, each in a separate process."""
    ours, peer = "import keras_tpu_estimator", "import keras"
    seconds = median_seconds(
        {"ours": _process(ours), "peer": _process(peer)}, repetitions=7
    )
    yield Row(
        f"{ours}, against {peer}",
        1e3 * seconds["ours"],
        1e3 * seconds["peer"],
        "ms",
        Goal("ratio", most=1.15),
    )


def _process(code: str) -> Callable[[], object]:
    return lambda: subprocess.run([sys.executable, "-c", code], check=True)
