"""Measures how much code a reader must follow: `python -m tests.drawing`.

Rooms, the arrows between them and floors are those of `tests/test_layering.py`. A call
enters a file if one of the file's functions runs, on any thread. The files are counted
for a complete `train` call that has run once before, and for one run of the loop in the
middle of that call, which is the host's work for a step.
"""

import collections
import logging
import pathlib
import sys
import tempfile
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

import numpy as np

import keras_tpu_estimator as kte
from tests import test_layering
from tests.helpers import linear, model_fn_of

PACKAGE = test_layering.PACKAGE
# The number of runs in a call, and the run in the middle that is traced.
RUNS, MIDDLE = 9, 5


def entered(action: Callable[[], object]) -> set[pathlib.Path]:
    """The files of the package that an action enters."""
    files = set()

    def note(frame: FrameType, event: str, argument: Any) -> None:
        if event == "call":
            files.add(frame.f_code.co_filename)

    threading.setprofile(note)
    sys.setprofile(note)
    try:
        action()
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    paths = map(pathlib.Path, files)
    return {path for path in paths if path.is_relative_to(PACKAGE)}


class Middle(kte.hooks.SessionRunHook):
    """Traces the host's work from the end of one run to the end of the next."""

    def __init__(self) -> None:
        self.runs = 0
        self.files: set[str] = set()

    def after_run(self, context: Any, values: Any) -> None:
        """Starts or stops the trace."""
        self.runs += 1
        if self.runs == MIDDLE:
            sys.setprofile(self._note)
        elif self.runs == MIDDLE + 1:
            sys.setprofile(None)

    def _note(self, frame: FrameType, event: str, argument: Any) -> None:
        if event == "call":
            self.files.add(frame.f_code.co_filename)


def report(title: str, files: set[pathlib.Path]) -> None:
    """Prints the number of files, of their rooms and of their lines."""
    rooms = collections.Counter[str]()
    lines = collections.Counter[str]()
    for path in files:
        room = path.relative_to(PACKAGE).parts[0]
        rooms[room] += 1
        lines[room] += len(path.read_text().splitlines())
    print(f"{title}: {len(files)} files in {len(rooms)} rooms, {lines.total()} lines")
    for room, count in rooms.most_common():
        print(f"    {room} {count}, {lines[room]} lines")


def main() -> None:
    """Prints the counts."""
    arrows = test_layering.arrows_between(test_layering.room)
    rooms = {test_layering.room(module) for module in test_layering.modules()}
    print(f"rooms: {len(rooms)}, arrows: {len(arrows)}")
    print(f"floors: {len(test_layering.FLOORS)}")
    entries = [p for p in PACKAGE.iterdir() if p.name != "__pycache__"]
    print(f"entries at the root: {len(entries)}")
    lines: collections.Counter[str] = collections.Counter()
    for module, path in test_layering.modules().items():
        lines[test_layering.room(module)] += len(path.read_text().splitlines())
    tf1 = lines["tf1"] + lines["tf1_tools"]
    print(f"lines without TensorFlow 1: {lines.total() - tf1} of {lines.total()}")
    logging.disable()
    x = np.ones((64, 4), "float32")
    estimator = kte.TPUEstimator(
        model_fn_of(linear),
        model_dir=tempfile.mkdtemp(),
        config=kte.RunConfig(tpu_config=kte.TPUConfig(iterations_per_loop=4)),
        train_batch_size=8,
    )

    def train(*hooks: kte.hooks.SessionRunHook) -> None:
        estimator.train(lambda params: (x[:8], x[:8, :1]), steps=4 * RUNS, hooks=hooks)

    train()
    report("a warm train", entered(train))
    middle = Middle()
    train(middle)
    paths = map(pathlib.Path, middle.files)
    report(
        "one run of the loop",
        {path for path in paths if path.is_relative_to(PACKAGE)},
    )


if __name__ == "__main__":
    main()
