"""Files of another Python and another JAX are read here, with their numbers."""

import json
import shutil

import numpy as np
import pytest
from served_helpers import serve

from tests.golden import make_versions

HERE = make_versions.HERE


@pytest.fixture(scope="module")
def expected():
    """What the writer had."""
    return json.loads((HERE / "expected.json").read_text())


def test_training_goes_on_from_a_checkpoint_and_its_input(expected, tmp_path):
    shutil.copytree(HERE / "model", tmp_path / "model")
    assert list((tmp_path / "model").glob("model.ckpt-2.input.*"))
    estimator = make_versions.estimator_in(tmp_path / "model")
    estimator.train(make_versions.input_fn, steps=2)
    # Had the input begun anew, they would be others.
    for name, value in make_versions.weights(estimator).items():
        np.testing.assert_allclose(
            value, expected["at step 4"][name], rtol=1e-5, err_msg=name
        )


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
        np.testing.assert_allclose(answer["y"], expected["y"][:n], rtol=1e-5)
