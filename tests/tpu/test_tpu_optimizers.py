"""All optimizers, with slots of their own and shared ones."""

import keras
import pytest
from tpu_facts import facts_of
from tpu_lowering import job_on
from tpu_lowering import lowered
from tpu_models import input_fn
from tpu_models import made

from keras_tpu_estimator import optimizers

_KERAS = keras.optimizers
# Those that are no optimizers by themselves, or refused.
_OTHERS = {"LossScaleOptimizer", "MultiOptimizer", "Optimizer", "OptimizerMap"}


def classes_in(module):
    """The optimizers of a module, by name."""
    return {
        name: each
        for name, each in vars(module).items()
        if isinstance(each, type) and name not in _OTHERS
    }


PROGRAMS = {
    **classes_in(_KERAS),
    **{f"kte.{n}": each for n, each in classes_in(optimizers).items()},
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
# Of each kind of slots one.
SHARED = ("Adafactor", "Adam", "Ftrl", "SGD", "kte.LAMB", "kte.SM3")


@pytest.mark.parametrize("name", PROGRAMS)
def test_an_optimizer(name, tmp_path):
    job = job_on(made(tmp_path, optimizer=lambda: PROGRAMS[name](0.1)))
    facts = facts_of(lowered(job, "train", input_fn))
    facts.check()
    facts.check_data_parallel("train")


@pytest.mark.parametrize("name", SHARED)
def test_an_optimizer_whose_slots_are_shared(name, tmp_path):
    config = {"shard_optimizer": True}
    estimator = made(
        tmp_path, optimizer=lambda: PROGRAMS[name](0.1), config=config
    )
    facts = facts_of(lowered(job_on(estimator), "train", input_fn))
    facts.check()
    # Sums of rows and columns of parts, in Adafactor.
    assert sum(facts.collectives.values()) <= 6
