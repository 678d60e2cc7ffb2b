"""Hyperparameters by name: `tf.contrib.training.HParams`."""

import json
import numbers
import re
from collections.abc import Mapping
from typing import Any

from keras_tpu_estimator.tf1.reimplemented.hparam_proto import HParamDef

_ASSIGNMENT = re.compile(
    r"(?P<name>[a-zA-Z][\w.]*)(?:\[\s*(?P<index>\d+)\s*\])?\s*=\s*"
    r"(?:\[(?P<list>[^\]]*)\]|(?P<value>[^,\[]*))(?:,\s*|$)"
)


class HParams:
    """Hyperparameters as attributes with types.

    Args:
        hparam_def: An `HParamDef` with all values. Defaults to none.
        model_structure: An object for `get_model_structure`. Defaults to `None`.
        **kwargs: Values by name. All values of a list have the same type.

    Raises:
        ValueError: Both `hparam_def` and values are set.

    Example:

    >>> hparams = HParams(learning_rate=0.1, layers=[64, 64], name="small")
    >>> hparams.parse("learning_rate=0.01,layers=[32, 16]").values()
    {'learning_rate': 0.01, 'layers': [32, 16], 'name': 'small'}
    """

    def __init__(
        self, hparam_def: Any = None, model_structure: Any = None, **kwargs: Any
    ):
        self._types: dict[str, tuple[type, bool]] = {}
        self._structure = model_structure
        if hparam_def is not None and kwargs:
            raise ValueError(
                "`hparam_def` must contain all values. Received others: "
                f"{sorted(kwargs)}. Add them with `add_hparam`."
            )
        values = kwargs if hparam_def is None else _values_of(hparam_def)
        for name, value in values.items():
            self.add_hparam(name, value)

    @staticmethod
    def from_proto(hparam_def: Any, import_scope: str | None = None) -> "HParams":
        """Returns the hyperparameters of an `HParamDef`.

        Args:
            hparam_def: The message.
            import_scope: Accepted; has no effect.

        Example:

        >>> message = HParams(rate=0.5, sizes=[1, 2]).to_proto()
        >>> sorted(HParams.from_proto(message).values().items())
        [('rate', 0.5), ('sizes', [1, 2])]
        """
        del import_scope
        return HParams(hparam_def=hparam_def)

    def to_proto(self, export_scope: str | None = None) -> Any:
        """Returns an `HParamDef` with the values.

        Args:
            export_scope: Accepted; has no effect.

        Raises:
            ValueError: A value is neither a number, a boolean nor a string.
        """
        del export_scope
        message = HParamDef()
        for name, (kind, is_list) in self._types.items():
            field = _field_of(name, kind)
            value = getattr(self, name)
            values = [
                item.encode() if isinstance(item, str) else item
                for item in (value if is_list else [value])
            ]
            if is_list:
                getattr(message.hparam[name], f"{field}_list").value.extend(values)
            else:
                setattr(message.hparam[name], f"{field}_value", values[0])
        return message

    def get_model_structure(self) -> Any:
        """Returns the model structure."""
        return self._structure

    def set_model_structure(self, model_structure: Any) -> None:
        """Sets the model structure.

        Args:
            model_structure: Any object.
        """
        self._structure = model_structure

    def add_hparam(self, name: str, value: Any) -> None:
        """Adds a hyperparameter.

        Args:
            name: The name.
            value: The value.

        Raises:
            ValueError: The name is already an attribute, or the value is an empty list.
        """
        if getattr(self, name, None) is not None:
            raise ValueError(
                f"A hyperparameter must have a new name. Received: "
                f"{name!r}, which is taken. Use `set_hparam`."
            )
        is_list = isinstance(value, list | tuple)
        if is_list and not value:
            raise ValueError(
                f"A list of hyperparameters must not be empty. Received: "
                f"{name}={value!r}. Its first value defines the type."
            )
        kind = type(value[0]) if is_list else type(value)
        self._types[name] = (kind, is_list)
        setattr(self, name, value)

    def set_hparam(self, name: str, value: Any) -> None:
        """Sets a hyperparameter to a value of its type.

        Args:
            name: The name.
            value: The value. Integers are converted to floats.

        Raises:
            KeyError: There is no such hyperparameter.
            ValueError: The value has another type.
        """
        setattr(self, name, self._as_type(name, value))

    def _as_type(self, name: str, value: Any) -> Any:
        """Returns a value as the type of a hyperparameter, or raises an error."""
        kind, is_list = self._types[name]
        if is_list != isinstance(value, list | tuple):
            expected = "a list" if is_list else "a single value"
            raise ValueError(f"{name!r} must be {expected}. Received: {value!r}.")
        if is_list:
            return [_cast(name, kind, element) for element in value]
        return _cast(name, kind, value)

    def del_hparam(self, name: str) -> None:
        """Removes a hyperparameter, if it exists."""
        if name in self._types:
            delattr(self, name)
            del self._types[name]

    def parse(self, values: str) -> "HParams":
        """Sets hyperparameters from the text of a command line.

        Args:
            values: Text such as 'rate=0.1,layers=[64,32],layers[1]=16'.

        Returns:
            This object.

        Raises:
            ValueError: The text is malformed, or contains an unknown name.
        """
        types = {name: kind for name, (kind, _) in self._types.items()}
        for name, value in parse_values(values, types).items():
            if isinstance(value, dict):
                changed = list(getattr(self, name))
                for index, element in value.items():
                    changed[index] = element
                value = changed
            self.set_hparam(name, value)
        return self

    def override_from_dict(self, values_dict: Mapping[str, Any]) -> "HParams":
        """Sets hyperparameters by name, and returns this object."""
        for name, value in values_dict.items():
            self.set_hparam(name, value)
        return self

    def parse_json(self, values_json: str) -> "HParams":
        """Sets hyperparameters from a JSON object, and returns this object."""
        return self.override_from_dict(json.loads(values_json))

    def values(self) -> dict[str, Any]:
        """Returns all values by name."""
        return {name: getattr(self, name) for name in self._types}

    def to_json(
        self,
        indent: int | None = None,
        separators: tuple[str, str] | None = None,
        sort_keys: bool = False,
    ) -> str:
        """Returns all values as a JSON object."""
        return json.dumps(
            {n: v for n, v in self.values().items() if not callable(v)},
            indent=indent,
            separators=separators,
            sort_keys=sort_keys,
        )

    def get(self, key: str, default: Any = None) -> Any:
        """Returns the value of a name, or a default.

        Args:
            key: The name.
            default: The value if there is no such hyperparameter. Defaults to `None`.

        Raises:
            ValueError: The default has another type than the hyperparameter.
        """
        if key not in self._types:
            return default
        if default is not None:
            self._as_type(key, default)
        return getattr(self, key)

    def __contains__(self, key: str) -> bool:
        return key in self._types

    def __str__(self) -> str:
        return ",".join(f"{name}={value}" for name, value in self.values().items())

    def __repr__(self) -> str:
        return f"{type(self).__name__}({sorted(self.values().items())})"


