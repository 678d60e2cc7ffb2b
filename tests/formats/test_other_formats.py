"""Tests checkpoints of other libraries, and arrays in memory."""

import json
import pathlib
import shutil
import subprocess
import sys

import jax
import jax.numpy as jnp
import keras
import ml_dtypes
import numpy as np
import pytest
from helpers import batches_of, estimator_of, regression_data

import keras_tpu_estimator as kte

INDEX = "model.safetensors.index.json"
SAFE_DTYPES = (
    "bool int8 uint64 float16 float64 complex64 bfloat16 float8_e4m3fn float8_e5m2"
).split()
X, Y = regression_data(16)
TREE = {
    "params": {
        "dense": {
            "kernel": np.arange(3, dtype=ml_dtypes.bfloat16)[:, None],
            "bias": np.array([0.5], "float32"),
        },
        "blocks": [np.zeros(2), np.ones((2, 3))],
    },
    "step": np.int32(7),
    "a/name": np.array(True),
}
FLAT = {
    "params/dense/kernel": TREE["params"]["dense"]["kernel"],
    "params/dense/bias": TREE["params"]["dense"]["bias"],
    "params/blocks/0": np.zeros(2),
    "params/blocks/1": np.ones((2, 3)),
    "step": np.int32(7),
    "a/name": np.array(True),
}


def orbax():
    return pytest.importorskip(
        "orbax.checkpoint", reason="orbax-checkpoint cannot be installed here"
    )


def saved_by_orbax(folder):
    with orbax().StandardCheckpointer() as checkpointer:
        checkpointer.save(folder / "one", TREE)
    return folder / "one"


def saved_by_a_manager(folder):
    ocp = orbax()
    with ocp.CheckpointManager(folder / "manager") as manager:
        for step in (3, 20):
            tree = TREE if step == 20 else {"other": np.zeros(1)}
            manager.save(step, args=ocp.args.StandardSave(tree))
    return folder / "manager"


def saved_by_safetensors(folder):
    numpy = pytest.importorskip(
        "safetensors.numpy", reason="safetensors cannot be installed here"
    )
    arrays = {name: np.asarray(value) for name, value in FLAT.items()}
    numpy.save_file(arrays, folder / "model.safetensors")
    return folder / "model.safetensors"


def can_write(numpy, dtype):
    """Whether the installed version of safetensors supports a dtype."""
    from safetensors import SafetensorError

    try:
        numpy.save({"x": np.zeros(1, dtype)})
    except SafetensorError:
        return False
    return True


def test_each_dtype_of_safetensors_is_read(tmp_path):
    numpy = pytest.importorskip("safetensors.numpy", reason="an extra")
    arrays = {}
    path = tmp_path / "model.safetensors"
    for dtype in SAFE_DTYPES:
        dtype = np.dtype(getattr(ml_dtypes, dtype, dtype))
        if not can_write(numpy, dtype):
            continue
        arrays[f"{dtype}"] = np.arange(6).reshape(2, 3).astype(dtype)
        arrays[f"{dtype}/scalar"] = np.ones((), dtype)
        arrays[f"{dtype}/empty"] = np.zeros((0, 3), dtype)
    assert len(arrays) > 9
    numpy.save_file(arrays, path)
    reader = kte.load_checkpoint(path)
    for name, value in arrays.items():
        whole = (slice(None),) * value.ndim
        for read in (
            reader.get_tensor(name),
            reader.get_part(name, whole),
        ):
            assert read.dtype == value.dtype
            np.testing.assert_array_equal(read, value, err_msg=name)
    for name in {"bfloat16", "float8_e4m3fn"} & arrays.keys():
        part = reader.get_part(name, np.s_[1:2, :2])
        np.testing.assert_array_equal(part, arrays[name][1:2, :2])


def test_file_of_empty_arrays_is_read(tmp_path):
    numpy = pytest.importorskip("safetensors.numpy", reason="an extra")
    path = tmp_path / "model.safetensors"
    numpy.save_file({"w": np.zeros((0, 3), "float32")}, path)
    reader = kte.load_checkpoint(path)
    assert reader.get_tensor("w").shape == (0, 3)
    assert reader.get_part("w", np.s_[0:0, 1:]).shape == (0, 2)


