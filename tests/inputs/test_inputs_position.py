"""Tests that an input continues where another run of training stopped."""

import functools
import itertools
import sys
import types
import zipfile

import numpy as np
import pytest
import tensorflow as tf  # noqa: TID253 - some inputs are tf.data's

import keras_tpu_estimator as kte
from keras_tpu_estimator import InputPipelineConfig, checkpoints
from keras_tpu_estimator.base.common.params import with_additional
from keras_tpu_estimator.base.common.topology import Topology
from keras_tpu_estimator.checkpoints import SaveFiles
from keras_tpu_estimator.engine.inputs import pipeline as pipeline_module
from keras_tpu_estimator.engine.inputs.datasets import Dataset
from keras_tpu_estimator.engine.inputs.deployment import input_plan
from keras_tpu_estimator.engine.inputs.packing import Packed, pack, unpack
from keras_tpu_estimator.engine.inputs.pipeline import Pipeline
from keras_tpu_estimator.engine.inputs.position import (
    Position,
    RestorePoint,
    RestorePoints,
    StepRecipe,
    read_position,
    write_position,
)
from keras_tpu_estimator.engine.inputs.request import InputRequest
from keras_tpu_estimator.files.checkpoints import saving
from keras_tpu_estimator.files.directory.save_files import ResumeFiles

TRAIN = kte.ModeKeys.TRAIN
SIZE = 2
EXAMPLES = 800


@pytest.fixture(autouse=True)
def states_from_the_start(monkeypatch):
    """Makes calls of less than a second also save iterator states."""
    monkeypatch.setattr(pipeline_module, "_DELAY_SECS", 0.0)


class Loader:
    """A loader with the interface of PyTorch's StatefulDataLoader."""

    def __init__(self, size=SIZE):
        self.size = size
        self.next = 0
        self.reads = []

    def __iter__(self):
        while self.next < EXAMPLES:
            start, self.next = self.next, self.next + self.size
            self.reads.append(start)
            yield np.arange(start, self.next)

    def state_dict(self):
        return {"next": self.next}

    def load_state_dict(self, state):
        self.next = state["next"]


class GrainIterator:
    """An iterator with Grain's interface."""

    def __init__(self, size=SIZE):
        self._rows = iter(range(0, EXAMPLES, size))
        self._size = size
        self._done = 0

    def __iter__(self):
        return self

    def __next__(self):
        self._done += 1
        start = next(self._rows)
        return np.arange(start, start + self._size)

    def get_state(self):
        return str(self._done).encode()

    def set_state(self, state):
        self._done = int(state)
        self._rows = itertools.islice(self._rows, self._done, None)


class Failing(Loader):
    """A loader whose `state_dict` raises an error."""

    def state_dict(self):
        raise NotImplementedError("not this time")


class Opaque(Loader):
    """A loader whose state contains an unsavable object."""

    def state_dict(self):
        return {"next": object()}


class Forgetful(Loader):
    """A loader that ignores a restored state."""

    def load_state_dict(self, state):
        raise KeyError("version")


def in_order(params):
    return tf.data.Dataset.range(EXAMPLES).batch(params["batch_size"])


def shuffled(params, seed=None):
    data = tf.data.Dataset.range(EXAMPLES).shuffle(100, seed=seed)
    return data.batch(params["batch_size"], drop_remainder=True).prefetch(2)


def generator(params):
    size = params["batch_size"]
    yield from np.arange(EXAMPLES).reshape(-1, size)


INPUTS = {
    "in order": in_order,
    "shuffled": shuffled,
    "generator": generator,
    "state_dict": lambda params: Loader(params["batch_size"]),
    "get_state": lambda params: GrainIterator(params["batch_size"]),
    "failing": lambda params: Failing(params["batch_size"]),
    "opaque": lambda params: Opaque(params["batch_size"]),
    "forgetful": lambda params: Forgetful(params["batch_size"]),
}


def pipeline(input_fn, start=None, chunk=1, replicas=1, way="PER_HOST_V1"):
    topology = Topology(replicas)
    plan = input_plan(TRAIN, InputPipelineConfig[way], topology, SIZE * 2)
    request = InputRequest(
        mode=TRAIN,
        plan=plan,
        params_for=functools.partial(with_additional, {}),
        chunk=chunk,
    )
    return Pipeline(input_fn, request, start, is_kept=True)


def examples(pipe, steps, at_once=4):
    """Returns the examples of a number of steps, or of all steps."""
    taken = []
    while steps is None or steps > 0:
        batch = pipe.take(at_once if steps is None else min(at_once, steps))
        if batch is None:
            break
        taken += batch.features.ravel().tolist()
        steps = None if steps is None else steps - batch.steps
    return taken