# The beginnings of field names, by type. A boolean is also an integer.
_FIELDS = {
    bool: "bool",
    numbers.Integral: "int64",
    str: "bytes",
    bytes: "bytes",
    float: "float",
}


def _field_of(name: str, kind: type) -> str:
    """Returns the beginning of the name of the fields for a type."""
    for base, field in _FIELDS.items():
        if issubclass(kind, base):
            return field
    raise ValueError(
        f"{name!r} must be a number, a boolean or a string. Received: a value of type "
        f"{kind.__name__}. Remove it with `del_hparam`."
    )


def _values_of(message: Any) -> dict[str, Any]:
    """Returns the values of an `HParamDef` by name."""

    def plain(value: Any) -> Any:
        return value.decode() if isinstance(value, bytes) else value

    values = {}
    for name, item in message.hparam.items():
        kind = item.WhichOneof("kind")
        value = getattr(item, kind)
        is_list = kind.endswith("_list")
        values[name] = [*map(plain, value.value)] if is_list else plain(value)
    return values


def parse_values(
    values: str, type_map: Mapping[str, type], ignore_unknown: bool = False
) -> dict[str, Any]:
    """Parses values from the text of a command line.

    Args:
        values: Text such as 'rate=0.1,layers=[64,32]'.
        type_map: The types by name.
        ignore_unknown: Whether to skip other names. Defaults to `False`.

    Returns:
        The values by name, with a dict by position for 'name[1]=2'.

    Raises:
        ValueError: The text is malformed, or contains an unknown name.

    Example:

    >>> parse_values("a=1,b[2]=true", {"a": float, "b": bool})
    {'a': 1.0, 'b': {2: True}}
    """
    parsed: dict[str, Any] = {}
    position = 0
    while position < len(values):
        match = _ASSIGNMENT.match(values, position)
        if match is None:
            raise ValueError(
                "Hyperparameters must be 'name=value', separated by commas. Received: "
                f"{values[position:]!r}"
            )
        position = match.end()
        name = match["name"]
        if name not in type_map:
            if ignore_unknown:
                continue
            raise ValueError(
                f"A name must be one of {sorted(type_map)}. Received: {name!r}"
            )
        kind, index = type_map[name], match["index"]
        if match["list"] is not None and index is not None:
            raise ValueError(
                f"An element of a list must be a single value. Received: {match[0]!r}"
            )
        if match["list"] is not None:
            texts = filter(None, re.split("[ ,]", match["list"]))
            _add(parsed, name, [_read(name, kind, text) for text in texts])
        elif index is not None:
            elements = parsed.setdefault(name, {})
            if not isinstance(elements, dict):
                raise _repeated(name)
            _add(elements, int(index), _read(name, kind, match["value"]))
        else:
            _add(parsed, name, _read(name, kind, match["value"]))
    return parsed


def _add(values: dict[Any, Any], key: Any, value: Any) -> None:
    """Adds the value of a name or index, which must not have one."""
    if key in values:
        raise _repeated(key)
    values[key] = value


def _repeated(key: Any) -> ValueError:
    return ValueError(
        f"A hyperparameter must have one value. Received several of {key!r}. Remove "
        "all except one."
    )


def _read(name: str, kind: type, text: str) -> Any:
    """Parses a value of a type."""
    text = text.strip()
    try:
        if kind is bool:
            return _read_boolean(text)
        return text if kind is type(None) else kind(text)
    except ValueError as error:
        raise ValueError(
            f"{name!r} must be of type {kind.__name__}. Received: {text!r}"
        ) from error


def _read_boolean(text: str) -> bool:
    words = {"true": True, "false": False}
    return words[text.lower()] if text.lower() in words else bool(int(text))


def _cast(name: str, kind: type, value: Any) -> Any:
    """Returns a value as a type, or raises an error if the value would change."""
    if kind is type(None) or type(value) is kind:
        return value
    is_boolean = issubclass(kind, bool), isinstance(value, bool)
    groups = (str, bytes), numbers.Integral, numbers.Number
    changes = any(issubclass(kind, g) and not isinstance(value, g) for g in groups)
    if changes or is_boolean[0] != is_boolean[1]:
        raise ValueError(
            f"{name!r} must be of type {kind.__name__}. Received: {value!r} of "
            f"type {type(value).__name__}."
        )
    return kind(value)
