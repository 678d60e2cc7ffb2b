"""Tests that scripts of 2018 run unchanged."""

import pathlib
import re
import subprocess
import sys
from unittest import mock

import pytest
import tensorflow as tf

from keras_tpu_estimator import __main__
from keras_tpu_estimator.tf1 import command
from keras_tpu_estimator.tf1.shims.importing import tf1_for

PROGRAMS = pathlib.Path(__file__).parent / "programs"


@pytest.fixture
def imported_from(tmp_path, monkeypatch):
    """Imports a module with this text as part of a TF1 script."""

    def import_(text, name="tf1_module"):
        (tmp_path / f"{name}.py").write_text(text)
        monkeypatch.syspath_prepend(str(tmp_path))
        monkeypatch.delitem(sys.modules, name, raising=False)
        with tf1_for([tmp_path]):
            return __import__(name)

    return import_


@pytest.mark.usefixtures("forked_programs")
def test_script_runs_in_its_own_process(tmp_path):
    command = [sys.executable, "-m", "keras_tpu_estimator", "tf1"]
    command += [PROGRAMS / "digits.py", f"--output_dir={tmp_path}"]
    done = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, done.stderr
    assert "loss = " in done.stderr
    assert "'dense_1/kernel/Adam_1'" in done.stderr
    assert "Traceback" not in done.stderr
    assert "UserWarning" not in done.stderr
    lines = (tmp_path / "result.txt").read_text().split("\n")
    assert float(lines[0].removeprefix("accuracy = ")) > 0.5
    assert lines[1] == "predicted = 64"


