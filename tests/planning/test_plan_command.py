"""`python -m keras_tpu_estimator plan SCRIPT`."""

import os
import subprocess
import sys
import textwrap

import pytest
from helpers import slow

from keras_tpu_estimator.__main__ import main

HEAD = """\
import sys
import keras_tpu_estimator as kte
import keras, numpy as np

def model_fn(features, labels, mode, params):
    y = keras.layers.Dense(1)(features)
    loss = keras.ops.mean((y - labels) ** 2)
    optimizer = kte.CrossShardOptimizer(keras.optimizers.SGD(0.1))
    return kte.TPUEstimatorSpec(
        mode, loss=loss, train_op=optimizer.minimize(loss))

def input_fn(params):
    return np.ones((params["batch_size"], 2), "float32"), np.ones(
        (params["batch_size"], 1), "float32")

estimator = kte.TPUEstimator(
    model_fn, config=kte.RunConfig(), train_batch_size=8, eval_batch_size=8)
"""
TRAINS = HEAD + "estimator.train(input_fn, steps=10)\n"


@pytest.fixture
def plan(tmp_path, capfd):
    """Plans a script; returns its status and output."""

    def plan(code, *arguments, topology="v5e:2x2"):
        script = tmp_path / "script.py"
        script.write_text(textwrap.dedent(code))
        options = ["--topology", topology] if topology else []
        status = main(["plan", str(script), *options, *arguments])
        return status, *capfd.readouterr()

    return plan


def test_a_script(plan):
    status, out, _ = plan(TRAINS)
    assert status == 0
    assert out.startswith("Plan of mode 'train'   ")


def test_arguments_of_the_script(plan):
    code = TRAINS + "print(sys.argv[1:], __name__)\n"
    _, out, _ = plan(code, "--name=a", "b", "--top", "c")
    assert "['--name=a', 'b', '--top', 'c'] __main__" in out
    _, out, _ = plan(code, "-x", "--", "--topology", "d")
    assert "['-x', '--topology', 'd'] __main__" in out


def test_options_after_the_script(plan):
    code = TRAINS + "print(sys.argv[1:])\n"
    status, out, _ = plan(code, "--quick", "-m", "--no-tf1", "-x")
    assert status == 0
    assert "['-m', '-x']" in out
    assert "cycles, by the compiler" not in out
    status, out, _ = plan(code, "-x", "--", "--quick", "--tf1")
    assert status == 0
    assert "['-x', '--quick', '--tf1']" in out
    assert "cycles, by the compiler" in out


def test_option_without_its_value_after_the_script(plan, capfd):
    with pytest.raises(SystemExit):
        plan(TRAINS, "--save")
    err = capfd.readouterr().err
    assert "SCRIPT\n" in err
    assert "argument --save: expected one argument" in err


def test_options_before_the_script(tmp_path, capfd):
    script = tmp_path / "script.py"
    script.write_text(TRAINS)
    before = ["--quick", "--topology", "v5e:2x2", "--slices", "2"]
    assert main(["plan", *before, str(script)]) == 0
    out = capfd.readouterr().out
    assert "cycles, by the compiler" not in out
    assert "2xv5e:2x2" in out


def test_a_notebook(tmp_path, capfd):
    with pytest.raises(SystemExit) as ended:
        main(["plan", str(tmp_path / "a.ipynb"), "--topology", "v5e:2x2"])
    assert ended.value.code == 2
    assert "jupyter nbconvert" in capfd.readouterr().err


def test_each_compilation_is_reported(plan):
    _, _, err = plan(TRAINS)
    assert "Compiling mode 'train' for v5e:2x2" in err


def test_another_process_of_the_script_does_not_train(plan):
    code = HEAD + (
        "import os, subprocess\n"
        "if len(sys.argv) < 2:\n"
        "    ended = subprocess.run([sys.executable, __file__, 'child'],\n"
        "        capture_output=True, text=True)\n"
        "    print('child', ended.returncode, ended.stderr)\n"
        "estimator.train(input_fn, steps=10)\n"
    )
    status, out, _ = plan(code)
    assert status == 0
    assert "child 1" in out
    assert "Plan the script of that process" in out


# The script does not wait for hosts that were never started.
_COUNTS = HEAD.replace("import sys", "import sys, jax").replace(
    "estimator = kte.TPUEstimator(",
    """
jax.distributed.initialize("10.0.0.1:8476", 4, 0)
kte.initialize("10.0.0.1:8476", num_processes=4, process_id=0)
keras.distribution.set_distribution(keras.distribution.DataParallel())
print(jax.device_count(), jax.local_device_count(), jax.process_count())
print(len(jax.devices()), len(jax.local_devices()), jax.process_indices())
print(jax.default_backend(), len(jax.devices("tpu")), jax.local_device_count("tpu"))
estimator = kte.TPUEstimator(""",
)
_COUNTS = _COUNTS.replace("size=8", "size=32 * jax.device_count()")
_COUNTS += "estimator.train(input_fn, steps=10)\n"


