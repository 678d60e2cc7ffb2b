"""Writes the results of TensorFlow's metrics for the tests of metrics.

    python -m tests.golden.make_metrics

It runs the tests with the current results of TensorFlow.
"""

import json
import sys

import numpy as np
import pytest


class Recorder:
    """Queries TensorFlow, and collects the answers by query."""

    def __init__(self) -> None:
        self.answers: dict[str, list] = {}

    def pytest_collection_finish(self) -> None:
        """Starts recording after all test modules are imported."""
        oracle = sys.modules["metrics_oracle"]

        def stored() -> dict[str, list]:
            return {}

        def live_values(names, *args, **kwargs):
            pairs = live(names, *args, **kwargs)
            key = oracle.key_of(names, args, kwargs)
            self.answers[key] = [
                [np.asarray(each).tolist() for each in pair] for pair in pairs
            ]
            return pairs

        live, oracle.live_values = oracle.live_values, live_values
        oracle._stored = stored

    def pytest_sessionfinish(self, exitstatus: int) -> None:
        """Writes one line for each answer, if the tests accept them all."""
        if exitstatus:
            return
        lines = [
            f"{json.dumps(key)}: {json.dumps(answer)}"
            for key, answer in sorted(self.answers.items())
        ]
        text = "{\n" + ",\n".join(lines) + "\n}\n"
        sys.modules["metrics_oracle"].STORED.write_text(text)


if __name__ == "__main__":
    sys.exit(pytest.main(["-n", "0", "tests/metrics"], [Recorder()]))
