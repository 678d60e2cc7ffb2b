"""Plans that a folder keeps for later searches, by program, devices and compiler."""

import contextlib
import dataclasses
import os
import pickle
from collections.abc import Callable
from typing import TYPE_CHECKING

from keras_tpu_estimator.base.storage import trusted
from keras_tpu_estimator.engine.device.executables import ExecutableKey
from keras_tpu_estimator.planning.errors import CompileError, DoesNotFitError

if TYPE_CHECKING:
    from keras_tpu_estimator.planning.plans import Plan


@dataclasses.dataclass(frozen=True)
class KeptPlans:
    """A folder of plans.

    Args:
        folder: A local folder, which only this user can write to.
    """

    folder: str

    def __post_init__(self) -> None:
        trusted.folder_string("`--keep`", self.folder)

    def plan(
        self, key: ExecutableKey, quick: bool, compiled: Callable[[], "Plan"]
    ) -> "Plan":
        """Returns the kept plan of a program, or that of the compiler, and keeps it.

        A program that did not compile or fit raises a `CompileError` with the same text
        again.
        """
        name = f"{key.digest}-quick.plan" if quick else f"{key.digest}.plan"
        path = os.path.join(self.folder, name)
        with contextlib.suppress(FileNotFoundError):
            kept = pickle.loads(trusted.read(path))
            if isinstance(kept, str):
                raise CompileError(kept)
            return kept
        try:
            plan = compiled()
        except (CompileError, DoesNotFitError) as error:
            self._keep(path, str(error))
            raise
        self._keep(path, plan)
        return plan

    def _keep(self, path: str, value: object) -> None:
        os.makedirs(self.folder, exist_ok=True)
        # Another search may read it meanwhile.
        partial = f"{path}.{os.getpid()}"
        with open(partial, "wb") as file:
            pickle.dump(value, file)
        os.replace(partial, path)
