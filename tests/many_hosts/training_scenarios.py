"""Scenarios of training on several hosts; each also runs on one host."""

import os
import signal
from collections.abc import Iterator
from typing import Any

# Import Keras after this package, so that Keras runs on JAX.
import keras_tpu_estimator as kte  # isort: split

import keras
import numpy as np

from tests.many_hosts.problems import (
    HOST_STRIDE,
    AtStep,
    Here,
    Losses,
    checkpoints,
    dealt,
    dropout,
    estimator_of,
    exit_code,
    listed,
    model_fn_of,
    normalization,
    weights,
)

WAYS = ("PER_HOST_V1", "PER_HOST_V2", "PER_SHARD_V1", "BROADCAST")
# The last step of each number of hosts in a training on several numbers of hosts.
ELASTIC_STEPS = {1: 4, 2: 8, 4: 12}
ELASTIC_END = 16
_NEVER = 10.0**6
_ALWAYS = 1e-6


def ways(here: Here) -> dict[str, Any]:
    """Trains with each way of calling input_fn, or on four hosts with one way."""
    result = {}
    for way in WAYS if here.hosts < 4 else WAYS[:1]:
        estimator = estimator_of((here / way).directory, way=way)
        estimator.train(dealt, max_steps=20)
        result[way] = weights(estimator)
    return result


def with_dropout(here: Here) -> dict[str, Any]:
    """Trains with different random numbers on each core."""
    return _trained(estimator_of(here.directory, model_fn_of(dropout)))


def with_state(here: Here) -> dict[str, Any]:
    """Trains with variables that the forward pass assigns."""
    return _trained(estimator_of(here.directory, model_fn_of(normalization)))


def spread(here: Here) -> dict[str, Any]:
    """Trains replicas of two cores with sharded variables."""
    model_fn = model_fn_of(normalization, width=8)
    estimator = estimator_of(
        here.directory,
        model_fn,
        cores_per_replica=2,
        layout_map={"dense/kernel": (None, "model"), "dense/bias": ("model",)},
    )
    estimator.train(dealt, max_steps=4)
    evaluated = estimator.evaluate(listed(here.share([11, 3])))
    rows = estimator.predict(listed(here.share([6, 6])))
    return {
        "evaluated": {name: float(v) for name, v in evaluated.items()},
        "predicted": [float(row["y"][0]) for row in rows],
        **_trained(estimator),
    }


def without_seed_and_directory(here: Here) -> dict[str, Any]:
    """Trains without a seed and a directory, on which hosts must agree."""
    estimator = estimator_of(None, model_fn_of(dropout), tf_random_seed=None)
    return {
        "weights": _trained(estimator),
        "directory": estimator.model_dir,
        "latest": estimator.latest_checkpoint(),
    }


def _trained(estimator: kte.TPUEstimator) -> dict[str, Any]:
    return weights(estimator.train(dealt, max_steps=8))


def ends_earlier(here: Here) -> dict[str, Any]:
    """Trains with fewer steps in the input of one host."""
    estimator = estimator_of(here.directory)
    examples = _in_turn(8, steps=5)
    if here.hosts > 1:
        examples = here.share([72, 40])
    estimator.train(listed(examples), max_steps=100)
    return _end(estimator)


def last_batches(here: Here) -> dict[str, Any]:
    """Trains with last batches of two sizes, of which every example counts."""
    estimator = estimator_of(here.directory)
    examples = _in_turn(8, steps=2)[:-5]
    if here.hosts > 1:
        examples = here.share([16, 11])
    estimator.train(listed(examples), max_steps=100)
    return _end(estimator)


def _in_turn(size: int, steps: int) -> list[int]:
    """Returns the examples of two hosts, step by step."""
    return [
        HOST_STRIDE * host + size * step + k
        for step in range(steps)
        for host in range(2)
        for k in range(size)
    ]


def stop_requests(here: Here) -> dict[str, Any]:
    """Stops all hosts by a hook of one."""
    estimator = estimator_of(here.directory)
    hooks = []
    if here.is_last:
        hooks = [AtStep(8, lambda context: context.request_stop())]
    estimator.train(dealt, hooks=hooks, max_steps=20)
    return _end(estimator)


def callbacks(here: Here) -> dict[str, Any]:
    """Stops all hosts by a callback of one; callbacks of all see each run."""
    estimator = estimator_of(here.directory)
    callback = _Stopping(2 if here.is_last else None)
    estimator.train(dealt, hooks=[callback], max_steps=20)
    return _end(estimator) | {"epochs": callback.epochs}


class _Stopping(keras.callbacks.Callback):
    """Stops after a number of epochs."""

    def __init__(self, epochs: int | None):
        super().__init__()
        self._limit = epochs
        self.epochs: list[Any] = []

    def on_epoch_end(self, epoch, logs=None):
        self.epochs.append([epoch, float(logs["loss"])])
        if len(self.epochs) == self._limit:
            self.model.stop_training = True


def written_files(here: Here) -> dict[str, Any]:
    """Writes files by Keras callbacks, which only the chief must do."""
    estimator = estimator_of(here.directory)
    files = f"{here.directory}/files"
    os.makedirs(files, exist_ok=True)
    path = f"{files}/{{epoch}}.weights.h5"
    callbacks = [
        keras.callbacks.ModelCheckpoint(path, save_weights_only=True),
        keras.callbacks.CSVLogger(f"{files}/rows.csv", append=True),
    ]
    hook = kte.hooks.CallbackHook(callbacks, steps_per_epoch=4)
    for max_steps in (8, 12):
        estimator.train(dealt, hooks=[hook], max_steps=max_steps)
    with open(f"{files}/rows.csv") as rows:
        lines = rows.read().splitlines()
    return _end(estimator) | {
        "files": sorted(os.listdir(files)),
        "rows": [line.split(",")[0] for line in lines],
        "paths": [callbacks[0].filepath == path, callbacks[0].best],
    }


