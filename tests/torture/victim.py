"""A training process that trials kill, stop or starve.

Its last argument is JSON with the fields of `Wishes`.
"""

import dataclasses
import json
import logging
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

# Import Keras after this package, so that Keras runs on JAX.
import keras_tpu_estimator as kte  # isort: split

import jax
import keras
import numpy as np
from keras import ops

from tests.torture.saves import FORMATS, SPREAD, WHOLE

STEPS_PER_LOOP = 2
# Writing a checkpoint then takes about as long as the steps between two.
WIDTH = 8192
STEPS_PER_SAVE = 4


@dataclasses.dataclass(frozen=True)
class Wishes:
    """The settings of a victim.

    Attributes:
        model_dir: Its directory.
        steps: The global step to reach.
        pause: The seconds that each loop waits, so that a kill can happen anywhere.
        max_file_bytes: The maximum file size, as on a full disk.
        stops: Whether to stop after the first step until SIGCONT.
        way: How it saves.
        width: The width of its hidden layer; each unit takes 768 bytes of a checkpoint.
        is_watched: Whether it reports the start of saves and continues training,
            instead of reporting complete saves.
    """

    model_dir: str
    steps: int
    pause: float = 0.0
    max_file_bytes: int | None = None
    stops: bool = False
    way: str = WHOLE
    width: int = WIDTH
    is_watched: bool = False

    def start(self, *prefix: str, stderr: int | None = None) -> subprocess.Popen:
        """Starts the process, which reports its progress on standard output.

        Args:
            *prefix: A program that starts it, with arguments.
            stderr: The argument of `subprocess.Popen`.
        """
        return subprocess.Popen(
            [
                *prefix,
                sys.executable,
                "-m",
                "tests.torture.victim",
                json.dumps(dataclasses.asdict(self)),
            ],
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
            bufsize=1,
        )

    def run(self) -> None:
        """Trains to the end.

        Raises:
            CalledProcessError: The process failed.
        """
        with self.start() as process:
            process.communicate()
        if process.returncode:
            raise subprocess.CalledProcessError(process.returncode, "victim")


class Telling(kte.hooks.SessionRunHook):
    """Reports the start of training, and slows it down or stops it."""

    def __init__(self, pause: float, stops: bool):
        self._pause = pause
        self._stops = stops
        self._is_told = False

    def after_run(self, run_context: Any, run_values: Any) -> None:
        if not self._is_told:
            print("training", flush=True)
            if self._stops:
                signal.raise_signal(signal.SIGSTOP)
        self._is_told = True
        time.sleep(self._pause)


class TellingSaves(kte.hooks.CheckpointSaverListener):
    """Reports the step of each complete checkpoint."""

    def before_save(self, session: Any, global_step_value: int) -> None:
        print(f"saving {global_step_value}", flush=True)

    def after_save(self, session: Any, global_step_value: int) -> None:
        print(f"saved {global_step_value}", flush=True)


class TellingBegins(logging.Handler):
    """Reports the step of each save that begins."""

    def emit(self, record: logging.LogRecord) -> None:
        if str(record.msg).startswith("Saving checkpoints"):
            print(f"saving {record.args[0]}", flush=True)


def input_fn(params: dict[str, Any]) -> Iterator[Any]:
    rng = np.random.default_rng(0)
    while True:
        x = rng.normal(size=(params["batch_size"], 64)).astype("float32")
        yield x, x[:, :1] ** 2


def model_fn(
    features: Any, labels: Any, mode: str, params: dict[str, Any]
) -> kte.TPUEstimatorSpec:
    x = keras.layers.Dense(params["width"], activation="relu")(features)
    x = keras.layers.Dropout(0.5)(x, training=mode == kte.ModeKeys.TRAIN)
    loss = ops.mean((keras.layers.Dense(1)(x) - labels) ** 2)
    optimizer = kte.CrossShardOptimizer(keras.optimizers.Adam(1e-3))
    return kte.TPUEstimatorSpec(mode, loss=loss, train_op=optimizer.minimize(loss))


def main(wishes: Wishes) -> None:
    """Trains with the given settings."""
    if wishes.max_file_bytes is not None:
        limit = (wishes.max_file_bytes, wishes.max_file_bytes)
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
    is_spread = wishes.way in SPREAD
    if is_spread:
        jax.config.update("jax_num_cpu_devices", 2)
    if wishes.is_watched:
        logger = logging.getLogger("keras_tpu_estimator")
        logger.setLevel(logging.INFO)
        logger.addHandler(TellingBegins())
    kte.TPUEstimator(
        model_fn,
        params={"width": wishes.width},
        config=kte.RunConfig(
            model_dir=wishes.model_dir,
            save_checkpoints_steps=STEPS_PER_SAVE,
            keep_checkpoint_max=3,
            tf_random_seed=1,
            tpu_config=kte.TPUConfig(iterations_per_loop=STEPS_PER_LOOP),
            shard_optimizer=is_spread,
            checkpoint_format=FORMATS.get(wishes.way),
        ),
        use_tpu=is_spread,
        train_batch_size=16,
    ).train(
        input_fn,
        max_steps=wishes.steps,
        hooks=[Telling(wishes.pause, wishes.stops)],
        saving_listeners=[] if wishes.is_watched else [TellingSaves()],
    )


if __name__ == "__main__":
    logging.basicConfig(level=logging.WARNING)
    main(Wishes(**json.loads(sys.argv[1])))
