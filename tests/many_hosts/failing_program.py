"""Trains and evaluates on hosts of which one meets its fate.

Its argument is the JSON of a `Life`.
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

# Before Keras, so that Keras runs on JAX.
import keras_tpu_estimator as kte  # isort: split

import jax

from keras_tpu_estimator.engine.device import restoring
from keras_tpu_estimator.files.checkpoints import saving
from keras_tpu_estimator.files.directory.save_files import SaveFiles
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
_MEETS = "meets its fate at"


@dataclasses.dataclass(frozen=True)
class Life:
    """How hosts train, and what happens to one of them.

    Attributes:
        model_dir: Its directory.
        steps: The global step to reach. Defaults to 24.
        host: Whom it happens to. Defaults to 0.
        fate: 'kill', 'raise', 'exit' or 'hang'; or 'read slowly', which takes
            longer than hosts wait. Defaults to none.
        phase: During a 'step', a 'save' or an 'evaluation'; at any 'time'; or
            'after' all of that, when others evaluate once more.
        at: The global step of that, or the seconds after the first steps.
        undisturbed: Another directory to do the same in, afterwards.
        differs: What this host has of its own: 'steps', 'model_dir' or
            'layers'. Defaults to nothing.
        pause: Seconds that each loop waits, so that a kill can hit anywhere.
    """

    model_dir: str
    steps: int = 24
    host: int = 0
    fate: str | None = None
    phase: str = "step"
    at: float = 0
    undisturbed: str | None = None
    differs: str | None = None
    pause: float = 0.0

    def as_json(self) -> str:
        return json.dumps(dataclasses.asdict(self))


def main(life: Life) -> None:
    """Trains and evaluates, as far as it comes."""
    kte.initialize()
    here = Here(life.model_dir, jax.process_index(), jax.process_count())
    is_victim = here.host == life.host
    if life.fate and is_victim and life.phase == "save":
        _befall_saves(here.host, life)
    if life.fate == "read slowly" and is_victim:
        _slow_down(restoring, "restored_values")
    estimator = _train(life, here, own=life.differs if is_victim else None)
    if life.phase == "after":
        if is_victim:
            befall(life.fate or "")
        estimator.evaluate(listed(here.share([11, 3])))
    if life.undisturbed:
        alone = Life(life.undisturbed, life.steps)
        _train(alone, dataclasses.replace(here, directory=life.undisturbed))


def _train(life: Life, here: Here, own: str | None = None) -> kte.TPUEstimator:
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
    if life.fate != "read slowly" and life.fate and here.host == life.host:
        meet = functools.partial(befall, life.fate)
        if life.phase == "time":
            start = threading.Timer(life.at, meet).start
            hooks["step"].append(AtStep(0, lambda _: start()))
        else:
            hooks[life.phase].append(AtStep(life.at, lambda _: meet()))
    if life.pause:
        hooks["step"].append(_Pause(life.pause))
    kte.train_and_evaluate(
        estimator,
        kte.TrainSpec(
            dealt,
            max_steps=life.steps + (4 if own == "steps" else 0),
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


def befall(fate: str) -> None:
    """The failure of a host, and its time."""
    print(f"{_MEETS} {time.time()}", flush=True)
    if fate == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif fate == "exit":
        sys.exit(EXIT_CODE)
    elif fate == "hang":
        time.sleep(_LONG_SECS)
    raise OSError("There is no such luck.")


def time_of_fate(lines: list[str]) -> float:
    """When it was, by what a host wrote."""
    (told,) = (line for line in lines if line.startswith(_MEETS))
    return float(told.removeprefix(_MEETS))


def _befall_saves(host: int, life: Life) -> None:
    """Has a fate happen while a checkpoint is written, in the background.

    The chief writes it, and each host its position in the input.
    """
    room: Any = position_saver if host else saving
    name = "write_position" if host else "save_into"
    save: Callable[..., Any] = getattr(room, name)

    def saves(saved: SaveFiles, *arguments: Any, **settings: Any) -> Any:
        step = saved.prefix.rpartition("-")[2]
        if int(step) >= life.at:
            befall(life.fate or "")
        return save(saved, *arguments, **settings)

    setattr(room, name, saves)


def _slow_down(room: Any, name: str) -> None:
    """Has a function take three times as long as hosts wait."""
    does: Callable[..., Any] = getattr(room, name)

    def does_slowly(*arguments: Any, **settings: Any) -> Any:
        time.sleep(3 * TIMEOUT_SECS)
        return does(*arguments, **settings)

    setattr(room, name, does_slowly)


class _Pause(kte.hooks.SessionRunHook):
    def __init__(self, secs: float):
        self._secs = secs

    def after_run(self, run_context, run_values):
        time.sleep(self._secs)


if __name__ == "__main__":
    logging.basicConfig(level=logging.WARNING)
    main(Life(**json.loads(sys.argv[1])))
