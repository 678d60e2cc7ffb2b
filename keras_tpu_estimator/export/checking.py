"""The test of an export: a process without JAX runs it and must agree with JAX."""

import dataclasses
import os
import pathlib
import re
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Sequence
from types import TracebackType
from typing import Self

import jax.numpy as jnp
import numpy as np

from keras_tpu_estimator.base.common.user_code import SourceLine
from keras_tpu_estimator.base.storage.transfers import has_wildcards
from keras_tpu_estimator.export import processes
from keras_tpu_estimator.export.first_request import Case, Trials
from keras_tpu_estimator.export.loading import Request
from keras_tpu_estimator.export.serving_graph import ServingGraph
from keras_tpu_estimator.export.stablehlo import UnservableError

_SCRIPT = pathlib.Path(__file__).with_name("first_request.py")
# These are relative to the largest number, because another compiler adds numbers in
# another order.
_TOLERANCES = {"float16": 2e-2, "bfloat16": 5e-2, "float64": 1e-4}
_TOLERANCE = 2e-4
_LARGE_INTEGERS = 1e-6


class FirstRequest:
    """A process without JAX that tests one export; it exists during a `with` block."""

    def __init__(self, timeout_secs: float | None):
        self._timeout_secs = timeout_secs

    def __enter__(self) -> Self:
        self._files = tempfile.TemporaryDirectory()
        self._process = subprocess.Popen(
            processes.command(_SCRIPT),
            env=processes.environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            encoding="utf-8",
            errors="backslashreplace",
        )
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._process.kill()
        self._process.communicate()
        self._files.cleanup()

    def check(
        self,
        folder: str,
        graphs: Sequence[tuple[ServingGraph, Sequence[Sequence[str]]]],
    ) -> None:
        """Runs every metagraph of a SavedModel, and compares the results with JAX's.

        Each graph has its sets of tags. `UnservableError` is raised if a metagraph
        cannot be loaded or run, or if its results differ.
        """
        trials = [
            _test_run(graph, tags, os.path.join(self._files.name, f"{i}.{j}"))
            for i, (graph, tag_sets) in enumerate(graphs)
            for j, tags in enumerate(tag_sets)
        ]
        for trial in trials:
            trial.write()
        if has_wildcards(os.path.abspath(folder)):
            link = os.path.join(self._files.name, "export")
            os.symlink(os.path.abspath(folder), link)
            folder = link
        self._ask(Trials(folder, [trial.case for trial in trials]))
        for trial in trials:
            trial.compare()

    def _ask(self, request: Trials) -> None:
        """Sends a request to the process, which ends after it."""
        try:
            failure, log = self._process.communicate(
                request.as_json() + "\n", timeout=self._timeout_secs
            )
        except subprocess.TimeoutExpired as error:
            raise TimeoutError(
                "The test of an export, in a process without JAX, must finish "
                f"within {self._timeout_secs} s. It is still running, so "
                "nothing was exported. If the model is slow to load or to "
                "compile, increase RunConfig(export_timeout_secs=...), or set "
                "it to None."
            ) from error
        if self._process.returncode:
            raise UnservableError(_explained(failure or log[-2000:]))


@dataclasses.dataclass(frozen=True)
class _TestRun:
    """The request for the test of one metagraph, and its inputs with JAX's results.

    `lines` returns the user's lines that make the outputs.
    """

    case: Case
    requests: Sequence[Request]
    lines: Callable[[], Sequence[SourceLine | None]]

    def write(self) -> None:
        """Writes the inputs of the process."""
        for path, request in self._requests():
            np.savez(f"{path}.in.npz", *map(_wide, request.features))

    def compare(self) -> None:
        """Compares the results with JAX's."""
        for path, request in self._requests():
            with np.load(f"{path}.out.npz") as file:
                results = [file[name] for name in file.files]
            for index, (name, got, expected) in enumerate(
                zip(self.case.fetches, results, request.outputs, strict=True)
            ):
                if not _is_same(got, expected):
                    line = self.lines()[index]
                    tags = self.case.tags
                    raise _different(name, line, tags, got, expected)

    def _requests(self) -> Iterator[tuple[str, Request]]:
        return zip(self.case.requests, self.requests, strict=True)


def _test_run(graph: ServingGraph, tags: Sequence[str], path: str) -> _TestRun:
    # A graph with several sets of tags is loaded for each, but run only once.
    is_run = path.endswith(".0")
    requests = graph.model.trial if is_run else ()
    case = Case(
        tags=list(tags),
        requests=[f"{path}.{number}" for number in range(len(requests))],
        feeds=graph.features,
        fetches=graph.outputs if is_run else [],
        results=graph.results if is_run else [],
    )
    return _TestRun(case, requests, graph.model.lines)


def _wide(array: np.ndarray) -> np.ndarray:
    """Returns the array in a dtype that NumPy's files support."""
    is_own = array.dtype.kind != "V" and array.dtype.isbuiltin
    return array if is_own else array.astype("float32")


def _explained(failure: str) -> str:
    """Returns a message that names the operation and a workaround."""
    op = re.search(
        r"(?:FFI handler registered for|unregistered operation|"
        r"custom call (?:target|to)) '?([\w.]+)",
        failure,
    )
    named = f"The op {op.group(1)}" if op else "An op of the model"
    return (
        f"The exported model must run in TensorFlow, as on a server. {named} cannot "
        f"run there. Received: {failure.strip()} Compute this part with other "
        "functions, in the receiver function, or with "
        "keras_tpu_estimator.outside_compilation."
    )


def _is_same(got: np.ndarray, expected: np.ndarray) -> bool:
    if got.shape != expected.shape:
        return False
    if jnp.issubdtype(expected.dtype, jnp.inexact):
        expected_wide = expected.astype(
            "complex128" if expected.dtype.kind == "c" else "float64"
        )
        finite = np.abs(expected_wide[np.isfinite(expected_wide)])
        tolerance = _TOLERANCES.get(expected.dtype.name, _TOLERANCE)
        return np.allclose(
            got,
            expected_wide,
            rtol=tolerance,
            atol=tolerance * max(finite, default=0.0),
            equal_nan=True,
        )
    if expected.dtype.kind in "iu":
        # Large integers may come from floats, rounded in another order.
        return np.allclose(got, expected, rtol=_LARGE_INTEGERS, atol=0)
    return np.array_equal(got, expected)


def _different(
    name: str,
    line: SourceLine | None,
    tags: Sequence[str],
    got: np.ndarray,
    expected: np.ndarray,
) -> UnservableError:
    """Returns the error for an output that differs from JAX's."""
    source = f", which {line} makes" if line else ""
    return UnservableError(
        f"The exported model with tags {sorted(tags)} must compute the same as "
        f"JAX. Expected for {name!r}{source}: {expected!r}. Received: {got!r}. A "
        "function of the model differs in TensorFlow's runtime. Compute it in "
        "another way."
    )