def time_based(here: Here) -> dict[str, Any]:
    """Saves by time on one host, with which all hosts save."""
    result = {}
    for wanting in range(here.hosts):
        place = here / str(wanting)
        secs = _ALWAYS if here.host == wanting else _NEVER
        saves = _Saves()
        hook = kte.hooks.CheckpointSaverHook(
            place.directory, save_secs=secs, listeners=[saves]
        )
        estimator = estimator_of(place.directory)
        estimator.train(dealt, hooks=[hook], max_steps=12)
        result[str(wanting)] = saves.steps
    return result


def by_seconds(here: Here) -> dict[str, Any]:
    """Saves by the time in `RunConfig`, with loops of one second."""
    estimator = estimator_of(
        here.directory,
        iterations="1s",
        save_checkpoints_secs=_ALWAYS,
        keep_checkpoint_max=None,
    )
    saves, losses = _Saves(), Losses()
    estimator.train(dealt, hooks=[losses], max_steps=12, saving_listeners=[saves])
    return _end(estimator) | {"runs": losses.by_step, "saves": saves.steps}


class _Saves(kte.hooks.CheckpointSaverListener):
    """Records the saved steps."""

    def __init__(self):
        self.steps: list[int] = []

    def after_save(self, session, global_step_value):
        self.steps.append(global_step_value)


def host_calls(here: Here) -> dict[str, Any]:
    """Calls `host_call` on the chief with the examples of all cores."""
    seen: list[list[int]] = []
    model_fn = model_fn_of(host_call=lambda ids: seen.append(ids.tolist()))
    estimator_of(here.directory, model_fn).train(dealt, max_steps=6)
    return {"seen": seen}


class OfHost(keras.callbacks.Callback):
    """A callback whose state is the number of its host."""

    def __init__(self, host: int):
        super().__init__()
        self.host = host
        self.restored: int | None = None

    def get_state(self) -> dict[str, int]:
        """Returns the number of this host."""
        return {"host": self.host}

    def set_state(self, state: dict[str, int]) -> None:
        """Records the number of the host that the state is from."""
        self.restored = state["host"]


def signals(here: Here) -> dict[str, Any]:
    """Ends all hosts by a SIGTERM on one; another call continues."""
    result: dict[str, Any] = {}
    killed = here / "killed"
    estimator = estimator_of(killed.directory, model_fn_of(dropout))
    of_host = OfHost(here.host)
    hooks = [of_host]
    if here.is_last:
        hooks += [AtStep(8, lambda _: signal.raise_signal(signal.SIGTERM))]
    with exit_code(result):
        estimator.train(dealt, hooks=hooks, max_steps=12)
    result["checkpoints"] = checkpoints(killed.directory)
    for place in (killed, here / "undisturbed"):
        estimator = estimator_of(place.directory, model_fn_of(dropout))
        estimator.train(dealt, [of_host], max_steps=12)
        result["resumed" if place is killed else "undisturbed"] = weights(estimator)
    # The files of the test compare the results of hosts.
    result["has its own state"] = of_host.restored == here.host
    return result


def elastic(here: Here, until: int | None = None) -> dict[str, Any]:
    """Continues the training of another number of hosts, and is stopped.

    Args:
        here: The place, with the current number of hosts.
        until: The step to stop at. Defaults to the last step of this number of hosts.
    """
    result: dict[str, Any] = {}
    losses = Losses()
    until = until or ELASTIC_STEPS[here.hosts]
    stop = AtStep(until, lambda _: signal.raise_signal(signal.SIGTERM))
    estimator = estimator_of(here.directory, iterations=2)
    of_host = OfHost(here.host)
    with exit_code(result):
        estimator.train(dealt, hooks=[losses, stop, of_host], max_steps=ELASTIC_END)
    return result | {
        "losses": losses.by_step,
        "weights": weights(estimator),
        "state of host": of_host.restored,
    }


def not_a_number(here: Here) -> dict[str, Any]:
    """Trains with a NaN in the third loop on one host."""

    def input_fn(params: dict[str, Any]) -> Iterator[Any]:
        for step, (features, labels) in enumerate(dealt(params)):
            yield features, labels * (np.nan if is_bad and step == 9 else 1)

    is_bad = here.is_last
    estimator_of(here.directory).train(input_fn, max_steps=20)
    return {}


def _end(estimator: kte.TPUEstimator) -> dict[str, Any]:
    """Returns the step, weights and checkpoints at the end of training."""
    return {
        "step": int(estimator.get_variable_value("global_step")),
        "weights": weights(estimator),
        "checkpoints": checkpoints(estimator.model_dir),
    }


SCENARIOS = {
    each.__name__: each
    for each in (
        ways,
        with_dropout,
        with_state,
        spread,
        without_seed_and_directory,
        ends_earlier,
        last_batches,
        stop_requests,
        callbacks,
        written_files,
        time_based,
        by_seconds,
        host_calls,
        signals,
        elastic,
        not_a_number,
    )
}
