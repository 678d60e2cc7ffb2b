"""TensorFlow 1 calls whose arguments decide whether and how they run."""

import dataclasses
import enum
import fnmatch


class Effect(enum.Enum):
    """The effect of a call on a script.

    Attributes:
        STOPS: It stops the script.
        DEPENDS: It may stop the script, depending on how the script uses the result.
        DIFFERS: It runs, but its result differs from that of TensorFlow 1.15.
    """

    STOPS = "stops"
    DEPENDS = "depends"
    DIFFERS = "differs"


class Where(enum.Enum):
    """The place in a script that a rule applies to.

    Attributes:
        STEPS: In a `model_fn`, and in functions that it calls.
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
    """The value of an argument that a rule applies to.

    Attributes:
        ANY: Any value, or none.
        PASSED: Any value except `None`.
        UNBOUNDED: None, for a loop without another bound on its rounds.
        STRINGS: A string, or a list that contains a string or the string dtype.
        STRING_DTYPE: The string dtype.
        NOT_ZERO: A value that is neither zero nor `None`.
        FALSE: `False`.
        WIDE_DTYPE: A 64-bit dtype.
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
    """An argument with which a call runs differently than in TensorFlow 1.15.

    Attributes:
        name: The called name without 'tf.', as an `fnmatch` pattern.
        advice: The reason, and the required change.
        argument: The name of the argument, or "" for `Value.ANY`.
        position: The position of the argument, or -1 if it is keyword-only.
        dtype: The position of a `dtype` argument that decides whether values are
            strings, or -1 without such an argument.
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
        """Returns whether the rule applies to a name without 'tf.'."""
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
