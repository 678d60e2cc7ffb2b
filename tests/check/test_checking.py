"""Tests of the checker's reports about the source of scripts."""

import json
import os
import pathlib
import re
import sys
import textwrap

import pytest

from keras_tpu_estimator.__main__ import main
from keras_tpu_estimator.tf1 import shims
from keras_tpu_estimator.tf1.names import porting
from keras_tpu_estimator.tf1_tools.check.command import as_text, check
from keras_tpu_estimator.tf1_tools.check.reached import Grade
from keras_tpu_estimator.tf1_tools.check.verdicts import Verdict

DOCS = pathlib.Path(__file__).parents[2] / "docs"
USED = Verdict.RUNS
HEAD = "import tensorflow.compat.v1 as tf\n"


@pytest.fixture
def program(tmp_path):
    """Writes the files of a script, and checks all or the first of them."""

    def write(first, is_file=True, **others):
        files = {"main": HEAD + textwrap.dedent(first), **others}
        for name, text in files.items():
            path = tmp_path / f"{name}.py"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(textwrap.dedent(text))
        return check(tmp_path / "main.py" if is_file else tmp_path)

    return write


def names(report, verdict=USED):
    """The names and lines with a verdict."""
    return {
        finding.name: [use.line for use in finding.uses]
        for finding in report.with_verdict(verdict)
    }


@pytest.mark.parametrize(
    ("imports", "code", "name"),
    [
        ("", "tf.layers.dense(1)", "tf.layers.dense"),
        ("import tensorflow as tf", "tf.reduce_sum(1)", "tf.reduce_sum"),
        ("import tensorflow", "tensorflow.add_n(1)", "tf.add_n"),
        ("import tensorflow.compat.v1 as t", "t.matmul(1)", "tf.matmul"),
        ("from tensorflow.compat import v1", "v1.gather(1)", "tf.gather"),
        ("", "tf.compat.v1.add_n(1)", "tf.add_n"),
        ("from tensorflow import nn", "nn.relu(1)", "tf.nn.relu"),
        ("flags = tf.flags", "flags.DEFINE_bool('a')", "tf.flags.DEFINE_bool"),
        ("f = tf.flags.FLAGS", "f.batch_size", "tf.flags.FLAGS"),
        ("a = b = tf.train", "b.AdamOptimizer(1)", "tf.train.AdamOptimizer"),
        ("adam: type = tf.train.Saver", "adam(1)", "tf.train.Saver"),
        ("", "tf.GraphKeys.UPDATE_OPS.lower()", "tf.GraphKeys"),
        ("", "[tf.shape(x) for x in y]", "tf.shape"),
        ("", "lambda x: tf.rank(x)", "tf.rank"),
    ],
)
def test_aliases_are_followed(imports, code, name, program) -> None:
    report = program(f"{imports}\n{code}\n")
    assert 3 in names(report)[name]
    assert not report.unfollowed and report.runs


def test_imports_in_functions_are_followed(program) -> None:
    report = program(
        """
        def f():
            import tensorflow as tensor_flow
            return tensor_flow.concat([])
        """
    )
    assert names(report) == {"tf.concat": [5]}


def test_object_imported_in_two_ways_is_listed_once(program) -> None:
    report = program(
        """
        try:
            import tensorflow.compat.v1 as t
        except ImportError:
            import tensorflow as t
        t.squeeze(1)
        """
    )
    assert names(report) == {"tf.squeeze": [7]}


@pytest.mark.parametrize("error", ["", " ImportError", " Exception as error"])
def test_absent_library_leaves_the_other_import(error, program) -> None:
    report = program(
        f"""
        try:
            import os, absent_package
            from absent_package import nn
            ops = absent_package.ops
        except{error}:
            from tensorflow import gone, nn
            import tensorflow as ops
        else:
            nn = None
        nn.nowhere()
        ops.neither()
        """
    )
    missing = names(report, Verdict.MISSING)
    assert missing == {"tf.gone": [8], "tf.nn.nowhere": [12], "tf.neither": [13]}
    guarded = {(remark.line, remark.what.split()[0]) for remark in report.unfollowed}
    assert guarded == {(4, "absent_package"), (5, "absent_package")}


