"""Where a loop stands, as hooks see it."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from keras_tpu_estimator.program.store import GLOBAL_STEP
from keras_tpu_estimator.program.store import Values
from keras_tpu_estimator.summary.collecting import Collected


class Progress:
    """What hooks may fetch from a loop, kept up to date by it.

    Attributes:
        values: The variables' values by path.
        step: The global step.
        loss: The mean loss of the last run.
        summaries: What `model_fn` recorded in the last step, on the devices.
    """

    def __init__(self, values: Values):
        self.values = values
        self.step = int(values[GLOBAL_STEP])
        self.loss: Any = np.float32(np.nan)
        self.summaries: Sequence[Collected] = ()

    def fetch(self, name: str) -> Any:
        """The value of `"global_step"`, `"loss"` or a variable's path."""
        if name == "loss":
            self.loss = np.asarray(self.loss)
            return self.loss
        if name == GLOBAL_STEP:
            return np.int64(self.step)
        if name not in self.values:
            raise KeyError(
                f"Nothing to fetch is called {name!r}. Expected 'loss', "
                f"'global_step' or one of {sorted(self.values)}."
            )
        return self.values[name]
