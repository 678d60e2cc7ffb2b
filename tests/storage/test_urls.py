"""What is a URL, and what is wrong with some."""

import pathlib
import sys

import pytest

import keras_tpu_estimator as kte
from keras_tpu_estimator.ground.storage.urls import is_url
from keras_tpu_estimator.ground.storage.urls import located


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
        (pathlib.Path("/runs"), False),
        ("://", False),
    ],
)
def test_what_is_a_url(path, expected):
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
        ("file:///runs/1", ValueError, "is on this machine.*Pass '/runs/1'"),
        (
            pathlib.PurePosixPath("gs://bucket/run"),
            ValueError,
            "Pass the string 'gs://bucket/run'",
        ),
        ("nowhere://bucket/run", ValueError, "nowhere"),
        ("gs://bucket/run", ImportError, "gcsfs"),
    ],
)
def test_a_wrong_url_is_an_error_of_the_constructor(
    path, error, message, monkeypatch
):
    monkeypatch.setitem(sys.modules, "gcsfs", None)
    with pytest.raises(error, match=message):
        new_estimator(path)


def test_a_configuration_is_made_where_the_driver_need_not_be(monkeypatch):
    monkeypatch.setitem(sys.modules, "gcsfs", None)
    config = kte.RunConfig(model_dir="gs://bucket/run")
    assert config.model_dir == "gs://bucket/run"
    with pytest.raises(ImportError, match="gcsfs"):
        kte.TPUEstimator(
            lambda features, mode, params: None,
            config=config,
            train_batch_size=8,
        )


def test_without_fsspec_the_extra_is_named(monkeypatch):
    for name in [n for n in sys.modules if n.split(".")[0] == "fsspec"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "fsspec", None)
    message = r"'gs://bucket/run.*' is a URL.*keras-tpu-estimator\[remote\]"
    for use in (
        new_estimator,
        kte.latest_checkpoint,
        kte.load_checkpoint,
        located,
    ):
        with pytest.raises(ImportError, match=message):
            use("gs://bucket/run")


def test_a_local_run_needs_no_fsspec(monkeypatch, tmp_path):
    for name in [n for n in sys.modules if n.split(".")[0] == "fsspec"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "fsspec", None)
    prefix = kte.checkpoints.save(tmp_path, 20, {"bias": [1.0, 2.0]})
    assert kte.latest_checkpoint(tmp_path) == prefix
    assert new_estimator(tmp_path).get_variable_names() == [
        "bias",
        "global_step",
    ]
