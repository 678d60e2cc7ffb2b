"""Writes the golden JSON files with the original `TPUEstimator`.

It needs TensorFlow 2.15.1, the last release with estimators:

    python3.11 -m venv tf215
    tf215/bin/pip install tensorflow-cpu==2.15.1
    tf215/bin/python tests/tf1/golden/make.py [PROGRAM ...]
"""

import json
import pathlib
import sys
import tempfile

import numpy as np
import tensorflow.compat.v1 as tf
from running import PROGRAMS, run

HERE = pathlib.Path(__file__).parent


def plain(values):
    """Converts float32 values to lists of the shortest equal numbers."""
    if np.ndim(values):
        return [plain(value) for value in values]
    if np.issubdtype(np.asarray(values).dtype, np.integer):
        return int(values)
    return float(str(np.float32(values)))


def golden(name, model_dir):
    """Returns the results of a program, as JSON values."""
    result = run(name, model_dir)
    return {
        "made_with": f"tensorflow {tf.__version__}",
        "losses": plain(result["losses"]),
        "metrics": {k: plain(v) for k, v in sorted(result["metrics"].items())},
        "predictions": {k: plain(v) for k, v in sorted(result["predictions"].items())},
        "values": {
            k: {
                "shape": list(v.shape),
                "mean": plain(np.mean(v, dtype="float64")),
                "norm": plain(np.linalg.norm(v.astype("float64"))),
            }
            for k, v in sorted(result["values"].items())
        },
    }


def text_of(values):
    """Returns JSON with a line for each inner entry."""
    rows = []
    for key, value in values.items():
        text = json.dumps(value)
        if isinstance(value, dict):
            inner = [f"  {json.dumps(k)}: {json.dumps(v)}" for k, v in value.items()]
            text = "{\n" + ",\n".join(inner) + "\n }"
        rows.append(f" {json.dumps(key)}: {text}")
    return "{\n" + ",\n".join(rows) + "\n}\n"


def main(names):
    """Writes one file for each program."""
    if tf.__version__ != "2.15.1":
        raise SystemExit(f"TensorFlow 2.15.1 is needed, not {tf.__version__}.")
    for name in names or PROGRAMS:
        with tempfile.TemporaryDirectory() as model_dir:
            values = golden(name, model_dir)
        (HERE / f"{name}.json").write_text(text_of(values))
        print(name, values["losses"], values["metrics"])


if __name__ == "__main__":
    main(sys.argv[1:])
