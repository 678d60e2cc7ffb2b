"""Tests the marker of completed training."""

import os

import pytest

from keras_tpu_estimator.files.directory import state_file


@pytest.mark.parametrize("as_path", [os.fsdecode, os.fsencode, lambda path: path])
def test_directory_may_be_any_kind_of_path(tmp_path, as_path):
    directory = as_path(tmp_path)
    assert not state_file.training_is_complete(directory)
    state_file.mark_complete(directory, 20)
    assert state_file.training_is_complete(directory)
    state_file.unmark_complete(directory)
    assert not state_file.training_is_complete(directory)