@pytest.mark.parametrize("chunk", [1, 10])
@pytest.mark.parametrize("source", INPUTS)
def test_each_example_is_read_once(source, chunk, tmp_path):
    """Reading is interrupted twice, each time after reading ahead."""
    seen, start = [], None
    for used, ahead in ((24, 12), (36, 8), (20, 0)):
        with pipeline(INPUTS[source], start, chunk) as pipe:
            seen += examples(pipe, 12)
            pipe.position(12)  # Requests a restore point soon.
            seen += examples(pipe, used - 12)
            examples(pipe, ahead)
            start = saved_and_read(tmp_path, pipe.position(used))
    assert start.steps == 80
    with pipeline(INPUTS[source], start, chunk) as pipe:
        seen += examples(pipe, None)
    assert len(seen) == EXAMPLES
    assert sorted(seen) == list(range(EXAMPLES))
    assert (seen == sorted(seen)) == (source != "shuffled")


def test_input_with_a_state_rereads_few_batches():
    loaders = [Loader(SIZE * 2) for _ in range(2)]
    with pipeline(lambda params: loaders[0]) as pipe:
        examples(pipe, 40)
        pipe.position(40)
        examples(pipe, 8)
        start = pipe.position(48)
    with pipeline(lambda params: loaders[1], start) as pipe:
        assert examples(pipe, 1) == list(range(192, 196))
    assert start.restore_point.steps > 0
    assert loaders[1].reads[0] == 4 * start.restore_point.steps


@pytest.mark.parametrize(
    ("way", "before", "after", "is_same"),
    [
        ("PER_HOST_V1", 1, 2, True),
        ("PER_HOST_V2", 2, 2, True),
        ("PER_HOST_V2", 1, 4, True),
        ("PER_HOST_V2", 4, 1, True),
        ("BROADCAST", 2, 1, True),
        ("PER_SHARD_V1", 2, 2, True),
        ("PER_SHARD_V1", 2, 1, False),
    ],
)
def test_input_continues_on_other_cores(way, before, after, is_same, caplog):
    def input_fn(params):
        yield from np.arange(EXAMPLES).reshape(-1, params["batch_size"])

    with pipeline(input_fn, None, replicas=before, way=way) as pipe:
        examples(pipe, 12)
        start = pipe.position(8)
        later = examples(pipe, 1)
    with pipeline(input_fn, start, replicas=after, way=way) as pipe:
        assert (examples(pipe, 5)[-4:] == later) == is_same
    assert ("from 2 to 1" in caplog.text) == (way == "PER_SHARD_V1" and before != after)


@pytest.mark.parametrize("suffix", ["/../x", "a/b", "\\x"])
def test_state_with_path_separators_is_refused(suffix):
    dataset = Dataset(tf.data.Dataset.range(3).batch(1))
    state = dataset.state_of(iter(dataset.items()))
    state["tf.data"] |= {suffix: b"content"}
    with pytest.raises(ValueError, match="must not have path separators"):
        dataset.items(state)


def test_state_of_other_cores_is_ignored():
    with pipeline(shuffled, None, replicas=2, way="PER_HOST_V2") as pipe:
        examples(pipe, 12)
        start = pipe.position(12)
    assert start.restore_point.states is not None
    assert start.restore_point_for(StepRecipe(4, 1, 4)) == RestorePoint()
    assert start.restore_point_for(start.recipe) is start.restore_point


def arrays(params):
    return np.arange(params["batch_size"])


@pytest.mark.parametrize(
    "other", [functools.partial(shuffled, seed=1), generator, arrays]
)
def test_batches_of_another_input_are_skipped(caplog, other):
    with pipeline(in_order, chunk=10) as pipe:
        examples(pipe, 24)
        start = pipe.position(20)
    with pipeline(other, start, 10) as pipe:
        rows = examples(pipe, 1)
    with pipeline(other) as pipe:
        assert examples(pipe, 21)[-4:] == rows
    assert "could not be restored" in caplog.text


def test_restore_points_take_a_small_share_of_the_time():
    now, made = [0.0], []
    restore_points = RestorePoints(RestorePoint(), is_wanted=True, clock=lambda: now[0])

    def make():
        now[0] += 1.0
        made.append(now[0])
        return RestorePoint(len(made))

    for _ in range(100):
        now[0] += 1.0
        restore_points.newest(0)
        restore_points.add(make)
    assert 4 <= len(made) <= 5


def test_requested_restore_points_are_kept_until_used():
    restore_points = RestorePoints(RestorePoint(), clock=lambda: 0.0)
    restore_points.add(pytest.fail)
    assert restore_points.newest(8).steps == 0
    restore_points.add(lambda: RestorePoint(20))
    restore_points.add(pytest.fail)
    assert [restore_points.newest(steps).steps for steps in (16, 20)] == [0, 20]
    restore_points.add(lambda: RestorePoint(32))
    assert [restore_points.newest(steps).steps for steps in (24, 40)] == [
        20,
        32,
    ]


def test_no_restore_points_are_made_at_first():
    now = [0.0]
    restore_points = RestorePoints(
        RestorePoint(), True, None, 5.0, clock=lambda: now[0]
    )
    restore_points.add(pytest.fail)
    now[0] = 5.0
    restore_points.add(lambda: RestorePoint(8))
    assert restore_points.newest(8).steps == 8


