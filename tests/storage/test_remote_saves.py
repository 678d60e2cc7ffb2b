"""Tests saves to URLs that stop between any two operations on objects."""

import contextlib

import pytest

from keras_tpu_estimator import checkpoints
from keras_tpu_estimator.base.hosts.agreement import Hosts
from keras_tpu_estimator.base.storage import paths, transfers
from keras_tpu_estimator.engine.inputs.position import read_position
from keras_tpu_estimator.files.directory import save_files
from keras_tpu_estimator.files.directory.save_files import ResumeFiles
from tests.torture import saves
from tests.torture.operations import Killed

URL = "memory://bucket/run"
USERS = ("mnist.input.zip", "train.tfrecord.shard-00000-of-00002")


class Store:
    """A store in which one operation fails or kills the process."""

    def __init__(self, memory, monkeypatch):
        self.objects = memory.store
        self.done = 0
        self.at = 0
        self.error = Killed
        for module, name in ((transfers, "put"), (paths, "remove")):
            real = getattr(module, name)
            monkeypatch.setattr(module, name, self._wrapped(real))

    def _wrapped(self, real):
        def operation(*arguments, **settings):
            self.done += 1
            is_over = self.error is Killed and self.done > self.at
            if self.at and (self.done == self.at or is_over):
                raise self.error
            real(*arguments, **settings)

        return operation

    @contextlib.contextmanager
    def ends(self, at, error):
        """Makes an operation of the `with` block the last one."""
        self.done, self.at, self.error = 0, at, error
        with contextlib.suppress(error):
            yield
        self.at = 0
        transfers._KEPT.clear()


@pytest.fixture
def store(memory, monkeypatch):
    return Store(memory, monkeypatch)


def number_of(prefix):
    """The number of a save, which all its files contain."""
    values = checkpoints.read(prefix)
    del values["global_step"]
    (number,) = {int(each) for value in values.values() for each in value}
    for host in range(2):
        position = read_position(ResumeFiles.at(prefix), Hosts(host, 2))
        assert position.steps == number
    return number


@pytest.mark.parametrize("error", [Killed, ConnectionError])
@pytest.mark.parametrize("way", saves.WAYS)
def test_saving_a_step_twice_replaces_its_files(store, way, error):
    saves.save(URL, 10, 1, way)
    for name in USERS:
        transfers.put_bytes(b"mine", f"{URL}/{name}")
    before = dict(store.objects)
    with store.ends(0, error):
        saves.save(URL, 10, 2, way)
    after = len(store.objects)
    for at in range(1, store.done + 1):
        store.objects.clear()
        store.objects.update(before)
        with store.ends(at, error):
            saves.save(URL, 10, 2, way)
        prefix = checkpoints.latest_intact(URL)
        number = number_of(prefix)
        assert number in (1, 2)
        save_files.sweep(URL)
        assert number_of(prefix) == number
        is_bundle = way == saves.TENSORFLOW
        # A TensorFlow checkpoint has one more file every second time.
        expected = after - (is_bundle and number == 1)
        assert len(store.objects) == expected, at
        assert {f"/bucket/run/{name}" for name in USERS} <= {*store.objects}
    assert number == 2