@pytest.mark.usefixtures("forked_programs")
@pytest.mark.parametrize(
    ("topology", "counts"),
    [
        slow("v5e:2x2", "4 4 1\n4 4 [0]\ntpu 4 4"),
        ("v5e:4x4", "16 4 4\n16 4 [0, 1, 2, 3]\ntpu 16 4"),
    ],
)
def test_jax_counts_the_devices_of_the_topology(tmp_path, topology, counts):
    script = tmp_path / "script.py"
    script.write_text(_COUNTS)
    command = [sys.executable, "-m", "keras_tpu_estimator", "plan"]
    environment = {k: v for k, v in os.environ.items() if k != "XLA_FLAGS"}
    environment.pop("JAX_NUM_CPU_DEVICES", None)
    ended = subprocess.run(
        [*command, str(script), "--topology", topology],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    assert counts in ended.stdout
    cores = int(counts.split()[0])
    (line,) = (line for line in ended.stdout.splitlines() if "examples of a" in line)
    assert line.split()[-1] == f"{32 * cores:,}"


def test_several_topologies(plan):
    status, out, _ = plan(TRAINS, topology="v5e:2x2,v4-8")
    assert status == 0
    assert out.splitlines()[0].split()[-2:] == ["v5e:2x2", "v4:2x2x1"]


def test_programs_are_saved(plan, tmp_path):
    folder = tmp_path / "compiled"
    status, out, _ = plan(
        TRAINS + "estimator.evaluate(input_fn, steps=1)\n",
        "--save",
        str(folder),
    )
    assert status == 0
    modes = [path.name.partition("-")[0] for path in sorted(folder.iterdir())]
    assert modes == ["eval", "train"]
    assert f"v5e:2x2: stored as {folder}/train-" in out


def test_a_folder_that_other_users_may_write(plan, tmp_path):
    folder = tmp_path / "compiled"
    folder.mkdir()
    folder.chmod(0o777)
    for name in (str(folder), "gs://bucket/compiled"):
        with pytest.raises(SystemExit) as ended:
            plan(TRAINS, "--save", name)
        assert ended.value.code == 2


def test_one_of_several_is_too_small(plan):
    status, out, _ = plan(TRAINS, topology="v5e:2x2,v5e:4x4")
    assert status == 1
    assert "no, see below" in out
    assert "\nv5e:4x4: " in out


def test_an_error_before_and_after(plan):
    with pytest.raises(ZeroDivisionError):
        plan(HEAD + "1 / 0")
    status, _, err = plan(TRAINS + "1 / 0")
    assert status == 1
    assert "after the plans above: ZeroDivisionError" in err


def test_a_status_before_and_after(plan):
    with pytest.raises(SystemExit, match="3"):
        plan(HEAD + "sys.exit(3)")
    assert plan(TRAINS + "sys.exit(3)")[0] == 1
    assert plan(TRAINS + "sys.exit(0)")[0] == 0


def test_a_rejected_operation(plan):
    lines = """\
    import jax
    y += jax.numpy.linalg.eigvals(y @ y.T).real.sum()
    """
    code = HEAD.replace("    loss =", lines + "loss =")
    status, _, err = plan(code + "estimator.evaluate(input_fn)\n")
    assert status == 1
    assert "rejects the operation 'eig'" in err
    assert "The line is: y += jax.numpy.linalg.eigvals" in err


def test_no_call(plan):
    status, _, err = plan(HEAD)
    assert status == 2
    assert "a script without such calls" in err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["plan", "{script}", "--topology", "v5e:3x3"], "Unknown TPU topology"),
        (["plan", "{script}"], "--topology"),
        (["plan", "x.py", "--topology", "v5e:2x2", "--slices", "0"], "1 to 256 slices"),
        (["plan", "missing.py", "--topology", "v5e:2x2"], "missing.py"),
        (["info", "{script}", "--topology", "v5e:2x2"], "unrecognized"),
    ],
)
def test_invalid_arguments_are_refused(tmp_path, capfd, arguments, said):
    script = tmp_path / "script.py"
    script.write_text(TRAINS)
    with pytest.raises(SystemExit) as ended:
        main([each.format(script=script) for each in arguments])
    assert ended.value.code == 2
    assert said in capfd.readouterr().err
