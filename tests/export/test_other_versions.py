"""Files of another Python and another JAX are read here, with their numbers."""

import json
import logging
import shutil

import jax
import numpy as np
import pytest
from served_helpers import serve

from tests.golden import make_versions
from tests.stored_programs import ran

HERE = make_versions.HERE


@pytest.fixture(scope="module")
def expected():
    """What the writer had."""
    return json.loads((HERE / "expected.json").read_text())


@pytest.mark.parametrize(
    ("name", "in_shards"),
    [
        ("model", False),
        ("shards", True),
        # Written by eight cores, and read by one.
        ("shards", False),
    ],
)
def test_training_goes_on_as_if_it_had_not_ended(
    expected, tmp_path, name, in_shards
):
    shutil.copytree(HERE / name, tmp_path / "model")
    assert list((tmp_path / "model").glob("model.ckpt-2.input.*"))
    estimator = make_versions.estimator_in(tmp_path / "model", in_shards)
    # Had the input begun anew, the numbers would be others.
    estimator.train(make_versions.input_fn, steps=2)
    for variable, value in make_versions.weights(estimator).items():
        want = expected["at step 4"][variable]
        np.testing.assert_allclose(value, want, 0, 1e-6, err_msg=variable)


def test_tensorflow_alone_runs_an_export(expected):
    x, _ = make_versions.data()
    sizes = (12, 5)
    answers = serve(
        *(
            (str(HERE / "export"), ["serve"], "serving_default", {"x": x[:n]})
            for n in sizes
        )
    )
    for n, answer in zip(sizes, answers, strict=True):
        for name, value in expected["outputs"].items():
            np.testing.assert_allclose(
                answer[name], value[:n], rtol=1e-5, atol=1e-6, err_msg=name
            )


def test_an_executable_is_compiled_anew(expected, tmp_path, caplog):
    if jax.__version__ == expected["jax"]:
        pytest.skip("This JAX has written it, and may run it.")
    for name in ("model", "executables"):
        # As the permissions of files are where nobody else may write.
        shutil.copytree(
            HERE / name, tmp_path / name, copy_function=shutil.copyfile
        )
        for path in (tmp_path / name, *(tmp_path / name).iterdir()):
            path.chmod(0o700)
    caplog.set_level(logging.INFO, "keras_tpu_estimator")
    estimator = make_versions.estimator_in(
        tmp_path / "model", executables=str(tmp_path / "executables")
    )
    (outputs,) = estimator.predict(
        make_versions.predict_fn, yield_single_examples=False
    )
    assert ran(caplog.records) == []
    assert f"compiler (jax {expected['jax']}, " in caplog.text
    assert "compiling." in caplog.text
    assert {name: each.shape for name, each in outputs.items()} == {
        "erf": (12, 1),
        "gelu": (12, 1),
    }
