"""The user's source lines of the instructions in a compiled program."""

import dataclasses
import re
from collections.abc import Callable, Iterator
from typing import NamedTuple, Self

from keras_tpu_estimator.base.common.user_code import (
    SourceLine,
    is_of_user,
    part_of_package,
)
from keras_tpu_estimator.engine.program.additions import FRONT_END_SCOPE

_FILE = re.compile(r'^(\d+) "(.*)"$')
_LOCATION = re.compile(r"^(\d+) \{file_name_id=(\d+) .*?\bline=(\d+)")
_FRAME = re.compile(r"^(\d+) \{file_location_id=(\d+)(?: parent_frame_id=(\d+))?")
_OP_NAME = re.compile(r'\bop_name="([^"]*)"')
_FRAME_OF = re.compile(r"\bstack_frame_id=(\d+)")
# XLA wrote source lines like this before it had tables.
_PLACE = re.compile(r'\bsource_file="([^"]*)" source_line=(\d+)')
# Subpackages that call the user's functions. Frames outside them belong to the script's
# call of an estimator, which is not the line of an operation.
_CALLERS = frozenset("engine estimator front_ends planning runs tf1 workflow".split())


_IN_GRAPH = re.compile(rf"(?:^|/){FRONT_END_SCOPE}/(.+)$")
# `tf.gradients` gives the gradient of an operation this name.
_GRADIENT = re.compile(r"(?:^|.*/)gradients(?:_\d+)?/(.+)_grad/[^/]+$")


class GraphName(NamedTuple):
    """The name of an operation in a TensorFlow graph; in the backward pass the name of
    the operation in the forward pass that it differentiates.
    """

    name: str
    is_gradient: bool


def graph_name(op_name: str) -> GraphName | None:
    """Parses the graph operation in XLA's name; returns `None` if missing.

    >>> graph_name("jit(f)/front_end_step/gradients/dense/MatMul_grad/MatMul")
    GraphName(name='dense/MatMul', is_gradient=True)
    """
    match = _IN_GRAPH.search(op_name)
    if match is None:
        return None
    gradient = _GRADIENT.match(match[1])
    return GraphName(gradient[1] if gradient else match[1], bool(gradient))


@dataclasses.dataclass(frozen=True)
class SourceLines:
    """The tables of stack frames in the text of a program: the lines of frames, and the
    number of each frame's caller; `in_graph` returns the line of a TensorFlow graph's
    operation by its name.
    """

    frames: dict[int, SourceLine]
    callers: dict[int, int]
    in_graph: Callable[[str], SourceLine | None] | None = None

    @classmethod
    def parse(
        cls,
        text: str,
        in_graph: Callable[[str], SourceLine | None] | None = None,
    ) -> Self:
        """Parses the tables of file names, file locations and stack frames, which
        precede the first computation.
        """
        files = {n: name for n, (name,) in _rows(text, "FileNames", _FILE)}
        locations = {
            number: SourceLine(files[int(file)], int(line))
            for number, (file, line) in _rows(text, "FileLocations", _LOCATION)
            if int(file) in files
        }
        stack_frames = dict(_rows(text, "StackFrames", _FRAME))
        # The first frame has no caller. XLA writes this as 0, or as 1 if it counts
        # callers from 1.
        offset = int(stack_frames[1][1] or 0) if 1 in stack_frames else 0
        return cls(
            {
                number: locations[int(location)]
                for number, (location, _) in stack_frames.items()
                if int(location) in locations
            },
            {
                number: int(caller or 0) - offset
                for number, (_, caller) in stack_frames.items()
            },
            in_graph,
        )

    def user_line(self, text: str) -> SourceLine | None:
        """Returns the innermost line of the user's functions in an instruction's
        attributes; `None` if this package made the instruction.
        """
        named = _OP_NAME.search(text)
        in_graph = graph_name(named[1]) if named else None
        if in_graph is not None:
            return self.in_graph(in_graph.name) if self.in_graph else None
        frame = _FRAME_OF.search(text)
        if frame is None:
            location = _PLACE.search(text)
            lines = [SourceLine(location[1], int(location[2]))] if location else []
        else:
            lines = list(self._stack(int(frame[1])))
        for line in lines:
            if is_of_user(line.file):
                return line
            part = part_of_package(line.file) or ""
            if part.partition("/")[0] in _CALLERS:
                return None
        return None

    def _stack(self, frame: int) -> Iterator[SourceLine]:
        """Yields lines from a frame outward."""
        while frame in self.frames:
            yield self.frames[frame]
            caller = self.callers[frame]
            # Callers must have smaller numbers, or the loop would not end.
            if caller >= frame:
                return
            frame = caller


def _rows(
    text: str, title: str, row: re.Pattern[str]
) -> Iterator[tuple[int, tuple[str, ...]]]:
    """Yields the numbered rows of a table."""
    start = re.search(rf"^{title}$", text, re.MULTILINE)
    if start is None:
        return
    for line in text[start.end() :].lstrip("\n").split("\n"):
        match = row.match(line)
        if match is None:
            return
        number, *columns = match.groups()
        yield int(number), tuple(columns)
