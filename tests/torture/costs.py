"""The time and host memory of saving and reading.

Run as a script, its argument is JSON with the fields of `Question`.
"""

import contextlib
import dataclasses
import json
import os
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

# Import Keras after this package, so that Keras runs on JAX.
import keras_tpu_estimator as kte  # isort: split

import jax

from keras_tpu_estimator.checkpoints import SaveFiles, ShardValues
from keras_tpu_estimator.engine.device.host_values import on_host
from keras_tpu_estimator.files.checkpoints import saving
from keras_tpu_estimator.files.formats import registry as formats
from tests.torture import memory, states
from tests.torture.saves import FORMATS, PARTS, TREE, WHOLE, WHOLE_TREE

ALONE = "Orbax alone"
WAYS = (PARTS, TREE, WHOLE, WHOLE_TREE, ALONE)
_CORES = 2
_MB = 1 << 20

# The remaining work when training continues.
_Rest = Callable[[], object]


@dataclasses.dataclass(frozen=True)
class Question:
    """A measurement.

    Attributes:
        directory: An empty directory.
        way: How the state is saved, one of `WAYS`, or `None` for all in turn.
        megabytes: The size of the state.
        variables: The number of variables of the state.
        rounds: The number of repetitions.
        is_away: Whether the state must be copied to be read.
    """

    directory: str
    way: str | None
    megabytes: int
    variables: int
    rounds: int
    is_away: bool = False

    def asked(self) -> dict[str, dict[str, float]]:
        """Measures in a separate process; returns the results by way."""
        done = subprocess.run(
            [
                sys.executable,
                "-m",
                "tests.torture.costs",
                json.dumps(dataclasses.asdict(self)),
            ],
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
        return json.loads(done.stdout.splitlines()[-1])


def answer(question: Question) -> dict[str, dict[str, float]]:
    """Measures; returns medians over the rounds and the peak memory, by way."""
    jax.config.update("jax_num_cpu_devices", _CORES)
    size = question.megabytes * _MB
    ways = WAYS if question.way is None else (question.way,)
    values = states.state(size, question.variables, question.is_away)
    rounds: dict[str, list[dict[str, float]]] = {way: [] for way in ways}
    for _ in range(question.rounds):
        for way in ways:
            rounds[way].append(_round(question.directory, way, values))
    return {
        way: {
            what: statistics.median(each[what] for each in found) for what in found[0]
        }
        for way, found in rounds.items()
    }


def _round(
    directory: str, way: str, values: Mapping[str, jax.Array]
) -> dict[str, float]:
    prefix = os.path.join(directory, "model.ckpt-1")
    figures: dict[str, float] = {}
    with _measured("saving", figures):
        begun = time.monotonic()
        rest = _begun(prefix, way, values)
        figures["seconds that training waits"] = time.monotonic() - begun
        rest()
    # Verify again, as in another process.
    moved = os.path.join(directory, "moved")
    os.mkdir(moved)
    for name in os.listdir(directory):
        if name != "moved":
            os.rename(os.path.join(directory, name), os.path.join(moved, name))
    with _measured("reading", figures):
        _read(os.path.join(moved, "model.ckpt-1"), way)
    shutil.rmtree(moved)
    return figures


def _begun(prefix: str, way: str, values: Mapping[str, jax.Array]) -> _Rest:
    """Does the work that training waits for; returns the remaining work."""
    if way == ALONE:
        return _begun_alone(prefix, values)
    saved = SaveFiles(prefix)
    name = FORMATS.get(way, "hdf5")
    writer = formats.named(name).shard_writer
    written: Mapping[str, Any]
    wait: _Rest | None = None
    if way in (PARTS, TREE):
        shards = {p: ShardValues.from_array(v) for p, v in values.items()}
        writer.prepare(saved)
        wait = writer.begin(saved, 1, shards, 0)
        written = {p: each.variable for p, each in shards.items()}
        del shards
    else:
        written = on_host(values)

    def rest() -> None:
        receipts = () if wait is None else (wait(),)
        saving.save_into(
            saved,
            1,
            written,
            retention=kte.checkpoints.Retention(1),
            format_name=name,
            receipts=receipts,
        )

    return rest


def _begun_alone(prefix: str, values: Mapping[str, jax.Array]) -> _Rest:
    import orbax.checkpoint as ocp

    checkpointer = ocp.StandardCheckpointer()
    checkpointer.save(prefix, {**values})

    def rest() -> None:
        checkpointer.wait_until_finished()
        checkpointer.close()

    return rest


def _read(prefix: str, way: str) -> Mapping[str, Any]:
    if way != ALONE:
        return kte.checkpoints.read(prefix)
    import orbax.checkpoint as ocp

    with ocp.StandardCheckpointer() as checkpointer:
        return jax.block_until_ready(checkpointer.restore(prefix))


@contextlib.contextmanager
def _measured(what: str, figures: dict[str, float]) -> Iterator[None]:
    """Records the time and memory of a function."""
    before = memory.now()
    memory.forget_peak()
    begun = time.monotonic()
    yield
    figures[f"seconds of {what}"] = time.monotonic() - begun
    figures[f"MB more while {what}"] = (memory.peak() - before) / _MB


if __name__ == "__main__":
    print(json.dumps(answer(Question(**json.loads(sys.argv[1])))))