def saved_in_two_files(folder):
    """Saves in two files, like Hugging Face's libraries save large models."""
    path = saved_by_safetensors(folder)
    numpy = pytest.importorskip("safetensors.numpy")
    files = {}
    for number, names in enumerate((list(FLAT)[:2], list(FLAT)[2:]), start=1):
        file = f"model-0000{number}-of-00002.safetensors"
        arrays = {name: np.asarray(FLAT[name]) for name in names}
        numpy.save_file(arrays, folder / file)
        files |= dict.fromkeys(names, file)
    path.unlink()
    index = {"metadata": {"total_size": 60}, "weight_map": files}
    (folder / INDEX).write_text(json.dumps(index))
    return folder


WRITTEN = (
    saved_by_orbax,
    saved_by_a_manager,
    saved_by_safetensors,
    saved_in_two_files,
    lambda folder: TREE,
    lambda folder: FLAT,
)


@pytest.fixture(
    params=WRITTEN, ids=["orbax", "manager", "safe", "index", "tree", "flat"]
)
def checkpoint(request, tmp_path):
    return request.param(tmp_path)


def test_all_values_are_read(checkpoint):
    assert kte.list_variables(checkpoint) == sorted(
        (name, list(np.shape(value))) for name, value in FLAT.items()
    )
    reader = kte.load_checkpoint(checkpoint)
    assert reader.get_variable_to_dtype_map() == {
        name: value.dtype for name, value in FLAT.items()
    }
    for name, value in reader.get_tensors(FLAT).items():
        assert type(value) is np.ndarray
        assert value.dtype == FLAT[name].dtype
        np.testing.assert_array_equal(value, FLAT[name])
    part = reader.get_part("params/blocks/1", np.s_[1:2, :2])
    np.testing.assert_array_equal(part, np.ones((1, 2)))
    assert reader.get_part("a/name", ()) == np.array(True)
    with pytest.raises(kte.checkpoints.VariableNotFoundError, match="kernel"):
        reader.get_tensor("params/dense/kernl")


def test_training_starts_from_other_formats(checkpoint, tmp_path):
    def model_fn(features, labels, mode, params):
        y = keras.layers.Dense(1, name="head")(features)
        kte.init_from_checkpoint(checkpoint, {"params/dense/": "head/"})
        loss = keras.ops.mean((y - labels) ** 2)
        optimizer = kte.CrossShardOptimizer(keras.optimizers.SGD(0.0))
        return kte.TPUEstimatorSpec(mode, loss=loss, train_op=optimizer.minimize(loss))

    estimator = estimator_of(model_fn, tmp_path / "model")
    estimator.train(batches_of(X, Y), steps=1)
    kernel = estimator.get_variable_value("head/kernel")
    np.testing.assert_array_equal(kernel, np.arange(3.0)[:, None])
    assert estimator.get_variable_value("head/bias") == 0.5


def test_items_of_a_step_have_names(tmp_path):
    ocp = orbax()
    with ocp.CheckpointManager(tmp_path / "m") as manager:
        manager.save(
            4,
            args=ocp.args.Composite(
                weights=ocp.args.StandardSave({"a": np.ones(2)}),
                slots=ocp.args.StandardSave({"a": np.zeros(1)}),
                facts=ocp.args.JsonSave({"by": "somebody"}),
            ),
        )
    reader = kte.load_checkpoint(tmp_path / "m")
    assert reader.get_variable_to_shape_map() == {
        "slots/a": [1],
        "weights/a": [2],
    }
    np.testing.assert_array_equal(reader.get_tensor("weights/a"), [1, 1])
    assert not reader.has_tensor("a")


