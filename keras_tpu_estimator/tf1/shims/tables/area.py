"""A part of TF1's names, and what becomes of each."""

import dataclasses
from collections.abc import Mapping


@dataclasses.dataclass(frozen=True)
class Area:
    """The names below one of TF1's modules.

    What supplies a name is written as text, so that it is imported only when
    the name is used: 'package.module', 'package.module:attribute', or
    'tf.name' for what has another name in TF1.

    Attributes:
        path: The module, without 'tf.', such as 'contrib.opt'.
        supplied: What supplies a name, by its path below the module.
        missing: What to do without a name that is not supplied.
        modules: What is imported by a name that is a function's in its package,
            as that of `arg_scope` in a module `arg_scope`.
        rest: What supplies all other names. Defaults to `None`, for what
            TensorFlow has there.
        advice: What to do without those that are nowhere.

    Example:

    >>> area = Area("contrib.data", {"AUTOTUNE": "tf.data.experimental"})
    >>> area.full("AUTOTUNE")
    'contrib.data.AUTOTUNE'
    """

    path: str
    supplied: Mapping[str, str] = dataclasses.field(default_factory=dict)
    missing: Mapping[str, str] = dataclasses.field(default_factory=dict)
    modules: Mapping[str, str] = dataclasses.field(default_factory=dict)
    rest: str | None = None
    advice: str = ""

    def full(self, name: str) -> str:
        """The path of a name below this module."""
        return f"{self.path}.{name}" if self.path else name


def same(names: str, source: str) -> dict[str, str]:
    """The table of names that a source has under the same names.

    Args:
        names: The names, with blanks between them.
        source: Of what they are attributes: 'module:', 'module:object.', or
            'tf.name.'.

    Example:

    >>> same("pack unpack", "tf.nest.")
    {'pack': 'tf.nest.pack', 'unpack': 'tf.nest.unpack'}
    """
    return {name: source + name for name in names.split()}


def missing(names: str, advice: str) -> dict[str, str]:
    """The table of names that are missing for the same reason.

    Args:
        names: The names, with blanks between them.
        advice: What to do without them.

    Example:

    >>> missing("a b", "Leave it out.")
    {'a': 'Leave it out.', 'b': 'Leave it out.'}
    """
    return dict.fromkeys(names.split(), advice)
