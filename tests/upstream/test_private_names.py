"""Private names of libraries: lookup, checks and errors."""

import pickle
import re

import jax
import keras
import numpy as np
import pytest

import keras_tpu_estimator as kte
from keras_tpu_estimator.base.upstream.private_names import (
    LAST_TRIED,
    PrivateAttribute,
    PrivateName,
    run_apart,
)
from keras_tpu_estimator.errors import UnsupportedVersionError


def test_first_existing_path_is_used():
    newer, older = "keras.src.ops_of_tomorrow.tree.map", "keras.tree.map_structure"
    assert PrivateName("maps", (newer, older)).value is keras.tree.map_structure


def test_module_is_found_behind_a_function_of_the_same_name():
    module = PrivateName("runs layers", ("keras.src.backend.jax.rnn",)).value
    assert callable(module.lstm)


def test_owner_of_a_method_is_its_class():
    name = PrivateName("assigns", ("keras.Variable.assign",))
    assert name.owner is keras.Variable
    assert name.name == "assign"


def test_missing_name_is_an_error_only_when_it_is_used():
    name = PrivateName("does the work", ("keras.src.nowhere.at_all",))
    with pytest.raises(kte.errors.UnsupportedVersionError) as caught:
        _ = name.value
    error = caught.value
    assert (error.library, error.private_name) == ("keras", "keras.src.nowhere.at_all")
    for part in (
        f"as in keras {LAST_TRIED['keras']}",
        f"keras_tpu_estimator {kte.__version__}",
        "It does the work",
        f"Received: keras {keras.__version__}",
        "Install a newer keras_tpu_estimator, or keras<=",
    ):
        assert part in str(error)
    assert str(pickle.loads(pickle.dumps(error))) == str(error)


def test_error_of_an_inner_import_is_not_hidden(tmp_path, monkeypatch):
    (tmp_path / "outer_module.py").write_text("import inner_module_that_is_missing\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ModuleNotFoundError, match="inner_module_that_is_missing"):
        _ = PrivateName("works", ("outer_module.name",)).value


@pytest.mark.parametrize("library", ["jax", "jaxlib", "keras", "tensorflow"])
def test_errors_name_the_version_of_each_library(library):
    error = UnsupportedVersionError(library, f"{library}.name", "does it")
    assert re.search(r"Received: (jax|keras|tensorflow) \d+\.\d+", str(error))


def test_attribute_must_exist():
    attribute = PrivateAttribute("holds it", "keras.Variable._renamed")
    variable = keras.Variable(1.0)
    with pytest.raises(UnsupportedVersionError, match="keras.Variable._renamed"):
        attribute.get(variable)
    with pytest.raises(UnsupportedVersionError, match="It holds it"):
        attribute.set(variable, 1)
    assert not hasattr(variable, "_renamed")


def test_meaning_of_an_attribute_is_checked_once():
    checks = []

    def means(attribute):
        checks.append(attribute)
        attribute.set(keras.Variable(0.0), np.ones(1))
        return len(checks) == 1

    attribute = PrivateAttribute("holds it", "keras.Variable._value", means)
    for _ in range(3):
        assert attribute.get(keras.Variable(2.0)) is not None
    assert checks == [attribute]


@pytest.mark.parametrize("result", [False, None, ValueError("no")])
def test_attribute_with_another_meaning_is_an_error(result):
    def means(attribute):
        if isinstance(result, Exception):
            raise result
        return result

    attribute = PrivateAttribute("holds it", "keras.Variable._value", means)
    with pytest.raises(UnsupportedVersionError, match="keras.Variable._value"):
        attribute.get(keras.Variable(2.0))


def test_checks_run_outside_of_traces_and_scopes():
    def check():
        return float(keras.Variable(1.0).value)

    def function(x):
        with keras.StatelessScope():
            assert run_apart(check) == 1.0
        return x

    jax.make_jaxpr(function)(1.0)


def test_dependencies_allow_the_versions_that_were_tried():
    import pathlib
    import tomllib

    from packaging.requirements import Requirement

    root = pathlib.Path(__file__).parents[2]
    project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    requirements = [Requirement(text) for text in project["dependencies"]]
    for library, version in LAST_TRIED.items():
        for requirement in requirements:
            if requirement.name in (library, f"{library}-cpu"):
                assert requirement.specifier.contains(version, prereleases=True)
                major, minor = (int(part) for part in version.split(".")[:2])
                following = f"{major}.{minor + 1}"
                assert not requirement.specifier.contains(following), following