@pytest.mark.parametrize("package", ["numpy", "own"])
def test_present_library_leaves_its_import(package, program) -> None:
    report = program(
        f"""
        try:
            from {package} import nn
        except ImportError:
            from tensorflow import gone, nn
        nn.nowhere()
        """,
        own="nn = None\n",
    )
    assert report.runs and not names(report, Verdict.MISSING)


@pytest.mark.parametrize(
    "code",
    [
        "def f(tf):\n    tf.nowhere()",
        "def f():\n    tf = 1\n    tf.nowhere()",
        "for tf in x:\n    tf.nowhere()",
        "if x:\n    tf = np\ntf.nowhere()",
        "with x as tf:\n    tf.nowhere()",
        "[tf.nowhere for tf in x]",
        "class A:\n    tf.x = tf\n    tf = 1\n    tf.nowhere()",
        "def f():\n    global tf\n    tf = np\ntf.nowhere()",
        "x = y = x\nx.nowhere()",
        "tf.shape(x).nowhere()",
        "tf.flags.FLAGS.nowhere",
        "tf.float32.nowhere",
        "self.tf.nowhere()",
        "'tf.nowhere()'  # tf.nowhere()",
    ],
)
def test_uncertain_names_are_not_listed(code, program) -> None:
    report = program(code)
    assert not names(report, Verdict.MISSING) and report.runs


def test_missing_names_are_listed_with_their_lines(program) -> None:
    report = program(
        """
        def f(x):
            tf.nowhere(x)
            return tf.contrib.tpu.keras_to_tpu_model(tf.nowhere(x))
        """
    )
    missing = names(report, Verdict.MISSING)
    assert missing == {
        "tf.nowhere": [4, 5],
        "tf.contrib.tpu.keras_to_tpu_model": [5],
    }
    assert not report.runs


def test_import_of_a_missing_name_is_found(program) -> None:
    report = program("from tensorflow.contrib import nowhere\n")
    assert names(report, Verdict.MISSING) == {"tf.contrib.nowhere": [2]}


@pytest.mark.parametrize(
    "code",
    [
        "if hasattr(tf, 'nowhere'):\n    tf.nowhere()",
        "if tf.__version__ > '2':\n    tf.nowhere()",
        "try:\n    tf.nowhere()\nexcept AttributeError:\n    pass",
        "try:\n    from tensorflow import nowhere\nexcept ImportError:\n    0",
    ],
)
def test_optional_names_are_not_missing(code, program) -> None:
    report = program(code)
    assert report.runs
    assert ["tf.nowhere" in each.what for each in report.unfollowed] == [True]


@pytest.mark.parametrize("code", ["from tensorflow import *", "getattr(tf.nn, name)"])
def test_untraceable_code_is_reported(code, program) -> None:
    report = program(code)
    assert [each.what for each in report.unfollowed] == [code]
    assert [each.line for each in report.unfollowed] == [2]


@pytest.mark.parametrize(
    "code",
    [
        "import runpy; runpy.run_path('train.py', run_name='__main__')",
        "from runpy import run_module; run_module('train')",
    ],
)
def test_launched_scripts_are_reported(code, program) -> None:
    report = program(code)
    assert [each.what for each in report.unfollowed] == [code.partition("; ")[2]]


@pytest.mark.parametrize(
    "name",
    [
        "random.set_seed",
        "keras.callbacks.experimental.BackupAndRestore",
    ],
)
def test_names_of_version_2_are_reported(name, program) -> None:
    (finding,) = program(f"tf.{name}(1)\n").findings
    assert finding.verdict is Verdict.MISSING
    assert finding.advice == f"It came with TensorFlow 2: write tf.compat.v2.{name}."


