"""Writes `told.json` with the estimators of TensorFlow 1.15.

python3.7 -m venv tf115
tf115/bin/pip install tensorflow==1.15.5 'protobuf<3.21' 'numpy<1.19'
tf115/bin/python tests/tf1/golden/make_told.py
"""

import json
import logging
import os
import re
import sys
import tempfile

import tensorflow as tf
from told_program import TRAININGS, told

HERE = os.path.dirname(os.path.abspath(__file__))


class _FinalLosses(logging.Handler):
    """A log handler that records the final step's loss."""

    def __init__(self):
        super().__init__()
        self.losses = []

    def emit(self, record):
        found = re.match(r"Loss for final step: (.*)\.$", record.getMessage())
        if found:
            self.losses.append(round(float(found.group(1)), 5))


def main():
    """Trains in each way once."""
    if tf.__version__ != "1.15.5":
        sys.exit(f"TensorFlow 1.15.5 is needed, not {tf.__version__}.")
    tf.compat.v1.logging.set_verbosity(tf.compat.v1.logging.INFO)
    results = {}
    for name in TRAININGS:
        final = _FinalLosses()
        logger = logging.getLogger("tensorflow")
        logger.addHandler(final)
        results[name] = told(name, tempfile.mkdtemp())
        logger.removeHandler(final)
        results[name]["final losses"] = final.losses
    with open(os.path.join(HERE, "told.json"), "w") as file:
        file.write(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
