import os
import sys

import h5py
import keras
import ml_dtypes
import numpy as np
import pytest
import tensorflow as tf  # noqa: TID253 - writes the files to read
from tensorflow_files import save_tf1

import keras_tpu_estimator as kte
from keras_tpu_estimator import checkpoints
from keras_tpu_estimator.files.atomic import checksum
from keras_tpu_estimator.files.formats.hdf5.reader import OpenedCheckpoint

KERNEL = np.arange(6, dtype="float32").reshape(3, 2)
TF1 = {
    "bert/embeddings/LayerNorm/gamma": np.array([1, 2, 3], "float32"),
    "dense/bias": np.array([4, 5], ml_dtypes.bfloat16),
    "dense/kernel": KERNEL,
    "dense/kernel/adam_m": 2 * KERNEL,
    "global_step": np.array(7, "int64"),
}


class Layer(tf.Module):
    """Two variables, one of them without a name."""

    def __init__(self):
        self.kernel = tf.Variable(KERNEL, name="dense/kernel")
        self.offset = tf.Variable([1.0, 2.0])
        self.scale = tf.Variable([3.0, 4.0])


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """Paths of checkpoints of every kind."""
    root = tmp_path_factory.mktemp("written")
    dense = keras.layers.Dense(2, name="dense")
    model = keras.Sequential([keras.Input([3]), dense])
    model.layers[0].set_weights([KERNEL, np.array([1, 2])])
    model.save_weights(root / "a.weights.h5")
    model.save(root / "a.keras")
    module = Layer()
    tf.saved_model.save(module, str(root / "saved_model"))
    tf.train.Checkpoint(layer=module).save(str(root / "tf2" / "ckpt"))
    return {
        "own": checkpoints.save(root / "own", 7, TF1),
        "own directory": root / "own",
        "tf1": save_tf1(str(root / "tf1"), TF1, step=7),
        "tf1 directory": root / "tf1",
        "tf1 index": f"{root}/tf1/model.ckpt-7.index",
        "tf2": root / "tf2",
        "tf2 prefix": str(root / "tf2" / "ckpt-1"),
        "saved model": root / "saved_model",
        "variables": root / "saved_model" / "variables",
        "weights": root / "a.weights.h5",
        "keras": root / "a.keras",
    }


@pytest.mark.parametrize(
    "kind",
    ["own", "own directory", "tf1", "tf1 directory", "tf1 index"],
)
@pytest.mark.parametrize("path_type", [os.fsdecode, os.fsencode])
def test_named_variables_are_read_from_every_kind(written, kind, path_type):
    path = path_type(written[kind])
    reader = kte.load_checkpoint(path)

    assert reader.get_variable_to_shape_map() == {
        name: list(value.shape) for name, value in TF1.items()
    }
    assert reader.get_variable_to_dtype_map() == {
        name: value.dtype for name, value in TF1.items()
    }
    assert kte.list_variables(path) == [
        (name, list(TF1[name].shape)) for name in sorted(TF1)
    ]
    for name, value in TF1.items():
        assert reader.has_tensor(name)
        read = reader.get_tensor(name)
        assert isinstance(read, np.ndarray)
        assert read.dtype == value.dtype
        np.testing.assert_array_equal(read, value)
        np.testing.assert_array_equal(kte.load_variable(path, name), value)


def test_format_before_2016(tmp_path):
    variables = {"dense/kernel": KERNEL, "global_step": np.array(7, "int64")}
    prefix = save_tf1(str(tmp_path), variables, version=1)
    assert not os.path.exists(f"{prefix}.index")
    assert kte.list_variables(prefix) == [
        ("dense/kernel", [3, 2]),
        ("global_step", []),
    ]
    read = kte.load_checkpoint(tmp_path).get_tensors(variables)
    np.testing.assert_array_equal(read["dense/kernel"], KERNEL)
    assert read["global_step"] == 7


def test_the_same_names_as_tensorflow_lists(written):
    for kind in ("tf1", "tf1 directory"):
        path = str(written[kind])
        assert kte.list_variables(path) == tf.train.list_variables(path)


