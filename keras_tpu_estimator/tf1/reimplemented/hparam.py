"""Hyperparameters by name: `tf.contrib.training.HParams`."""

import json
import re
from collections.abc import Mapping
from typing import Any

_ASSIGNMENT = re.compile(
    r"(?P<name>[a-zA-Z][\w.]*)(?:\[(?P<index>\d+)\])?\s*=\s*"
    r"(?:\[(?P<list>[^\]]*)\]|(?P<value>[^,\[]*))(?:,|$)"
)
_BOOLEANS = {"true": True, "1": True, "false": False, "0": False}


class HParams:
    """Hyperparameters, which are attributes and have types.

    Args:
        **kwargs: Values by name; a list has values of one type.

    Example:

    >>> hparams = HParams(learning_rate=0.1, layers=[64, 64], name="small")
    >>> hparams.parse("learning_rate=0.01,layers=[32, 16]").values()
    {'learning_rate': 0.01, 'layers': [32, 16], 'name': 'small'}
    """

    def __init__(self, **kwargs: Any):
        self._types: dict[str, tuple[type, bool]] = {}
        for name, value in kwargs.items():
            self.add_hparam(name, value)

    def add_hparam(self, name: str, value: Any) -> None:
        """Adds a hyperparameter.

        Args:
            name: Its name.
            value: Its value.

        Raises:
            ValueError: There is an attribute of that name, or an empty list.
        """
        if getattr(self, name, None) is not None:
            raise ValueError(
                f"A hyperparameter should have a name of its own. Received: "
                f"{name!r}, which is taken. Use `set_hparam`."
            )
        is_list = isinstance(value, list | tuple)
        if is_list and not value:
            raise ValueError(
                f"A list of hyperparameters should not be empty. Received: "
                f"{name}={value!r}. Its first value says of which type it is."
            )
        kind = type(value[0]) if is_list else type(value)
        self._types[name] = (kind, is_list)
        setattr(self, name, value)

    def set_hparam(self, name: str, value: Any) -> None:
        """Sets a hyperparameter, to a value of its type.

        Args:
            name: Its name.
            value: The value; numbers are converted where nothing is lost.

        Raises:
            KeyError: There is none.
            ValueError: The value is of another type.
        """
        kind, is_list = self._types[name]
        if is_list != isinstance(value, list | tuple):
            expected = "a list" if is_list else "no list"
            raise ValueError(f"{name!r} should be {expected}. Received: {value!r}.")
        if is_list:
            setattr(self, name, [_cast(name, kind, each) for each in value])
        else:
            setattr(self, name, _cast(name, kind, value))

    def del_hparam(self, name: str) -> None:
        """Removes a hyperparameter, if it is there."""
        if name in self._types:
            delattr(self, name)
            del self._types[name]

    def parse(self, values: str) -> "HParams":
        """Sets hyperparameters as a command line has them.

        Args:
            values: Such as 'rate=0.1,layers=[64,32],layers[1]=16'.

        Returns:
            This object.

        Raises:
            ValueError: It is malformed, or names what there is not.
        """
        types = {name: kind for name, (kind, _) in self._types.items()}
        for name, value in parse_values(values, types).items():
            if isinstance(value, dict):
                changed = list(getattr(self, name))
                for index, each in value.items():
                    changed[index] = each
                value = changed
            self.set_hparam(name, value)
        return self

    def override_from_dict(self, values_dict: Mapping[str, Any]) -> "HParams":
        """Sets hyperparameters by name, and returns this object."""
        for name, value in values_dict.items():
            self.set_hparam(name, value)
        return self

    def parse_json(self, values_json: str) -> "HParams":
        """Sets hyperparameters of a JSON object, and returns this object."""
        return self.override_from_dict(json.loads(values_json))

    def values(self) -> dict[str, Any]:
        """All values by name."""
        return {name: getattr(self, name) for name in self._types}

    def to_json(
        self,
        indent: int | None = None,
        separators: tuple[str, str] | None = None,
        sort_keys: bool = False,
    ) -> str:
        """All values as a JSON object."""
        return json.dumps(
            {n: v for n, v in self.values().items() if not callable(v)},
            indent=indent,
            separators=separators,
            sort_keys=sort_keys,
        )

    def get(self, key: str, default: Any = None) -> Any:
        """The value of a name, or a default."""
        return getattr(self, key) if key in self._types else default

    def __contains__(self, key: str) -> bool:
        return key in self._types

    def __str__(self) -> str:
        return str(sorted(self.values().items()))

    def __repr__(self) -> str:
        return f"HParams({self})"


def parse_values(
    values: str, type_map: Mapping[str, type], ignore_unknown: bool = False
) -> dict[str, Any]:
    """Reads values as a command line has them.

    Args:
        values: Such as 'rate=0.1,layers=[64,32]'.
        type_map: The types by name.
        ignore_unknown: Whether other names are left out. Defaults to `False`.

    Returns:
        Values by name; a dict by position for 'name[1]=2'.

    Raises:
        ValueError: It is malformed, or names what there is not.

    Example:

    >>> parse_values("a=1,b[2]=true", {"a": float, "b": bool})
    {'a': 1.0, 'b': {2: True}}
    """
    found: dict[str, Any] = {}
    position = 0
    while position < len(values):
        match = _ASSIGNMENT.match(values, position)
        if match is None:
            raise ValueError(
                "Expected 'name=value', with commas between. Received: "
                f"{values[position:]!r}"
            )
        position = match.end()
        name = match["name"]
        if name not in type_map:
            if ignore_unknown:
                continue
            raise ValueError(f"Expected some of {sorted(type_map)}. Received: {name!r}")
        kind = type_map[name]
        if match["list"] is not None:
            texts = [t.strip() for t in match["list"].split(",") if t.strip()]
            found[name] = [_read(name, kind, text) for text in texts]
        elif match["index"] is not None:
            value = _read(name, kind, match["value"])
            found.setdefault(name, {})[int(match["index"])] = value
        else:
            found[name] = _read(name, kind, match["value"])
    return found


def _read(name: str, kind: type, text: str) -> Any:
    """A value of a type, from text."""
    text = text.strip()
    try:
        if kind is bool:
            return _BOOLEANS[text.lower()]
        return text if kind is type(None) else kind(text)
    except (KeyError, ValueError) as error:
        raise ValueError(
            f"{name!r} should be of type {kind.__name__}. Received: {text!r}"
        ) from error


def _cast(name: str, kind: type, value: Any) -> Any:
    """A value as one of a type, unless something would be lost."""
    is_same = isinstance(value, kind) and isinstance(value, bool) == (kind is bool)
    if value is None or kind is type(None) or is_same:
        return value
    if kind is float and isinstance(value, int) and value is not True:
        return float(value)
    raise ValueError(
        f"{name!r} should be of type {kind.__name__}. Received: {value!r} of "
        f"type {type(value).__name__}."
    )
