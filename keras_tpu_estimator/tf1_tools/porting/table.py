"""The table of counterparts, of which the tables of a page are made.

`docs/migrating.md` has the sections below; `tests/porting` compares them.
"""

import dataclasses
import functools
import re

from keras_tpu_estimator.tf1_tools.porting.layers import LAYERS
from keras_tpu_estimator.tf1_tools.porting.layers import VARIABLES
from keras_tpu_estimator.tf1_tools.porting.operations import OPERATIONS
from keras_tpu_estimator.tf1_tools.porting.program import FILES
from keras_tpu_estimator.tf1_tools.porting.program import PROGRAM
from keras_tpu_estimator.tf1_tools.porting.records import Row
from keras_tpu_estimator.tf1_tools.porting.records import Section
from keras_tpu_estimator.tf1_tools.porting.reports import METRICS
from keras_tpu_estimator.tf1_tools.porting.training import LOSSES
from keras_tpu_estimator.tf1_tools.porting.training import TRAINING

PAGE = "docs/migrating.md"
SECTIONS = (
    PROGRAM,
    LAYERS,
    VARIABLES,
    OPERATIONS,
    LOSSES,
    TRAINING,
    METRICS,
    FILES,
)
_LINK = re.compile(r"\[([^]]*)\]\([^)]*\)")
# The names that one thing had in several places.
_ALIASES = (
    ("tf.math.", "tf."),
    ("tf.contrib.tpu.", "tf.estimator.tpu."),
    ("tf.contrib.estimator.", "tf.estimator."),
    ("tf.contrib.framework.", "tf.train."),
    ("tf.estimator.", "tf.train."),
)


@dataclasses.dataclass(frozen=True)
class Counterpart:
    """What replaces a name.

    Attributes:
        name: Of TensorFlow 1.
        now: What to write in its place, with names in backticks.
        note: What else has to be known, or "".
        page: Where more is said.
    """

    name: str
    now: str
    note: str
    page: str


def find(name: str) -> Counterpart | None:
    """The counterpart of a name of TensorFlow 1.

    Args:
        name: As programs write it with `import tensorflow.compat.v1 as tf`.

    Returns:
        That of the name itself or, failing that, of what it is in; `None` if
        it is not TensorFlow's.

    Example:

    >>> find("tf.math.reduce_mean").now
    '`keras.ops.mean`'
    >>> find("tf.layers.unheard_of").now
    '`keras.layers`'
    """
    found = _exact(name)
    parent, _, _ = name.rpartition(".")
    while found is None and parent:
        found = _exact(parent) or _rows().get(f"{parent}.*")
        parent, _, _ = parent.rpartition(".")
    if found is None:
        return None
    key, row, section = found
    # Examples say more, where they are about this name alone.
    now = row.now if len(row.names) == 1 and row.now else row.names[key]
    return Counterpart(
        name,
        _LINK.sub(r"\1", now),
        _LINK.sub(r"\1", row.note),
        f"{PAGE}#{section.anchor}",
    )


def advice(name: str) -> str:
    """What to write in place of a name, as a sentence without its full stop.

    Args:
        name: As `find` takes it.

    Example:

    >>> advice("tf.unheard_of")
    'Port it to Keras or JAX; see docs/migrating.md'
    """
    counterpart = find(name)
    if counterpart is None:
        return f"Port it to Keras or JAX; see {PAGE}"
    note = f" ({counterpart.note})" if counterpart.note else ""
    return f"Its counterpart: {counterpart.now}{note}; see {counterpart.page}"


def _exact(name: str) -> tuple[str, Row, Section] | None:
    for alias, usual in (("", ""), *_ALIASES):
        if name.startswith(alias):
            found = _rows().get(usual + name.removeprefix(alias))
            if found is not None:
                return found
    return None


@functools.cache
def _rows() -> dict[str, tuple[str, Row, Section]]:
    return {
        name: (name, row, section)
        for section in SECTIONS
        for row in section.rows
        for name in row.names
    }