def test_conversion_of_keras_models_is_supplied(program) -> None:
    (finding,) = program("tf.keras.estimator.model_to_estimator(0)\n").findings
    assert finding.verdict is Verdict.RUNS


def test_libraries_that_supply_names_get_version_1(program, tmp_path, monkeypatch):
    folder = tmp_path / "installed" / "tensorflow_gan"
    folder.mkdir(parents=True)
    folder.joinpath("__init__.py").write_text(
        "import tensorflow as tf\nclass GANHook(tf.estimator.SessionRunHook): pass\n"
    )
    monkeypatch.syspath_prepend(str(folder.parent))
    monkeypatch.delitem(sys.modules, "tensorflow_gan", raising=False)
    report = program("tf.contrib.gan.GANHook()\n")
    sys.modules.pop("tensorflow_gan", None)
    monkeypatch.undo()
    assert report.runs


def test_fallback_of_a_package_of_tensorflow_is_not_used(program) -> None:
    report = program(
        """
        try:
            tfgan = tf.contrib.gan
        except AttributeError:
            import tensorflow_gan as tfgan
        tfgan.estimator.GANEstimator()
        """
    )
    (finding,) = report.with_verdict(Verdict.MISSING)
    assert finding.name == "tf.contrib.gan.estimator.GANEstimator"
    assert not report.runs


def test_missing_dependencies_of_a_library_are_reported(
    program, tmp_path, monkeypatch
) -> None:
    folder = tmp_path / "installed" / "tensorflow_gan"
    folder.mkdir(parents=True)
    folder.joinpath("__init__.py").write_text("import not_installed\n")
    monkeypatch.syspath_prepend(str(folder.parent))
    monkeypatch.delitem(sys.modules, "tensorflow_gan", raising=False)
    report = program("tf.contrib.gan.losses()\n")
    monkeypatch.undo()
    (finding,) = report.with_verdict(Verdict.MISSING)
    assert "tensorflow_gan, which needs not_installed" in finding.advice
    assert "Run `pip install not_installed`." in finding.advice


MODEL_FN = """
    import modeling
    from modeling import Model
    import nets.blocks as blocks


    def metric_fn(x):
        return tf.py_func(len, [x], tf.int32)


    def builder():
        def model_fn(features, labels, mode, params):
            def host_call(x):
                return tf.as_string(x)

            y = modeling.dense(features)
            z = Model(y)
            y = tf.cond(True, true_fn, lambda: tf.py_func(len, [y], 1))
            return Spec(metrics=(metric_fn, [y]), host_call=(host_call, [z]))

        return model_fn


    def true_fn():
        return blocks.block(1)


    def test():
        with tf.Session() as session:
            tf.placeholder(tf.int32)


    def train_input_fn(params):
        tf.string_split(params)
        return tf.train.batch([], 1)
    """
OTHERS = {
    "modeling": HEAD
    + """
def dense(x):
    with tf.variable_scope("a", use_resource=False):
        return tf.random_gamma(x)
class Model:
    def __init__(self, x):
        self.build(x)
    def build(self, x):
        tf.lookup.StaticHashTable(x)
    def other(self, x):
        tf.placeholder(x)
""",
    "nets/__init__": "",
    "nets/blocks": HEAD
    + """
def block(x):
    return tf.as_string(x)
""",
    "unused": HEAD + "tf.nowhere()\n",
}


def test_operations_that_devices_refuse_are_found_in_device_code(program) -> None:
    report = program(MODEL_FN, **OTHERS)
    found = {
        (finding.name, use.path.name, use.line)
        for finding in report.with_verdict(Verdict.REFUSED)
        for use in finding.uses
    }
    assert found == {
        ("tf.py_func", "main.py", 19),
        ("tf.variable_scope", "modeling.py", 4),
        ("tf.random_gamma", "modeling.py", 5),
    }
    depends = {finding.name for finding in report.with_verdict(Verdict.DEPENDS)}
    assert {"tf.as_string", "tf.lookup.StaticHashTable"} <= depends
    others = {"tf.py_func", "tf.as_string", "tf.Session", "tf.train.batch"}
    assert others <= set(names(report))


