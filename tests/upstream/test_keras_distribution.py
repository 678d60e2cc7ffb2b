"""The distribution that is set in Keras."""

import keras
import pytest

from keras_tpu_estimator.base.upstream import keras_distribution


def test_layout_map_of_a_distribution():
    assert keras_distribution.current_layout_map() is None
    devices = keras.distribution.list_devices()
    mesh = keras.distribution.DeviceMesh((2, 4), ["batch", "model"], devices)
    rules = keras.distribution.LayoutMap(mesh)
    keras.distribution.set_distribution(
        keras.distribution.ModelParallel(layout_map=rules)
    )
    try:
        assert keras_distribution.current_layout_map() is rules
    finally:
        keras.distribution.set_distribution(None)


def test_block_has_no_distribution():
    devices = keras.distribution.list_devices()
    told = keras.distribution.DataParallel(devices=devices, auto_shard_dataset=False)
    with told.scope():
        with pytest.raises(ZeroDivisionError):
            with keras_distribution.without_distribution():
                assert keras.distribution.distribution() is None
                assert keras.Variable(1.0)._layout is None
                raise ZeroDivisionError
        assert keras.distribution.distribution() is told
