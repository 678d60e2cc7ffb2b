"""The names that Python and NumPy have removed since 2018.

TensorFlow 1 scripts import modules that add these names to the installed ones. Imports
in other modules do not change.
"""

import ast
import base64
import collections
import collections.abc
import functools
import importlib
import inspect
import math
import time
import types
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from keras_tpu_estimator.tf1.shims import old_numpy
from keras_tpu_estimator.tf1.shims.stand_ins import StandIn, stored

# Names of scalars and constants that NumPy 1.24 and 2.0 removed, and their
# replacements.
_RENAMED = {
    "Inf": "inf",
    "Infinity": "inf",
    "NAN": "nan",
    "NINF": "-inf",
    "NaN": "nan",
    "PINF": "inf",
    "alltrue": "all",
    "bool8": "bool_",
    "bytes0": "bytes_",
    "cfloat": "complex128",
    "clongfloat": "clongdouble",
    "complex_": "complex128",
    "cumproduct": "cumprod",
    "float_": "float64",
    "infty": "inf",
    "int0": "intp",
    "longcomplex": "clongdouble",
    "longfloat": "longdouble",
    "mat": "asmatrix",
    "object0": "object_",
    "product": "prod",
    "rank": "ndim",
    "round_": "round",
    "row_stack": "vstack",
    "singlecomplex": "complex64",
    "sometrue": "any",
    "str0": "str_",
    "string_": "bytes_",
    "typeDict": "sctypeDict",
    "uint0": "uintp",
    "unicode_": "str_",
    "void0": "void",
}
_BUILTIN = {
    "bool": bool,
    "complex": complex,
    "float": float,
    "int": int,
    "long": int,
    "object": object,
    "safe_eval": ast.literal_eval,
    "str": str,
    "unicode": str,
}
_WARNINGS = (
    "AxisError",
    "ComplexWarning",
    "RankWarning",
    "TooHardError",
    "VisibleDeprecationWarning",
)

# A name that a module does not have.
_ABSENT = object()

ArgSpec = collections.namedtuple("ArgSpec", ["args", "varargs", "keywords", "defaults"])


class OldModule(StandIn):
    """A module that adds removed names to an installed one.

    Other names are read from the installed module, and all attributes are set on it.
    An added name that was set can be restored, as the end of a `mock.patch` does.
    """

    def __init__(self, module: types.ModuleType, names: Mapping[str, object]):
        super().__init__(module.__name__, module.__doc__)
        attributes = stored(self)
        copied = {"__spec__", "__loader__", "__package__"} & {*vars(module)}
        attributes.update({name: vars(module)[name] for name in copied})
        attributes.update(names)
        attributes["_kte_module"] = module
        attributes["_kte_names"], attributes["_kte_hidden"] = dict(names), {}

    def __getattr__(self, name: str) -> Any:
        """Returns the installed module's attribute of this name."""
        return getattr(self._kte_module, name)

    def __setattr__(self, name: str, value: object) -> None:
        """Sets the attribute of the installed module, as patches of libraries do."""
        if name in self._kte_hidden and value is self._kte_names[name]:
            self._restore(name)
        else:
            self._hide(name)
            setattr(self._kte_module, name, value)

    def __delattr__(self, name: str) -> None:
        """Deletes the attribute of the installed module, and an added name."""
        added = name in self._kte_names and name in stored(self)
        self._hide(name)
        if not added or name in vars(self._kte_module):
            delattr(self._kte_module, name)

    def _hide(self, name: str) -> None:
        """Hides an added name, so that the installed module's attribute is read."""
        if stored(self).pop(name, None) is not None and name in self._kte_names:
            self._kte_hidden[name] = vars(self._kte_module).get(name, _ABSENT)

    def _restore(self, name: str) -> None:
        """Undoes `_hide`, and what happened to the installed module's attribute."""
        original = self._kte_hidden.pop(name)
        stored(self)[name] = self._kte_names[name]
        if original is not _ABSENT:
            setattr(self._kte_module, name, original)
        elif name in vars(self._kte_module):
            delattr(self._kte_module, name)

    def __dir__(self) -> list[str]:
        """Returns all names."""
        names = {name for name in stored(self) if not name.startswith("_kte_")}
        return sorted({*dir(self._kte_module)} | names)

    def __reduce__(self) -> Any:
        """Pickles the module by its name."""
        return _module_in_2018, (self._kte_module.__name__,)


def installed(module: types.ModuleType) -> types.ModuleType:
    """Returns the installed module behind an `OldModule`, or the module itself."""
    return stored(module)["_kte_module"] if isinstance(module, OldModule) else module


