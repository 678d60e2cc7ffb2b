"""Calls of TensorFlow 1 whose arguments decide whether and how they run."""

import dataclasses
import enum
import fnmatch


class Effect(enum.Enum):
    """The effect of a call on a script.

    Attributes:
        STOPS: It stops the script.
        DEPENDS: It stops the script or not, for what the script does with the
            result.
        DIFFERS: It runs, with another result than in TensorFlow 1.15.
    """

    STOPS = "stops"
    DEPENDS = "depends"
    DIFFERS = "differs"


class Where(enum.Enum):
    """The place in a script that a rule is about.

    Attributes:
        STEPS: In a `model_fn`, and in what that calls.
        BRANCHES: In a branch of a `tf.cond` or in a loop of a `model_fn`.
        HOST_CALLS: In a `host_call`.
        COLUMNS: Anywhere, if a `model_fn` reads feature columns.
        ANYWHERE: Anywhere, such as in `input_fn`.
    """

    STEPS = "steps"
    BRANCHES = "branches"
    HOST_CALLS = "host calls"
    COLUMNS = "columns"
    ANYWHERE = "anywhere"


class Value(enum.Enum):
    """The value of an argument that a rule is about.

    Attributes:
        ANY: Any value, or none.
        PASSED: Any value but `None`.
        UNBOUNDED: None, for a loop without another bound of its rounds.
        STRINGS: A string, or a list that contains one or the string dtype.
        STRING_DTYPE: The string dtype.
        NOT_ZERO: A value that is neither zero nor `None`.
        FALSE: `False`.
        WIDE_DTYPE: A dtype of 64 bits.
    """

    ANY = "any"
    PASSED = "passed"
    UNBOUNDED = "unbounded"
    STRINGS = "strings"
    STRING_DTYPE = "string dtype"
    NOT_ZERO = "not zero"
    FALSE = "false"
    WIDE_DTYPE = "wide dtype"


@dataclasses.dataclass(frozen=True)
class CallRule:
    """An argument with which a call does not run as in TensorFlow 1.15.

    Attributes:
        name: The name that is called, without 'tf.'; a pattern of `fnmatch`.
        where: The place of the call.
        value: The value of the argument.
        advice: The reason, and what to change.
        argument: The name of the argument; empty for `Value.ANY`.
        position: Its position, or -1 if it is only passed by name.
        dtype: The position of an argument `dtype`, which decides about strings
            where it is passed, or -1 if there is none.
        effect: What the call does to the script.

    Raises:
        ValueError: The argument does not fit the value.
    """

    name: str
    where: Where
    value: Value
    advice: str
    argument: str = ""
    position: int = -1
    dtype: int = -1
    effect: Effect = Effect.STOPS

    def __post_init__(self) -> None:
        if (self.value is Value.ANY) is bool(self.argument):
            raise ValueError(
                "A rule must have an `argument` unless its `value` is 'any'. "
                f"Received: {self}"
            )

    def is_about(self, path: str) -> bool:
        """Whether a name, without 'tf.', is one that the rule is about."""
        return fnmatch.fnmatchcase(path, self.name)

    @property
    def shown(self) -> str:
        """The call as pages show it, such as `tf.f(x="...")`."""
        values = {
            Value.ANY: "...",
            Value.PASSED: f"{self.argument}=...",
            Value.UNBOUNDED: "...",
            Value.STRINGS: f'{self.argument}="..."',
            Value.STRING_DTYPE: f"{self.argument}=tf.string",
            Value.NOT_ZERO: f"{self.argument}=n",
            Value.FALSE: f"{self.argument}=False",
            Value.WIDE_DTYPE: f"{self.argument}=tf.int64",
        }
        return f"tf.{self.name}({values[self.value]})"
