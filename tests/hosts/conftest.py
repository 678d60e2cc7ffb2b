"""No host here has a word about a TPU, though its compiler is installed."""

import pytest


@pytest.fixture(autouse=True)
def nothing_of_a_tpu(monkeypatch):
    """Takes away what libtpu is told where there is no TPU."""
    for name in ("TPU_ACCELERATOR_TYPE", "TPU_WORKER_HOSTNAMES"):
        monkeypatch.delenv(name, raising=False)
