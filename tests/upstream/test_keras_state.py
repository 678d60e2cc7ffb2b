"""Automatic names of Keras, which start again in blocks."""

import keras
import pytest
from keras.src.backend.common import global_state

from keras_tpu_estimator.base.upstream import keras_state


def dense_name():
    return keras.layers.Dense(1).name


def uninitialised():
    return global_state.get_global_attribute("uninitialized_variables") or []


def made_without_value():
    with keras.StatelessScope(initialize_variables=False):
        return keras.Variable("zeros", shape=(2,))


def number_of(name):
    return int(name.rpartition("_")[2])


def test_names_are_reset():
    dense_name()
    with keras_state.fresh_names():
        assert [dense_name(), dense_name()] == ["dense", "dense_1"]
        assert keras.Variable(0.0).name == "variable"
        assert keras.optimizers.SGD().name == "sgd"
    with keras_state.fresh_names():
        assert dense_name() == "dense"


def test_names_continue_afterwards():
    dense_name()
    before = dense_name()
    with keras_state.fresh_names():
        for _ in range(5):
            dense_name()
    assert number_of(dense_name()) == number_of(before) + 1


def test_names_continue_after_an_error():
    dense_name()
    before = dense_name()
    with pytest.raises(ZeroDivisionError):
        with keras_state.fresh_names():
            dense_name()
            raise ZeroDivisionError
    assert number_of(dense_name()) == number_of(before) + 1


def test_name_resets_can_be_nested():
    with keras_state.fresh_names():
        dense_name()
        with keras_state.fresh_names():
            assert dense_name() == "dense"
        assert dense_name() == "dense_1"


def test_names_are_reset_in_a_cleared_session():
    with keras_state.fresh_names():
        keras.backend.clear_session(free_memory=False)
        with keras_state.fresh_names():
            assert dense_name() == "dense"
        assert dense_name() == "dense"


@pytest.mark.parametrize(
    "taken, names",
    [
        ({}, ["dense", "dense_1"]),
        ({"dense": 1}, ["dense_1", "dense_2"]),
        ({"dense": 3}, ["dense_3", "dense_4"]),
        ({"conv2d": 3}, ["dense", "dense_1"]),
    ],
)
def test_used_names_are_skipped(taken, names):
    given = dict(taken)
    with keras_state.fresh_names(given):
        assert [dense_name(), dense_name()] == names
    assert given == taken


def test_uninitialised_variables_are_discarded():
    before = list(uninitialised())
    with keras_state.fresh_names():
        assert uninitialised() == []
        variable = made_without_value()
        assert [id(each) for each in uninitialised()] == [id(variable)]
    assert list(map(id, uninitialised())) == list(map(id, before))


def test_earlier_uninitialised_variables_are_kept():
    with keras_state.fresh_names():
        outer = made_without_value()
        with keras_state.fresh_names():
            made_without_value()
        assert [id(each) for each in uninitialised()] == [id(outer)]


def test_uninitialised_variables_of_a_block_stay_uninitialised():
    with keras_state.fresh_names():
        variable = made_without_value()
    with keras.StatelessScope():
        pass
    assert variable._value is None


def test_path_of_open_name_scopes():
    with keras.name_scope("a"), keras.name_scope("b"):
        assert keras_state.name_path() == "a/b"
        assert keras.Variable(0.0, name="c").path == "a/b/c"
    assert keras_state.name_path() == ""


def test_layout_map_of_a_distribution():
    assert keras_state.current_layout_map() is None
    devices = keras.distribution.list_devices()
    mesh = keras.distribution.DeviceMesh((2, 4), ["batch", "model"], devices)
    rules = keras.distribution.LayoutMap(mesh)
    keras.distribution.set_distribution(
        keras.distribution.ModelParallel(layout_map=rules)
    )
    try:
        assert keras_state.current_layout_map() is rules
    finally:
        keras.distribution.set_distribution(None)


def test_block_has_no_distribution():
    devices = keras.distribution.list_devices()
    told = keras.distribution.DataParallel(devices=devices, auto_shard_dataset=False)
    with told.scope():
        with pytest.raises(ZeroDivisionError):
            with keras_state.without_distribution():
                assert keras.distribution.distribution() is None
                assert keras.Variable(1.0)._layout is None
                raise ZeroDivisionError
        assert keras.distribution.distribution() is told
