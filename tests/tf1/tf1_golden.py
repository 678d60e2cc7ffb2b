"""The golden scripts with this package."""

import keras_tpu_estimator as kte  # isort: skip

import json
import pathlib
import sys

GOLDEN = pathlib.Path(__file__).parent / "golden"
kte.tf1.install()
# As for a script, beside which modules are found.
sys.path.append(str(GOLDEN))


def golden(name):
    """The results of a script with the original."""
    return json.loads((GOLDEN / f"{name}.json").read_text())
