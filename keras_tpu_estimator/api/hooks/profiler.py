"""A hook that profiles single runs of the device loop."""

import os
import time
from collections.abc import Iterable

import jax

from keras_tpu_estimator.api.hooks.session import Session
from keras_tpu_estimator.api.hooks.session_run_hook import (
    SessionRunContext,
    SessionRunHook,
    SessionRunValues,
)
from keras_tpu_estimator.api.hooks.timer import SecondOrStepTimer
from keras_tpu_estimator.base.common.types import PathLike
from keras_tpu_estimator.base.storage.paths import is_url


class ProfilerHook(SessionRunHook):
    """A hook that periodically profiles one run of the device loop.

    The first run, which compiles, is skipped. A run that starts at a step is
    written by `jax.profiler` to `plugins/profile/<time>_step_<step>/` in the
    directory, for TensorBoard's profile page and Perfetto. A process makes one
    trace at a time. `evaluate` and `predict`, which do not count steps, write
    one profile, of their second run. The counterpart of
    `tf.compat.v1.train.ProfilerHook`.

    Args:
        save_steps: Steps between profiles. Defaults to `None`.
        save_secs: Seconds between profiles. Defaults to `None`.
        output_dir: The directory to write to. Defaults to the working
            directory.
        show_dataflow: Accepted; has no effect.
        show_memory: Accepted; has no effect.

    Raises:
        ValueError: Not exactly one interval is given, or the directory is a
            URL.

    Example:

    >>> import tempfile
    >>> import keras_tpu_estimator as kte
    >>> hook = kte.hooks.ProfilerHook(1000, output_dir=tempfile.mkdtemp())
    """

    def __init__(
        self,
        save_steps: int | None = None,
        save_secs: float | None = None,
        output_dir: PathLike = "",
        show_dataflow: bool = True,
        show_memory: bool = False,
    ):
        del show_dataflow, show_memory
        self._timer = SecondOrStepTimer(save_secs, save_steps)
        self._output_dir = os.fsdecode(output_dir) or os.curdir
        if is_url(self._output_dir):
            raise ValueError(
                "`output_dir` must be a local directory, because JAX writes "
                f"profiles there. Received: {output_dir!r}. Pass a local "
                "directory, and copy it afterwards."
            )
        self._is_tracing = False

    def due_steps(self, start: int) -> Iterable[int]:
        """Returns the steps at which a profile begins, if it counts steps."""
        return self._timer.steps_from(start + 1)

    def begin(self) -> None:
        """Starts the interval."""
        # After an error in a run, this hook's `end` was not called.
        self._stop()
        self._timer.reset()
        self._has_run = False

    def before_run(self, run_context: SessionRunContext) -> None:
        """Starts a trace if the interval has passed."""
        step = run_context.session.results.step
        if not self._has_run or not self._timer.should_trigger_for_step(step):
            return
        self._timer.update_last_triggered_step(step)
        # The trace must not contain the previous run.
        run_context.session.wait()
        jax.profiler.start_trace(self._output_dir, profiler_options=_options(step))
        self._is_tracing = True

    def after_run(
        self, run_context: SessionRunContext, run_values: SessionRunValues
    ) -> None:
        """Writes the trace."""
        del run_values
        if self._is_tracing:
            run_context.session.wait()
        self._stop()
        self._has_run = True

    def end(self, session: Session) -> None:
        """Stops a trace whose run found no more input."""
        del session
        self._stop()

    def _stop(self) -> None:
        if self._is_tracing:
            self._is_tracing = False
            jax.profiler.stop_trace()


def _options(step: int) -> jax.profiler.ProfileOptions:
    """Returns options that give two traces of one second separate folders; JAX versions
    without such an option name the folder by the second.
    """
    options = jax.profiler.ProfileOptions()
    if hasattr(options, "session_id"):
        now = time.strftime("%Y_%m_%d_%H_%M_%S")
        options.session_id = f"{now}_step_{step}"
    return options
