"""Tests that files of other versions are read with the same results."""

import json
import logging
import shutil

import jax
import numpy as np
import pytest
from served_helpers import serve

from tests.golden import make_versions
from tests.stored_programs import ran

WRITTEN = {
    folder.name: json.loads((folder / "expected.json").read_text())
    for folder in sorted(make_versions.HERE.iterdir())
}
OF_OTHER_JAX = [
    name for name, each in WRITTEN.items() if each["jax"] != jax.__version__
]


@pytest.mark.parametrize("versions", WRITTEN)
@pytest.mark.parametrize(
    ("name", "in_shards"),
    [
        *((name, False) for name in make_versions.FORMATS),
        ("shards", True),
        # Written by eight cores, and read by one.
        ("shards", False),
    ],
)
def test_training_continues_from_other_versions(tmp_path, name, in_shards, versions):
    model_dir = tmp_path / "model"
    shutil.copytree(make_versions.HERE / versions / name, model_dir)
    assert list(model_dir.glob("model.ckpt-2.input.*"))
    estimator = make_versions.estimator_in(
        model_dir,
        in_shards,
        checkpoint_format="hdf5" if name == "shards" else name,
    )
    # If the input had restarted, the results would differ.
    estimator.train(make_versions.input_fn, steps=2)
    for variable, value in make_versions.weights(estimator).items():
        want = WRITTEN[versions]["at step 4"][variable]
        np.testing.assert_allclose(value, want, 0, 1e-6, err_msg=variable)


def test_exports_run_with_only_tensorflow():
    x, _ = make_versions.data()
    requests = [(name, size) for name in WRITTEN for size in (12, 5)]
    answers = serve(
        *(
            (
                str(make_versions.HERE / name / "export"),
                ["serve"],
                "serving_default",
                {"x": x[:size]},
            )
            for name, size in requests
        )
    )
    for (name, size), answer in zip(requests, answers, strict=True):
        for output, value in WRITTEN[name]["outputs"].items():
            np.testing.assert_allclose(
                answer[output],
                value[:size],
                rtol=1e-5,
                atol=1e-6,
                err_msg=f"{output} of {name}",
            )


@pytest.mark.parametrize("versions", OF_OTHER_JAX)
def test_executable_of_another_version_is_compiled_again(tmp_path, caplog, versions):
    for name in ("hdf5", "executables"):
        # Permissions of files that no other user may write.
        shutil.copytree(
            make_versions.HERE / versions / name,
            tmp_path / name,
            copy_function=shutil.copyfile,
        )
        for path in (tmp_path / name, *(tmp_path / name).iterdir()):
            path.chmod(0o700)
    caplog.set_level(logging.INFO, "keras_tpu_estimator")
    estimator = make_versions.estimator_in(
        tmp_path / "hdf5", executables=str(tmp_path / "executables")
    )
    (outputs,) = estimator.predict(
        make_versions.predict_fn, yield_single_examples=False
    )
    assert ran(caplog.records) == []
    assert f"compiler (jax {WRITTEN[versions]['jax']}, " in caplog.text
    assert "compiling." in caplog.text
    assert {name: each.shape for name, each in outputs.items()} == {
        "erf": (12, 1),
        "gelu": (12, 1),
    }
