import os

import h5py
import ml_dtypes
import numpy as np
import pytest

import keras_tpu_estimator as kte
from keras_tpu_estimator import checkpoints
from keras_tpu_estimator.checkpoints import SaveFiles
from keras_tpu_estimator.files.directory.location import prefix_of
from keras_tpu_estimator.files.formats.hdf5 import writer


@pytest.fixture
def path(tmp_path):
    return str(tmp_path / "model.ckpt-3.h5")


@pytest.fixture
def saved(tmp_path):
    variables = {
        "dense/kernel": np.arange(6, dtype=np.float32).reshape(2, 3),
        "dense/bias": np.zeros(3, np.float32),
    }
    return checkpoints.save(tmp_path, 7, variables)


def write(path, variables):
    writer.write(SaveFiles(prefix_of(path)), variables)


@pytest.mark.parametrize(
    "dtype",
    [
        *("bool", "int8", "uint8", "int32", "int64", "uint32"),
        *("float16", "float32", "float64", "complex64", ">f4"),
        *("bfloat16", "float8_e4m3fn", "float8_e5m2", "float8_e8m0fnu"),
        *("int4", "uint2"),
    ],
)
@pytest.mark.parametrize("shape", [(), (0, 3), (5,), (2, 1, 3)])
def test_every_dtype_and_shape_is_restored(path, dtype, shape):
    original = np.ones(shape).astype(np.dtype(dtype))

    write(path, {"v": original})
    restored = checkpoints.read(path)["v"]

    assert restored.dtype == original.dtype
    assert restored.shape == original.shape
    assert restored.tobytes() == original.tobytes()


def test_bits_of_nan_are_restored(path):
    bits = np.arange(2**16, dtype=np.uint16)  # including all kinds of NaN

    write(path, {"v": bits.view(ml_dtypes.bfloat16)})

    np.testing.assert_array_equal(checkpoints.read(path)["v"].view(np.uint16), bits)


def test_strided_and_foreign_arrays_are_saved_by_value(path):
    import jax.numpy as jnp

    matrix = np.arange(6.0).reshape(2, 3)
    write(
        path,
        {"t": matrix.T, "s": matrix[:, ::2], "j": jnp.ones(2)},
    )

    restored = checkpoints.read(path)
    np.testing.assert_array_equal(restored["t"], matrix.T)
    np.testing.assert_array_equal(restored["s"], matrix[:, ::2])
    np.testing.assert_array_equal(restored["j"], [1, 1])


def test_paths_are_plain_hdf5_paths(saved):
    with h5py.File(saved + ".h5") as file:
        np.testing.assert_array_equal(file["dense"]["kernel"], [[0, 1, 2], [3, 4, 5]])
        assert file["global_step"][()] == 7
        assert file["global_step"].dtype == np.int64


@pytest.mark.parametrize(
    "paths",
    [
        ["a", "a/b"],
        ["a", "a/b", "a/b/c", "a.b", "%0"],
        ["a", "/a", "a/", "a//b", "a/b"],
        [".", "./a", "a/.", "..", "../a", ""],
        ["%", "%1", "a%"],
        ["größe/κ", "with space", "dense/kernel:0"],
    ],
)
def test_any_path_is_restored(path, paths):
    variables = {p: np.int64(i) for i, p in enumerate(paths)}

    write(path, variables)

    assert checkpoints.read(path) == variables
    assert sorted(checkpoints.read(path)) == sorted(paths)


@pytest.mark.parametrize(
    "value",
    [np.array([None]), "text", np.array(["2020"], "M8[D]"), {"a": 1}],
)
def test_other_values_are_refused_by_name(path, value):
    with pytest.raises(TypeError, match="'bad' must be an array of numbers"):
        write(path, {"good": np.ones(2), "bad": value})
    assert os.listdir(os.path.dirname(path)) == []


def test_nothing_is_stored_as_an_object(path):
    extension = np.ones(2, ml_dtypes.bfloat16)
    write(
        path,
        {"a": extension, "a/b": np.ones(1), "c": True},
    )

    kinds = []
    with h5py.File(path) as file:
        file.visititems(
            lambda _, item: kinds.append(
                item.dtype.kind if isinstance(item, h5py.Dataset) else None
            )
        )
    assert set(kinds) == {"u", "f", "b", None}


def test_names_and_step(saved):
    assert sorted(kte.checkpoints.read(saved)) == [
        "dense/bias",
        "dense/kernel",
        "global_step",
    ]
    assert checkpoints.step_of(saved) == 7


