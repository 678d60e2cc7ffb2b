"""Tests that changes of attributes are found, for any kind of value."""

import collections
import threading
import time
import types

import jax.numpy as jnp
import numpy as np
import pytest

from keras_tpu_estimator.api.hooks.fingerprints import changed_names, fingerprints


class Some:
    """Any object."""


def changes(value, change):
    """Returns the changes between an object with one value and with another."""
    some = Some()
    some.value, some.lock = value, threading.Lock()
    before = fingerprints(some)
    assert not changed_names(before, fingerprints(some))
    some.value = change(value)
    return changed_names(before, fingerprints(some))


def after(call):
    """Returns a function that changes a value in place."""

    def change(value):
        call(value)
        return value

    return change


@pytest.mark.parametrize(
    ("value", "change"),
    [
        (1, lambda value: 2),
        (1, lambda value: 1.0),
        (None, lambda value: "text"),
        (float("nan"), lambda value: 0.0),
        (np.float32(1), lambda value: np.float64(1)),
        ([1], after(lambda value: value.append(2))),
        ([0] * 5000, after(lambda value: value.append(0))),
        ({"a": [1]}, after(lambda value: value["a"].append(2))),
        ({n: n for n in range(5000)}, after(lambda value: value.pop(0))),
        ({1, 2}, after(lambda value: value.add(3))),
        (collections.deque([1, 2], maxlen=2), after(lambda v: v.append(3))),
        (np.zeros(3), after(lambda value: value.fill(1))),
        (jnp.zeros(3), lambda value: value + 1),
        (threading.Lock(), lambda value: 0),
    ],
)
def test_changes_are_found(value, change):
    assert changes(value, change) == ["value"]


@pytest.mark.parametrize(
    ("value", "change"),
    [
        (float("nan"), lambda value: float("nan")),
        (b"abc", lambda value: bytes([97, 98, 99])),
        (None, lambda value: threading.Lock()),
        (print, lambda value: len),
        ([1, 2], lambda value: [1, 2]),
    ],
)
def test_equal_values_and_values_without_data_are_unchanged(value, change):
    assert not changes(value, change)


@pytest.mark.parametrize("zeros", [jnp.zeros(()), np.zeros(2**18)])
def test_values_at_the_address_of_deleted_ones_are_changes(zeros):
    some = Some()
    some.value = zeros + 1
    address, before = id(some.value), fingerprints(some)
    for _ in range(1000):
        some.value = some.value + 1
        if id(some.value) == address:
            break
    assert id(some.value) == address
    assert changed_names(before, fingerprints(some)) == ["value"]


def test_methods_of_other_objects_are_not_called():
    class Tensor:
        def __len__(self):
            raise TypeError

    assert not changes(Tensor(), lambda value: Tensor())


def test_list_may_contain_itself():
    value = []
    value.append(value)
    assert changes(value, after(lambda value: value.append(1))) == ["value"]


def test_new_attributes_are_changes():
    some = Some()
    before = fingerprints(some, but=("known",))
    some.new, some.known = 1, 2
    assert changed_names(before, fingerprints(some, but=("known",))) == ["new"]


class Unreadable(dict):
    """A container that another thread changes, or whose class fails."""

    def items(self):
        raise RuntimeError("dictionary changed size during iteration")


class Speechless:
    def __repr__(self):
        raise OSError("no text")


@pytest.mark.parametrize(
    "value",
    [Unreadable(), {Speechless()}, [[Unreadable()]]],
    ids=["dict", "set", "nested"],
)
def test_attribute_that_cannot_be_read_is_unknown(value):
    some = types.SimpleNamespace(value=value, step=1)
    before = fingerprints(some)
    some.step = 2
    assert changed_names(before, fingerprints(some)) == ["step"]


def test_long_integers_are_compared():
    some = types.SimpleNamespace(value=10**5000, sign=-1)
    before = fingerprints(some)
    some.value, some.sign = 10**5000 + 1, -2
    assert changed_names(before, fingerprints(some)) == ["sign", "value"]


def test_cost_of_many_values_has_a_bound():
    value = 0
    for _ in range(4):
        value = [value] * 40
    some = types.SimpleNamespace(value=value, later=1)
    started = time.perf_counter()
    before = fingerprints(some)
    assert time.perf_counter() - started < 1.0
    # Attributes beyond the bound are unknown, so their changes are not reported.
    some.later = 2
    assert changed_names(before, fingerprints(some)) == []


def test_attributes_that_become_readable_are_not_reported():
    some = types.SimpleNamespace(value=Unreadable())
    before = fingerprints(some)
    some.value = {1: 2}
    assert changed_names(before, fingerprints(some)) == []