@pytest.mark.usefixtures("forked_programs")
def test_deprecations_of_tensorflow_are_not_logged(tmp_path):
    (tmp_path / "program.py").write_text(
        "import tensorflow as tf\n"
        "from tensorflow.python.util import deprecation\n"
        "@deprecation.deprecated(None, 'Call other().')\n"
        "def own():\n"
        "    tf.logging.warning('From %s: %s', 'a', 'b')\n"
        "x = tf.where(tf.constant([1.0]) > 0)\n"
        "tf.layers.batch_normalization(tf.ones([2, 3]), training=True)\n"
        "tf.to_float(x), tf.colocate_with(x)\n"
        "tf.multinomial(tf.ones([1, 2]), 1)\n"
        "own()\n"
    )
    done = subprocess.run(
        [sys.executable, "-m", "keras_tpu_estimator", "tf1", "program.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    logged = re.findall("WARNING:tensorflow:(.*)", done.stderr)
    assert logged == [mock.ANY, "From a: b"]
    assert "own (from __main__) is deprecated and will be removed" in logged[0]
    assert "Call other()." in done.stderr


@pytest.mark.rows(1)
@pytest.mark.usefixtures("forked_programs")
def test_info_lines_of_libraries_are_not_logged(tmp_path):
    (tmp_path / "program.py").write_text(
        "import importlib.util\n"
        "import logging\n"
        "import tensorflow as tf\n"
        "from absl import logging as absl\n"
        "def main(_):\n"
        "    tf.logging.set_verbosity(tf.logging.INFO)\n"
        "    logging.getLogger('jax._src.xla_bridge').info('by JAX')\n"
        "    text = 'by the program'\n"
        "    eval(compile('absl.info(text)', 'program.py', 'eval'))\n"
        "    text = 'by TensorFlow'\n"
        "    file = importlib.util.find_spec('tensorflow').origin\n"
        "    for level in ('info', 'warning'):\n"
        "        code = f'absl.{level}(text + level)'\n"
        "        eval(compile(code, file, 'eval'))\n"
        "    tf.logging.info('by its logger')\n"
        "tf.app.run(main)\n"
    )
    done = subprocess.run(
        [sys.executable, "-m", "keras_tpu_estimator", "tf1", "program.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    assert re.findall(r"by [\w ]+", done.stderr) == [
        "by the program",
        "by TensorFlowwarning",
        "by its logger",
    ]


@pytest.mark.rows(1)
@pytest.mark.usefixtures("forked_programs")
def test_loops_that_have_run_have_gradients(tmp_path):
    (tmp_path / "program.py").write_text(
        "import tensorflow as tf\n"
        "x = tf.constant(2.0)\n"
        "step = lambda i, y: (i + 1, y * x)\n"
        "y = tf.while_loop(lambda i, y: i < 3, step, [0, x])[1]\n"
        "with tf.Session() as session:\n"
        "    print(session.run(y))\n"
        "    print(session.run(tf.gradients(y, x)[0]))\n"
    )
    done = subprocess.run(
        [sys.executable, "-m", "keras_tpu_estimator", "tf1", "program.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.stdout == "16.0\n32.0\n", done.stderr


def test_import_means_tensorflow_1(imported_from):
    module = imported_from(
        "import tensorflow as tf\n"
        "import tensorflow.compat.v1 as v1\n"
        "import tensorflow.contrib.slim as slim\n"
        "import tensorflow.contrib.slim.nets\n"
        "from tensorflow.contrib.tpu.python.tpu import tpu_config\n"
        "from tensorflow.python.ops import array_ops\n"
        "from tensorflow.contrib.layers import *\n"
        "import tensorflow.compat.v2 as tf2\n"
        "from tensorflow.python.tf2 import enabled\n"
        "def inside():\n"
        "    import tensorflow\n"
        "    return tensorflow\n"
    )
    v1 = tf.compat.v1
    assert module.tf is module.v1 is module.tf.compat.v1 is module.inside()
    assert module.tf.Session is v1.Session
    assert module.slim.conv2d is module.tf.contrib.layers.conv2d
    assert module.layer_norm is module.slim.layer_norm
    assert module.tpu_config.TPUConfig is module.tf.estimator.tpu.TPUConfig
    assert module.array_ops.reshape is not None
    assert module.tf2.function is tf.function
    with tf.Graph().as_default():
        assert not module.enabled()
    assert module.tf.keras.__name__.startswith("tf_keras")
    assert module.tf.__version__ == tf.__version__


def test_functions_are_converted_to_graphs(imported_from):
    module = imported_from(
        "import tensorflow as tf\n"
        "def halve(x):\n"
        "    from tensorflow.contrib import framework\n"
        "    if tf.equal(x % 2, 0):\n"
        "        x = tf.floordiv(x, 2)\n"
        "    return framework.smart_cond(False, lambda: None, lambda: x)\n"
        "def batch():\n"
        "    data = tf.data.Dataset.range(4).map(halve).batch(4)\n"
        "    return data.make_one_shot_iterator().get_next()\n"
    )
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        assert session.run(module.batch()).tolist() == [0, 1, 1, 3]


def test_other_code_has_the_installed_tensorflow(imported_from):
    module = imported_from("import tensorflow as tf")
    assert sys.modules["tensorflow"] is tf is not module.tf
    assert not hasattr(tf, "app")


def test_folders_that_a_script_adds_are_part_of_it(
    imported_from, tmp_path, monkeypatch
):
    folder = tmp_path.parent / f"{tmp_path.name}-models"
    folder.mkdir()
    (folder / "tf1_models.py").write_text("import tensorflow.contrib.slim as s")
    monkeypatch.delitem(sys.modules, "tf1_models", raising=False)
    module = imported_from(
        f"import sys\nsys.path.append({str(folder)!r})\nimport tf1_models"
    )
    assert module.tf1_models.s.__name__ == "tensorflow.contrib.slim"


def test_modules_in_the_current_folder_belong_to_the_script(tmp_path, monkeypatch):
    folder = tmp_path / "tf1_space" / "data"
    folder.mkdir(parents=True)
    (folder / "part.py").write_text("import tensorflow.contrib.slim as s")
    (tmp_path / "tf1_single.py").write_text("import tensorflow.contrib.slim as s")
    monkeypatch.chdir(tmp_path)
    # As `python -m` does.
    monkeypatch.syspath_prepend(str(tmp_path))
    with tf1_for([]):
        import tf1_single
        from tf1_space.data import part
    assert part.s.__name__ == tf1_single.s.__name__ == "tensorflow.contrib.slim"


def test_libraries_below_the_current_folder_are_loaded_as_usual(tmp_path, monkeypatch):
    folder = tmp_path / "libraries"
    folder.mkdir()
    (folder / "tf1_library.py").write_text("import tensorflow as tf")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.syspath_prepend(str(folder))
    with tf1_for([]):
        import tf1_library
    assert tf1_library.tf is tf


def test_other_modules_are_loaded_as_usual(tmp_path, monkeypatch):
    folder = tmp_path / "env" / "site-packages"
    folder.mkdir(parents=True)
    (folder / "tf1_others.py").write_text("import tensorflow as tf")
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.delitem(sys.modules, "tf1_others", raising=False)
    with tf1_for([tmp_path]):
        import tf1_others
    assert tf1_others.tf is tf


def test_missing_names_raise_import_errors_at_their_line(imported_from):
    with pytest.raises(ImportError) as caught:
        imported_from("import os\nfrom tensorflow.contrib import nothing")
    message = str(caught.value)
    assert "`tf.contrib.nothing`" in message
    assert "tf1_module.py, line 2." in message
    with pytest.raises(ImportError, match=r"`tf.nothing`.*line 1\."):
        imported_from("import tensorflow.nothing")
    with pytest.raises(ImportError, match="`tf.float32` is not a module"):
        imported_from("import tensorflow.float32 as x")


def test_missing_name_is_no_error_before_its_use(imported_from):
    module = imported_from(
        "import tensorflow as tf\n"
        "from tensorflow.contrib import cloud\n"
        "def use():\n"
        "    return cloud.BigtableClient\n"
        "try:\n"
        "    from tensorflow.contrib.cloud import BigtableClient\n"
        "except ImportError:\n"
        "    BigtableClient = None\n"
    )
    assert module.BigtableClient is None
    with pytest.raises(AttributeError, match=r"tf1_module.py, line 4\. Read"):
        module.use()


def test_error_of_the_script_has_its_lines(tmp_path, monkeypatch):
    script = tmp_path / "broken.py"
    script.write_text("import sys\n\ndef main():\n    1 / len(sys.argv[2:])\n\nmain()")
    monkeypatch.setattr(command, "_behave_as_tf1", lambda: None)
    with pytest.raises(ZeroDivisionError) as caught:
        command.run(str(script), ["argument"])
    assert caught.traceback[-1].path == script
    assert caught.traceback[-1].lineno + 1 == 4
    assert sys.argv[1:] != ["argument"]


def test_module_runs_by_its_name(tmp_path, monkeypatch, capsys):
    package = tmp_path / "tf1_package"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "script.py").write_text(
        "import sys\nimport tensorflow as tf\n"
        "print(__name__, sys.argv[1:], hasattr(tf, 'contrib'))"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(command, "_behave_as_tf1", lambda: None)
    __main__.main(["tf1", "-m", "tf1_package.script", "--flag", "x"])
    assert capsys.readouterr().out == "__main__ ['--flag', 'x'] True\n"


@pytest.mark.parametrize(
    ("run", "result"),
    [
        ("run_path('inner.py', {'x': 1}, '__main__')", "__main__ 1 True\n"),
        (
            "run_path(path_name='inner.py', init_globals={'x': 2})",
            "<run_path> 2 True\n",
        ),
        ("run_module('inner', {'x': 3}, alter_sys=True)", "inner 3 True\n"),
    ],
)
def test_launcher_runs_a_script(run, result, tmp_path, monkeypatch, capsys):
    (tmp_path / "inner.py").write_text(
        "import tensorflow as tf\nprint(__name__, x, hasattr(tf, 'app'))\n"
    )
    (tmp_path / "launcher.py").write_text(f"import runpy\nnames = runpy.{run}\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(command, "_behave_as_tf1", lambda: None)
    command.run("launcher.py")
    assert capsys.readouterr().out == result


def test_variables_of_sessions_are_those_of_2018(tmp_path, monkeypatch, capsys):
    script = tmp_path / "program.py"
    script.write_text(
        "import tensorflow as tf\n"
        "with tf.Graph().as_default(), tf.Session() as session:\n"
        "    value = weights = tf.get_variable('w', initializer=1.0)\n"
        "    start = weights.initialized_value()\n"
        "    value += 2.0\n"
        "    session.run(weights.initializer)\n"
        "    print(bool(weights), *session.run([weights, value, start]))\n"
    )
    monkeypatch.setattr(command, "_behave_as_tf1", lambda: None)
    command.run(str(script))
    assert capsys.readouterr().out == "True 1.0 3.0 1.0\n"


def test_missing_script_is_named(capsys):
    with pytest.raises(SystemExit):
        __main__.main(["tf1", "no_such_script.py"])
    assert "'no_such_script.py', which is not a file" in capsys.readouterr().err