@pytest.mark.parametrize(
    ("kind", "shown"),
    [
        ("tf2", ["layer/kernel", "layer/offset", "layer/scale"]),
        ("tf2 prefix", ["layer/kernel", "layer/offset", "layer/scale"]),
        ("saved model", ["kernel", "offset", "scale"]),
        ("variables", ["kernel", "offset", "scale"]),
    ],
)
def test_objects_are_listed_without_their_suffix(written, kind, shown):
    listed = [name for name, _ in kte.list_variables(written[kind])]
    assert [name for name in listed if name != "save_counter"] == shown

    reader = kte.load_checkpoint(written[kind])
    for name in (
        shown[0],
        f"{shown[0]}/.ATTRIBUTES/VARIABLE_VALUE",
        "dense/kernel",
    ):
        assert reader.has_tensor(name)
        np.testing.assert_array_equal(reader.get_tensor(name), KERNEL)
    np.testing.assert_array_equal(reader.get_tensor(shown[1]), [1, 2])
    np.testing.assert_array_equal(reader.get_tensor(shown[2]), [3, 4])
    # Two variables have this name.
    assert not reader.has_tensor("Variable")


def test_strings_are_objects(tmp_path):
    checkpoint = tf.train.Checkpoint(text=tf.Variable(b"abc\0"))
    reader = kte.load_checkpoint(checkpoint.save(str(tmp_path / "ckpt")))
    assert reader.get_variable_to_dtype_map()["text"] == np.dtype(object)
    assert reader.get_tensor("text").item() == b"abc\0"


@pytest.mark.parametrize("kind", ["weights", "keras"])
def test_keras_files(written, kind):
    reader = kte.load_checkpoint(written[kind])
    assert reader.get_variable_to_shape_map() == {
        "dense/bias": [2],
        "dense/kernel": [3, 2],
    }
    np.testing.assert_array_equal(reader.get_tensor("dense/kernel"), KERNEL)
    np.testing.assert_array_equal(reader.get_tensor("dense/bias"), [1, 2])


def test_one_variable_is_read_without_listing_all(tmp_path, monkeypatch):
    values = {"a/b": KERNEL, "a": np.ones(2), "%0": np.zeros(1)}
    prefix = checkpoints.save(tmp_path, 7, values)
    listed, describe = [], OpenedCheckpoint.describe

    def described(opened):
        listed.append(opened)
        return describe(opened)

    monkeypatch.setattr(OpenedCheckpoint, "describe", described)
    assert checkpoints.step_of(prefix) == 7
    np.testing.assert_array_equal(kte.load_variable(prefix, "a/b:0"), KERNEL)
    assert not listed
    # It is stored with another name.
    np.testing.assert_array_equal(kte.load_variable(prefix, "%0"), [0])
    with pytest.raises(KeyError, match="'a/b'"):
        kte.load_variable(prefix, "a/bb")
    assert len(listed) == 2


def test_several_tensors_are_read_at_once(written):
    reader = kte.load_checkpoint(written["tf2"])
    read = reader.get_tensors(["dense/kernel", "layer/kernel"])
    np.testing.assert_array_equal(read["dense/kernel"], KERNEL)
    np.testing.assert_array_equal(read["layer/kernel"], KERNEL)


