"""Hides TPU settings from the hosts here, although libtpu is installed."""

import pytest


@pytest.fixture(autouse=True)
def nothing_of_a_tpu(monkeypatch):
    """Removes libtpu's settings for machines without a TPU."""
    for name in ("TPU_ACCELERATOR_TYPE", "TPU_WORKER_HOSTNAMES"):
        monkeypatch.delenv(name, raising=False)
