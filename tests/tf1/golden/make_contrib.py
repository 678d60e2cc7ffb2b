"""Writes `contrib_calls.json` with the `tf.contrib` of TensorFlow 1.15.

python3.7 -m venv tf115
tf115/bin/pip install tensorflow==1.15.5 'protobuf<3.21' 'numpy<1.19'
tf115/bin/pip install scikit-learn
tf115/bin/python tests/tf1/golden/make_contrib.py [NAME ...]

With names, other rows do not change.
"""

import json
import os
import sys

import tensorflow as tf
from contrib_calls.calling import outcome_or_error
from contrib_calls.table import CALLS
from tensorflow import contrib

HERE = os.path.dirname(os.path.abspath(__file__))


PATH = os.path.join(HERE, "contrib_calls.json")


def main(chosen):
    """Calls all functions once, or only the given ones."""
    if tf.__version__ != "1.15.5":
        sys.exit(f"TensorFlow 1.15.5 is needed, not {tf.__version__}.")
    kept = {}
    if chosen:
        with open(PATH) as file:
            kept = json.load(file)
    rows = []
    for name in sorted(CALLS):
        if name in chosen or name not in kept:
            kept[name] = outcome_or_error(CALLS[name], contrib)
        rows.append(f" {json.dumps(name)}: {json.dumps(kept[name])}")
    with open(PATH, "w") as file:
        file.write("{\n" + ",\n".join(rows) + "\n}\n")


if __name__ == "__main__":
    main(sys.argv[1:])
