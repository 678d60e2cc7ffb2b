"""Sharded variables are saved and restored one core at a time."""

import gc
import os

import h5py
import keras
import numpy as np
import pytest
from helpers import model_fn_of, regression_data, repeated
from sharded_saves import shard_values

import keras_tpu_estimator as kte
from keras_tpu_estimator import checkpoints
from keras_tpu_estimator.base.common.index_ranges import IndexRanges
from keras_tpu_estimator.checkpoints import SaveFiles, ShardValues
from keras_tpu_estimator.engine.device.host_values import check_whole
from keras_tpu_estimator.files.atomic import checksum
from keras_tpu_estimator.runs.saver import FiniteValues
from tests.torture import memory, states
from tests.torture.saves import expect_no_stale_files

X, Y = regression_data(size=16)
RULES = {".*kernel": ("model",), "wide/bias": ("model",)}
OTHER_RULES = {"wide/kernel": (None, "model")}
WIDE = 64 * 16 * 4


def network(features, is_training):
    hidden = keras.layers.Dense(64, "tanh", name="wide")(features)
    return keras.layers.Dense(1, name="out")(hidden)


def adam():
    return keras.optimizers.Adam(0.01, epsilon=1e-3)


def estimator_of(model_dir, cores, rules=None, warm_start_from=None, **config):
    """An estimator with a number of cores per replica; `None` for one core."""
    return kte.TPUEstimator(
        model_fn_of(network, adam),
        config=kte.RunConfig(
            tpu_config=kte.TPUConfig(2, num_cores_per_replica=cores),
            model_dir=str(model_dir),
            tf_random_seed=1,
            log_step_count_steps=None,
            save_summary_steps=None,
            layout_map=rules,
            **config,
        ),
        use_tpu=cores is not None,
        warm_start_from=warm_start_from,
        train_batch_size=16,
        eval_batch_size=16,
        predict_batch_size=16,
    )


