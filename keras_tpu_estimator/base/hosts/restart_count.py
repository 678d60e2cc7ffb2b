"""The number of restarts of a job, in the environment of its processes."""

import os

# Set by `python -m keras_tpu_estimator launch` in each process.
VARIABLE = "KTE_RESTARTS"


def restarts() -> int | None:
    """Returns how often the job of this process has restarted; `None` if unknown."""
    text = os.environ.get(VARIABLE, "")
    return int(text) if text.isdecimal() else None
