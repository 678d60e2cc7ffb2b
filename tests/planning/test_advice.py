"""Options that are tried if a program does not fit."""

import dataclasses
import types

import pytest

import keras_tpu_estimator as kte
from keras_tpu_estimator.planning.calls import fitting_options


@dataclasses.dataclass(frozen=True)
class FakeCall:
    """The part of a `Call` that the search for options reads."""

    config: kte.RunConfig
    mode: str = kte.ModeKeys.TRAIN

    @property
    def context(self):
        devices = types.SimpleNamespace(use_tpu=True)
        return types.SimpleNamespace(config=self.config, mode_devices=devices)

    def with_options(self, options):
        return options


def tried(config):
    """The options that are compiled, if none fits."""
    compiled = []
    fitting_options(FakeCall(config), lambda x: compiled.append(x) or False)
    return [name for options in compiled for name in options]


def test_all_options_are_tried():
    assert {*tried(kte.RunConfig())} == {
        "shard_optimizer",
        "fsdp",
        "micro_batches",
        "remat",
        "num_cores_per_replica",
    }


@pytest.mark.parametrize(
    "chosen", [{"fsdp": True}, {"shard_optimizer": True}, {"micro_batches": 2}]
)
def test_options_of_the_user_are_not_tried_again(chosen):
    assert not {*tried(kte.RunConfig(**chosen))} & {*chosen}


def test_evaluations_get_no_advice():
    call = FakeCall(kte.RunConfig(), kte.ModeKeys.EVAL)
    assert fitting_options(call, lambda options: True) == {}
