"""Tests which paths are URLs, and errors in URLs."""

import ntpath
import os
import pathlib
import sys

import pytest

import keras_tpu_estimator as kte
from keras_tpu_estimator import checkpoints
from keras_tpu_estimator.base.common import system
from keras_tpu_estimator.base.storage import paths
from keras_tpu_estimator.base.storage.paths import check, is_url, located


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("gs://bucket/run", True),
        ("s3://bucket", True),
        ("abfs+x.y-z://container/run", True),
        (b"gs://bucket/run", True),
        ("/runs/gs://bucket", False),
        ("runs/today", False),
        ("C://runs", False),
        ("C:/runs", False),
        ("c:\\runs\\bert", False),
        (r"\\server\share\runs", False),
        (r"runs\bert", False),
        (pathlib.Path("/runs"), False),
        ("://", False),
    ],
)
def test_urls_are_recognized(path, expected):
    assert is_url(path) is expected


def new_estimator(model_dir):
    return kte.TPUEstimator(
        lambda features, mode, params: None,
        model_dir=model_dir,
        config=kte.RunConfig(),
        train_batch_size=8,
    )


@pytest.mark.parametrize(
    ("path", "error", "message"),
    [
        ("file:///runs/1", ValueError, "a local path.*Pass '/runs/1'"),
        (
            pathlib.PurePosixPath("gs://bucket/run"),
            ValueError,
            "Pass the string 'gs://bucket/run'",
        ),
        (
            str(pathlib.PureWindowsPath("gs://bucket/run")),
            ValueError,
            "Pass the string 'gs://bucket/run'",
        ),
        ("file:///C:/runs/1", ValueError, "local path.*Pass 'C:/runs/1'"),
        ("nowhere://bucket/run", ValueError, "nowhere"),
        ("gs://bucket/run", ImportError, "'gs://bucket/run.*' needs a driver.*gcsfs"),
    ],
)
def test_constructor_refuses_invalid_urls(path, error, message, monkeypatch):
    monkeypatch.setitem(sys.modules, "gcsfs", None)
    with pytest.raises(error, match=message):
        new_estimator(path)


def test_configuration_does_not_need_the_driver(monkeypatch):
    monkeypatch.setitem(sys.modules, "gcsfs", None)
    config = kte.RunConfig(model_dir="gs://bucket/run")
    assert config.model_dir == "gs://bucket/run"
    with pytest.raises(ImportError, match="gcsfs"):
        kte.TPUEstimator(
            lambda features, mode, params: None,
            config=config,
            train_batch_size=8,
        )


def test_error_without_fsspec_names_the_extra(monkeypatch):
    for name in [n for n in sys.modules if n.split(".")[0] == "fsspec"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "fsspec", None)
    message = r"'gs://bucket/run.*' needs fsspec.*keras-tpu-estimator\[remote\]"
    for use in (
        new_estimator,
        kte.latest_checkpoint,
        kte.load_checkpoint,
        located,
    ):
        with pytest.raises(ImportError, match=message):
            use("gs://bucket/run")


def test_local_run_needs_no_fsspec(monkeypatch, tmp_path):
    for name in [n for n in sys.modules if n.split(".")[0] == "fsspec"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "fsspec", None)
    prefix = kte.checkpoints.save(tmp_path, 20, {"bias": [1.0, 2.0]})
    assert kte.latest_checkpoint(tmp_path) == prefix
    assert new_estimator(tmp_path).get_variable_names() == [
        "bias",
        "global_step",
    ]


@pytest.mark.parametrize(
    "path",
    ["C:/runs/bert", r"C:\runs\bert", r"\\server\share", r"D:bert", "runs"],
)
def test_windows_paths_are_not_invalid_urls(path):
    """This holds for strings and for pathlib objects."""
    for each in (path, str(pathlib.PureWindowsPath(path))):
        check(each)
        assert not is_url(each)


@pytest.fixture
def windows_paths(monkeypatch):
    """Makes `os.path` join URLs with backslashes, as on Windows."""
    monkeypatch.setattr(system, "IS_WINDOWS", True)
    for name in ("join", "split", "dirname", "basename"):
        here, there = getattr(os.path, name), getattr(ntpath, name)

        def either(path, *names, here=here, there=there):
            function = there if is_url(path) else here
            return function(path, *names)

        monkeypatch.setattr(os.path, name, either)


@pytest.mark.usefixtures("windows_paths")
def test_stores_receive_names_with_slashes(memory):
    assert os.path.join("memory://a/b", "c") == "memory://a/b\\c"
    url = "memory://bucket/run"
    for step in (10, 20, 30):
        prefix = checkpoints.save(
            url, step, {"x": [1.0]}, retention=checkpoints.Retention(2)
        )
    assert checkpoints.latest(url) == prefix
    assert checkpoints.read(prefix)["x"].tolist() == [1.0]
    assert checkpoints.best(url) is None
    assert sorted(memory.store) == [
        "/bucket/run/checkpoint",
        "/bucket/run/model.ckpt-20.h5",
        "/bucket/run/model.ckpt-30.h5",
    ]
    assert paths.canonical(os.path.join(url, "x")) == url + "/x"
