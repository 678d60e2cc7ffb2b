"""The examples and the code in the documentation do what they say."""

import importlib.util
import json
import logging
import pathlib
import re
import types
import urllib.error
import urllib.request
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import keras
import numpy as np
import pytest
import tensorflow as tf  # noqa: TID253 - the pages use tf.data
from keras import ops

import keras_tpu_estimator as kte

ROOT = pathlib.Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
PAGES_WITH_CODE = [p for p in PAGES if "```python" in p.read_text()]
X = np.random.default_rng(0).normal(size=(40, 3)).astype("float32")


def example(name: str) -> types.ModuleType:
    """An example as a module."""
    path = ROOT / "examples" / f"{name}.py"
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_digits(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture) -> None:
    result = example("digits").main(steps=150, model_dir=str(tmp_path))
    printed = capsys.readouterr().out
    assert result["global_step"] == 150
    # One in ten is a guess; 800 steps come to more than 0.97.
    assert result["accuracy"] > 0.6
    assert "steps per second" in printed
    assert printed.count("was read as") == 5
    assert f"tensorboard --logdir {tmp_path}" in printed


def test_bert_tiny(
    tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "keras_tpu_estimator")
    bert_tiny = example("bert_tiny")
    result = bert_tiny.main(20, 20, model_dir=str(tmp_path))
    # The examples that fill the last batch are not counted.
    right = float(result["eval_accuracy"]) * bert_tiny.HELD_OUT
    assert right == pytest.approx(round(right), abs=1e-3)
    assert right > bert_tiny.HELD_OUT / 4
    pretrained = tmp_path / "pretrained" / "bert_model.ckpt"
    word_embeddings = "bert/embeddings/word_embeddings"
    assert (
        f"Initial value of {word_embeddings}: {word_embeddings} in {pretrained}"
        in caplog.messages
    )
    # What it started from was TensorFlow's, under BERT's names.
    assert dict(kte.list_variables(str(pretrained)))[word_embeddings] == [
        bert_tiny.WORDS,
        bert_tiny.HIDDEN,
    ]


