"""A variable that an optimizer keeps, which knows what it is about."""

import keras


class SlotVariable(keras.Variable):
    """A variable of an optimizer whose path does not tell its owner.

    Attributes:
        owner: The path of the variable that it is kept for, as which it is
            laid out; `None` if there is none. Defaults to `None`.
    """

    owner: str | None = None