def as_in_2018(module: Any) -> Any:
    """Returns a module with its names of 2018, or itself if no name was removed.

    Each call returns the same `OldModule`. The installed module does not change.
    """
    is_known = isinstance(module, types.ModuleType) and (
        module.__name__ in _NAMES and not isinstance(module, OldModule)
    )
    return _old_module(module) if is_known else module


def _module_in_2018(name: str) -> Any:
    """Imports a module as scripts do."""
    return as_in_2018(importlib.import_module(name))


@functools.cache
def _old_module(module: types.ModuleType) -> OldModule:
    return OldModule(module, _NAMES[module.__name__]())


def _getargspec(func: Callable[..., Any]) -> ArgSpec:
    """Returns the result of `inspect.getargspec` before Python 3.11."""
    spec = inspect.getfullargspec(func)
    if spec.kwonlyargs or spec.annotations:
        raise ValueError(
            "`func` must have neither keyword-only arguments nor annotations "
            f"for inspect.getargspec. Received: {func}. Call "
            "inspect.getfullargspec instead."
        )
    return ArgSpec(*spec[:4])


def _getmodule(object: Any, _filename: str | None = None) -> Any:  # noqa: A002
    """Returns the module of an object, as the script has imported it."""
    return as_in_2018(inspect.getmodule(object, _filename))


def _of_collections() -> dict[str, object]:
    return {name: getattr(collections.abc, name) for name in collections.abc.__all__}


def _of_inspect() -> dict[str, object]:
    return {"ArgSpec": ArgSpec, "getargspec": _getargspec, "getmodule": _getmodule}


def _of_numpy() -> dict[str, object]:
    renamed = {
        old: -np.inf if new == "-inf" else getattr(np, new)
        for old, new in _RENAMED.items()
    }
    errors = {name: getattr(np.exceptions, name) for name in _WARNINGS}
    functions = {
        name: function
        for name, function in vars(old_numpy).items()
        if inspect.isfunction(function) and function.__module__ == old_numpy.__name__
    }
    return {**renamed, **errors, **_BUILTIN, **functions, "trapz": np.trapezoid}


_NAMES: dict[str, Callable[[], Mapping[str, object]]] = {
    "base64": lambda: {
        "decodestring": base64.decodebytes,
        "encodestring": base64.encodebytes,
    },
    "collections": _of_collections,
    "fractions": lambda: {"gcd": math.gcd},
    "inspect": _of_inspect,
    "numpy": _of_numpy,
    "time": lambda: {"clock": time.perf_counter},
}


_MODULE = "tf_keras.src.layers.normalization.batch_normalization"
_NAME = "_moments"


def accept_overrides_without_mask() -> None:
    """Calls overrides of `_moments` with the arguments that they accept.

    Only overrides in subclasses that are defined later change. Another call has no
    effect.
    """
    base = importlib.import_module(_MODULE).BatchNormalizationBase
    if "__init_subclass__" in vars(base):
        return

    def adapt(cls: type, /, **kwargs: Any) -> None:
        super(base, cls).__init_subclass__(**kwargs)
        moments = vars(cls).get(_NAME)
        if inspect.isfunction(moments) and not _takes_mask(moments):
            setattr(cls, _NAME, _without_mask(moments))

    base.__init_subclass__ = classmethod(adapt)


def fuse_only_images() -> None:
    """Lets TF1's batch normalization fuse inputs of rank 4 only, as in TensorFlow 1.15.

    Fused, the moving variance is larger. tf-keras also fuses volumes. Another call has
    no effect.
    """
    # The layer of TensorFlow 2 is another class.
    layers = importlib.import_module("tf_keras.api._v1.keras.layers")
    build = layers.BatchNormalization.build
    if hasattr(build, "__wrapped__"):
        return

    @functools.wraps(build)
    def build_as_before(layer: Any, input_shape: Any) -> None:
        if len(input_shape) != 4:
            layer.fused = False
        build(layer, input_shape)

    layers.BatchNormalization.build = build_as_before


def _takes_mask(function: Callable[..., Any]) -> bool:
    parameters = inspect.signature(function).parameters
    kinds = {parameter.kind for parameter in parameters.values()}
    return "mask" in parameters or inspect.Parameter.VAR_KEYWORD in kinds


def _without_mask(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def moments(*args: Any, mask: Any = None, **kwargs: Any) -> Any:
        if mask is not None:
            raise TypeError(
                f"`{function.__qualname__}` must accept `mask`, because the "
                "input of the layer has a mask. Add `mask=None` to its "
                "parameters."
            )
        return function(*args, **kwargs)

    return moments
