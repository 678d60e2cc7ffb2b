"""Tests exports of examples on independent servers."""

import importlib
import importlib.util
import os
import pathlib

import numpy as np
import pytest
from other_servers import SERVERS

import keras_tpu_estimator as kte
from keras_tpu_estimator.tf1.shims.importing import BUILTINS

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:`tf.layers:UserWarning"),
]
EXAMPLES = pathlib.Path(__file__).parents[2] / "examples"
IMAGES = np.random.default_rng(0).random((16, 8, 8, 1), "float32")
LABELS = np.arange(16, dtype="int32") % 10
# By name: the example, the backend, and the batch sizes of requests.
EXPORTS = {
    "open": ("digits", "jax", (16, 5, 1)),
    "fixed": ("digits", "jax", (16,)),
    "open-tensorflow": ("digits", "tensorflow", (16, 5, 1)),
    "fixed-tensorflow": ("digits", "tensorflow", (16,)),
    "open-tf1": ("tf1_mnist", "jax", (16, 5, 1)),
}


def program_of(example, request):
    """The `model_fn` of an example, and its features."""
    if example == "digits":
        module = importlib.import_module("examples.digits")
        return module.model_fn, {"image": IMAGES}
    from absl import flags

    path = EXAMPLES / f"{example}.py"
    spec = importlib.util.spec_from_file_location(example, path)
    module = importlib.util.module_from_spec(spec)
    vars(module).update({"__builtins__": BUILTINS})
    known = set(flags.FLAGS)
    spec.loader.exec_module(module)
    for name in set(flags.FLAGS) - known:
        request.addfinalizer(lambda name=name: delattr(flags.FLAGS, name))
    flags.FLAGS([example])
    # Its features are one tensor.
    return kte.tf1.model_fn(module.model_fn), IMAGES


def receiver_fn_of(features, batch):
    """A receiver of requests with "image", for features in a dict or alone."""

    def receiver_fn():
        import tensorflow as tf

        image = tf.compat.v1.placeholder(tf.float32, [batch, 8, 8, 1])
        received = {"image": image}
        if isinstance(features, dict):
            return kte.export.ServingInputReceiver(received, received)
        return kte.export.TensorServingInputReceiver(image, received)

    return receiver_fn


@pytest.fixture(scope="module")
def exports(request, forked_rebuilding, forked_trials, tmp_path_factory):
    """Folders, batches of images and the results of `predict`, by name."""
    made = {}
    for name, (example, backend, sizes) in EXPORTS.items():
        model_fn, features = program_of(example, request)
        directory = tmp_path_factory.mktemp(name)
        estimator = kte.TPUEstimator(
            model_fn,
            config=kte.RunConfig(model_dir=str(directory), export_backend=backend),
            params={"learning_rate": 0.1},
            use_tpu=False,
            train_batch_size=16,
            predict_batch_size=16,
        )
        steps = iter([(features, LABELS)])
        estimator.train(lambda params, steps=steps: steps, steps=1)
        batch = 16 if len(sizes) == 1 else None
        path = estimator.export_saved_model(
            directory / "export", receiver_fn_of(features, batch)
        )
        (expected,) = estimator.predict(
            lambda params, features=features: iter([features]),
            yield_single_examples=False,
        )
        made[name] = path, sizes, expected
    return made


@pytest.fixture(scope="module")
def python():
    """An interpreter with the servers installed."""
    if "SERVING_PYTHON" not in os.environ:
        pytest.skip(
            "SERVING_PYTHON is to name a Python with the group `serving` of "
            "pyproject.toml, in an environment of its own: `nox -s serving`"
        )
    return os.environ["SERVING_PYTHON"]


@pytest.mark.parametrize(
    ("server", "names"),
    [
        ("triton", [*EXPORTS]),
        ("mlserver", ["open"]),
        ("mlserver", ["fixed-tensorflow"]),
        ("mlserver", ["open-tf1"]),
    ],
)
def test_independent_servers_match_predict(server, names, python, exports, tmp_path):
    folders = {name: exports[name][0] for name in names}
    with SERVERS[server](python, folders, tmp_path) as ask:
        for name in names:
            _, sizes, expected = exports[name]
            for size in sizes:
                outputs = ask(name, {"image": IMAGES[:size]})
                assert outputs.keys() == expected.keys()
                for each, value in expected.items():
                    np.testing.assert_allclose(outputs[each], value[:size], 1e-5, 1e-6)
