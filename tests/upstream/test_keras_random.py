"""Default seeds of Keras."""

import random
import threading

import keras
import pytest

from keras_tpu_estimator.base.upstream import keras_random


def default_seed_of_keras():
    return keras.initializers.RandomNormal().seed


def expected_seeds(seed, count):
    generator = random.Random(seed)
    return [generator.randint(1, int(1e9)) for _ in range(count)]


def test_default_seeds_come_from_a_generator():
    with keras_random.default_seeds(random.Random(3)):
        seeds = [
            default_seed_of_keras(),
            int(keras.random.SeedGenerator().state.value[0]),
            int(keras.layers.Dropout(0.5).seed_generator.state.value[0]),
            keras.initializers.get("glorot_uniform").seed,
        ]
    assert seeds == expected_seeds(3, 4)


def test_default_seeds_come_from_python_otherwise():
    with keras_random.default_seeds(random.Random(3)):
        pass
    random.seed(5)
    seeds = [default_seed_of_keras() for _ in range(3)]
    assert seeds == expected_seeds(5, 3)


def test_default_seeds_do_not_affect_python_and_other_threads():
    random.seed(5)
    seen = []
    thread = threading.Thread(target=lambda: seen.append(default_seed_of_keras()))
    with keras_random.default_seeds(random.Random(3)):
        first = default_seed_of_keras()
        thread.start()
        thread.join()
        second = default_seed_of_keras()
    assert [first, second] == expected_seeds(3, 2)
    assert [*seen, default_seed_of_keras()] == expected_seeds(5, 2)


def test_default_seeds_nest_and_end_after_an_error():
    random.seed(5)
    with keras_random.default_seeds(random.Random(3)):
        with pytest.raises(ZeroDivisionError):
            with keras_random.default_seeds(random.Random(4)):
                assert default_seed_of_keras() == expected_seeds(4, 1)[0]
                raise ZeroDivisionError
        assert default_seed_of_keras() == expected_seeds(3, 1)[0]
    assert default_seed_of_keras() == expected_seeds(5, 1)[0]


def test_seed_for_layers():
    with keras_random.default_seeds(random.Random(3)):
        first = keras_random.default_seed()
    with keras_random.default_seeds(random.Random(3)):
        assert keras.initializers.RandomNormal().seed == first