def test_corrupt_checkpoints_are_named(tmp_path, forked_programs):
    folder = saved_by_orbax(tmp_path)
    for data in (folder / "ocdbt.process_0", folder / "d"):
        shutil.rmtree(data)
    # Not in this process, because TensorStore's pending reads would log in later tests.
    read = "from keras_tpu_estimator import load_variable as load\n"
    read += "import sys; load(*sys.argv[1:])"
    done = subprocess.run(
        [sys.executable, "-c", read, folder, "step"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert f"ValueError: The checkpoint {str(folder)!r} is trunc" in done.stderr


@pytest.mark.parametrize("bytes_kept", [-1, 40, 4, 0])
def test_corrupt_files_are_named(bytes_kept, tmp_path):
    path = pathlib.Path(saved_by_safetensors(tmp_path))
    path.write_bytes(path.read_bytes()[:bytes_kept])
    with pytest.raises(ValueError, match="safetensors' is truncated or corr"):
        kte.load_checkpoint(path)


def test_manager_directory_without_steps_is_refused(tmp_path):
    (tmp_path / "7").mkdir()
    (tmp_path / "8.orbax-checkpoint-tmp").mkdir()
    with pytest.raises(ValueError, match="is not a checkpoint"):
        kte.load_checkpoint(tmp_path)


def test_values_that_are_not_arrays_are_refused():
    with pytest.raises(ValueError, match="at 'a/b': a str of dtype"):
        kte.load_checkpoint({"a": {"b": "text"}})


def test_duplicate_names_are_refused():
    with pytest.raises(ValueError, match="two for the name 'a/b'"):
        kte.load_checkpoint({"a": {"b": 1.0}, "a/b": 2.0})


def test_values_of_a_dict_are_copies():
    mine = {"a": np.zeros(2)}
    read = kte.load_variable(mine, "a")
    read += 1
    np.testing.assert_array_equal(mine["a"], np.zeros(2))


@pytest.mark.parametrize("way", [{}, {"use_zarr3": True, "use_ocdbt": False}])
def test_other_values_in_orbax_checkpoints(tmp_path, way):
    ocp = orbax()
    tree = {
        "text": "no array",
        "none": None,
        "empty": {},
        "number": 2.5,
        "key": jax.random.key(0),
        "slots": (jnp.ones(2, "float8_e4m3fn"), ()),
    }
    ocp.Checkpointer(ocp.PyTreeCheckpointHandler(**way)).save(
        tmp_path / "one", args=ocp.args.PyTreeSave(tree)
    )
    reader = kte.load_checkpoint(tmp_path / "one")
    assert reader.get_variable_to_dtype_map() == {
        "key": np.dtype("uint32"),
        "number": np.dtype("float64"),
        "slots/0": np.dtype(ml_dtypes.float8_e4m3fn),
    }
    assert reader.get_tensor("number") == 2.5
    np.testing.assert_array_equal(reader.get_tensor("slots/0"), [1, 1])


def test_keras_saves_by_paths(tmp_path):
    orbax()
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    model.compile("adam", "mse")
    keep = keras.callbacks.OrbaxCheckpoint(tmp_path / "keras")
    model.fit(X[:, :1], Y, epochs=1, callbacks=[keep], verbose=0)
    reader = kte.load_checkpoint(tmp_path / "keras")
    for variable in model.variables:
        read = reader.get_tensor(variable.path)
        np.testing.assert_array_equal(read, variable)


def test_last_step_of_a_manager_is_the_largest_number(tmp_path):
    ocp = orbax()
    with ocp.CheckpointManager(tmp_path / "m") as manager:
        for step in (9, 10):
            tree = {"step": np.int32(step)}
            manager.save(step, args=ocp.args.StandardSave(tree))
    assert kte.load_variable(tmp_path / "m", "step") == 10
    assert kte.load_variable(tmp_path / "m" / "9", "step") == 9


@pytest.mark.parametrize(
    ("weight_map", "says"),
    [
        ({"a": "../model.safetensors"}, "no file beside it"),
        ({"a": "model.txt"}, "no file beside it"),
        ({"a": "lost.safetensors"}, "lost.safetensors.* is missing"),
        ({"a": "model.safetensors"}, r"that its files lack: \['a'\]"),
        (7, "must be an index of safetensors"),
    ],
)
def test_invalid_index_is_refused(tmp_path, weight_map, says):
    saved_by_safetensors(tmp_path)
    (tmp_path / INDEX).write_text(json.dumps({"weight_map": weight_map}))
    with pytest.raises(ValueError, match=says):
        kte.load_checkpoint(tmp_path)


def test_missing_package_is_named(tmp_path, monkeypatch):
    path = tmp_path / "model.safetensors"
    path.write_bytes(b"")
    (tmp_path / "orbax").mkdir()
    (tmp_path / "orbax" / "_METADATA").touch()
    for module in ("safetensors", "orbax", "orbax.checkpoint"):
        monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ImportError, match="Run `pip install safetensors`"):
        kte.load_checkpoint(path)
    with pytest.raises(ImportError, match="Run `pip install --upgrade orbax-ch"):
        kte.load_checkpoint(tmp_path / "orbax")


def test_error_says_what_is_not_an_orbax_checkpoint(tmp_path):
    orbax()
    (tmp_path / "_METADATA").write_text("{}")
    with pytest.raises(ValueError, match="truncated or corrupt"):
        kte.load_checkpoint(tmp_path)


def linear(features, labels, mode, params):
    y = keras.layers.Dense(1, name="dense")(features)
    loss = keras.ops.mean((y - labels) ** 2)
    optimizer = kte.CrossShardOptimizer(keras.optimizers.SGD(0.0))
    return kte.TPUEstimatorSpec(mode, loss=loss, train_op=optimizer.minimize(loss))


def test_warm_start_from_other_formats(checkpoint, tmp_path):
    names = {f"dense/{n}": f"params/dense/{n}" for n in ("kernel", "bias")}
    estimator = kte.TPUEstimator(
        linear,
        config=kte.RunConfig(model_dir=str(tmp_path / "model")),
        train_batch_size=8,
        warm_start_from=kte.WarmStartSettings(
            checkpoint, var_name_to_prev_var_name=names
        ),
    )
    estimator.train(batches_of(X, Y), steps=1)
    kernel = estimator.get_variable_value("dense/kernel")
    np.testing.assert_array_equal(kernel, np.arange(3.0)[:, None])


def test_warm_start_from_a_dict_of_arrays(tmp_path):
    start = {"dense": {"kernel": jnp.ones((3, 1)), "bias": np.full(1, 2.0)}}
    estimator = kte.TPUEstimator(
        linear,
        config=kte.RunConfig(model_dir=str(tmp_path)),
        train_batch_size=8,
        warm_start_from=start,
    )
    with pytest.raises(ValueError, match="must be"):
        kte.WarmStartSettings({})
    estimator.train(batches_of(X, Y), steps=1)
    kernel = estimator.get_variable_value("dense/kernel")
    np.testing.assert_array_equal(kernel, np.ones((3, 1)))


@pytest.mark.parametrize("shares_files", [True, False])
def test_trees_without_metadata(tmp_path, shares_files):
    ocp = orbax()
    tree = {"params": {"kernel": np.ones((2, 3)), "bias": np.zeros(3)}}
    folder = tmp_path / "checkpoint_20"
    handler = ocp.PyTreeCheckpointHandler(use_ocdbt=shares_files)
    with ocp.Checkpointer(handler) as checkpointer:
        checkpointer.save(folder, tree)
    for name in ("_METADATA", "_CHECKPOINT_METADATA"):
        (folder / name).unlink()
    elsewhere = {name: f"PLACEHOLDER://params.{name}" for name in tree["params"]}
    small = {"step": np.int32(7), "params": elsewhere}
    (folder / "checkpoint").write_bytes(ocp.msgpack_utils.msgpack_serialize(small))
    reader = kte.load_checkpoint(folder)
    shapes = {"params/bias": [3], "params/kernel": [2, 3], "step": []}
    assert reader.get_variable_to_shape_map() == shapes
    np.testing.assert_array_equal(reader.get_tensor("params/kernel"), np.ones((2, 3)))
    assert kte.load_variable(folder, "step") == 7
    (folder / "checkpoint").write_bytes(b"\x83damaged")
    with pytest.raises(ValueError, match="truncated or corrupt"):
        kte.load_checkpoint(folder)
