"""Tests `RunConfig(compilation_cache_dir=...)` and the advice to set it."""

import logging
import os

import jax
import pytest
from helpers import linear, model_fn_of, regression_data, repeated
from jax.experimental.compilation_cache import compilation_cache as of_jax

import keras_tpu_estimator as kte
from keras_tpu_estimator.base.common.logs import warn_once
from keras_tpu_estimator.engine.device import compilation_cache

COMPILED = "/jax/core/compile/backend_compile_duration"
NAME = "jax_compilation_cache_dir"


@pytest.fixture(autouse=True)
def no_cache(monkeypatch, caplog):
    """Starts without a cache, and restores JAX's settings."""
    caplog.set_level(logging.INFO, "keras_tpu_estimator")
    names = (NAME, "jax_persistent_cache_min_compile_time_secs")
    before = {name: jax.config.values[name] for name in names}
    jax.config.update(NAME, None)
    of_jax.reset_cache()
    warn_once.cache_clear()
    monkeypatch.setattr(compilation_cache, "_has_advised", False)
    yield
    for name, value in before.items():
        jax.config.update(name, value)
    of_jax.reset_cache()


def test_compiled_programs_are_kept(tmp_path):
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
    x, y = regression_data(examples=8)
    config = kte.RunConfig(compilation_cache_dir=tmp_path / "cache")
    assert config.compilation_cache_dir == str(tmp_path / "cache")
    estimator = kte.TPUEstimator(
        model_fn_of(linear), tmp_path / "run", config, train_batch_size=8
    )
    estimator.train(repeated(x, y), steps=1)
    assert jax.config.values[NAME] == str(tmp_path / "cache")
    assert any("train_steps" in name for name in os.listdir(tmp_path / "cache"))


def test_chosen_directory_is_kept(tmp_path, caplog):
    jax.config.update(NAME, "/chosen")
    compilation_cache.use("/chosen")
    assert not caplog.messages
    for _ in range(2):
        compilation_cache.use(str(tmp_path))
    assert jax.config.values[NAME] == "/chosen"
    assert len(caplog.messages) == 1 and "'/chosen'" in caplog.messages[0]


def test_directory_that_cannot_be_made_warns(tmp_path, caplog):
    (tmp_path / "file").write_text("")
    compilation_cache.use(str(tmp_path / "file"))
    assert not jax.config.values[NAME]
    assert "cannot be used" in caplog.text


@pytest.mark.parametrize("mode", [0o777, 0o1777, 0o775])
def test_directory_that_others_can_write_to_is_not_used(tmp_path, caplog, mode):
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache").chmod(mode)
    compilation_cache.use(str(tmp_path / "cache"))
    assert not jax.config.values[NAME]
    (message,) = caplog.messages
    assert "cannot be used: Only this user" in message
    assert message.endswith(
        f"`chmod go-w {tmp_path / 'cache'}`. Each start compiles its programs."
    )


def test_new_directory_is_trusted_with_any_umask(tmp_path):
    before = os.umask(0o000)
    try:
        compilation_cache.use(str(tmp_path / "cache"))
    finally:
        os.umask(before)
    assert jax.config.values[NAME] == str(tmp_path / "cache")


@pytest.mark.parametrize("has_package", [False, True])
def test_urls_need_a_package(monkeypatch, caplog, has_package):
    found = object() if has_package else None
    monkeypatch.setattr("importlib.util.find_spec", lambda name: found)
    compilation_cache.use("gs://bucket/cache")
    assert bool(jax.config.values[NAME]) == has_package
    assert ("etils" in caplog.text) != has_package


@pytest.mark.parametrize("value", ["", 3])
def test_directory_must_be_a_path(value):
    with pytest.raises((TypeError, ValueError), match="compilation_cache_dir"):
        kte.RunConfig(compilation_cache_dir=value)


def test_slow_compilation_logs_advice_once(caplog):
    for _ in range(2):
        compilation_cache.follow_compiling()
    for secs in (9.0, 23.4, 25.0):
        jax.monitoring.record_event_duration_secs(COMPILED, secs)
    (message,) = caplog.messages
    assert message.startswith("Compiling took 23 s.")
    assert "compilation_cache_dir" in message


def test_a_cache_needs_no_advice(caplog, tmp_path):
    compilation_cache.follow_compiling()
    jax.config.update(NAME, str(tmp_path))
    jax.monitoring.record_event_duration_secs(COMPILED, 60.0)
    jax.config.update(NAME, None)
    jax.monitoring.record_event_duration_secs("/another", 60.0)
    assert not caplog.messages