def test_file_is_read_with_its_imports(program) -> None:
    report = program(MODEL_FN, **OTHERS)
    read = {path.name for path in report.files}
    assert read == {"main.py", "modeling.py", "__init__.py", "blocks.py"}


def test_folder_is_read_completely(program) -> None:
    report = program(MODEL_FN, is_file=False, **OTHERS)
    assert names(report, Verdict.MISSING) == {"tf.nowhere": [2]}


def test_packages_import_relatively_and_by_name(tmp_path) -> None:
    package = tmp_path / "package"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "run.py").write_text(
        "from . import a\nfrom .b import tf\nfrom package.c import rnn\n"
        "tf.nowhere()\nrnn.nothing()\n"
    )
    (package / "a.py").write_text(HEAD + "tf.absent()\n")
    (package / "b.py").write_text("import tensorflow as tf\n")
    (package / "c.py").write_text("import tensorflow\nrnn = tensorflow.nn\n")
    report = check(package / "run.py")
    assert set(names(report, Verdict.MISSING)) == {
        "tf.absent",
        "tf.nowhere",
        "tf.nn.nothing",
    }
    assert len(report.files) == 5


def test_script_in_a_package_that_is_the_current_folder(tmp_path, monkeypatch) -> None:
    (tmp_path / "__init__.py").write_text("")
    (tmp_path / "run.py").write_text("import model\n")
    (tmp_path / "model.py").write_text(HEAD + "tf.no()\n")
    monkeypatch.chdir(tmp_path)
    assert {*names(check(pathlib.Path("run.py")), Verdict.MISSING)} == {"tf.no"}


def test_modules_on_the_path_are_followed(tmp_path, monkeypatch) -> None:
    for folder in ("bin", "package", "tensorflow"):
        (tmp_path / folder).mkdir()
    run = tmp_path / "bin" / "run"
    run.write_text(HEAD + "import package.model\nfrom package import more\n")
    model = tmp_path / "package" / "model.py"
    model.write_text(
        HEAD + "import keras_tpu_estimator\nfrom bin import run\ntf.no()\n"
    )
    (tmp_path / "package" / "more.py").write_text(HEAD + "tf.nothing()\n")
    (tmp_path / "tensorflow" / "__init__.py").write_text("import tensorflow.broken")
    assert len(check(run).files) == 1
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), "/missing", ""]))
    report = check(run)
    assert {*names(report, Verdict.MISSING)} == {"tf.no", "tf.nothing"}
    assert len(report.files) == 3
    # A file that is found by two paths is read once.
    (tmp_path / "package" / "main.py").write_text("import more, package.more\n")
    monkeypatch.chdir(tmp_path)
    assert len(check(pathlib.Path("package/main.py")).files) == 2


def test_installed_libraries_on_the_path_are_not_followed(
    tmp_path, monkeypatch
) -> None:
    run = tmp_path / "run" / "train.py"
    libraries = tmp_path / "libraries"
    for file, text in {
        run: "import library, single, own\n",
        libraries / "library" / "__init__.py": HEAD + "tf.no()\n",
        libraries / "single.py": HEAD + "tf.no()\n",
        libraries / "own.py": "",
        libraries
        / "library-1.dist-info"
        / "RECORD": "library/__init__.py,,\nsingle.py,,",
    }.items():
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    monkeypatch.setenv("PYTHONPATH", str(libraries))
    assert [each.name for each in check(run).files] == ["own.py", "train.py"]
    # A file of a library is followed if it is what is checked.
    main = libraries / "library" / "main.py"
    main.write_text("import library, single\n")
    found = [each.name for each in check(main).files]
    assert found == ["__init__.py", "main.py"]


