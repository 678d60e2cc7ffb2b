"""Writes the table of private names into `docs/upstream.md`.

python -m tests.upstream.make_page
"""

import importlib
import pathlib
import pkgutil
import re

from keras_tpu_estimator.base import upstream
from keras_tpu_estimator.base.upstream.private_names import (
    PrivateAttribute,
    PrivateName,
)
from keras_tpu_estimator.base.upstream.replacements import Replacement
from keras_tpu_estimator.base.upstream.tensorflow_graph_names import GraphName

PAGE = pathlib.Path(__file__).parents[2] / "docs" / "upstream.md"
_TABLE = re.compile(r"(?s)\| name \| use .*?\n\n")


def registered():
    """Yields each private name and replacement of the room."""
    for module in sorted(
        module.name for module in pkgutil.iter_modules(upstream.__path__)
    ):
        names = vars(importlib.import_module(f"{upstream.__name__}.{module}"))
        for value in names.values():
            for name in value if isinstance(value, tuple) else (value,):
                if isinstance(name, PrivateName | PrivateAttribute | Replacement):
                    yield name


def table():
    """Returns the table as Markdown."""
    rows = ["| name | use | what it does |\n", "|---|---|---|\n"]
    for name in registered():
        target = name.target if isinstance(name, Replacement) else name
        path = target.path if isinstance(target, PrivateAttribute) else target.paths[0]
        use = "replaced" if isinstance(name, Replacement | GraphName) else "used"
        rows.append(f"| `{path}` | {use} | {target.purpose} |\n")
    return "".join(rows) + "\n"


def main():
    """Replaces the table in the page."""
    PAGE.write_text(_TABLE.sub(lambda _: table(), PAGE.read_text()))


if __name__ == "__main__":
    main()
