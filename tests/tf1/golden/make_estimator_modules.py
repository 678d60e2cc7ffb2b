"""Writes the modules of `tensorflow_estimator` 1.15.

tf115/bin/python tests/tf1/golden/make_estimator_modules.py

`make_contrib.py` documents how to make `tf115`. A file of the package gets the modules
below `tensorflow_estimator.python.estimator`, each with the module that makes its names
public, and the packages of `tf.contrib` and `tf.examples`. The public path of each name
goes to `estimator_modules.json`.
"""

import importlib
import json
import pathlib
import sys
import types

import tensorflow as tf
import tensorflow_estimator
from tensorflow import contrib

HERE = pathlib.Path(__file__).resolve().parent
NAMES = HERE.parents[2] / "keras_tpu_estimator" / "tf1" / "names"
PUBLIC = (
    "estimator",
    "estimator.export",
    "estimator.inputs",
    "estimator.experimental",
    "estimator.tpu",
    "contrib.estimator",
    "contrib.tpu",
)
# The modules with public names. Those of contrib come second.
CHOSEN = PUBLIC[:4]


def is_of_users(parts):
    """Whether a path is not one of tests."""
    return not any(
        part.startswith(("gen_", "test_", "tests", "testing", "kernel_tests"))
        or "_test" in part
        or part in ("api", "_api")
        for part in parts
    )


def modules(root):
    """Returns the modules and packages below a folder, as parts of their names."""
    for file in sorted(pathlib.Path(root).glob("**/*.py")):
        parts = file.relative_to(root).with_suffix("").parts
        folders = [
            pathlib.Path(root).joinpath(*parts[:n]) for n in range(1, len(parts))
        ]
        is_whole = all((folder / "__init__.py").exists() for folder in folders)
        if is_whole and is_of_users(parts):
            yield parts


def names_of(module):
    """Returns the names of a module, with the public modules of each."""
    own = vars(importlib.import_module(module))
    found = {}
    for name, value in sorted(own.items()):
        if name.startswith("_") or isinstance(value, types.ModuleType):
            continue
        places = [
            place for place in PUBLIC if getattr(attribute(place), name, None) is value
        ]
        if places:
            found[name] = places
    return found


def attribute(path):
    """Returns TensorFlow's object under a path."""
    value = tf
    for part in path.split("."):
        value = getattr(value, part)
    return value


def owner_of(module, names):
    """Returns the module that makes the most of these names public."""
    tpu, _, rest = module.partition("tpu.")
    if (
        not tpu
        and rest
        and (
            pathlib.Path(contrib.__path__[0]) / ("tpu/python/tpu/" + rest + ".py")
        ).exists()
    ):
        return "contrib.tpu.python.tpu." + rest
    if not tpu and rest:
        return "contrib.tpu"
    counts = [sum(c in places for places in names.values()) for c in CHOSEN]
    return CHOSEN[counts.index(max(counts))]


def packages():
    """Returns the modules of contrib and examples outside of `python`."""
    roots = {"contrib": contrib.__path__[0]}
    examples = pathlib.Path(contrib.__path__[0]).parent / "examples"
    roots["examples"] = str(examples)
    for top, root in roots.items():
        for parts in modules(root):
            is_package = parts[-1] == "__init__"
            kept = parts[:-1] if is_package else parts
            if kept and (is_package or "python" not in parts):
                yield ".".join((top,) + kept)


def main():
    """Imports each module, and finds its public names."""
    if tf.__version__ != "1.15.5":
        sys.exit("TensorFlow 1.15.5 is needed, not " + tf.__version__ + ".")
    root = pathlib.Path(tensorflow_estimator.__file__).parent
    below, lines, rows = "python.estimator.", [], []
    for parts in modules(root / "python" / "estimator"):
        if parts[-1] == "__init__":
            continue
        module = ".".join(parts)
        names = names_of("tensorflow_estimator." + below + module)
        rows.append(" " + json.dumps(module) + ": " + json.dumps(names))
        lines.append(below + module + " " + owner_of(module, names))
    (HERE / "estimator_modules.json").write_text("{\n" + ",\n".join(rows) + "\n}\n")
    (NAMES / "estimator_modules.txt").write_text("\n".join(lines) + "\n")
    (NAMES / "packages.txt").write_text("\n".join(sorted(packages())) + "\n")


if __name__ == "__main__":
    main()
