"""Writes the table of programs that the TPU compiler accepts.

    python -m tests.tpu.make_table         # About ten minutes.
    python -m tests.tpu.make_table layers  # Only some groups.

It compiles all programs of the tests for all topologies of the table.
"""

import os
import pathlib
import sys
from importlib import metadata

import pytest

_HERE = pathlib.Path(__file__).parent


class Recorder:
    """Collects the results of tests, independently of the current table."""

    def __init__(self):
        self.rows = []

    def pytest_runtest_logreport(self, report):
        """Also records failed tests, because the current table may differ."""
        if report.when == "call":
            self.rows += [found for _, found in report.user_properties]


def main(groups):
    """Writes the table again, or the given groups of it."""
    os.environ["TPU_TOPOLOGIES"] = "all"
    sys.path.append(str(_HERE))
    import tpu_table

    recorder = Recorder()
    paths = [str(_HERE / f"test_tpu_{group}.py") for group in groups]
    given = paths or [str(_HERE)]
    every = ("-m", "slow or not slow")
    pytest.main(["-n", "2", "-q", "--tb=short", *every, *given], [recorder])
    found = [tpu_table.Row(*row) for row in recorder.rows]
    made = {row.key: row.found for row in found}
    before = tpu_table.stored()
    others = {
        key: found for key, found in before.items() if groups and key[0] not in groups
    }
    # The previous order, because tests end in any order.
    kept = {key: said for key, said in before.items() if key in others | made}
    rows = (tpu_table.Row(*key, said) for key, said in (kept | others | made).items())
    versions = {name: metadata.version(name) for name in ("libtpu", "jax")}
    title = f"By libtpu {versions['libtpu']}, and JAX {versions['jax']}."
    tpu_table.STORED.write_text(f"{title}\n\n{tpu_table.written(rows)}")


if __name__ == "__main__":
    main(sys.argv[1:])
