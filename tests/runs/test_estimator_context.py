"""Objects that an estimator makes once, on several threads."""

import threading
from concurrent.futures import ThreadPoolExecutor

from keras_tpu_estimator.runs.estimator_context import _MadeOnce


class Estimator:
    """An object with an attribute that takes time to make."""

    def __init__(self, make):
        self.make = make

    @_MadeOnce
    def runtime(self):
        return self.make()


def test_several_threads_get_one_object():
    together = threading.Barrier(2, timeout=9)
    made = Estimator(object)

    def read(_):
        together.wait()
        return made.runtime

    with ThreadPoolExecutor(2) as threads:
        first, second = threads.map(read, range(2))
    assert first is second is made.runtime


def test_no_estimator_waits_for_another():
    together = threading.Barrier(2, timeout=9)
    estimators = [Estimator(together.wait), Estimator(together.wait)]
    with ThreadPoolExecutor(2) as threads:
        assert {*threads.map(lambda each: each.runtime, estimators)} == {0, 1}