def test_large_state_is_not_kept(caplog):
    restore_points = RestorePoints(RestorePoint(), True, max_bytes=2**20)
    large = RestorePoint(1, 0, Packed("", (bytes(3 << 20),)))
    restore_points.add(lambda: large)
    assert restore_points.newest(1) == RestorePoint()
    assert "takes 3 MiB" in caplog.text
    restore_points.add(pytest.fail)


def test_no_state_is_requested_if_disabled(caplog):
    restore_points = RestorePoints(RestorePoint(), True, max_bytes=0)
    restore_points.add(pytest.fail)
    assert restore_points.newest(8) == RestorePoint()
    assert not caplog.records


def test_large_state_is_logged_once(caplog):
    caplog.set_level("INFO", "keras_tpu_estimator")
    restore_points = RestorePoints(RestorePoint(), True, 2**30, clock=lambda: 0.0)
    for step in (1, 2):
        large = RestorePoint(step, 0, Packed("", (bytes(17 << 20),)))
        restore_points.add(lambda large=large: large)
        assert restore_points.newest(step) is large
    assert caplog.text.count("takes 17 MiB beside each checkpoint") == 1


@pytest.mark.parametrize(
    "value",
    [
        None,
        [1, 2.5, "a", b"\x00", True, {"x": (1, [])}, {3: b"", (1, 2): None}],
        {"bytes": 1, "array": {"dict": [], "tuple": 3}},
    ],
)
def test_packed_values_are_restored(value):
    assert unpack(pack(value)) == value


@pytest.mark.parametrize("dtype", ["float32", "int64", "bool", "complex64"])
@pytest.mark.parametrize("shape", [(), (0,), (2, 3)])
def test_packed_arrays_are_restored(dtype, shape):
    array = np.ones(shape, dtype)
    came = unpack(pack({"a": array}))["a"]
    np.testing.assert_array_equal(came, array, strict=True)
    assert came.flags.writeable


def test_packed_pytorch_tensors_are_restored(monkeypatch):
    class Tensor:
        __module__ = "torch"

        def __init__(self, array):
            self.array = array

        def __array__(self, dtype=None, copy=None):
            return self.array

    torch = types.SimpleNamespace(from_numpy=Tensor)
    monkeypatch.setitem(sys.modules, "torch", torch)
    came = unpack(pack(Tensor(np.arange(3))))
    assert isinstance(came, Tensor) and came.array.tolist() == [0, 1, 2]


@pytest.mark.parametrize("value", [object(), {1, 2}, np.array(["a"]), len])
def test_unpackable_values_are_named(value):
    with pytest.raises(TypeError, match="Remove it from the state"):
        pack({"a": [value]})


def saved_and_read(directory, position):
    """Saves a position with a checkpoint and reads it."""
    saved = SaveFiles(str(directory / "model.ckpt-1"))
    write_position(saved, position)
    saving.save_into(saved, 1, {}, retention=checkpoints.Retention())
    return read_position(ResumeFiles.at(saved.prefix))


def test_saved_positions_are_read(tmp_path):
    prefix = str(tmp_path / "model.ckpt-1")
    assert read_position(ResumeFiles.at(prefix)) is None
    states = pack([{"x": b"abc", "y": b""}])
    position = Position(8, StepRecipe(None, 1, None), RestorePoint(4, 2, states))
    assert saved_and_read(tmp_path, position) == position
    SaveFiles.at(prefix).remove_resume_files()
    SaveFiles.at(prefix).remove_resume_files()
    assert read_position(ResumeFiles.at(prefix)) is None


@pytest.mark.parametrize("byte", [0, 0xFF, None])
def test_error_names_a_corrupt_position(tmp_path, byte):
    saved = SaveFiles(str(tmp_path / "model.ckpt-4"), "0f0f0f0f")
    states = pack({"next": np.arange(3)})
    written = Position(4, StepRecipe(8, 1, 8), RestorePoint(3, 0, states))
    checkpoints.save(tmp_path, 4, {})
    prefix = str(tmp_path / "model.ckpt-4")
    saved = SaveFiles.at(prefix)
    write_position(saved, written)
    path = saved.position(0, 1)
    with open(path, "rb") as file:
        content = file.read()
    for at in range(len(content)):
        changed = bytearray(content)
        changed[at] = changed[at] ^ 1 if byte is None else byte
        with open(path, "wb") as file:
            file.write(changed)
        try:
            position = read_position(ResumeFiles.at(prefix))
        except ValueError as error:
            assert path in str(error)
        else:
            assert position in (written, None)


@pytest.mark.parametrize(
    "record", ["[]", "3", "[" * 10_000, '{"restore_point": {"states": 3}}']
)
def test_error_names_a_position_of_another_form(tmp_path, record):
    checkpoints.save(tmp_path, 4, {})
    saved = SaveFiles.at(str(tmp_path / "model.ckpt-4"))
    with zipfile.ZipFile(saved.position(0, 1), "w") as file:
        file.writestr("position.json", record)
    with pytest.raises(ValueError, match="must contain the position in the input"):
        read_position(ResumeFiles.at(saved.prefix))