def test_serve_digits(
    tmp_path: pathlib.Path,
    capsys: pytest.CaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # As for a script, beside which modules are found.
    monkeypatch.syspath_prepend(ROOT / "examples")
    serve_digits = example("serve_digits")
    assert serve_digits.main(steps=150, model_dir=str(tmp_path)) > 0.6
    printed = capsys.readouterr().out
    assert "'state': 'AVAILABLE'" in printed
    assert "360 answers, as `predict` gives them" in printed
    with serve_digits.running_server(tmp_path / "export") as address:
        for path, body, status, answer in REQUESTS:
            got = asked(address + path, body)
            assert got[0] == status, (path, body, got)
            found = json.dumps(got[1], sort_keys=True)
            assert answer in found, (path, body, got)


BLANK = np.zeros((8, 8, 1)).tolist()
REQUESTS = [
    ("", None, 200, '"error_code": "OK"'),
    (":predict", {"instances": [BLANK]}, 200, '{"predictions": [{"digit": '),
    (":predict", {"instances": [{"image": BLANK}]}, 200, '"probability": 0.'),
    (":predict", {"inputs": [BLANK, BLANK]}, 200, '{"outputs": {"digit": ['),
    (":predict", {"inputs": {"image": [BLANK]}}, 200, '"probability": [0.'),
    (":classify", {}, 404, "nothing at /v1/models/digits:classify"),
    ("/versions/1:predict", {}, 404, "nothing at"),
    (":predict", None, 404, "nothing at"),
    (":predict", [], 400, "Expected a JSON object."),
    (":predict", {}, 400, "Expected either"),
    (":predict", {"instances": []}, 400, "a list of examples"),
    (":predict", {"instances": [[1.0]]}, 400, "Received the shape (1, 1)"),
    (":predict", {"instances": ["x"]}, 400, "and dtype float32. Received"),
    (":predict", {"inputs": {"picture": [BLANK]}}, 400, "Expected 'image' of"),
    (
        ":predict",
        {"signature_name": "other", "inputs": [BLANK]},
        400,
        "Expected one of ['serving_default'",
    ),
]


def asked(address: str, body: Any) -> tuple[int, Any]:
    """A server's answer: its status and its JSON. GETs have no body."""
    data = None if body is None else json.dumps(body).encode()
    try:
        with urllib.request.urlopen(address, data, timeout=60) as response:
            return response.status, json.load(response)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.load(error)


def batches_of(features: dict[str, Any], labels: Any) -> Callable[..., Any]:
    """An input_fn over arrays, whose last batch is smaller."""

    def input_fn(params: dict[str, Any]) -> Any:
        size = params["batch_size"]
        for start in range(0, len(labels), size):
            rows = slice(start, start + size)
            yield {k: v[rows] for k, v in features.items()}, labels[rows]

    return input_fn


NUMBERS = batches_of({"x": X}, X.sum(axis=1, keepdims=True))
IMAGES = batches_of({"image": X}, np.zeros(len(X), "int32"))


def model_fn(
    features: Any, labels: Any, mode: str, params: dict[str, Any]
) -> kte.TPUEstimatorSpec:
    """A linear model."""
    y = keras.layers.Dense(1)(features["x"])
    if mode == kte.ModeKeys.PREDICT:
        return kte.TPUEstimatorSpec(mode, predictions={"y": y})
    loss = ops.mean((y - labels) ** 2)
    train_op = None
    if mode == kte.ModeKeys.TRAIN:
        optimizer = kte.CrossShardOptimizer(keras.optimizers.SGD(0.1))
        train_op = optimizer.minimize(loss)
    return kte.TPUEstimatorSpec(mode, loss=loss, train_op=train_op)


def estimator_of(
    model_fn: Callable[..., Any], model_dir: pathlib.Path, **params: Any
) -> kte.TPUEstimator:
    """An estimator on all cores."""
    return kte.TPUEstimator(
        model_fn,
        config=kte.RunConfig(model_dir=str(model_dir)),
        params=params,
        train_batch_size=16,
        eval_batch_size=16,
        predict_batch_size=16,
    )


def code_blocks(page: pathlib.Path) -> list[str]:
    """The Python code of a page, in files of their own."""
    return re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL)


@pytest.mark.parametrize("page", PAGES_WITH_CODE, ids=lambda page: page.stem)
def test_code_of_the_documentation(
    page: pathlib.Path, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    logger = logging.getLogger("keras_tpu_estimator")
    monkeypatch.setattr(logger, "setLevel", lambda level: None)
    names = {
        **{"kte": kte, "keras": keras, "ops": ops, "np": np, "tf": tf},
        **{"jax": jax, "jnp": jnp, "input_fn": NUMBERS},
        "estimator": estimator_of(model_fn, tmp_path / "given"),
    }
    names["estimator"].train(NUMBERS, steps=2)
    for number, code in enumerate(code_blocks(page)):
        code = code.replace("/tmp/prices", str(tmp_path / "prices"))
        exec(compile(code, f"{page.name}, block {number}", "exec"), names)
        if "def input_fn" in code:
            check_input_fn(names["input_fn"], tmp_path / f"input{number}")
        if "def model_fn" in code:
            data = IMAGES if 'features["image"]' in code else NUMBERS
            for clip in (False, True) if '"clip"' in code else (False,):
                directory = tmp_path / f"model{number}-{clip}"
                made = estimator_of(
                    names["model_fn"], directory, clip=clip, units=4
                )
                check_model_fn(made, data)


def check_input_fn(
    input_fn: Callable[..., Any], model_dir: pathlib.Path
) -> None:
    """An input_fn that is shown feeds every mode."""
    estimator = estimator_of(model_fn, model_dir)
    estimator.train(input_fn, steps=3)
    assert estimator.evaluate(input_fn)["global_step"] == 3
    assert next(estimator.predict(input_fn))["y"].shape == (1,)


def check_model_fn(
    estimator: kte.TPUEstimator, input_fn: Callable[..., Any]
) -> None:
    """A model_fn that is shown works in every mode."""
    estimator.train(input_fn, steps=2)
    assert np.isfinite(estimator.evaluate(input_fn)["loss"])
    assert len(list(estimator.predict(input_fn))) == len(X)