@pytest.mark.parametrize("kind", ["own", "weights", "keras"])
def test_tensorflow_is_imported_only_for_its_formats(written, kind, monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorflow", None)
    np.testing.assert_array_equal(
        kte.load_variable(written[kind], "dense/kernel"), KERNEL
    )
    with pytest.raises(ImportError):
        kte.load_checkpoint(written["tf1"])


@pytest.mark.parametrize("kind", ["own", "tf1"])
def test_name_may_be_that_of_a_tensor(written, kind):
    np.testing.assert_array_equal(
        kte.load_variable(written[kind], "dense/kernel:0"), KERNEL
    )


@pytest.mark.parametrize("kind", ["own", "tf1", "weights"])
def test_missing_name_is_a_key_error_with_similar_names(written, kind):
    reader = kte.load_checkpoint(written[kind])
    assert not reader.has_tensor("dense/kernels")
    with pytest.raises(
        checkpoints.VariableNotFoundError,
        match="has no variable 'dense/kernels'. .*: 'dense/kernel'",
    ):
        reader.get_tensor("dense/kernels")


def test_links_in_own_files_are_not_followed(tmp_path):
    other = checkpoints.save(tmp_path / "other", 0, {"secret": KERNEL})
    prefix = checkpoints.save(tmp_path, 0, {"a": KERNEL})
    with h5py.File(f"{prefix}.h5", "r+") as file:
        file["external"] = h5py.ExternalLink(f"{other}.h5", "secret")
        file["soft"] = h5py.SoftLink("/a")
    checksum.append(f"{prefix}.h5")

    reader = kte.load_checkpoint(prefix)
    np.testing.assert_array_equal(reader.get_tensor("a"), KERNEL)
    for name in ("external", "soft"):
        assert not reader.has_tensor(name)
        with pytest.raises(checkpoints.VariableNotFoundError):
            kte.load_variable(prefix, name)


def test_checkpoint_takes_precedence_over_a_directory(written):
    os.makedirs(f"{written['tf1']}", exist_ok=True)
    assert kte.load_variable(written["tf1"], "global_step") == 7
    os.rmdir(f"{written['tf1']}")


def test_missing_checkpoints_are_explained(written, tmp_path):
    root = written["weights"].parent
    with pytest.raises(ValueError, match=r"neither a 'checkpoint' file .* no"):
        kte.load_checkpoint(tmp_path)
    with pytest.raises(
        ValueError,
        match=(
            r"ckpt-8' is not a checkpoint: there is no file '.*ckpt-8.h5' of "
            r"this package, no '.*ckpt-8.index' of TensorFlow, .*"
            r": model.ckpt-7\."
        ),
    ):
        kte.load_checkpoint(root / "tf1" / "model.ckpt-8")
    with pytest.raises(ValueError, match=r"Checkpoints in .*: b?a.weights.h5"):
        kte.load_checkpoint(root / "b.weights.h5")
    with pytest.raises(ValueError, match="directory '/nowhere' does not exist"):
        kte.load_checkpoint("/nowhere/model.ckpt-8")


def test_error_for_a_directory_of_keras_files_lists_them(written):
    with pytest.raises(ValueError, match="a.keras, a.weights.h5|a.weights.h5, "):
        kte.load_checkpoint(written["keras"].parent)


def cut(path, keep):
    with open(path, "rb+") as file:
        file.truncate(keep)


@pytest.mark.parametrize(
    ("name", "file"),
    [
        ("model.ckpt-7", "model.ckpt-7.index"),
        ("model.ckpt-7", "model.ckpt-7.data-00000-of-00001"),
        ("a.weights.h5", "a.weights.h5"),
        ("a.keras", "a.keras"),
        ("model.ckpt-9", "model.ckpt-9.h5"),
        ("text", "text"),
    ],
)
@pytest.mark.parametrize("keep", [0, 5, 40])
def test_truncated_file_is_a_value_error(tmp_path, name, file, keep):
    save_tf1(str(tmp_path), TF1, step=7)
    checkpoints.save(tmp_path, 9, TF1)
    dense = keras.layers.Dense(2, name="dense")
    model = keras.Sequential([keras.Input([3]), dense])
    model.save_weights(tmp_path / "a.weights.h5")
    model.save(tmp_path / "a.keras")
    (tmp_path / "text").write_text("neither of them" * 100)
    cut(tmp_path / file, keep)

    with pytest.raises(ValueError, match="is truncated or corrupt, or was not"):
        reader = kte.load_checkpoint(tmp_path / name)
        reader.get_tensors(reader.get_variable_to_shape_map())


def test_sliced_variable_of_the_old_format_is_explained(tmp_path):
    v1 = tf.compat.v1
    with tf.Graph().as_default(), v1.Session() as session:
        v1.get_variable("sliced", [4], partitioner=v1.fixed_size_partitioner(2))
        session.run(v1.global_variables_initializer())
        for version in (1, 2):
            saver = v1.train.Saver(write_version=version)
            saver.save(session, str(tmp_path / f"v{version}"))
        expected = np.concatenate(session.run(v1.global_variables()))

    with pytest.raises(ValueError, match="of before 2016, .* save it again"):
        kte.load_variable(tmp_path / "v1", "sliced")
    np.testing.assert_array_equal(
        kte.load_variable(tmp_path / "v2", "sliced"), expected
    )


def test_folder_is_distinguished_from_the_file_next_to_it(tmp_path):
    ocp = pytest.importorskip("orbax.checkpoint", reason="no Orbax")
    prefix = str(tmp_path / "model.ckpt-7")
    folder = tmp_path / "model.ckpt-7.orbax"
    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(folder, {"theirs": np.ones(2)})
    checkpoints.save(tmp_path, 7, {"ours": np.ones(2)})
    assert kte.load_checkpoint(folder).has_tensor("theirs")
    assert kte.load_checkpoint(prefix).has_tensor("ours")
