"""Tests that threads share the objects that an estimator makes once."""

import threading
from concurrent.futures import ThreadPoolExecutor

from keras_tpu_estimator.runs.estimator_context import _MadeOnce


class Estimator:
    """An object with an attribute that is slow to make."""

    def __init__(self, make):
        self.make = make

    @_MadeOnce
    def runtime(self):
        return self.make()


def test_threads_share_one_object():
    together = threading.Barrier(2, timeout=9)
    made = Estimator(object)

    def read(_):
        together.wait()
        return made.runtime

    with ThreadPoolExecutor(2) as threads:
        first, second = threads.map(read, range(2))
    assert first is second is made.runtime


def test_estimators_do_not_wait_for_each_other():
    together = threading.Barrier(2, timeout=9)
    estimators = [Estimator(together.wait), Estimator(together.wait)]
    with ThreadPoolExecutor(2) as threads:
        assert {*threads.map(lambda each: each.runtime, estimators)} == {0, 1}
