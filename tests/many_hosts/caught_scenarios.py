"""Scenarios in which a program catches an error of all hosts and continues."""

import contextlib
import os
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

# Import Keras after this package, so that Keras runs on JAX.
import keras_tpu_estimator as kte  # isort: split

import keras
import numpy as np

from keras_tpu_estimator.base.hosts import this_process
from keras_tpu_estimator.base.hosts.store import Store
from keras_tpu_estimator.base.upstream import jax_clusters
from tests.many_hosts.problems import (
    AtStep,
    Here,
    batch_of,
    checkpoints,
    dealt,
    estimator_of,
    listed,
    model_fn_of,
    weights,
)


def caught(here: Here) -> dict[str, Any]:
    """Catches a NaN error, and then trains another estimator."""
    nan = estimator_of((here / "nan").directory)
    error = error_of(
        lambda: nan.train(dealt, hooks=[AtStep(4, raise_nan)], max_steps=12)
    )
    estimator = estimator_of((here / "finite").directory)
    return {"error": error, "weights": weights(estimator.train(dealt, None, 8))}


def raise_nan(context: Any) -> None:
    raise kte.hooks.NanLossDuringTrainingError("NaN loss.")


def assigned(here: Here) -> dict[str, Any]:
    """Assigns equal values, different values, and values on one host only."""
    equal = estimator_of((here / "equal").directory)
    equal.train(dealt, hooks=[Assigning(0.5)], max_steps=8)
    result: dict[str, Any] = {"weights": weights(equal)}
    values = {"others": float(here.host), "one": 0.5 if here.host else None}
    for name, value in values.items():
        estimator = estimator_of(
            (here / name).directory,
            model_fn_of(width=8),
            cores_per_replica=2,
            layout_map={"dense/kernel": (None, "model")},
        )
        for event in ("epoch", "train"):
            callback = Assigning(value, event)
            result[f"{name} {event}"] = error_of(
                lambda e=estimator, c=callback: e.train(dealt, [c], 4)
            )
        result[name] = checkpoints(estimator.model_dir)
    result["evaluated"] = error_of(
        lambda: equal.evaluate(
            listed(here.share([24, 24])),
            hooks=[Assigning(float(here.host), "test_batch")],
        )
    )
    # Hosts predict independently.
    callback = Assigning(float(here.host), "predict_batch")
    rows = equal.predict(listed(here.share([4, 4])), hooks=[callback])
    return result | {"predicted": len([*rows])}


class Assigning(keras.callbacks.Callback):
    """Assigns a value to the first layer's kernel after one kind of event."""

    def __init__(self, value: float | None, event: str = "epoch"):
        super().__init__()
        self._value = value
        setattr(self, f"on_{event}_end", self._assign)

    def _assign(self, *arguments: Any) -> None:
        kernel = self.model.trainable_variables[0]
        if self._value is not None:
            kernel.assign(np.full(kernel.shape, self._value, "float32"))


def not_saved(here: Here) -> dict[str, Any]:
    """Trains replicated and sharded variables to NaN, with a finite loss."""
    result = {}
    for name, settings in {
        "whole": {},
        "parts": {
            "model_fn": model_fn_of(width=8),
            "cores_per_replica": 2,
            "layout_map": {"dense/kernel": (None, "model")},
        },
    }.items():
        estimator = estimator_of((here / name).directory, **settings)
        callback = Assigning(float("nan"))
        result[name] = error_of(lambda e=estimator, c=callback: e.train(dealt, [c], 4))
    estimator = estimator_of((here / "finite").directory)
    weights(estimator.train(dealt, None, 4))
    return result


def unlike(here: Here) -> dict[str, Any]:
    """Trains and evaluates with batches of different lengths on each host."""

    def input_fn(params: dict[str, Any]) -> Any:
        for _ in range(4):
            features, labels = batch_of([*range(params["batch_size"])])
            length = 5 - 2 * here.host
            yield features | {"ids": np.zeros((len(labels), length))}, labels

    estimator = estimator_of(here.directory)
    return {
        "trained": error_of(lambda: estimator.train(input_fn, steps=4)),
        "evaluated": error_of(lambda: estimator.evaluate(input_fn)),
    }


def remembered(here: Here) -> dict[str, Any]:
    """Returns the coordinator's keys after some evaluations of unequal sizes."""
    estimator = estimator_of(here.directory).train(dealt, max_steps=4)
    for _ in range(3):
        estimator.evaluate(listed(here.share([11, 3])))
    client = jax_clusters.coordination_client()
    if client is None:
        return {"keys": []}
    # All hosts have finished the evaluations before this training ends.
    estimator.train(dealt, max_steps=8)
    keys = [key for key, _ in client.key_value_dir_get_bytes("kte/agreed")]
    return {"keys": [key for key in keys if "eval" in key]}


def requests(here: Here) -> dict[str, Any]:
    """Counts requests to the coordinator in loops, saves and evaluations."""
    joined = this_process.membership()
    if joined is None:
        return {"loop": 0, "save": 0, "evaluation": 0, "files": []}

    def count(action: Callable[[], object]) -> int:
        with counting(joined.store) as keys:
            action()
        return len(keys)

    def of_training(name: str, steps: int, every: int | None = None) -> int:
        where = (here / name).directory
        estimator = estimator_of(where, iterations=2, save_checkpoints_steps=every)
        return count(lambda: estimator.train(dealt, max_steps=steps))

    short, long = of_training("short", 8), of_training("long", 28)
    saving = of_training("saving", 28, every=2)
    estimator = estimator_of((here / "saving").directory)
    estimator.evaluate(dealt, steps=2)
    return {
        "loop": (long - short) / 10,
        # The last step is also saved without an interval.
        "save": (saving - long) / 13,
        "evaluation": count(lambda: estimator.evaluate(dealt, steps=2)),
        "files": sorted(os.listdir((here / "saving").directory)),
    }


@contextlib.contextmanager
def counting(store: Store) -> Iterator[list[str]]:
    """Lists the keys of successful requests of agreements in a block."""
    client = store.client
    keys: list[str] = []

    class Client:
        def __getattr__(self, name: str) -> Callable[..., Any]:
            method = getattr(client, name)

            def counted(key: str, *args: Any, **kwargs: Any) -> Any:
                result = method(key, *args, **kwargs)
                if key.startswith("kte/agreed/"):
                    keys.append(key)
                return result

            return counted

    # `settled` compares this client with the membership's client.
    with (
        mock.patch.object(store, "client", Client()),
        mock.patch.object(jax_clusters, "coordination_client", lambda: store.client),
    ):
        yield keys


def error_of(action: Callable[[], object]) -> str | None:
    """Returns the error of an action, or `None`."""
    try:
        action()
    except (ValueError, RuntimeError) as error:
        return f"{type(error).__name__}: {error}"
    return None


SCENARIOS = {
    each.__name__: each
    for each in (caught, assigned, not_saved, unlike, remembered, requests)
}
