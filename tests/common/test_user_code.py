"""Tests that tracebacks show the user's code without this package's frames."""

import os
import traceback

import keras
import pytest
from helpers import estimator_of, linear, model_fn_of, regression_data, repeated

import keras_tpu_estimator as kte
from keras_tpu_estimator.base.common.user_code import part_of_package

X, Y = regression_data(examples=8)


@pytest.fixture
def all_frames():
    keras.config.disable_traceback_filtering()
    yield
    keras.config.enable_traceback_filtering()


def internal(error):
    """Returns the number of this package's frames in a traceback."""
    frames = traceback.extract_tb(error.__traceback__)
    return sum(part_of_package(frame.filename) is not None for frame in frames)


def failing_model_fn(features, labels, mode, params):
    raise KeyError("mine")


def failing_input_fn(params):
    raise KeyError("mine")


def called(call, model_dir, model_fn, input_fn):
    """Makes a call that fails in the user's code."""
    estimator = estimator_of(model_fn, model_dir, batch=8)
    if call == "train_and_evaluate":
        specs = kte.TrainSpec(input_fn, max_steps=1), kte.EvalSpec(input_fn)
        kte.train_and_evaluate(estimator, *specs)
    elif call == "train":
        estimator.train(input_fn, steps=1)
    else:
        list(getattr(estimator, call)(input_fn))


CALLS = ["train", "evaluate", "predict", "train_and_evaluate"]


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("fails", ["model_fn", "input_fn"])
def test_error_of_the_user_has_no_internal_frames(tmp_path, call, fails):
    functions = failing_model_fn, repeated(X, Y)
    if fails == "input_fn":
        functions = model_fn_of(linear), failing_input_fn
    with pytest.raises(Exception, match="mine") as caught:
        called(call, tmp_path, *functions)
    assert internal(caught.value) == 0
    (*_, last) = traceback.extract_tb(caught.value.__traceback__)
    assert last.name == f"failing_{fails}"
    assert os.path.samefile(last.filename, __file__)


def test_cause_has_no_internal_frames(tmp_path):
    def model_fn(features, labels, mode, params):
        try:
            return failing_model_fn(features, labels, mode, params)
        except KeyError as error:
            raise ValueError("other") from error

    with pytest.raises(ValueError, match="other") as caught:
        called("train", tmp_path, model_fn, repeated(X, Y))
    assert internal(caught.value.__cause__) == 0


def test_error_of_a_wrong_argument_shows_its_origin(tmp_path):
    estimator = estimator_of(model_fn_of(linear), tmp_path)
    with pytest.raises(ValueError, match="steps") as caught:
        estimator.train(repeated(X, Y), steps=-1)
    assert internal(caught.value)


@pytest.mark.usefixtures("all_frames")
def test_keras_shows_all_frames(tmp_path):
    with pytest.raises(KeyError, match="mine") as caught:
        called("train", tmp_path, failing_model_fn, repeated(X, Y))
    assert internal(caught.value) > 5
