"""What TensorFlow prints while it is imported."""

import os
import subprocess
import sys

import pytest

from keras_tpu_estimator.ground.base import tensorflow_startup

pytestmark = pytest.mark.skipif(os.name != "posix", reason="needs POSIX")

# Writes as TensorFlow's libraries do before they read their level.
LIBRARY = r"""
import os, sys
os.write(2, b"WARNING: All log messages before absl::InitializeLog() are\n")
for kind in "IWEF":
    os.write(2, f"{kind}0000 00:00:1795.326  603 port.cc:153] on\n".encode())
print("from Python", file=sys.stderr)
"""
# Without the rest of the package, which takes long to import.
INSTALL = f"""
import importlib.util, os, sys
spec = importlib.util.spec_from_file_location(
    "startup", {tensorflow_startup.__file__!r})
startup = importlib.util.module_from_spec(spec)
spec.loader.exec_module(startup)
startup.follow_level()
"""


@pytest.fixture
def run(tmp_path):
    def run(code, library="", **environment):
        (tmp_path / "tensorflow.py").write_text(LIBRARY + library)
        kept = {k: v for k, v in os.environ.items() if k[:3] != "TF_"}
        return subprocess.run(
            [sys.executable, "-c", f"{INSTALL}\n{code}"],
            env={**kept, "PYTHONPATH": str(tmp_path), **environment},
            capture_output=True,
            text=True,
            check=False,
        )

    return run


@pytest.mark.parametrize(
    ("level", "shown"),
    [("0", "WIWEF"), ("1", "WEF"), ("3", "F"), ("", "WIWEF"), ("9", "F")],
)
def test_the_level_counts_from_the_first_line(run, level, shown):
    done = run(
        "import tensorflow; os.write(2, b'after')", TF_CPP_MIN_LOG_LEVEL=level
    )
    *lines, python, after = done.stderr.splitlines()
    assert "".join(line[0] for line in lines) == shown
    assert (python, after, done.returncode) == ("from Python", "after", 0)


def test_an_error_of_the_import_is_raised(run):
    code = (
        "try: import tensorflow\n"
        "except OSError as error: print(error)\n"
        "os.write(2, b'after')"
    )
    done = run(code, "raise OSError('absent')", TF_CPP_MIN_LOG_LEVEL="2")
    assert done.stdout == "absent\n"
    assert done.stderr.splitlines()[-2:] == ["from Python", "after"]


def test_what_a_crash_says_is_shown(run):
    done = run(
        "import tensorflow",
        "os.write(2, b'no AVX')\nos.abort()",
        TF_CPP_MIN_LOG_LEVEL="3",
    )
    assert done.returncode < 0
    assert done.stderr.splitlines()[-1] == "no AVX"


def test_more_than_a_pipe_holds_is_shown(run):
    done = run(
        "import tensorflow",
        "for _ in range(1000): os.write(2, b'x' * 199 + b'\\n')",
        TF_CPP_MIN_LOG_LEVEL="1",
    )
    assert len(done.stderr) > 200_000


def test_a_process_that_stays_keeps_its_standard_error(run):
    done = run(
        "import tensorflow; os.write(2, b'after\\n')",
        "import subprocess\n"
        "subprocess.Popen(['sh', '-c', 'sleep 0.3; echo late >&2'])",
        TF_CPP_MIN_LOG_LEVEL="1",
    )
    assert done.stderr.splitlines()[-2:] == ["late", "after"]


@pytest.mark.parametrize(
    "before",
    [
        "os.close(2)",
        "sys.stderr = None",
        "sys.executable = ''",
        "sys.frozen = True",
    ],
)
def test_the_import_works_where_nothing_can_be_filtered(
    run, before, monkeypatch
):
    monkeypatch.setitem(globals(), "LIBRARY", "")
    done = run(
        f"{before}; import tensorflow; print('imported')",
        TF_CPP_MIN_LOG_LEVEL="1",
    )
    assert (done.stdout, done.stderr) == ("imported\n", "")


def test_finding_tensorflow_filters_nothing(run):
    code = "print(importlib.util.find_spec('tensorflow').name); import keras_x"
    done = run(code, TF_CPP_MIN_LOG_LEVEL="1")
    assert done.stdout == "tensorflow\n"
    assert "No module named 'keras_x'" in done.stderr


def test_absence_of_tensorflow_is_the_usual_error(run, tmp_path):
    code = f"sys.path.remove({str(tmp_path)!r})\nsys.path[:] = []\n"
    done = run(f"{code}import tensorflow", TF_CPP_MIN_LOG_LEVEL="1")
    assert "No module named 'tensorflow'" in done.stderr
