"""Tests that the examples print and reach what their pages say."""

import contextlib
import importlib.util
import json
import logging
import pathlib
import re
import types
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pytest
import tensorflow as tf  # noqa: TID253 - the examples use tf.data
from absl.flags import FLAGS as flags
from tensorboard.backend.event_processing.event_accumulator import (  # noqa: TID253
    EventAccumulator,
)

import keras_tpu_estimator as kte
from docs import outputs
from keras_tpu_estimator.tf1.shims.importing import BUILTINS
from tests.many_hosts.launching import launch

ROOT = pathlib.Path(__file__).parents[1]
NOTHING: Mapping[str, Any] = types.MappingProxyType({})


def example(
    name: str, names: Mapping[str, Any] = NOTHING, **sizes: int
) -> types.ModuleType:
    """Imports an example as a module, with some of its names replaced.

    The given sizes replace the example's sizes, so that it runs fast.
    """
    path = ROOT / "examples" / f"{name}.py"
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    vars(module).update(names)
    spec.loader.exec_module(module)
    assert sizes.keys() <= vars(module).keys()
    vars(module).update(sizes)
    return module


def check_form(name: str, *printed: str) -> None:
    """Checks that the printed lines are those of a page, except for numbers."""
    output = (outputs.OUTPUTS / f"{name}.txt").read_text()
    shown = set(map(source_of, output.splitlines()))
    lines = "\n".join(printed).splitlines()
    assert lines
    assert not [line for line in lines if source_of(line) not in shown]


def source_of(line: str) -> str:
    """Returns a line without numbers, paths and the launcher's prefix."""
    line = re.sub(r"^\[\d+\] |/\S+", "", line.strip())
    return re.sub(r"[\d.,]+", "0", line)


def test_every_shown_output_belongs_to_an_example() -> None:
    kept = {path.stem for path in outputs.OUTPUTS.glob("*.txt")}
    assert kept == outputs.COMMANDS.keys()
    for command in outputs.COMMANDS.values():
        (path,) = (each for each in command if each.endswith(".py"))
        assert (ROOT / path).exists()


def test_pages_show_all_examples() -> None:
    text = (ROOT / "docs" / "examples.md").read_text()
    shown = re.findall(r"^\| .*?examples/(\w+\.py)", text, re.MULTILINE)
    assert sorted(shown) == sorted(
        path.name for path in (ROOT / "examples").glob("*.py")
    )


def test_digits(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture) -> None:
    # Two loops of the same length compile once.
    result = example("digits").main(steps=200, model_dir=str(tmp_path))
    printed = capsys.readouterr().out
    assert result["global_step"] == 200
    # A guess has 0.1; 800 steps reach more than 0.97.
    assert result["accuracy"] > 0.6
    assert printed.count("was read as") == 5
    assert f"tensorboard --logdir {tmp_path}" in printed
    check_form("digits", printed)


@pytest.mark.slow
def test_jax_model(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture) -> None:
    for name in ("flax", "optax"):
        pytest.importorskip(name, reason=f"{name} is not installed")
    jax_model = example("jax_model", CHANNELS=8, BLOCKS=1)
    result = jax_model.main(steps=100, model_dir=str(tmp_path))
    # A guess has 0.1; 800 steps of the full example reach 0.99.
    assert result["accuracy"] > 0.6
    names = dict(kte.list_variables(str(tmp_path))).keys()
    assert {
        "resnet/blocks/0/norm/mean",
        "resnet/dropout/rngs/count",
        "optax/inner_state/nu/resnet/head/kernel",
    } < names
    check_form("jax_model", capsys.readouterr().out)


