"""Writes the modules of TensorFlow 1.15 below `tf.contrib.*.python`.

tf115/bin/python tests/tf1/golden/make_contrib_modules.py

`make_contrib.py` documents how to make `tf115`. A file of the package gets the names of
the modules. `contrib_modules.json` gets the public names that each module contains, and
names that mean another object there.
"""

import importlib
import json
import pathlib
import sys
import types

import tensorflow as tf
from tensorflow import contrib

HERE = pathlib.Path(__file__).resolve().parent
NAMES = HERE.parents[2] / "keras_tpu_estimator" / "tf1" / "names"
# Tests, and operations with a wrapper module.
LEFT_OUT = ("gen_", "kernel_tests", "tests", "testing", "test_")


def modules():
    """Returns the names of the modules, without 'tf.contrib.'."""
    root = pathlib.Path(contrib.__path__[0])
    for file in sorted(root.glob("*/python/**/*.py")):
        parts = file.relative_to(root).with_suffix("").parts
        folders = [root.joinpath(*parts[:n]) for n in range(1, len(parts))]
        if (
            all((folder / "__init__.py").exists() for folder in folders)
            and parts[-1] != "__init__"
            and not any(part.startswith(LEFT_OUT) for part in parts)
            and not any("_test" in part for part in parts)
        ):
            yield ".".join(parts)


def main():
    """Imports each module, and compares its names with the public ones."""
    if tf.__version__ != "1.15.5":
        sys.exit("TensorFlow 1.15.5 is needed, not " + tf.__version__ + ".")
    found = {}
    for module in modules():
        part = module.partition(".")[0]
        try:
            own = vars(importlib.import_module("tensorflow.contrib." + module))
        except ImportError:
            continue  # Its dependencies are not installed.
        of_part = vars(importlib.import_module("tensorflow.contrib." + part))
        both = [
            name
            for name in sorted({*own} & {*of_part})
            if not name.startswith("_")
            and not isinstance(own[name], types.ModuleType)
            and name not in ("absolute_import", "division", "print_function")
        ]
        found[module] = {
            "same": [name for name in both if own[name] is of_part[name]],
            "other": [name for name in both if own[name] is not of_part[name]],
        }
    lines = [json.dumps(m) + ": " + json.dumps(found[m]) for m in sorted(found)]
    (HERE / "contrib_modules.json").write_text("{\n " + ",\n ".join(lines) + "\n}\n")
    (NAMES / "contrib_modules.txt").write_text("\n".join(sorted(found)) + "\n")


if __name__ == "__main__":
    main()
