"""Pickling of records, of functions in them, and of errors."""

import copyreg
import dataclasses
import pickle
import sys
import traceback
from typing import Any

from keras_tpu_estimator.ground.base.shown import shown

# They copy functions, or write down their code.
_OTHERS = ("cloudpickle", "copy", "dill")


def fields_of(record: Any) -> dict[str, Any]:
    """The fields of a record, without what it has computed and keeps."""
    names = [field.name for field in dataclasses.fields(record)]
    return {name: getattr(record, name) for name in names}


def reduce_error(error: BaseException) -> tuple[Any, ...]:
    """Pickles an error by its message and attributes: its `__reduce__`.

    Python would call the class with the message in place of its arguments.
    """
    return copyreg.__newobj__, (type(error), *error.args), vars(error)  # type: ignore[attr-defined]


def check_can_be_found(name: str, function: object) -> None:
    """Checks that a function which is being pickled can be found again.

    Args:
        name: What messages call it.
        function: A function, or any other object, which is none of ours.

    Raises:
        pickle.PicklingError: It has no name to be found by.
    """
    if not hasattr(function, "__qualname__") or _has_code_pickled():
        return
    module = sys.modules.get(getattr(function, "__module__", None) or "")
    found: object = module
    for part in function.__qualname__.split("."):
        found = getattr(found, part, None)
    if found is not function:
        raise pickle.PicklingError(
            f"`{name}` should be a function that pickle finds by its name, at "
            f"the top level of a module. Received: {shown(function)}. Define "
            "it there, or pickle the estimator with cloudpickle."
        )


def _has_code_pickled() -> bool:
    """Whether whoever pickles now takes functions without a name."""
    return any(
        set(_OTHERS) & set(frame.f_globals.get("__name__", "").split("."))
        for frame, _ in traceback.walk_stack(sys._getframe(1))
    )
