"""Tests all optimizers, with their own slots and with shared slots."""

import dataclasses

import keras
import pytest
from tpu_models import made
from tpu_programs import Program, rows
from tpu_table import TOPOLOGIES

from keras_tpu_estimator import optimizers

_KERAS = keras.optimizers
# Base classes and refused optimizers.
_OTHERS = {"LossScaleOptimizer", "MultiOptimizer", "Optimizer", "OptimizerMap"}


def classes_in(module):
    """The optimizers of a module, by name."""
    return {
        name: each
        for name, each in vars(module).items()
        if isinstance(each, type) and name not in _OTHERS
    }


OPTIMIZERS = {
    **classes_in(_KERAS),
    **{f"kte.{n}": each for n, each in classes_in(optimizers).items()},
    "kte.Optax": lambda rate: optimizers.Optax(
        pytest.importorskip("optax", reason="optax is not installed").adamw(rate)
    ),
    "Adam, amsgrad": lambda rate: _KERAS.Adam(rate, amsgrad=True),
    "Adam, averaged": lambda rate: _KERAS.Adam(
        rate, use_ema=True, ema_overwrite_frequency=5
    ),
    "Adam, clipped": lambda rate: _KERAS.Adam(rate, global_clipnorm=1.0),
    "Adam, several batches": lambda rate: _KERAS.Adam(
        rate, gradient_accumulation_steps=4
    ),
    "Adam, scheduled": lambda rate: _KERAS.Adam(
        _KERAS.schedules.CosineDecay(rate, 100)
    ),
    "MultiOptimizer": lambda rate: _KERAS.MultiOptimizer(
        lambda variable: (
            _KERAS.Adam(rate) if "up" in variable.path else _KERAS.SGD(rate)
        )
    ),
    "SGD, Nesterov": lambda rate: _KERAS.SGD(rate, 0.9, nesterov=True),
}
# One optimizer for each kind of slots.
SHARED = (
    *("Adafactor", "Adam", "Ftrl", "SGD"),
    *("kte.LAMB", "kte.Optax", "kte.SM3"),
)


# Other optimizers that update each element separately.
SELDOM = {
    *("Adadelta", "Adagrad", "Adam, amsgrad", "Adam, averaged"),
    *("Adam, scheduled", "AdamW", "Adamax", "Ftrl", "Lion", "Nadam"),
    *("RMSprop", "SGD, Nesterov", "ScheduleFreeAdamW"),
}


def program_of(name, **settings):
    is_seldom = name in SELDOM
    return Program(
        lambda folder: made(
            folder, optimizer=lambda: OPTIMIZERS[name](0.1), **settings
        ),
        modes=("train",),
        topologies=() if is_seldom else TOPOLOGIES[:1],
        seldom=TOPOLOGIES[:1] if is_seldom else (),
    )


PROGRAMS = {name: program_of(name) for name in OPTIMIZERS} | {
    f"{name}, shared": dataclasses.replace(
        program_of(name, config={"shard_optimizer": True}), collectives={}
    )
    for name in SHARED
}


@pytest.mark.rows(4)
@pytest.mark.parametrize(("name", "mode", "topology"), rows(PROGRAMS))
def test_optimizers(name, mode, topology, compiles):
    plan = compiles(PROGRAMS, name, mode, topology)
    if name.endswith(", shared"):
        # Adafactor sums rows and columns of shards.
        assert sum(each.count for each in plan.cost.collectives) <= 6
