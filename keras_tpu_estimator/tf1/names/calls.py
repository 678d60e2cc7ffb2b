"""Calls of TensorFlow 1 whose arguments decide whether they run."""

import dataclasses
import enum
import fnmatch


class Where(enum.Enum):
    """The place in a script where a call does not run.

    Attributes:
        STEPS: In a `model_fn`, and in what that calls.
        COLUMNS: Anywhere, if a `model_fn` reads feature columns.
        ANYWHERE: Anywhere, such as in `input_fn`.
    """

    STEPS = "steps"
    COLUMNS = "columns"
    ANYWHERE = "anywhere"


class Value(enum.Enum):
    """The value of an argument with which a call does not run.

    Attributes:
        ANY: Any value, or none.
        STRINGS: A string, or a list that contains one or the string dtype.
        STRING_DTYPE: The string dtype.
        NOT_ZERO: A value that is neither zero nor `None`.
        FALSE: `False`.
    """

    ANY = "any"
    STRINGS = "strings"
    STRING_DTYPE = "string dtype"
    NOT_ZERO = "not zero"
    FALSE = "false"


@dataclasses.dataclass(frozen=True)
class CallRule:
    """An argument with which a call stops a script, or may stop it.

    Attributes:
        name: The name that is called, without 'tf.'; a pattern of `fnmatch`.
        where: The place where the call does not run.
        value: The value with which it does not run.
        advice: The reason, and what to change.
        argument: The name of the argument; empty for `Value.ANY`.
        position: Its position, or -1 if it is only passed by name.
        dtype: The position of an argument `dtype`, which decides about strings
            where it is passed, or -1 if there is none.
        is_certain: Whether the call stops the script. Otherwise this depends
            on what the script does with the result.

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
    is_certain: bool = True

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
            Value.STRINGS: f'{self.argument}="..."',
            Value.STRING_DTYPE: f"{self.argument}=tf.string",
            Value.NOT_ZERO: f"{self.argument}=n",
            Value.FALSE: f"{self.argument}=False",
        }
        return f"tf.{self.name}({values[self.value]})"
