"""Tests the marker of completed training."""

import os

import pytest

from keras_tpu_estimator.files.directory import training_status


@pytest.mark.parametrize("as_path", [os.fsdecode, os.fsencode, lambda path: path])
def test_directory_may_be_any_kind_of_path(tmp_path, as_path):
    directory = as_path(tmp_path)
    assert not training_status.training_is_complete(directory)
    training_status.mark_complete(directory, 20)
    assert training_status.training_is_complete(directory)
    training_status.unmark_complete(directory)
    assert not training_status.training_is_complete(directory)
