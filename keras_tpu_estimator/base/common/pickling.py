"""The pickling of records, functions and errors."""

import copyreg
import dataclasses
import pickle
import sys
import traceback
from typing import Any

from keras_tpu_estimator.base.common.shown import shown

# These copy functions, or pickle their code.
_OTHERS = ("cloudpickle", "copy", "dill")


def fields_of(record: Any) -> dict[str, Any]:
    """Returns the fields of a record, without cached properties."""
    names = [field.name for field in dataclasses.fields(record)]
    return {name: getattr(record, name) for name in names}


def reduce_error(error: BaseException) -> tuple[Any, ...]:
    """Returns an error's `__reduce__` that does not call the class with the message."""
    return copyreg.__newobj__, (type(error), *error.args), vars(error)  # type: ignore[attr-defined]


def check_can_be_found(name: str, function: object) -> None:
    """Checks that pickle can find the user's function `name`; accepts other objects."""
    if not hasattr(function, "__qualname__") or _has_code_pickled():
        return
    module = sys.modules.get(getattr(function, "__module__", None) or "")
    member: object = module
    for part in function.__qualname__.split("."):
        member = getattr(member, part, None)
    if member is not function:
        raise pickle.PicklingError(
            f"`{name}` must be a function at the top level of a module, where "
            f"pickle can find it. Received: {shown(function)}. Define it "
            "there, or pickle the estimator with cloudpickle."
        )


def _has_code_pickled() -> bool:
    """Returns whether the caller's library also pickles local functions."""
    return any(
        set(_OTHERS) & set(frame.f_globals.get("__name__", "").split("."))
        for frame, _ in traceback.walk_stack(sys._getframe(1))
    )
