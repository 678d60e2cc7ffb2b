"""The command `compare`, with two scripts in processes of their own."""

import json
import pathlib
import subprocess
import sys

import pytest

SCRIPT = """
import sys
import keras_tpu_estimator as kte
import keras
import numpy as np

def model_fn(features, labels, mode, params):
    outputs = keras.layers.Dense(1, use_bias={bias})(features)
    if mode == "infer":
        return kte.TPUEstimatorSpec(mode, predictions={{"y": outputs}})
    loss = keras.ops.mean((outputs - labels) ** 2)
    optimizer = kte.CrossShardOptimizer(keras.optimizers.SGD(float(sys.argv[1])))
    return kte.TPUEstimatorSpec(mode, loss=loss, train_op=optimizer.minimize(loss))

def input_fn(params):
    x = np.ones((8, 4), "float32")
    return x, x[:, :1]

estimator = kte.TPUEstimator(model_fn, config=kte.RunConfig(), use_tpu=False)
while True:
    estimator.train(input_fn, steps=2)
    assert estimator.evaluate(input_fn, steps=1)["loss"] >= 0
    assert len(next(estimator.predict(input_fn))["y"]) == 1
"""


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "keras_tpu_estimator", "compare", *arguments],
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture(scope="module")
def scripts(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    folder = tmp_path_factory.mktemp("scripts")
    (folder / "old.py").write_text(SCRIPT.format(bias=True))
    (folder / "new.py").write_text(SCRIPT.format(bias=False))
    return folder


def test_scripts_with_another_learning_rate(scripts: pathlib.Path) -> None:
    old, report = str(scripts / "old.py"), scripts / "report.json"
    result = run(
        *("--steps", "2", "--json", str(report)), old, "0.1", "--to", old, "0.2"
    )
    assert result.returncode == 1, result.stderr
    assert "First difference: step 1, learning rate" in result.stdout
    finding = json.loads(report.read_text())["finding"]
    assert finding["compared"]["kind"] == "learning rate"


def test_equal_scripts(scripts: pathlib.Path) -> None:
    old = str(scripts / "old.py")
    result = run("--steps", "2", old, "0.1", "--to", old, "0.1")
    assert result.returncode == 0, result.stderr
    assert "metric" in result.stdout
    assert "prediction" in result.stdout
    assert result.stdout.endswith("The programs are one, up to rounding.\n")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["old.py"], "expected OLD"),
        (["missing.py", "--to", "missing.py"], "the path of a script"),
    ],
)
def test_wrong_arguments(arguments: list[str], words: str) -> None:
    result = run(*arguments)
    assert result.returncode == 2
    assert words in result.stderr


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("raise KeyError('mine')", "KeyError: 'mine'"),
        ("import sys; print('mine'); sys.exit(3)", "could not be compared"),
        ("import sys; sys.exit()", "must call `train`"),
    ],
    ids=["raises", "fails", "exits"],
)
def test_script_that_does_not_train(
    scripts: pathlib.Path, text: str, words: str
) -> None:
    (scripts / "failing.py").write_text(text)
    result = run("--steps", "1", str(scripts / "failing.py"), "--to", "README.md")
    assert result.returncode == 2
    assert words in result.stderr
    assert "The old script" in result.stderr
    assert not result.stdout


LOOP = """
    import os, time
    evaluated = 0
    while evaluated < 7:
        time.sleep(60)
        if os.path.exists({path!r}):
            evaluated = estimator.evaluate(input_fn, steps=1)["global_step"]
    assert len"""


@pytest.mark.rows(1)
@pytest.mark.parametrize("exists", [True, False])
def test_scripts_that_wait_for_checkpoints(scripts: pathlib.Path, exists: bool) -> None:
    """They end, and their loops see the step at which training would have ended."""
    path = str(scripts / ("old.py" if exists else "none"))
    text = SCRIPT.format(bias=True).replace("steps=2)", "steps=7)")
    text = text.replace("    assert len", LOOP.format(path=path).lstrip("\n"))
    (scripts / "waits.py").write_text(text)
    script = str(scripts / "waits.py")
    result = run("--steps", "1", script, "0.1", "--to", script, "0.1")
    assert result.returncode == 0, result.stderr
    assert ("waits for something" not in result.stdout) is exists
    assert ("prediction" in result.stdout) is exists


EXPORT = """
    spec = kte.export.TensorServingInputReceiver
    def receiver_fn():
        import tensorflow as tf
        x = tf.compat.v1.placeholder("float32", [None, {size}], name="x")
        return spec(x[:, :4], {{"x": x}})
    estimator.export_saved_model("never", receiver_fn)
    assert len"""


@pytest.mark.rows(1)
@pytest.mark.parametrize("size", [5, 4])
def test_scripts_that_export(scripts: pathlib.Path, size: int) -> None:
    """The names, dtypes and shapes of their signatures are compared."""
    paths = []
    for name, count in (("exports", 4), ("exports_other", size)):
        text = SCRIPT.format(bias=True)
        text = text.replace("    assert len", EXPORT.format(size=count).lstrip("\n"), 1)
        (scripts / f"{name}.py").write_text(text)
        paths.append(str(scripts / f"{name}.py"))
    result = run("--steps", "1", paths[0], "0.1", "--to", paths[1], "0.1")
    assert result.returncode == (size != 4), result.stderr + result.stdout
    assert "exported signature" in result.stdout
    if size != 4:
        assert "First difference: exported signature `input x of" in result.stdout


def test_another_estimator_evaluates(scripts: pathlib.Path) -> None:
    text = SCRIPT.format(bias=True).replace(
        "    assert estimator.evaluate",
        "    config = kte.RunConfig(model_dir=estimator.model_dir)\n"
        "    other = kte.TPUEstimator(model_fn, config=config, use_tpu=False)\n"
        "    assert other.evaluate",
    )
    (scripts / "separate.py").write_text(text)
    script = str(scripts / "separate.py")
    result = run("--steps", "1", script, "0.1", "--to", script, "0.1")
    assert result.returncode == 0, result.stderr
    assert "metric" in result.stdout
    assert "prediction" in result.stdout


@pytest.mark.rows(1)
@pytest.mark.parametrize("same", [False, True])
def test_scripts_that_fail_after_training(scripts: pathlib.Path, same: bool) -> None:
    text = SCRIPT.format(bias=True)
    text = text.replace("    assert len", '    raise OSError("mine")\n    assert len')
    (scripts / "ends.py").write_text(text)
    old, new = (
        str(scripts / ("ends.py" if same else "old.py")),
        str(scripts / "ends.py"),
    )
    result = run("--steps", "1", old, "0.1", "--to", new, "0.1")
    if same:
        assert result.returncode == 0, result.stderr
        assert "because it raises OSError: mine" in result.stdout
    else:
        assert result.returncode == 2
        assert "OSError: mine" in result.stderr
