"""Scripts that wait for something that a comparison does not make."""

import contextlib
import threading
import time
from collections.abc import Iterator
from typing import Any

from keras_tpu_estimator.runs import call_receiver

# A script that sleeps so often between two calls waits.
_MOST_SLEEPS = 100


class WaitingError(BaseException):
    """Ends a script that waits; no library catches this class."""


@contextlib.contextmanager
def without_waiting(recording: Any) -> Iterator[None]:
    """Makes `time.sleep` return at once in a script that has trained.

    Scripts sleep while they wait for the checkpoints of another process.
    """
    sleep = time.sleep
    sleeps: list[Any] = []

    def counted(seconds: Any) -> None:
        is_main = threading.current_thread() is threading.main_thread()
        is_of_script = is_main and call_receiver.is_receiving()
        if not (is_of_script and recording.has_trained):
            sleep(seconds)
            return
        if sleeps[:1] != [recording.calls]:
            sleeps[:] = [recording.calls]
        sleeps.append(seconds)
        if len(sleeps) > _MOST_SLEEPS:
            raise WaitingError(
                "The script waits for something that a comparison does not make, such "
                "as a new checkpoint. Pass a `model_dir` that contains one; its values "
                "are not used."
            )

    time.sleep = counted
    try:
        yield
    finally:
        time.sleep = sleep
