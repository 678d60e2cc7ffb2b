"""JAX's compilation cache, enabled by a setting of an estimator.

A process has one cache. A directory that the user or another estimator has set
is never replaced.
"""

import importlib.util
import logging
import os
import threading

import jax

from keras_tpu_estimator.base.common import ledger
from keras_tpu_estimator.base.common.logs import warn_once
from keras_tpu_estimator.base.storage import trusted
from keras_tpu_estimator.base.storage.paths import is_url

_NAME = "jax_compilation_cache_dir"
_COMPILED = "/jax/core/compile/backend_compile_duration"
_LOWERED = "/jax/core/compile/jaxpr_to_mlir_module_duration"
_TRACED = "/jax/core/compile/jaxpr_trace_duration"
# A shorter compilation needs no advice.
_LONG_SECS = 10

_logger = logging.getLogger("keras_tpu_estimator")


def use(directory: str) -> None:
    """Makes JAX cache compiled programs in a path or URL, or warns with the reason."""
    with _lock:
        in_use = jax.config.values[_NAME]
        if in_use:
            if os.fspath(in_use) != directory:
                warn_once(
                    f"RunConfig.compilation_cache_dir={directory!r} has no "
                    "effect, because a process has one compilation cache, and "
                    f"JAX already uses {os.fspath(in_use)!r}. Omit the setting, "
                    "or set JAX_COMPILATION_CACHE_DIR to its directory."
                )
            return
        reason = _problem_with(directory)
        if reason:
            warn_once(
                f"RunConfig.compilation_cache_dir={directory!r} cannot be "
                f"used: {reason}. Each start compiles its programs."
            )
            return
        jax.config.update(_NAME, directory)
    _logger.info("Compiled programs are cached in %s.", directory)


def follow_compiling() -> None:
    """Charges the time of compiling, and logs a hint once if it is long."""
    global _is_listening
    with _lock:
        if _is_listening:
            return
        _is_listening = True
    jax.monitoring.register_event_duration_secs_listener(_follow)


_lock = threading.Lock()
_is_listening = False
_has_advised = False


def _follow(event: str, duration_secs: float, **details: object) -> None:
    """Charges a part of a compilation that JAX reports when it ends."""
    del details
    if event in (_TRACED, _LOWERED, _COMPILED):
        ledger.note_compiling(duration_secs, compiles_next=event == _LOWERED)
    _advise(event, duration_secs)


def _advise(event: str, duration_secs: float) -> None:
    """Logs the hint when JAX reports a slow compilation."""
    global _has_advised
    if event != _COMPILED or duration_secs <= _LONG_SECS or _has_advised:
        return
    if jax.config.values[_NAME]:
        return
    _has_advised = True
    _logger.info(
        "Compiling took %.0f s. To skip it at the next start, set "
        "RunConfig(compilation_cache_dir=...) to a persistent directory.",
        duration_secs,
    )


def _problem_with(directory: str) -> str:
    """Makes a missing directory. Returns the reason if it is unusable, or "".

    JAX runs the programs in it, so only this user must be able to write there.
    """
    if is_url(directory):
        if importlib.util.find_spec("etils") is None:
            return "JAX needs the package etils[epath] for URLs"
        return ""
    try:
        os.makedirs(directory, mode=0o755, exist_ok=True)
        trusted.check_cache(directory)
    except OSError as error:
        return str(error).rstrip(".")
    return ""
