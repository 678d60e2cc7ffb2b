"""Tests that converted graphs are read from the cache."""

import keras_tpu_estimator  # isort: skip  # noqa: F401

import contextlib
import os
import stat

import jax
import pytest
import tensorflow.compat.v1 as tf
from tf1_programs import assert_same, batches, classes_data, dense, model_fn_of, trained

from keras_tpu_estimator.tf1.lift import jax_internals, lifting
from keras_tpu_estimator.tf1.lift.lifting import Module, cached

MODULE = Module(b"code\nof two lines", ("a", "b/c"))


@contextlib.contextmanager
def compile_cache(directory):
    """Sets or unsets JAX's cache directory in a `with` block."""
    name = "jax_compilation_cache_dir"
    known = jax.config.values[name]
    jax.config.update(name, directory)
    try:
        yield
    finally:
        jax.config.update(name, known)


@pytest.fixture
def directory(tmp_path):
    """The directory of JAX's compilation cache for this test."""
    path = str(tmp_path / "cache")
    with compile_cache(path):
        yield path


def refuse():
    """Makes conversions raise an error."""
    raise AssertionError("should not be lifted")


def test_module_is_converted_once(directory):
    assert cached(["a", b"bc"], lambda: MODULE) == MODULE
    assert cached(["a", b"bc"], refuse) == MODULE
    other = Module(b"", ())
    assert cached(["ab", b"c"], lambda: other) == other
    assert len(os.listdir(directory)) == 2


def test_module_of_another_form_is_converted_again(directory, monkeypatch):
    other = Module(b"other", ())
    assert cached(["a"], lambda: MODULE) == MODULE
    monkeypatch.setattr(jax_internals, "FORM", jax_internals.FORM + 1)
    assert cached(["a"], lambda: other) == other


def test_modules_are_converted_each_time_without_a_directory():
    with compile_cache(None):
        assert cached(["a"], lambda: MODULE) == MODULE
        with pytest.raises(AssertionError, match="should not be lifted"):
            cached(["a"], refuse)


def test_unwritable_directory_is_no_error(directory, tmp_path):
    (tmp_path / "cache").write_text("a file")
    assert cached(["a"], lambda: MODULE) == MODULE


@pytest.mark.parametrize("mode", [0o777, 0o1777])
def test_modules_that_others_may_have_written_are_not_read(directory, caplog, mode):
    assert cached(["a"], lambda: MODULE) == MODULE
    os.chmod(directory, mode)
    other = Module(b"other", ())
    for _ in range(2):
        assert cached(["a"], lambda: other) == other
    (message,) = caplog.messages
    assert f"`chmod go-w {directory}`" in message
    os.chmod(directory, 0o755)
    assert cached(["a"], refuse) == MODULE


@pytest.mark.parametrize("size", [0, 5, -1])
def test_truncated_file_is_replaced(directory, size):
    assert cached(["a"], lambda: MODULE) == MODULE
    (name,) = os.listdir(directory)
    path = os.path.join(directory, name)
    os.truncate(path, size if size >= 0 else os.path.getsize(path) + size)
    assert cached(["a"], lambda: MODULE) == MODULE
    assert cached(["a"], refuse) == MODULE


@pytest.mark.parametrize("content", [b"[]\ncode", b"\xff\n", b"{}\n", b"1\n"])
def test_file_of_another_form_is_replaced(directory, content):
    assert cached(["a"], lambda: MODULE) == MODULE
    (name,) = os.listdir(directory)
    with open(os.path.join(directory, name), "wb") as file:
        file.write(content)
    assert cached(["a"], lambda: MODULE) == MODULE
    assert cached(["a"], refuse) == MODULE


def test_umask_determines_the_permissions(directory):
    before = os.umask(0o022)
    try:
        cached(["a"], lambda: MODULE)
    finally:
        os.umask(before)
    (name,) = os.listdir(directory)
    mode = os.stat(os.path.join(directory, name)).st_mode
    assert stat.S_IMODE(mode) == 0o644


def test_unreadable_file_is_no_error(directory, monkeypatch):
    assert cached(["a"], lambda: MODULE) == MODULE

    def refused(*arguments, **settings):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(lifting, "open", refused, raising=False)
    other = Module(b"other", ())
    assert cached(["a"], lambda: other) == other


def test_script_restarts_without_conversion(directory, tmp_path, monkeypatch):
    def network(features, is_training):
        rate = 0.3 if is_training else 0.0
        hidden = dense(tf.nn.dropout(features, rate=rate), 6, "hidden", seed=1)
        return dense(hidden, 4, "logits", seed=2)

    model_fn = model_fn_of(network, lambda step: tf.train.AdamOptimizer(0.1))
    data = batches(*classes_data(5), steps=3)
    first = trained(model_fn, tmp_path / "a", data)
    monkeypatch.setattr(jax_internals, "stablehlo_of", lambda hlo: refuse())
    assert_same(trained(model_fn, tmp_path / "b", data), first, 0, 0)
    # Another graph is another module.
    other = model_fn_of(network, lambda step: tf.train.AdamOptimizer(0.2))
    with pytest.raises(AssertionError, match="should not be lifted"):
        trained(other, tmp_path / "c", data)
