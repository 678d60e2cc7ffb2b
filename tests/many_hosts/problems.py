"""A model and inputs that are equal on any number of hosts."""

import contextlib
import dataclasses
import os
from collections.abc import Callable, Iterator
from typing import Any, Self

# Import Keras after this package, so that Keras runs on JAX.
import keras_tpu_estimator as kte  # isort: split

import jax
import keras
import numpy as np
from keras import ops

# The number of examples in a step on all hosts.
BATCH = 16
# The distance between the first examples of two hosts with separate inputs.
HOST_STRIDE = 1000


@dataclasses.dataclass(frozen=True)
class Here:
    """The place where a scenario runs.

    Attributes:
        directory: The directory of the scenario.
        host: The number of this host.
        hosts: The number of hosts.
    """

    directory: str
    host: int = 0
    hosts: int = 1

    def __truediv__(self, name: str) -> Self:
        directory = os.path.join(self.directory, name)
        return dataclasses.replace(self, directory=directory)

    @property
    def is_last(self) -> bool:
        """Whether this is the last host, which performs actions of one host."""
        return self.host == self.hosts - 1

    def share(self, sizes: list[int]) -> list[int]:
        """Returns the examples of this host; a single host has those of all."""
        hosts = range(len(sizes)) if self.hosts == 1 else [self.host]
        return [HOST_STRIDE * host + k for host in hosts for k in range(sizes[host])]


def batch_of(examples: list[int]) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Makes features and labels from the examples' numbers."""
    x = np.stack([np.random.default_rng(k).normal(size=3) for k in examples]).astype(
        "float32"
    )
    ids = np.array(examples, "int32")
    return {"x": x, "id": ids}, np.sin(x.sum(1, keepdims=True))


def dealt(params: dict[str, Any]) -> Iterator[Any]:
    """Yields batches; step s has examples 16 s to 16 s + 15 on any number of hosts."""
    size = params["batch_size"]
    _, call, calls, _ = params["context"].current_input_fn_deployment()
    share = BATCH // calls
    step = 0
    while True:
        for start in range(0, share, size):
            first = BATCH * step + call * share + start
            yield batch_of(list(range(first, first + size)))
        step += 1


def listed(examples: list[int]) -> Callable[..., Iterator[Any]]:
    """Returns an input_fn over examples, with a smaller last batch."""

    def input_fn(params: dict[str, Any]) -> Iterator[Any]:
        size = params["batch_size"]
        for start in range(0, len(examples), size):
            yield batch_of(examples[start : start + size])

    return input_fn


def model_fn_of(
    layer: Callable[[Any, bool], Any] | None = None,
    width: int = 4,
    host_call: Callable[[Any], None] | None = None,
) -> Callable[..., kte.TPUEstimatorSpec]:
    """Returns a model_fn of two layers.

    Args:
        layer: A function between the layers, of a tensor and whether it is training.
        width: The size of the first layer.
        host_call: A function of the numbers of a step's examples.
    """

    def model_fn(features, labels, mode, params):
        hidden = keras.layers.Dense(width, activation="tanh")(features["x"])
        if layer is not None:
            hidden = layer(hidden, mode == kte.ModeKeys.TRAIN)
        y = keras.layers.Dense(1)(hidden)
        if mode == kte.ModeKeys.PREDICT:
            predictions = {"id": features["id"], "y": y}
            return kte.TPUEstimatorSpec(mode, predictions=predictions)
        loss = ops.mean((y - labels) ** 2)
        optimizer = kte.CrossShardOptimizer(keras.optimizers.Adam(0.02))
        return kte.TPUEstimatorSpec(
            mode,
            loss=loss,
            train_op=optimizer.minimize(loss),
            eval_metrics=(metric_fn, [labels, y]),
            host_call=host_call and (host_call, [features["id"]]),
        )

    return model_fn


def metric_fn(labels: Any, outputs: Any) -> dict[str, Any]:
    return {
        "error": kte.metrics.mean_absolute_error(labels, outputs),
        "iou": kte.metrics.mean_iou(labels > 0, outputs > 0, 2),
    }


def dropout(hidden: Any, is_training: bool) -> Any:
    return keras.layers.Dropout(0.5)(hidden, training=is_training)


def normalization(hidden: Any, is_training: bool) -> Any:
    return keras.layers.BatchNormalization()(hidden, training=is_training)


def estimator_of(
    model_dir: str | None,
    model_fn: Callable[..., Any] | None = None,
    iterations: int | str = 4,
    way: str = "PER_HOST_V1",
    cores_per_replica: int | None = None,
    **config: Any,
) -> kte.TPUEstimator:
    """Returns a TPUEstimator on all cores of all hosts.

    Args:
        model_dir: The directory.
        model_fn: The model. Defaults to two layers.
        iterations: The number of steps in a loop. Defaults to 4.
        way: An `InputPipelineConfig` name. Defaults to 'PER_HOST_V1'.
        cores_per_replica: The number of cores of a replica. Defaults to 1.
        **config: Arguments of `RunConfig`.
    """
    ways = kte.InputPipelineConfig
    return kte.TPUEstimator(
        model_fn or model_fn_of(),
        config=kte.RunConfig(
            model_dir=model_dir,
            tpu_config=kte.TPUConfig(
                iterations_per_loop=iterations,
                num_cores_per_replica=cores_per_replica,
                per_host_input_for_training=ways[way],
            ),
            **{"tf_random_seed": 7, "log_step_count_steps": 4} | config,
        ),
        train_batch_size=BATCH,
        eval_batch_size=BATCH,
        predict_batch_size=BATCH,
    )


def weights(estimator: kte.TPUEstimator) -> dict[str, list[float]]:
    """Returns all values of the latest checkpoint."""
    names = estimator.get_variable_names()
    values = estimator.get_variable_value(names)
    return {
        name: np.asarray(value).ravel().tolist()
        for name, value in zip(names, values, strict=True)
    }


def checkpoints(model_dir: str) -> list[str]:
    """Returns the names of the checkpoints."""
    names = os.listdir(model_dir)
    return sorted(name for name in names if name.endswith(".h5"))


class AtStep(kte.hooks.SessionRunHook):
    """Calls a function once, after the run that reaches a step.

    Args:
        step: The global step.
        action: A function of the context of the run.
    """

    def __init__(self, step: int, action: Callable[[Any], object]):
        self._step = step
        self._action = action
        self._is_done = False

    def after_run(self, run_context, run_values):
        step = int(run_context.session.run("global_step"))
        if step >= self._step and not self._is_done:
            self._is_done = True
            self._action(run_context)


class Losses(kte.hooks.SessionRunHook):
    """Records the loss of each run's last step, by that step."""

    def __init__(self):
        self.by_step: dict[str, float] = {}

    def after_run(self, run_context, run_values):
        step, loss = run_context.session.run(["global_step", "loss"])
        self.by_step[str(int(step))] = float(loss)


@contextlib.contextmanager
def exit_code(into: dict[str, Any]) -> Iterator[None]:
    """Records the exit code of a `SystemExit`, and continues."""
    try:
        yield
    except SystemExit as end:
        into["code"] = end.code


def assert_close(actual: Any, expected: Any, tolerance: float = 1e-6) -> None:
    """Compares pytrees of numbers."""
    assert jax.tree.structure(actual) == jax.tree.structure(expected)
    np.testing.assert_allclose(
        jax.tree.leaves(actual),
        jax.tree.leaves(expected),
        rtol=tolerance,
        atol=tolerance,
    )