@pytest.mark.slow
def test_from_keras(
    tmp_path: pathlib.Path,
    capsys: pytest.CaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.syspath_prepend(ROOT / "examples")
    example_ = example("from_keras")
    assert example_.main(steps=90, model_dir=str(tmp_path)) > 0.6
    check_form("from_keras", capsys.readouterr().out)
    assert kte.checkpoints.best(str(tmp_path)) is not None


@pytest.mark.slow
def test_bert_tiny(
    tmp_path: pathlib.Path,
    caplog: pytest.LogCaptureFixture,
    capsys: pytest.CaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "keras_tpu_estimator")
    # A second layer would only repeat the tracing and compilation of the first.
    sizes = {"SENTENCES": 300, "HELD_OUT": 100, "WORDS": 500}
    bert_tiny = example("bert_tiny", **sizes, HIDDEN=16, HEADS=2, LAYERS=1)
    result = bert_tiny.main(20, 20, model_dir=str(tmp_path))
    # The padding of the last batch is not counted.
    right = float(result["eval_accuracy"]) * bert_tiny.HELD_OUT
    assert right == pytest.approx(round(right), abs=1e-3)
    assert right > bert_tiny.HELD_OUT / 4
    told, *sentences = capsys.readouterr().out.splitlines()
    check_form("bert_tiny", told)
    assert len(sentences) == 5
    pretrained = tmp_path / "pretrained" / "bert_model.ckpt"
    word_embeddings = "bert/embeddings/word_embeddings"
    (line,) = [each for each in caplog.messages if "variables have initial" in each]
    assert line.startswith("22 of 24 ") and str(pretrained) in line
    # Training started from TensorFlow's checkpoint, which has BERT's names.
    assert dict(kte.list_variables(str(pretrained)))[word_embeddings] == [
        bert_tiny.WORDS,
        bert_tiny.HIDDEN,
    ]


@pytest.mark.slow
def test_gpt(tmp_path: pathlib.Path) -> None:
    sizes = {"LAYERS": 1, "WIDTH": 128, "HEADS": 2, "LENGTH": 16, "EXAMPLES": 2}
    gpt = example("gpt", **sizes, VOCABULARY=256)
    estimator = gpt.main(steps=20, model_dir=str(tmp_path))
    shapes = dict(kte.list_variables(estimator.model_dir))
    assert shapes["tokens/embeddings"] == [256, 128]
    # Guessing among the most frequent bytes beats guessing among all bytes.
    loss = json.loads((tmp_path / "metrics.jsonl").read_text().splitlines()[-1])
    assert loss["loss"] < np.log(256)


@pytest.mark.slow
def test_resnet(
    tmp_path: pathlib.Path,
    capsys: pytest.CaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # A script finds the modules in its own folder.
    monkeypatch.syspath_prepend(ROOT / "examples")
    resnet = example("resnet", BATCH=32)
    result = resnet.main(steps=40, model_dir=str(tmp_path))
    # A guess has 0.1; 300 steps reach more than 0.98.
    assert result["accuracy"] > 0.5
    check_form("resnet", capsys.readouterr().out)
    curves = EventAccumulator(str(tmp_path)).Reload()
    rates = {
        event.step: float(tf.make_ndarray(event.tensor_proto))
        for event in curves.Tensors("learning_rate_of_step")
    }
    # After the warm-up: steps 19 and 39 of 40.
    falling = {20: ((1 - 19 / 40) / 0.9) ** 2, 40: ((1 - 39 / 40) / 0.9) ** 2}
    assert rates == pytest.approx(falling, rel=1e-4)
    names = [name for name, _ in kte.list_variables(str(tmp_path))]
    assert "dense/kernel/ExponentialMovingAverage" in names


@pytest.mark.slow
def test_gan(
    tmp_path: pathlib.Path,
    capsys: pytest.CaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.syspath_prepend(ROOT / "examples")
    # Noise has a distance of 10; two halves of the images have 0.1.
    assert example("gan").main(steps=200, model_dir=str(tmp_path)) < 4
    printed = capsys.readouterr().out
    assert "taken for real" in printed
    told, distance, *_, last = printed.splitlines()
    check_form("gan", told, distance)
    assert len(last) == 8 * 16
    kept = {name.split("/")[0] for name, _ in kte.list_variables(str(tmp_path))}
    assert kept == {
        "discriminator",
        "discriminator_adam",
        "generator",
        "generator_adam",
        "global_step",
    }


@pytest.mark.usefixtures("forked_trials")
def test_serve_digits(
    tmp_path: pathlib.Path,
    capsys: pytest.CaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # A script finds the modules in its own folder.
    monkeypatch.syspath_prepend(ROOT / "examples")
    serve_digits = example("serve_digits")
    running_server = serve_digits.running_server

    @contextlib.contextmanager
    def asked_more(folder: pathlib.Path) -> Iterator[str]:
        assert folder == tmp_path / "export"
        with running_server(folder) as address:
            yield address
            for request in REQUESTS:
                check_answer(address, *request)

    monkeypatch.setattr(serve_digits, "running_server", asked_more)
    assert serve_digits.main(steps=100, model_dir=str(tmp_path)) > 0.6
    printed = capsys.readouterr().out
    assert "'state': 'AVAILABLE'" in printed
    assert "360 answers, as `predict` gives them" in printed


@pytest.mark.slow
def test_recommender(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture) -> None:
    recommender = example("recommender", BATCH=256, HELD_OUT=5)
    result = recommender.main(60, 203, 101, model_dir=str(tmp_path))
    printed = capsys.readouterr().out
    assert "on each of 8 cores" in printed
    # A guess has 0.5; 2000 steps with a million rows reach 0.88.
    assert result["auc"] > 0.6
    names = {"users", "users/Adagrad", "items", "items/Adagrad"}
    assert names < dict(kte.list_variables(str(tmp_path))).keys()


@pytest.mark.slow
@pytest.mark.usefixtures("forked_programs")
def test_many_hosts() -> None:
    # Two processes with two cores each.
    ended = launch("examples/many_hosts.py", "100", cores=2)
    assert ended.code == 0, ended.text
    for host in range(2):
        log = ended.log(host)
        assert "100 steps on 2 hosts" in log
        assert "digits that this host has read: 180" in log
        (accuracy,) = re.findall("held-out images: ([0-9.]+)", log)
        assert float(accuracy) > 0.6
        assert f"images: {accuracy}" in ended.log(1 - host)
        own = [line for line in log.splitlines() if "host" in line]
        check_form("many_hosts", *own)


def run_main(
    name: str,
    names: Mapping[str, Any] = NOTHING,
    sizes: Mapping[str, int] = NOTHING,
    **settings: object,
) -> None:
    """Runs the `main` of an example that has flags."""
    known = set(flags)
    module = example(name, names, **sizes)
    verbosity = tf.compat.v1.logging.get_verbosity()
    try:
        flags([name, *(f"--{key}={value}" for key, value in settings.items())])
        module.main([name])
    finally:
        tf.compat.v1.logging.set_verbosity(verbosity)
        for flag in set(flags) - known:
            delattr(flags, flag)


def run_tf1(name: str, **settings: Any) -> None:
    """Runs an example that is written for TensorFlow 1."""
    run_main(name, {"__builtins__": BUILTINS}, **settings)


def test_tf1_mnist(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture) -> None:
    run_tf1("tf1_mnist", model_dir=tmp_path, train_steps=100, use_tpu=True)
    printed = capsys.readouterr().out
    (accuracy,) = re.findall("held-out images: ([0-9.]+)", printed)
    # A guess has 0.1; 600 steps reach more than 0.98.
    assert float(accuracy) > 0.6
    assert printed.count("was read as") == 5
    check_form("tf1_mnist", printed)
    # TensorFlow reads the variables under TensorFlow's names.
    names = dict(kte.list_variables(str(tmp_path)))
    assert {
        "batch_normalization/moving_mean",
        "conv2d/kernel/Momentum",
        "dense_1/bias",
        "global_step",
    } <= names.keys()


@pytest.mark.slow
def test_ported_mnist(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture) -> None:
    run_main("ported_mnist", model_dir=tmp_path, train_steps=100, use_tpu=True)
    printed = capsys.readouterr().out
    (accuracy,) = re.findall("held-out images: ([0-9.]+)", printed)
    assert float(accuracy) > 0.6
    check_form("ported_mnist", printed)
    # Both programs print the same lines.
    check_form("tf1_mnist", printed)


@pytest.mark.slow
def test_tf1_bert_tiny(
    tmp_path: pathlib.Path,
    capsys: pytest.CaptureFixture,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "keras_tpu_estimator")
    run_tf1(
        "tf1_bert_tiny",
        # As in `test_bert_tiny`.
        sizes={"LAYERS": 1},
        output_dir=tmp_path,
        pretraining_steps=20,
        train_steps=5,
    )
    printed = capsys.readouterr().out
    (accuracy,) = re.findall("held-out sentences: ([0-9.]+)", printed)
    assert 0.2 < float(accuracy) < 0.8
    assert len(re.findall("^(sea|wood|town): ", printed, re.MULTILINE)) == 5
    # The first checkpoint has all layers except the last two.
    counts = "Initial values of 20 of 72 variables: "
    path = tmp_path / "pretrained" / "model.ckpt-20"
    assert f"{counts}{path}" in caplog.messages


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


def check_answer(address: str, path: str, body: Any, status: int, answer: str) -> None:
    """Checks the status and a part of the server's answer to a request."""
    got = asked(address + path, body)
    assert got[0] == status, (path, body, got)
    assert answer in json.dumps(got[1], sort_keys=True), (path, body, got)


def asked(address: str, body: Any) -> tuple[int, Any]:
    """Returns the status and JSON of a server's answer. GETs have no body."""
    data = None if body is None else json.dumps(body).encode()
    try:
        with urllib.request.urlopen(address, data, timeout=60) as response:
            return response.status, json.load(response)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.load(error)


GOLDEN = ROOT / "tests" / "tf1" / "golden"


@pytest.fixture(scope="module")
def canned() -> dict[str, Any]:
    """The results of the original's `DNNLinearCombinedClassifier`."""
    numbers: dict[str, Any] = json.loads((GOLDEN / "canned.json").read_text())
    return numbers


@pytest.mark.parametrize("step", [0, 20])
def test_wide_and_deep_reads_checkpoints_of_the_original(
    step: int, canned: dict[str, Any], tmp_path: pathlib.Path
) -> None:
    program = example("wide_and_deep")
    estimator = program.estimator_of(str(tmp_path), use_tpu=False)
    old = str(GOLDEN / "canned" / f"model.ckpt-{step}")
    expected = canned[str(step)]
    result = estimator.evaluate(program.input_fn_of(256, seed=2), checkpoint_path=old)
    assert result == pytest.approx(expected["metrics"], rel=1e-5)
    people = program.input_fn_of(4, seed=3)
    predictions = [*estimator.predict(people, checkpoint_path=old)]
    for name, values in expected["predictions"].items():
        found = [each[name] for each in predictions]
        np.testing.assert_allclose(found, values, rtol=1e-5, atol=1e-6)
    classes = [each["classes"][0].decode() for each in predictions]
    assert classes == expected["classes"]


@pytest.mark.parametrize("use_tpu", [False, True])
def test_wide_and_deep_trains_as_the_original(
    use_tpu: bool, canned: dict[str, Any], tmp_path: pathlib.Path
) -> None:
    program = example("wide_and_deep")
    old = GOLDEN / "canned"
    estimator = program.estimator_of(str(tmp_path), str(old / "model.ckpt-0"), use_tpu)
    people = program.input_fn_of(20 * 32, seed=1)
    estimator.train(people, steps=20)
    reader = kte.load_checkpoint(str(old / "model.ckpt-20"))
    names = [
        name
        for name, _ in kte.list_variables(str(tmp_path))
        if name.startswith(("dnn/", "linear/"))
    ]
    assert len(names) == 12
    for name in names:
        found = estimator.get_variable_value(name)
        expected = reader.get_tensor(name)
        np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-6)


def test_wide_and_deep_exports_the_signatures_of_the_original(
    canned: dict[str, Any], tmp_path: pathlib.Path
) -> None:
    program = example("wide_and_deep")
    old = str(GOLDEN / "canned" / "model.ckpt-20")
    estimator = program.estimator_of(str(tmp_path), use_tpu=False)
    path = estimator.export_saved_model(
        f"{tmp_path}/export",
        program.serving_input_receiver_fn,
        checkpoint_path=old,
    )
    served = tf.saved_model.load(path, tags=["serve"])
    found = {
        name: {
            key: each.dtype.name for key, each in signature.structured_outputs.items()
        }
        for name, signature in served.signatures.items()
    }
    expected = canned["signatures"]
    assert found == {name: expected[name]["outputs"] for name in expected}
    features, _ = program.people(4, seed=3)
    examples = [
        tf.train.Example(
            features=tf.train.Features(
                feature={
                    name: feature_of(values[number])
                    for name, values in features.items()
                }
            )
        ).SerializeToString()
        for number in range(4)
    ]
    answer = served.signatures["serving_default"](inputs=tf.constant(examples))
    np.testing.assert_allclose(
        answer["scores"],
        canned["20"]["predictions"]["probabilities"],
        rtol=1e-5,
    )


def feature_of(value: Any) -> tf.train.Feature:
    """A string or a number of a `tf.train.Example`."""
    if isinstance(value, str):
        words = tf.train.BytesList(value=[value.encode()])
        return tf.train.Feature(bytes_list=words)
    numbers = tf.train.FloatList(value=[value])
    return tf.train.Feature(float_list=numbers)


@pytest.mark.slow
def test_wide_and_deep(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture) -> None:
    old = str(GOLDEN / "canned" / "model.ckpt-20")
    result = example("wide_and_deep").main(old, 300, str(tmp_path))
    assert result["accuracy"] > result["accuracy_baseline"]
    printed = capsys.readouterr().out
    assert "old checkpoint: accuracy 0." in printed
    assert "classification, predict, regression, serving_default" in printed
