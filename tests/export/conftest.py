"""A trained estimator that the tests of exports share."""

import pytest
from export_helpers import classifier, first_request_left_out, input_fn
from helpers import estimator_of


@pytest.fixture(scope="session")
def model_dir(tmp_path_factory):
    """A directory with checkpoints of the classifier."""
    path = tmp_path_factory.mktemp("classifier")
    estimator_of(classifier, path).train(input_fn, steps=4)
    return path


@pytest.fixture(scope="session")
def estimator(model_dir):
    """The trained classifier."""
    return estimator_of(classifier, model_dir)


@pytest.fixture(scope="session")
def predictions(estimator):
    """The classifier's predictions for its data."""
    (batch,) = estimator.predict(input_fn, yield_single_examples=False)
    return batch


@pytest.fixture
def untried():
    """Leaves out the first request in a test."""
    with first_request_left_out():
        yield
