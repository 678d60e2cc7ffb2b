"""Scripts that wait for something that a comparison does not make."""

import collections
import contextlib
import threading
import time
from collections.abc import Iterator
from typing import Any
from unittest import mock

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
    # The number of sleeps of the script after each of its calls.
    counts: collections.Counter[int] = collections.Counter()

    def sleep_of_script(seconds: float, /) -> None:
        is_main = threading.current_thread() is threading.main_thread()
        is_of_script = is_main and call_receiver.is_receiving()
        if not (is_of_script and recording.has_trained):
            sleep(seconds)
            return
        # This raises the errors of `time.sleep` for invalid arguments.
        sleep(min(seconds, 0))
        counts[recording.calls] += 1
        if counts[recording.calls] > _MOST_SLEEPS:
            raise WaitingError(
                "The script waits for something that a comparison does not make, such "
                "as a new checkpoint. Pass a `model_dir` that contains one; its values "
                "are not used."
            )

    with mock.patch.object(time, "sleep", sleep_of_script):
        yield
