"""Trains and evaluates on several hosts, one of which fails.

Its argument is the JSON of a `Scenario`.
"""

import dataclasses
import functools
import json
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

# Import Keras after this package, so that Keras runs on JAX.
import keras_tpu_estimator as kte  # isort: split

import jax

from keras_tpu_estimator.checkpoints import SaveFiles
from keras_tpu_estimator.engine.device import restoring
from keras_tpu_estimator.files.checkpoints import saving
from keras_tpu_estimator.runs import position_saver
from tests.many_hosts.problems import (
    AtStep,
    Here,
    dealt,
    dropout,
    estimator_of,
    listed,
    model_fn_of,
)

STEPS_PER_SAVE = 4
TIMEOUT_SECS = 5
EXIT_CODE = 3
_LONG_SECS = 600
_FAILS = "fails at"


@dataclasses.dataclass(frozen=True)
class Scenario:
    """The training of several hosts, and the failure of one of them.

    Attributes:
        model_dir: The directory.
        steps: The global step to reach. Defaults to 24.
        host: The number of the failing host. Defaults to 0.
        failure: 'kill', 'raise', 'exit' or 'hang'; or 'read slowly', which takes longer
            than the time limit of hosts. Defaults to none.
        phase: When the host fails: in a 'step', a 'save' or an 'evaluation', at any
            'time', or 'after' the training, when the other hosts evaluate again.
        at: The global step of the failure, or the seconds after the first steps.
        undisturbed: A directory for a second training without failures.
        differs: The argument that is different on this host: 'steps', 'model_dir' or
            'layers'. Defaults to none.
        pause: The seconds that each loop waits, so that a kill can happen anywhere.
    """

    model_dir: str
    steps: int = 24
    host: int = 0
    failure: str | None = None
    phase: str = "step"
    at: float = 0
    undisturbed: str | None = None
    differs: str | None = None
    pause: float = 0.0

    def as_json(self) -> str:
        return json.dumps(dataclasses.asdict(self))


def main(scenario: Scenario) -> None:
    """Trains and evaluates until the failure."""
    kte.initialize()
    here = Here(scenario.model_dir, jax.process_index(), jax.process_count())
    is_failing = here.host == scenario.host
    if scenario.failure and is_failing and scenario.phase == "save":
        _fail_in_saves(here.host, scenario)
    if scenario.failure == "read slowly" and is_failing:
        _slow_down(restoring, "restored_values")
    estimator = _train(scenario, here, own=scenario.differs if is_failing else None)
    if scenario.phase == "after":
        if is_failing:
            fail(scenario.failure or "")
        estimator.evaluate(listed(here.share([11, 3])))
    if scenario.undisturbed:
        alone = Scenario(scenario.undisturbed, scenario.steps)
        _train(alone, dataclasses.replace(here, directory=scenario.undisturbed))


def _train(scenario: Scenario, here: Here, own: str | None = None) -> kte.TPUEstimator:
    suffix = "-other" if own == "model_dir" else ""
    estimator = estimator_of(
        here.directory + suffix,
        model_fn_of(dropout, width=5 if own == "layers" else 4),
        iterations=2,
        save_checkpoints_steps=STEPS_PER_SAVE,
        host_timeout_secs=TIMEOUT_SECS,
    )
    hooks: dict[str, list[Any]] = {
        phase: [] for phase in ("step", "save", "evaluation", "after")
    }
    if (
        scenario.failure != "read slowly"
        and scenario.failure
        and here.host == scenario.host
    ):
        fail_here = functools.partial(fail, scenario.failure)
        if scenario.phase == "time":
            start = threading.Timer(scenario.at, fail_here).start
            hooks["step"].append(AtStep(0, lambda _: start()))
        else:
            hooks[scenario.phase].append(AtStep(scenario.at, lambda _: fail_here()))
    if scenario.pause:
        hooks["step"].append(_Pause(scenario.pause))
    kte.train_and_evaluate(
        estimator,
        kte.TrainSpec(
            dealt,
            max_steps=scenario.steps + (4 if own == "steps" else 0),
            hooks=hooks["step"],
        ),
        kte.EvalSpec(
            listed(here.share([11, 3])),
            steps=None,
            throttle_secs=0,
            hooks=hooks["evaluation"],
        ),
    )
    return estimator


def fail(failure: str) -> None:
    """Prints the time, and fails."""
    print(f"{_FAILS} {time.time()}", flush=True)
    if failure == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif failure == "exit":
        sys.exit(EXIT_CODE)
    elif failure == "hang":
        time.sleep(_LONG_SECS)
    raise OSError("This host fails.")


def time_of_failure(lines: list[str]) -> float:
    """Returns the time of the failure in the output of a host."""
    (line,) = (line for line in lines if line.startswith(_FAILS))
    return float(line.removeprefix(_FAILS))


def _fail_in_saves(host: int, scenario: Scenario) -> None:
    """Makes a host fail while it writes a checkpoint in the background.

    The chief writes the checkpoint, and each host its iterator state.
    """
    module: Any = position_saver if host else saving
    name = "write_position" if host else "save_into"
    save: Callable[..., Any] = getattr(module, name)

    def saves(saved: SaveFiles, *arguments: Any, **settings: Any) -> Any:
        step = saved.prefix.rpartition("-")[2]
        if int(step) >= scenario.at:
            fail(scenario.failure or "")
        return save(saved, *arguments, **settings)

    setattr(module, name, saves)


def _slow_down(module: Any, name: str) -> None:
    """Makes a function take three times the time limit of hosts."""
    does: Callable[..., Any] = getattr(module, name)

    def does_slowly(*arguments: Any, **settings: Any) -> Any:
        time.sleep(3 * TIMEOUT_SECS)
        return does(*arguments, **settings)

    setattr(module, name, does_slowly)


class _Pause(kte.hooks.SessionRunHook):
    def __init__(self, secs: float):
        self._secs = secs

    def after_run(self, run_context, run_values):
        time.sleep(self._secs)


if __name__ == "__main__":
    logging.basicConfig(level=logging.WARNING)
    main(Scenario(**json.loads(sys.argv[1])))
