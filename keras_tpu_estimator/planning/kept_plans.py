"""Plans that a folder keeps for later searches, by program, devices and compiler."""

import dataclasses
import logging
import os
import pickle
from collections.abc import Callable
from typing import Any, Self, TypeVar

from keras_tpu_estimator.base.storage import shared_files, trusted
from keras_tpu_estimator.engine.device.executables import ExecutableKey
from keras_tpu_estimator.files.atomic import commit
from keras_tpu_estimator.planning.errors import CompileError, DoesNotFitError

T = TypeVar("T")

_logger = logging.getLogger("keras_tpu_estimator")


@dataclasses.dataclass(frozen=True)
class KeptPlans:
    """A folder of plans.

    Args:
        folder: A local folder, which only this user can write to.
    """

    folder: str

    @classmethod
    def prepared(cls, folder: str) -> Self:
        """Returns plans in a folder, which is made if it is missing.

        Raises:
            ValueError: It is a URL.
            PermissionError: Other users may write to it.
        """
        folder = trusted.folder_string("--keep", folder)
        os.makedirs(folder, exist_ok=True)
        trusted.check_folder(folder)
        return cls(folder)

    def plan(self, key: ExecutableKey, quick: bool, compiled: Callable[[], T]) -> T:
        """Returns the kept plan of a program, or that of the compiler, and keeps it.

        A program that did not compile or fit raises a `CompileError` with the same text
        again.
        """
        name = f"{key.digest}-quick.plan" if quick else f"{key.digest}.plan"
        path = os.path.join(self.folder, name)
        earlier = _read(path)
        if isinstance(earlier, str):
            raise CompileError(earlier)
        if earlier is not None:
            kept_plan: T = earlier
            return kept_plan
        try:
            plan = compiled()
        except (CompileError, DoesNotFitError) as error:
            self._keep(path, str(error))
            raise
        self._keep(path, plan)
        return plan

    def _keep(self, path: str, value: object) -> None:
        with commit.partial_file(path) as partial:
            with open(partial, "wb") as file:
                pickle.dump(value, file)
            # No other user may write it, whatever the umask is.
            os.chmod(partial, 0o644)
            shared_files.replace(partial, path)


def _read(path: str) -> Any:
    """Returns what a file keeps; `None` if it is missing or damaged."""
    try:
        return pickle.loads(trusted.read(path))
    except FileNotFoundError:
        return None
    except PermissionError:
        raise
    except Exception as error:
        # A damaged pickle raises any error.
        _logger.warning("%s is damaged, and is written again: %s", path, error)
        return None
