"""Tests that user code assigns equal values on all hosts. Each host is a thread."""

import jax.numpy as jnp
import numpy as np
import pytest

from keras_tpu_estimator.engine.device.run_state import RunState
from keras_tpu_estimator.engine.program.store import GLOBAL_STEP
from keras_tpu_estimator.runs.agreed_steps import SameEdits, compare_edits


@pytest.fixture
def assigned(on_each, hosts_of, store):
    """Returns the results of hosts that assign values and compare them after each."""

    def run(*of_hosts):
        store.values.clear()

        def assign(host):
            values = RunState({GLOBAL_STEP: np.int32(0)}, "train")
            with hosts_of(host, len(of_hosts)).call("train") as call:
                compare_edits(call, values, "train")
                return [
                    call.gather(host)
                    for each in of_hosts[host]
                    if values.on_edit(each) is None
                ]

        return on_each(assign, len(of_hosts))

    return run


def test_equal_values_are_accepted(assigned):
    x = np.arange(3.0, dtype="float32")
    one = [{"rate": x}, {}, {"a": x, "b": x}]
    # Neither the device nor the order matters.
    other = [{"rate": jnp.asarray(x)}, {}, {"b": x, "a": x}]
    assert assigned(one, other) == [[[0, 1]] * 3] * 2


@pytest.mark.parametrize(
    ("other", "told"),
    [
        ({"rate": np.full(2, 0.2)}, "host 1 has assigned values of checksum"),
        ({}, "host 1 has assigned none"),
        ({"rate": np.full(1, 0.1)}, "host 1 has assigned values of checksum"),
        (
            {"rate": np.full(2, 0.1, "float32")},
            "host 1 has assigned values of checksum",
        ),
    ],
)
def test_differences_are_named(other, told, assigned):
    equal = {"bias": np.zeros(2)}
    one = {"rate": np.full(2, 0.1)} | equal
    for error in assigned([equal, one], [equal, other | equal]):
        assert isinstance(error, ValueError)
        assert (
            "the same values to variables on all hosts, which train one model "
            "together. Received: for 'rate', host 0 has assigned values of"
            in str(error)
        )
        assert told in str(error) and "bias" not in str(error)


def test_every_assignment_is_compared():
    """A step between two assignments may have read the value."""
    one, other = SameEdits("train"), SameEdits("train")
    one.note({"rate": np.zeros(2)})
    one.note({"rate": np.ones(2)})
    other.note({"rate": np.ones(2)})
    assert one.digest() != other.digest()
    one.is_equal()
    assert one.digest() == 0


def test_single_process_compares_nothing(hosts_of):
    values = RunState({GLOBAL_STEP: np.int32(0)}, "train")
    with type(hosts_of(0))().call("train") as call:
        compare_edits(call, values, "train")
    assert values.on_edit is None
