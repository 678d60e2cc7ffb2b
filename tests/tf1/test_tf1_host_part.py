"""Strings, tables and sparse tensors in a `model_fn`, which the host computes."""

import numpy as np
import pytest
from tf1_golden import golden

from keras_tpu_estimator.tf1_tools.tf_estimator import Estimator


@pytest.fixture(scope="module")
def program():
    import host_part

    return host_part


def test_a_program_gives_what_tensorflow_1_gave(program, tmp_path):
    found = program.results(Estimator(program.model_fn, str(tmp_path)))
    expected = golden("host_part")
    logits = [each["predicted"].pop("logits") for each in (found, expected)]
    np.testing.assert_allclose(*logits, rtol=1e-4)
    assert found["predicted"] == expected["predicted"]
    assert found["evaluated"] == pytest.approx(expected["evaluated"], rel=1e-5)
    assert found["variables"].keys() == expected["variables"].keys()
    for name, value in expected["variables"].items():
        np.testing.assert_allclose(
            found["variables"][name], value, rtol=1e-4, atol=1e-5, err_msg=name
        )
