"""Tests that changes of attributes are found, for any kind of value."""

import collections
import threading

import jax.numpy as jnp
import numpy as np
import pytest

from keras_tpu_estimator.api.hooks.hook_states import changed_names, fingerprints


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
