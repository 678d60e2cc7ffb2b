"""Scenarios of evaluation, prediction and export, also for one host."""

import os
from collections.abc import Sequence
from typing import Any

import numpy as np

import keras_tpu_estimator as kte
from tests.many_hosts.problems import Here, dealt, estimator_of, listed, weights
from tests.stored_programs import lines, ran, store

SIZES = {
    2: ([11, 3], [40, 0], [0, 5], [8, 8]),
    4: ([11, 3, 0, 7],),
}


def evaluations(here: Here) -> dict[str, Any]:
    """Evaluates inputs of different sizes on each host."""
    estimator_of(here.directory).train(dealt, max_steps=4)
    estimator = estimator_of(here.directory, iterations=2)
    return {
        str(sizes): _numbers(estimator.evaluate(listed(here.share(sizes))))
        for hosts, cases in SIZES.items()
        for sizes in cases
        if here.hosts in (1, hosts)
    }


def predictions(here: Here) -> dict[str, Any]:
    """Predicts the input of each host; the last host also stops early."""
    estimator = estimator_of(here.directory).train(dealt, max_steps=4)
    input_fn = listed(here.share([19, 3]))
    rows = [_row(row) for row in estimator.predict(input_fn)]
    few = []
    for row in estimator.predict(input_fn):
        few.append(_row(row))
        if here.is_last:
            break
    # The hosts can still train together.
    estimator.train(dealt, max_steps=8)
    return {"rows": rows, "few": few, "weights": weights(estimator)}


def stored(here: Here) -> dict[str, Any]:
    """Runs the executables that the first host has compiled."""
    folder = (here / "compiled").directory
    inputs = {
        "train": dealt,
        "eval": dealt,
        "infer": listed(here.share([16, 16])),
    }
    planned = estimator_of((here / "planned").directory)
    if here.host == 0:
        for mode in inputs:
            store(planned, inputs[mode], folder, mode)
    estimator = estimator_of((here / "run").directory, executables=folder)
    with lines() as records:
        estimator.train(inputs["train"], max_steps=8)
        # The number of steps in one loop.
        evaluated = estimator.evaluate(inputs["eval"], steps=32)
        rows = [_row(row) for row in estimator.predict(inputs["infer"])]
    return {
        "ran": [os.path.basename(path) for path in ran(records)],
        "evaluated": _numbers(evaluated),
        "predicted": rows,
        "weights": weights(estimator),
    }


def _row(row: dict[str, Any]) -> list[float]:
    return [int(row["id"]), float(row["y"][0])]


def train_and_evaluate(
    here: Here, exporters: Sequence[Any] | None = None
) -> dict[str, Any]:
    """Trains and evaluates, and exports at the end.

    Args:
        here: The place.
        exporters: The exporters. Defaults to one that exports at the end.
    """
    if exporters is None:
        exporters = [kte.FinalExporter("final", receiver_fn)]
    estimator = estimator_of(here.directory, save_checkpoints_steps=4)
    evaluated = _Evaluated()
    metrics, exports = kte.train_and_evaluate(
        estimator,
        kte.TrainSpec(dealt, max_steps=12),
        kte.EvalSpec(
            listed(here.share([11, 3])),
            steps=None,
            start_delay_secs=0,
            throttle_secs=0,
            hooks=[evaluated],
            exporters=exporters,
        ),
    )
    return {
        # The metrics are `None` if another process evaluates.
        "metrics": metrics and _numbers(metrics),
        "exports": exports,
        "evaluated": evaluated.steps,
        "weights": weights(estimator),
    }


class _Evaluated(kte.hooks.SessionRunHook):
    """Records the evaluated steps."""

    def __init__(self):
        self.steps: list[int] = []

    def end(self, session):
        self.steps.append(int(session.run("global_step")))


def exports(here: Here) -> dict[str, Any]:
    """Exports on the chief, and returns the path on all hosts."""
    estimator = estimator_of((here / "model").directory)
    estimator.train(dealt, max_steps=4)
    path = estimator.export_saved_model((here / "export").directory, receiver_fn)
    return {"path": path}


def receiver_fn() -> Any:
    import tensorflow as tf

    return kte.export.build_raw_serving_input_receiver_fn(
        {
            "x": tf.TensorSpec([None, 3], tf.float32),
            "id": tf.TensorSpec([None], tf.int32),
        }
    )()


def _numbers(result: dict[str, Any]) -> dict[str, float]:
    return {name: float(np.asarray(value)) for name, value in result.items()}


SCENARIOS = {
    each.__name__: each
    for each in (
        evaluations,
        predictions,
        train_and_evaluate,
        exports,
        stored,
    )
}
