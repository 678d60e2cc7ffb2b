"""The examples, each compared with itself: no false alarms."""

import os
import pathlib
import subprocess
import sys

import pytest

EXAMPLES = pathlib.Path(__file__).parents[3] / "examples"
# Those that train on one host.
NAMES = (
    "bert_tiny",
    "digits",
    "from_keras",
    "gan",
    "gpt",
    "jax_model",
    "ported_mnist",
    "recommender",
    "resnet",
    "tf1_bert_tiny",
    "tf1_mnist",
    "wide_and_deep",
)


@pytest.mark.slow
@pytest.mark.parametrize("devices", [1, 8])
@pytest.mark.parametrize("name", NAMES)
def test_example_equals_itself(name: str, devices: int) -> None:
    path = str(EXAMPLES / f"{name}.py")
    flags = (
        f"--xla_force_host_platform_device_count={devices} "
        "--xla_backend_optimization_level=0"
    )
    command = ["compare", "--steps", "2", path, "--to", path]
    result = subprocess.run(
        [sys.executable, "-m", "keras_tpu_estimator", *command],
        env={**os.environ, "XLA_FLAGS": flags},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    assert "gradient" in result.stdout