def values_of(directory):
    return checkpoints.read(checkpoints.latest(directory))


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A checkpoint of two replicas of four cores, of step 2."""
    directory = tmp_path_factory.mktemp("saved")
    made = estimator_of(directory, 4, RULES, shard_optimizer=True)
    made.train(repeated(X, Y), steps=2)
    return directory


@pytest.fixture(scope="module")
def one(tmp_path_factory):
    """The values of one core after 2 and 4 steps, and after none."""
    directory = tmp_path_factory.mktemp("one")
    made = estimator_of(directory, None).train(repeated(X, Y), steps=2)
    first = values_of(directory)
    new = checkpoints.read(directory / "model.ckpt-0")
    made.train(repeated(X, Y), steps=2)
    return first, values_of(directory), new


@pytest.fixture
def largest(monkeypatch):
    """Records the sizes of arrays that are written to or read from files."""
    sizes = []
    from_array = checksum.Extent.from_array

    def noted(offset, array):
        sizes.append(array.nbytes)
        return from_array(offset, array)

    monkeypatch.setattr(checksum.Extent, "from_array", noted)
    return sizes


def assert_close(values, expected):
    assert values.keys() == expected.keys()
    for name, value in values.items():
        np.testing.assert_allclose(
            value, expected[name], rtol=1e-6, atol=1e-6, err_msg=name
        )


def test_shards_are_in_separate_files(saved, one):
    assert_close(values_of(saved), one[0])
    names = os.listdir(saved)
    part = SaveFiles.at(str(saved / "model.ckpt-2")).named("shard-0-of-1")
    assert os.path.basename(part) in names
    with h5py.File(saved / "model.ckpt-2.h5") as file:
        assert file["wide/kernel"].is_virtual
        assert not file["out/bias"].is_virtual
        # Four shards of the weights, and eight of their slots.
        assert len(file["wide/kernel"].virtual_sources()) == 4
        slot = file["adam/wide_kernel_momentum"]
        assert len(slot.virtual_sources()) == 8
    with h5py.File(saved / "model.ckpt-0.h5") as file:
        assert file["wide/kernel"].is_virtual


@pytest.mark.rows(2)
@pytest.mark.parametrize(
    ("cores", "rules", "part"),
    [(8, RULES, 8), (4, OTHER_RULES, 4), (2, RULES, 2), (None, None, 1)],
)
def test_training_continues_on_other_cores(
    saved, one, tmp_path, largest, cores, rules, part
):
    made = estimator_of(tmp_path, cores, rules, keep_checkpoint_max=None)
    for name in os.listdir(saved):
        if "ckpt-0" not in name and not name.startswith("events"):
            os.link(saved / name, tmp_path / name)
    made.train(repeated(X, Y), max_steps=4)
    assert_close(values_of(tmp_path), one[1])
    assert max(largest) == WIDE // part


def test_complete_variables_are_read_in_shards(one, tmp_path, largest, monkeypatch):
    monkeypatch.setattr(checksum, "_PIECE", WIDE // 8)
    first, last, _ = one
    step = first["global_step"]
    values = {name: v for name, v in first.items() if name != "global_step"}
    checkpoints.save(tmp_path, int(step), values)
    largest.clear()
    made = estimator_of(tmp_path, 4, OTHER_RULES)
    made.train(repeated(X, Y), max_steps=4)
    assert max(largest) == WIDE // 4
    assert_close(values_of(tmp_path), last)


def test_tensorflow_checkpoints_contain_complete_variables(one, tmp_path):
    made = estimator_of(tmp_path, 4, RULES, checkpoint_format="tensorflow")
    made.train(repeated(X, Y), steps=2)
    assert_close(values_of(tmp_path), one[0])
    made = estimator_of(tmp_path, 8, RULES)
    made.train(repeated(X, Y), steps=2)
    assert_close(values_of(tmp_path), one[1])
    part = SaveFiles.at(str(tmp_path / "model.ckpt-4")).named("shard-0-of-1")
    assert os.path.isfile(part)


def test_initial_values_match_one_core(saved, one):
    new = checkpoints.read(saved / "model.ckpt-0")
    for name, value in one[2].items():
        np.testing.assert_array_equal(new[name], value)


def test_warm_start(saved, one, tmp_path, largest):
    made = estimator_of(tmp_path, 8, RULES, warm_start_from=str(saved))
    largest.clear()
    made.train(repeated(X, Y), steps=2)
    assert max(largest) == WIDE // 8
    new = checkpoints.read(tmp_path / "model.ckpt-0")
    for name in ("wide/kernel", "wide/bias", "out/kernel"):
        np.testing.assert_allclose(new[name], one[0][name], atol=1e-6)


class Doubling(keras.callbacks.Callback):
    """Assigns to variables after their step has been saved."""

    def on_train_end(self, logs=None):
        for variable in self.model.trainable_variables:
            variable.assign(2 * variable)


@pytest.mark.parametrize("file_format", ["hdf5", "tensorflow", "orbax"])
def test_failed_second_save_of_a_step_keeps_the_first(
    saved, one, tmp_path, monkeypatch, file_format
):
    replace, steps = os.replace, []

    def full(source, target):
        if target.endswith(("ckpt-2.h5", "ckpt-2.index", "ckpt-2.orbax")):
            steps.append(target)
            if len(steps) == 2:
                raise OSError(28, "No space left on device")
        replace(source, target)

    def train(steps):
        made = estimator_of(
            tmp_path,
            4,
            RULES,
            checkpoint_format=file_format,
            save_checkpoints_steps=1,
        )
        # The values before the callback changes the saved ones.
        saver = kte.hooks.CheckpointSaverHook(tmp_path, save_steps=1)
        made.train(repeated(X, Y), hooks=[saver, Doubling()], max_steps=steps)

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", full)
        with pytest.raises(OSError, match="No space left"):
            train(2)
    assert len(steps) == 2
    assert checkpoints.latest_intact(tmp_path).endswith("ckpt-2")
    assert_close(values_of(tmp_path), one[0])
    expect_no_stale_files(str(tmp_path), "a failed save")
    train(4)
    expected = {
        name: value * 2 if not name.startswith(("adam", "global")) else value
        for name, value in one[1].items()
    }
    assert_close(values_of(tmp_path), expected)


@pytest.mark.parametrize("is_fetched_by_part", [True, False])
def test_nonfinite_shards_are_found(is_fetched_by_part):
    def spread(values):
        halves = {IndexRanges((n,), (n + 1,)): n for n in range(2)}
        values = np.array(values)
        return shard_values(values, halves)

    variables = {
        "a": spread([1.0, 2.0]),
        "b": spread([np.inf, 2.0]),
        "c": spread([1.0, np.nan]),
        "not trained": spread([np.nan, np.nan]),
    }
    finite = FiniteValues({"a", "b", "c"}, step=3)
    second = IndexRanges((1,), (2,))
    for values in finite.checked(variables).values():
        if is_fetched_by_part:
            values.part(second)
        elif values.is_checked:
            values.check(values.fetch(second))
    assert finite.not_finite == "c"
    with pytest.raises(kte.hooks.NanLossDuringTrainingError, match="step 3"):
        finite.raise_if_any([None, "c"])


def test_shards_are_in_memory_one_at_a_time():
    values = states.state(256 << 20, variables=8, is_away=True)
    gc.disable()
    try:
        before = memory.now()
        memory.forget_peak()
        for value in values.values():
            shards = ShardValues.from_array(value)
            boxes = shards.variable.writers
            assert len(boxes) == 8
            assert sum(shards.part(box).nbytes for box in boxes)
        grown = memory.peak() - before
    finally:
        gc.enable()
    assert grown < 32 << 20


def test_variable_that_no_host_can_complete_is_refused_by_name():
    check_whole("These", ["a", "b"], ["a", "b"])
    with pytest.raises(ValueError, match=r"Received 1 .* such as 'b'. Set"):
        check_whole("These", ["a", "b"], ["a"])
