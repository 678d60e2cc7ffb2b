"""Tests errors for corrupt files."""

import errno
import zipfile
import zlib

import pytest

from keras_tpu_estimator.base.storage.parsing import parsing


@pytest.mark.parametrize(
    "error",
    [
        EOFError(),
        KeyError("states"),
        NotImplementedError("compression type 99"),
        OSError(errno.EINVAL, "Invalid argument"),
        RuntimeError("password required"),
        zipfile.BadZipFile("Bad magic number"),
        zlib.error("Error -3"),
    ],
)
def test_error_of_a_parser_names_the_file(error):
    with (
        pytest.raises(ValueError, match="'run/a.zip' must be a.* Delete it") as caught,
        parsing("run/a.zip", "be a zip file", "Delete it."),
    ):
        raise error
    assert caught.value.__cause__ is error


@pytest.mark.parametrize("error", [FileNotFoundError(), OSError(errno.EIO, "I/O")])
def test_error_of_the_file_system_stays(error):
    with pytest.raises(OSError) as caught, parsing("a.zip", "be a zip file", ""):
        raise error
    assert caught.value is error


def test_message_is_short():
    with (
        pytest.raises(ValueError, match="a.json' must have fields") as caught,
        parsing("a.json", "have fields", "Delete it."),
    ):
        raise TypeError("unexpected argument " + "x" * 400_000)
    assert len(str(caught.value)) < 400
