"""A training in several processes, some of which are interrupted at random moments.

Its argument is the JSON of a `Job`.
"""

import dataclasses
import json
import logging
import os
import pathlib
import random
import signal
import sys
import threading
import time
from typing import Any

# Import Keras after this package, so that Keras runs on JAX.
import keras_tpu_estimator as kte  # isort: split

import jax

from keras_tpu_estimator.base.hosts.parent_process import restarts
from tests.many_hosts.problems import AtStep, batch_of, dropout, model_fn_of

# Two, three and four processes divide it evenly.
BATCH = 12
STEPS_PER_SAVE = 4
INTERRUPTED = "interrupted by"
_TIMEOUT_SECS = 5
_LATEST_SECS = 0.3
_PAUSE = 0.05
# The signals that its supervisor receives if the host itself is interrupted.
_OF_HOSTS = {
    "lost host": signal.SIGKILL,
    "stopped host": signal.SIGSTOP,
    "preempted host": signal.SIGTERM,
}


@dataclasses.dataclass(frozen=True)
class Job:
    """The training of a job, and the interruption of each of its starts.

    Attributes:
        model_dir: The directory.
        steps: The last step.
        interruptions: By start: the process, the name of a signal or another cause,
            and the step that it has reached before.
        has_dropout: Whether there are random numbers, which depend on the number of
            processes. Defaults to `True`.
    """

    model_dir: str
    steps: int
    interruptions: tuple[tuple[int, str, int], ...] = ()
    has_dropout: bool = True

    @property
    def cut_file(self) -> str:
        """The file that cuts the connections between supervisors."""
        return f"{self.model_dir}-cut"

    def as_json(self) -> str:
        return json.dumps(dataclasses.asdict(self))


class _Interruption(kte.hooks.SessionRunHook):
    """Interrupts this process a moment after a step, in any state."""

    def __init__(self, cause: str, step: int, cut_file: str):
        self._cause = cause
        self._cut_file = cut_file
        self._at_step = AtStep(step, self._start)
        self._is_full = False

    def after_run(self, run_context, run_values):
        self._at_step.after_run(run_context, run_values)
        if self._is_full:
            raise OSError(28, "No space left on device")

    def _start(self, run_context: Any) -> None:
        del run_context
        secs = random.uniform(0, _LATEST_SECS)
        threading.Timer(secs, self._interrupt).start()

    def _interrupt(self) -> None:
        sys.stdout.write(f"\n{INTERRUPTED} {self._cause}\n")
        sys.stdout.flush()
        if self._cause == "full disk":
            self._is_full = True
        elif self._cause == "cut connection":
            pathlib.Path(self._cut_file).touch()
        elif self._cause in _OF_HOSTS:
            # The parent of this process is the supervisor of its host.
            os.kill(os.getppid(), _OF_HOSTS[self._cause])
            if self._cause == "stopped host":
                # All processes of a host stop.
                os.kill(os.getpid(), signal.SIGSTOP)
        else:
            os.kill(os.getpid(), signal.Signals[self._cause])


class _Pause(kte.hooks.SessionRunHook):
    def after_run(self, run_context, run_values):
        time.sleep(_PAUSE)


def input_fn(params):
    """Yields batches with equal examples for any number of processes."""
    _, call, calls, _ = params["context"].current_input_fn_deployment()
    share, step = BATCH // calls, 0
    while True:
        first = BATCH * step + call * share
        yield batch_of([*range(first, first + share)])
        step += 1


def main(job: Job) -> None:
    """Trains until the last step, or an interruption."""
    kte.initialize()
    hooks: list[Any] = [_Pause()]
    start = restarts() or 0
    if start < len(job.interruptions):
        process, cause, step = job.interruptions[start]
        if process == jax.process_index():
            hooks.append(_Interruption(cause, step, job.cut_file))
    estimator = kte.TPUEstimator(
        model_fn_of(dropout if job.has_dropout else None),
        config=kte.RunConfig(
            model_dir=job.model_dir,
            tpu_config=kte.TPUConfig(iterations_per_loop=2),
            tf_random_seed=7,
            save_checkpoints_steps=STEPS_PER_SAVE,
            log_step_count_steps=2,
            host_timeout_secs=_TIMEOUT_SECS,
            metric_writers=["jsonl"],
        ),
        train_batch_size=BATCH,
    )
    estimator.train(input_fn, max_steps=job.steps, hooks=hooks)


if __name__ == "__main__":
    logging.basicConfig(level=logging.WARNING)
    main(Job(**json.loads(sys.argv[1])))
