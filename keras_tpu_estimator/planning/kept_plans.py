"""Plans that a folder keeps for later searches, by program, devices and compiler."""

import contextlib
import dataclasses
import os
import pickle
from collections.abc import Callable
from typing import TypeVar

from keras_tpu_estimator.base.storage import shared_files, trusted
from keras_tpu_estimator.engine.device.executables import ExecutableKey
from keras_tpu_estimator.files.atomic import commit
from keras_tpu_estimator.planning.errors import CompileError, DoesNotFitError

T = TypeVar("T")


@dataclasses.dataclass(frozen=True)
class KeptPlans:
    """A folder of plans.

    Args:
        folder: A local folder, which only this user can write to.
    """

    folder: str

    def __post_init__(self) -> None:
        trusted.folder_string("`--keep`", self.folder)

    def plan(self, key: ExecutableKey, quick: bool, compiled: Callable[[], T]) -> T:
        """Returns the kept plan of a program, or that of the compiler, and keeps it.

        A program that did not compile or fit raises a `CompileError` with the same text
        again.
        """
        name = f"{key.digest}-quick.plan" if quick else f"{key.digest}.plan"
        path = os.path.join(self.folder, name)
        with contextlib.suppress(FileNotFoundError):
            earlier = pickle.loads(trusted.read(path))
            if isinstance(earlier, str):
                raise CompileError(earlier)
            plan: T = earlier
            return plan
        try:
            plan = compiled()
        except (CompileError, DoesNotFitError) as error:
            self._keep(path, str(error))
            raise
        self._keep(path, plan)
        return plan

    def _keep(self, path: str, value: object) -> None:
        os.makedirs(self.folder, exist_ok=True)
        with commit.partial_file(path) as partial:
            with open(partial, "wb") as file:
                pickle.dump(value, file)
            # No other user may write it, whatever the umask is.
            os.chmod(partial, 0o644)
            shared_files.replace(partial, path)