@pytest.fixture
def namespace(tmp_path):
    """A script in a package that it imports by name, from the folder above."""
    # Python remembers names of modules, so each test has its own.
    package = tmp_path / f"of_{tmp_path.name}"
    for folder in ("bin", "data"):
        (package / folder).mkdir(parents=True)
    run = package / "bin" / "train.py"
    run.write_text(f"from {package.name}.data import infeed\n")
    (package / "data" / "infeed.py").write_text(HEAD + "tf.no()\n")
    return run


def test_modules_in_the_current_folder_are_followed(
    namespace, tmp_path, monkeypatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    report = check(namespace.relative_to(tmp_path))
    assert names(report, Verdict.MISSING) == {"tf.no": [2]}
    assert not report.with_verdict(Verdict.ABSENT)
    place = "data/infeed.py:2"
    assert f"{namespace.parts[-3]}/{place}" in as_text(report, namespace.parent)
    monkeypatch.setattr(sys, "path", ["", *sys.path[1:]])
    assert len(check(namespace).files) == 2


@pytest.mark.parametrize("place", ["bin", "."])
def test_folder_that_the_path_lacks_is_named(place, namespace, tmp_path) -> None:
    package = namespace.parents[1]
    (found,) = check(namespace.rename(package / place / "run.py")).needed
    assert (found.name, found.verdict) == (package.name, Verdict.ABSENT)
    assert found.advice == f"It is in {tmp_path}. Put this folder into PYTHONPATH."


def test_checked_folder_may_be_a_package(namespace) -> None:
    report = check(namespace.parents[1])
    assert not report.with_verdict(Verdict.ABSENT)


def test_python_2_is_reported(program) -> None:
    report = program("print 'a'\n")
    assert [each.line for each in report.unreadable] == [2]
    assert not report.runs


def test_hidden_folders_are_skipped(program, tmp_path) -> None:
    hidden = tmp_path / ".venv"
    hidden.mkdir()
    (hidden / "a.py").write_text("print 'a'\n")
    assert program("tf.shape(1)\n", is_file=False).runs


def test_the_table_is_printed(program, tmp_path, capsys) -> None:
    program(MODEL_FN, is_file=False, **OTHERS)
    assert main(["check", str(tmp_path)]) == 1
    printed = capsys.readouterr().out
    assert re.search(
        r"(?m)^5 files, \d+ names of TensorFlow.\n\nMissing, and needed\n"
        r"  tf.nowhere  unused.py:2$",
        printed,
    )
    refused = "\nRefused on devices, and needed\n  tf.py_func  main.py:19\n"
    assert refused in printed
    assert "In a port to Keras: `kte.outside_compilation`" in printed
    assert re.search(r"(?m)^  tf.Session +1  nothing$", printed)
    assert "4 places must change before" in printed


def test_script_that_runs_has_status_0(program, tmp_path, capsys) -> None:
    program("tf.reduce_mean(1)\n")
    assert main(["check", str(tmp_path / "main.py")]) == 0
    printed = capsys.readouterr().out
    assert "tf.reduce_mean     1  `keras.ops.mean`" in printed
    assert "No name or argument that was checked stops it: python" in printed
    assert "Not checked: values that the source does not show" in printed


def test_json_has_all_places(program, tmp_path, capsys) -> None:
    program("tf.nowhere()\n" * 9 + "tf.reduce_mean(getattr(tf, x))\n")
    assert main(["check", str(tmp_path), "--json"]) == 1
    printed = json.loads(capsys.readouterr().out)
    path = str(tmp_path / "main.py")
    mean, nowhere = sorted(printed["names"], key=lambda each: each["verdict"])[::-1]
    assert printed["runs"] is False and printed["files"] == [path]
    assert nowhere["verdict"] == "missing"
    assert nowhere["counterpart"] is None
    assert nowhere["places"] == [{"file": path, "line": line} for line in range(2, 11)]
    assert mean["counterpart"] == "`keras.ops.mean`"
    assert mean["page"] == f"{porting.PAGE}#4-operations"
    assert printed["not_followed"] == [
        {"file": path, "line": 11, "what": "getattr(tf, x)"}
    ]
    assert printed["not_python_3"] == []


@pytest.mark.parametrize("path", ["absent", "absent.py", "."])
def test_path_without_a_script_is_refused(path, tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as caught:
        main(["check", path])
    assert caught.value.code == 2
    assert "`PATH` must be a Python file" in capsys.readouterr().err


def test_packages_to_install_are_reported(
    program, tmp_path, capsys, monkeypatch
) -> None:
    def lookup(name):
        advice = "tf.layers needs `pip install -e '.[tf1]'`."
        return shims.Name(name, shims.Status.SUPPLIED, advice)

    monkeypatch.setattr(shims, "lookup", lookup)
    program("tf.layers.dense(1)\n")
    assert main(["check", str(tmp_path)]) == 0
    assert (
        "\nTo be installed\n  tf.layers needs `pip install -e '.[tf1]'`.\n"
    ) in capsys.readouterr().out


GRADED = """
    import nets
    from absl import app, flags
    from lars import LARS

    FLAGS = flags.FLAGS
    TABLE = {"a": nets.a, "b": nets.b}


    class Input:
        def __init__(self, reads_rows):
            self.reads_rows = reads_rows

        def input_fn(self, params):
            if self.reads_rows:
                tf.contrib.cloud.BigtableClient()
            return self.rows()

        def rows(self):
            tf.gone_from_rows()

        def other_rows(self):
            tf.gone_from_other_rows()


    def model_fn(features, labels, mode, params):
        logits = TABLE[FLAGS.model](features)
        if mode == tf.estimator.ModeKeys.EVAL:
            tf.py_func(len, [logits], tf.int32)
        if params["prints"]:
            tf.setdiff1d(logits)
        optimizer = LARS(0.1) if params["lars"] else None
        if mode == "train" and FLAGS.shuffles:
            tf.bincount()
        return make_spec(mode, nets.loss(logits), nets.count_metrics)


    def make_spec(mode, loss, metric_fn):
        own = tf.metrics.mean(tf.numpy_function(len, [loss], tf.float32))
        return tf.estimator.EstimatorSpec(
            mode, eval_metric_ops=metric_fn(loss, tf.py_function(len, [own], 1))
        )


    def main(_):
        estimator = tf.estimator.Estimator(model_fn)
        if FLAGS.do_train:
            tf.gone_from_a_branch()
            estimator.train(Input(FLAGS.rows).input_fn)


    if __name__ == "__main__":
        app.run(main)
    """
GRADED_OTHERS = {
    "nets": HEAD
    + """
def a(x):
    tf.gone_from_a()
def b(x):
    return [tf.shape(y) for y in x]
def loss(x):
    return tf.add_n([tf.gone_from_loss(y) for y in x])
def count_metrics(x, y):
    return {"n": tf.metrics.mean(tf.py_func(len, [x], tf.float32))}
if __name__ == "__main__":
    tf.gone_from_another_program()
""",
    "lars": HEAD
    + """
class LARS(tf.train.Optimizer):
    def __init__(self, rate):
        tf.gone_from_lars()
""",
}


def test_required_names_are_distinguished_from_those_in_a_branch(program) -> None:
    report = program(GRADED, **GRADED_OTHERS)

    def graded(grade):
        return {
            finding.name
            for verdict in (Verdict.MISSING, Verdict.REFUSED)
            for finding in report.with_verdict(verdict, grade)
        }

    assert graded(Grade.NEEDED) == {"tf.gone_from_loss", "tf.py_func"}
    assert graded(Grade.IN_BRANCH) == {
        "tf.bincount",
        "tf.contrib.cloud.BigtableClient",
        "tf.gone_from_a",
        "tf.gone_from_a_branch",
        "tf.gone_from_another_program",
        "tf.gone_from_lars",
        "tf.gone_from_other_rows",
        "tf.gone_from_rows",
        "tf.setdiff1d",
    }


@pytest.mark.parametrize("run", ["tf.app.run()", "app.run()", "app.run(main)"])
def test_main_runs_by_default(program, run) -> None:
    report = program(
        "from absl import app\nimport tensorflow as tf\n"
        "def main(_):\n    tf.nowhere()\n"
        f"if __name__ == '__main__':\n    {run}\n"
    )
    (finding,) = report.with_verdict(Verdict.MISSING, Grade.NEEDED)
    assert finding.name == "tf.nowhere"


def test_names_only_in_a_branch_are_no_failure(program, tmp_path, capsys) -> None:
    program("def main(x):\n    if x:\n        tf.nowhere()\nmain(1)\n")
    assert main(["check", str(tmp_path / "main.py")]) == 0
    printed = capsys.readouterr().out
    assert "\nMissing, in a branch\n  tf.nowhere  main.py:4\n" in printed
    assert (
        "No name or argument that was checked stops it, unless it reaches the "
        "name listed above as in a branch: python" in printed
    )
    assert main(["check", str(tmp_path / "main.py"), "--json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)["names"]
    assert (found["verdict"], found["grade"]) == ("missing", "in_branch")


def test_input_code_is_not_part_of_steps(program) -> None:
    report = program(
        HEAD
        + """
class Adam(tf.train.Optimizer):
    def __init__(self):
        super().__init__(False, "Adam")


class Data:
    def input_fn_of(self, path):
        def input_fn(params):
            return tf.data.TFRecordDataset(path).map(self.decoded)
        return input_fn

    def decoded(self, record):
        return tf.io.parse_single_example(record, {})


class Runner:
    def __init__(self):
        self.input_fn = Data().input_fn_of("a")
        self.estimator = tf.estimator.Estimator(model_fn)

    def train(self):
        self.estimator.train(self.input_fn)

    def group(self, record):
        return tf.decode_raw(record, tf.uint8)


def model_fn(features, labels, mode, params):
    step = tf.train.get_global_step()
    train_op = tf.group(Adam().minimize(tf.reduce_sum(features), step))
    return tf.estimator.EstimatorSpec(mode, train_op=train_op)


if __name__ == "__main__":
    Runner().train()
"""
    )
    assert names(report, Verdict.REFUSED) == {}


OBJECTS = """
class Simulator:
    def __init__(self):
        self.session = tf.Session()

    def hparams(self):
        return Simulator()

    def input_fn(self, params):
        return tf.py_func(params)


class Base:
    def __init__(self, hparams):
        self.hparams = hparams

    def loss(self, features):
        return self.body(features, self.hparams)


class Network(Base):
    def body(self, features, hparams):
        return tf.random_gamma(features)


class Rare:
    def body(self, features):
        return tf.reduce_sum(features)


SIMULATOR = Simulator()
MODEL = Network({})


def model_fn(features, labels, mode, params):
    if mode == "train":
        loss = MODEL.loss(features)
    if params["is_rare"]:
        loss = Rare().body(features) + MODEL.body(features, {})
    return tf.estimator.EstimatorSpec(mode, loss=loss)


if __name__ == "__main__":
    tf.estimator.Estimator(model_fn).train(SIMULATOR.input_fn)
"""


def test_methods_of_self_are_those_of_its_class(program) -> None:
    report = program(HEAD + OBJECTS)
    assert names(report, Verdict.REFUSED).keys() == {"tf.random_gamma"}


@pytest.mark.parametrize("first", ["Rare().body(x)", "MODEL.body(x, {})"])
def test_grades_do_not_depend_on_the_order_of_code(first, program) -> None:
    added = f"    x = features\n    if params['is_small']:\n        {first}\n"
    code = OBJECTS.replace("    if params[", f"{added}    if params[")
    code = code.replace("Rare()", "Network({})")
    found = program(HEAD + code).with_verdict(Verdict.REFUSED)
    grades = {each.name: each.grade for each in found}
    assert grades["tf.random_gamma"] is Grade.NEEDED


FLAGGED = """
from absl import app, flags

flags.DEFINE_bool("use_tpu", True, "Whether to use a TPU.")
flags.DEFINE_boolean(name="summarizes", default=True, help="Whether to write.")
flags.DEFINE_bool("is_listed", True, "Whether it is listed.")
flags.DEFINE_bool("profiles", False, "Whether to profile.")
flags.DEFINE_bool("shuffles", True, "Whether to shuffle.")
flags.DEFINE_bool("overruled", True, "What it says does not matter.")
FLAGS = flags.FLAGS
NAMES = ["is_listed"]


class Model:
    def __init__(self, hparams):
        self.hparams = hparams

    def model_fn(self, features, labels, mode, params):
        host_call = None
        if params["summarizes"]:
            def host_call_fn(step):
                return tf.gone_from_host_call(step)

            host_call = (host_call_fn, [features])
        if self.hparams.is_listed:
            tf.gone_from_what_is_listed()
        if self.hparams.profiles:
            tf.gone_from_profiling()
        if self.hparams.shuffles:  # It is nowhere said that this is the flag.
            tf.gone_from_shuffling()
        if self.hparams.use_tpu:
            return tf.contrib.tpu.gone_with_tpu(mode, host_call=host_call)
        return tf.estimator.EstimatorSpec(mode)


def main(_):
    hparams = tf.contrib.training.HParams(use_tpu=FLAGS.use_tpu)
    for name in NAMES:
        hparams.add_hparam(name, getattr(FLAGS, name))
    model = Model(hparams)
    FLAGS.overruled = False
    if FLAGS.overruled or FLAGS.profiles:
        tf.gone_from_either()
    if FLAGS.overruled:
        tf.gone_from_overruled()
    if FLAGS.use_tpu:
        estimator = tf.contrib.tpu.TPUEstimator(
            model_fn=model.model_fn, params={"summarizes": FLAGS.summarizes}
        )
    else:
        tf.gone_without_tpu()
        estimator = tf.estimator.Estimator(model_fn=model.model_fn)


if __name__ == "__main__":
    app.run(main)
"""


def test_flag_that_is_on_by_default_is_no_branch(program) -> None:
    report = program(FLAGGED)

    def missing(grade):
        found = report.with_verdict(Verdict.MISSING, grade)
        return {each.name for each in found}

    assert missing(Grade.NEEDED) == {
        "tf.contrib.tpu.gone_with_tpu",
        "tf.gone_from_host_call",
        "tf.gone_from_what_is_listed",
    }
    assert missing(Grade.IN_BRANCH) == {
        "tf.gone_from_either",
        "tf.gone_from_overruled",
        "tf.gone_from_profiling",
        "tf.gone_from_shuffling",
        "tf.gone_without_tpu",
    }


@pytest.mark.parametrize(
    "change",
    [
        "FLAGS.a = False",
        "FLAGS.a, FLAGS.b = False, True",
        "FLAGS.a &= x",
        "FLAGS.set_default('a', False)",
        "params['a'] = x",
        "flags.DEFINE_bool('a', False, 'Of another program.')",
    ],
)
def test_flag_that_the_script_changes_is_ignored(change, program) -> None:
    flag = "from absl import flags\nflags.DEFINE_bool('a', True, 'A flag.')\n"
    branch = "FLAGS = flags.FLAGS\nif FLAGS.a:\n    tf.nowhere()\n"
    assert not program(flag + branch).runs
    assert program(f"{flag}{change}\n{branch}").runs


def test_hook_of_asynchronous_saving_may_be_subclassed(program) -> None:
    report = program(
        """
        class Saver(tf.contrib.tpu.AsyncCheckpointSaverHook):
            def __init__(self, folder):
                super().__init__(folder, save_steps=10)


        Saver("checkpoints")
        """
    )
    assert report.runs and not names(report, Verdict.MISSING)
    assert "tf.contrib.tpu.AsyncCheckpointSaverHook" in names(report)
