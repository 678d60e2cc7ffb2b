"""Compares the outcomes of Keras's own tests before and after this package is used.

python -m tests.upstream.keras_tests CHECKOUT [TESTS...]

`CHECKOUT` is the root of Keras's sources at the installed version. `TESTS` are paths in
it; the default is `TESTS` below.
"""

import importlib.metadata
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import xml.etree.ElementTree

ROOT = pathlib.Path(__file__).parents[2]
# The tests of what this package uses or replaces.
TESTS = (
    "keras/src/backend/common",
    "keras/src/backend/jax/trainer_test.py",
    "keras/src/callbacks",
    "keras/src/distribution",
    "keras/src/layers/attention",
    "keras/src/layers/core",
    "keras/src/layers/layer_test.py",
    "keras/src/layers/normalization",
    "keras/src/metrics",
    "keras/src/models",
    "keras/src/ops/operation_test.py",
    "keras/src/optimizers",
    "keras/src/random",
    "keras/src/saving",
    "keras/src/trainers",
    "keras/src/tree",
    "keras/src/utils/jax_layer_test.py",
    "keras/src/utils/tracking_test.py",
)


def check_version(checkout):
    """Ends the program if a checkout has another version than the installed Keras."""
    text = (checkout / "keras/src/version.py").read_text()
    (version,) = re.findall(r'__version__ = "(.+)"', text)
    installed = importlib.metadata.version("keras")
    if version != installed:
        sys.exit(
            f"The checkout must have Keras {installed}, which is installed. "
            f"Received: {version}. Run `git checkout v{installed}` in {checkout}."
        )


def outcomes(checkout, tests, folder, *options):
    """Runs tests of Keras, and returns their outcomes by name."""
    report = folder / "report.xml"
    env = os.environ | {
        "KERAS_BACKEND": "jax",
        "JAX_PLATFORMS": "cpu",
        "PYTHONPATH": str(ROOT),
        "TF_CPP_MIN_LOG_LEVEL": "3",
        "XLA_FLAGS": "--xla_force_host_platform_device_count=8 "
        "--xla_backend_optimization_level=0",
    }
    pytest = ("-m", "pytest", "-o", "addopts=", "-p", "no:cacheprovider", "-q")
    # Tests of libraries that are not installed fail in the collection.
    pytest += ("--continue-on-collection-errors", "--tb=short")
    subprocess.run(
        [sys.executable, *pytest, f"--junitxml={report}", *options, *tests],
        cwd=checkout,
        env=env,
        check=False,
    )
    return {
        f"{case.get('classname')}.{case.get('name')}": outcome(case)
        for case in xml.etree.ElementTree.parse(report).iter("testcase")
    }


def outcome(case):
    """Returns the outcome of one test in a JUnit report."""
    results = [child for child in case if child.tag in ("failure", "error", "skipped")]
    return results[0].tag if results else "passed"


def main(checkout, *tests):
    """Runs the tests twice, and ends with an error if an outcome differs."""
    checkout = pathlib.Path(checkout).resolve()
    check_version(checkout)
    with tempfile.TemporaryDirectory() as name:
        arguments = (checkout, tests or TESTS, pathlib.Path(name))
        plain = outcomes(*arguments)
        used = outcomes(*arguments, "-p", "tests.upstream.used_before")
    differing = [
        f"{test}: {plain.get(test, 'missing')}, then {used.get(test, 'missing')}"
        for test in sorted({*plain, *used})
        if plain.get(test) != used.get(test)
    ]
    counts = {value: [*plain.values()].count(value) for value in {*plain.values()}}
    lines = [f"{len(plain)} tests: {counts}. {len(differing)} differ.", *differing]
    sys.stdout.write("\n".join(lines) + "\n")
    sys.exit(bool(differing) or "passed" not in counts)


if __name__ == "__main__":
    main(*sys.argv[1:])