def test_step_is_read_from_the_file_not_from_its_name(tmp_path, saved):
    os.rename(saved + ".h5", tmp_path / "best.h5")
    assert checkpoints.step_of(tmp_path / "best.h5") == 7


def test_some_variables_can_be_read(saved):
    assert list(checkpoints.read(saved, ["dense/bias"])) == ["dense/bias"]
    assert checkpoints.read(saved, []) == {}


def test_unknown_variable_names_close_matches(saved):
    with pytest.raises(KeyError) as caught:
        kte.load_variable(saved, "dense/kernal")
    assert str(caught.value) == (
        f"The checkpoint {saved!r} has no variable 'dense/kernal'. "
        "Similar to the first: 'dense/kernel', 'dense/bias'."
    )


def test_unknown_variable_without_close_match_lists_all_names(saved):
    with pytest.raises(
        checkpoints.VariableNotFoundError,
        match="no variable 'x'. Its variables include: 'dense/bias', ",
    ):
        checkpoints.read(saved, ["dense/bias", "x"])


def test_long_lists_of_missing_variables_are_shortened(saved):
    with pytest.raises(KeyError, match=r"'v9' and 90 more\."):
        checkpoints.read(saved, [f"v{i}" for i in range(100)])


def _flip(content, at):
    return content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :]


def _flip_a_bit_of_the_data(content):
    return _flip(content, content.index(np.float32(5).tobytes()))


def _flip_a_bit_of_the_structure(content):
    return _flip(content, content.index(b"dense"))


@pytest.mark.parametrize(
    "damage",
    [
        lambda content: b"",
        lambda content: content[:-1],
        lambda content: content[:-20],
        lambda content: content[: len(content) // 2],
        lambda content: content[:-100] + b"\0" * 100,
        lambda content: b"not HDF5" * 100,
        _flip_a_bit_of_the_data,
        _flip_a_bit_of_the_structure,
    ],
)
def test_corrupt_file_is_an_error_with_advice(tmp_path, saved, damage):
    checkpoints.save(tmp_path, 6, {})
    checkpoints.read(saved)  # An earlier successful check must not be cached.
    file = tmp_path / "model.ckpt-7.h5"
    file.write_bytes(damage(file.read_bytes()))
    os.utime(file, (1, 1))  # File times may have a coarse resolution.

    with pytest.raises(
        ValueError,
        match=(
            r"model.ckpt-7.h5' is truncated or corrupt.*use another one. "
            r"Checkpoints in '.*': model.ckpt-6\."
        ),
    ):
        checkpoints.read(saved)


def _write_with_checksum(path, fill):
    from keras_tpu_estimator.files.atomic import checksum

    with h5py.File(path, "w") as file:
        fill(file)
    checksum.append(path)


def test_corruption_that_only_hdf5_detects_is_the_same_error(path):
    from keras_tpu_estimator.files.atomic import checksum

    with open(path, "wb") as file:
        file.write(b"\x89HDF\r\n\x1a\n" + bytes(100))
    checksum.append(path)

    with pytest.raises(ValueError, match="truncated or corrupt"):
        checkpoints.read(path)


def _fill_with_text(file):
    file["v"] = "text"


def _fill_with_unknown_dtype(file):
    file["v"] = np.zeros(2, np.uint8)
    file["v"].attrs["dtype"] = "float7"


def _fill_with_object_dtype(file):
    file["v"] = np.zeros(8, np.uint8)
    file["v"].attrs["dtype"] = "object"


def _fill_with_external_data(file):
    file.create_dataset("v", (4,), "u1", external=[("/etc/hostname", 0, 4)])


@pytest.mark.parametrize(
    ("fill", "message"),
    [
        (_fill_with_text, "must contain numbers or booleans"),
        (_fill_with_unknown_dtype, "saved as 'float7', a dtype unknown"),
        (_fill_with_object_dtype, "saved as 'object', a dtype unknown"),
        (_fill_with_external_data, "are in another file"),
    ],
)
def test_unsafe_content_of_other_files_is_refused(path, fill, message):
    _write_with_checksum(path, fill)
    with pytest.raises(ValueError, match=message):
        checkpoints.read(path)["v"]


def test_links_to_other_files_are_not_followed(tmp_path, path):
    other = str(tmp_path / "other.h5")
    write(other, {"secret": np.ones(1)})

    def fill(file):
        file["v"] = np.zeros(1)
        file["link"] = h5py.ExternalLink(other, "secret")

    _write_with_checksum(path, fill)
    assert sorted(checkpoints.read(path)) == ["v"]
