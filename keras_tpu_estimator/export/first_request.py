"""A script that loads a SavedModel as a server would, and answers requests.

It runs by its path in a separate process, and imports nothing of this package. It
writes an error to its standard output.
"""

import dataclasses
import json
import sys
from collections.abc import Sequence

import numpy as np


@dataclasses.dataclass(frozen=True)
class Case:
    """The trial of one metagraph.

    Attributes:
        tags: The tags of the metagraph.
        requests: The paths of the requests' files, without '.in.npz'.
        feeds: The names of the tensors to feed.
        fetches: The names of the tensors to compare.
        results: The names of tensors that only the first request computes.
    """

    tags: Sequence[str]
    requests: Sequence[str]
    feeds: Sequence[str]
    fetches: Sequence[str]
    results: Sequence[str]


@dataclasses.dataclass(frozen=True)
class Trials:
    """The message to the process: the trials of the SavedModel in a folder."""

    folder: str
    cases: Sequence[Case]

    def as_json(self) -> str:
        """Returns the message as one line."""
        return json.dumps(dataclasses.asdict(self))

    @classmethod
    def from_json(cls, text: str) -> "Trials":
        """Reads a message."""
        message = json.loads(text)
        return cls(message["folder"], [Case(**case) for case in message["cases"]])


def main() -> None:
    """Runs the request in the first line of the standard input."""
    # TensorFlow imports these if they are installed; a server has none of them.
    # `None` prevents the import of a module, although the type omits it.
    sys.modules.update(dict.fromkeys(("jax", "jaxlib", "keras")))  # type: ignore[arg-type]
    import tensorflow as tf

    tf.get_logger().setLevel("ERROR")
    trials = Trials.from_json(sys.stdin.readline())
    try:
        for case in trials.cases:
            run(trials.folder, case)
    except Exception as error:
        sys.stdout.write(f"{type(error).__name__}: {error}")
        sys.exit(3)


def run(folder: str, case: Case) -> None:
    """Loads one metagraph and writes its outputs for each request."""
    import tensorflow as tf

    # The first request computes all results of signatures, including text. Host
    # functions may reject the unusual numbers of later requests.
    results = case.results
    graph = tf.Graph()
    with graph.as_default(), tf.compat.v1.Session() as session:
        tf.compat.v1.saved_model.load(session, list(case.tags), folder)
        for path in case.requests:
            with np.load(f"{path}.in.npz") as file:
                arrays = [file[name] for name in file.files]
            feeds = {
                name: array.astype(graph.get_tensor_by_name(name).dtype.as_numpy_dtype)
                for name, array in zip(case.feeds, arrays, strict=True)
            }
            outputs, _ = session.run((case.fetches, results), feeds)
            results = []
            wide = [
                output.astype("float32") if output.dtype.kind == "V" else output
                for output in outputs
            ]
            np.savez(f"{path}.out.npz", *wide)


if __name__ == "__main__":
    main()
