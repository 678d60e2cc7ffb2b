"""Tests that verdicts about arguments agree with runs of the scripts."""

import re
import subprocess
import sys
import textwrap

import pytest
from argument_programs import PROGRAMS
from helpers import slow

from keras_tpu_estimator.tf1.names.calls import CallRule, Value, Where
from keras_tpu_estimator.tf1_tools.check.command import as_text, check
from keras_tpu_estimator.tf1_tools.check.reached import Grade
from keras_tpu_estimator.tf1_tools.check.verdicts import Verdict

RANKS = (
    Verdict.RUNS,
    Verdict.DIFFERS,
    Verdict.DEPENDS,
    Verdict.REFUSED,
    Verdict.MISSING,
)
REASONS = (
    "must contain numbers|must be dense|must be a dense tensor|cannot compile"
    "|operations that (a device|run on a device)|Keys must be"
)
QUICK_FIRST = [
    name if program.is_quick else slow(name) for name, program in PROGRAMS.items()
]


def verdict_of(path):
    """The worst verdict about a script."""
    found = [e.verdict for e in check(path).findings if e.grade is Grade.NEEDED]
    return max(found, key=RANKS.index)


def findings_of(tmp_path, text):
    """The verdicts and lines of a script, except those that run."""
    path = tmp_path / "main.py"
    path.write_text("import tensorflow.compat.v1 as tf\n" + text)
    return [
        (each.verdict.value, each.grade.name, [use.line for use in each.uses])
        for each in check(path).findings
        if each.verdict is not Verdict.RUNS
    ]


@pytest.mark.parametrize("name", PROGRAMS)
def test_verdict_is_as_expected(name, tmp_path) -> None:
    path = tmp_path / "main.py"
    path.write_text(PROGRAMS[name].text)
    assert verdict_of(path).value == PROGRAMS[name].verdict


@pytest.mark.rows(2)
@pytest.mark.usefixtures("forked_programs")
@pytest.mark.parametrize("name", QUICK_FIRST)
def test_runner_agrees_with_the_verdict(name, tmp_path) -> None:
    program = PROGRAMS[name]
    path = tmp_path / "main.py"
    path.write_text(program.text)
    command = [sys.executable, "-m", "keras_tpu_estimator", "tf1", path]
    done = subprocess.run(
        [*command, tmp_path],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert (done.returncode != 0) is program.stops, done.stderr
    if program.stops:
        # The error must not be one of the script itself.
        assert re.search(REASONS, done.stderr), done.stderr


COLUMN = "tf.feature_column.categorical_column_with_vocabulary_list"
READ = """
def model_fn(features, labels, mode, params):
    return tf.feature_column.input_layer(features, params["columns"])
"""


@pytest.mark.parametrize(
    ("values", "verdict"),
    [
        ("['a']", "depends"),
        ("('a', 'b')", "depends"),
        ("WORDS", "depends"),
        ("sorted(WORDS)", "depends"),
        ("WORDS + ['c']", "depends"),
        ("vocabulary_list=WORDS", "depends"),
        ("read(), dtype=tf.string", "depends"),
        ("read(), tf.string", "depends"),
        ("read(), 'string'", "depends"),
        ("[f'{x}']", "depends"),
        ("[1], num_oov_buckets=3", "depends"),
        ("[1], None, -1, 3", "depends"),
        ("read()", "depends"),
        ("[x for x in y]", "depends"),
        ("CHANGED", "depends"),
        ("[1], num_oov_buckets=count", "depends"),
        ("[1], dtype=dtype", None),
        ("[1, -2]", None),
        ("NUMBERS", None),
        ("range(3)", None),
        ("np.arange(3)", None),
        ("read(), dtype=tf.int64", None),
        ("read(), 'int64'", None),
        ("[1], num_oov_buckets=0", None),
    ],
)
def test_values_are_followed(values, verdict, tmp_path) -> None:
    text = f"""
import numpy as np
NUMBERS = [1, 2]
WORDS = ["a", "b"]
CHANGED = [1]
CHANGED = ["a"]
COLUMNS = [{COLUMN}("s", {values})]
"""
    expected = [(verdict, "NEEDED", [8])] if verdict else []
    assert findings_of(tmp_path, text + READ) == expected
    # Columns that no model_fn reads are accepted.
    assert findings_of(tmp_path, text) == []


def test_value_that_depends_on_itself_is_unknown(tmp_path) -> None:
    text = f"class A:\n    W = W + [1]\n    C = {COLUMN}('s', W)\n"
    found = findings_of(tmp_path, text + READ)
    assert found == [("depends", "NEEDED", [4])]


def test_column_in_a_branch_has_the_verdict_of_the_branch(tmp_path) -> None:
    text = f"if flag():\n    COLUMNS = [{COLUMN}('s', ['a'])]\n"
    found = findings_of(tmp_path, text + READ)
    assert found == [("depends", "IN_BRANCH", [3])]


def test_values_of_other_modules_are_followed(tmp_path) -> None:
    (tmp_path / "words.py").write_text("A = 'a'\nWORDS = [A]\n")
    text = f"A = 1\nfrom words import WORDS\nC = [{COLUMN}('s', WORDS)]\n"
    found = findings_of(tmp_path, text + READ)
    assert found == [("depends", "NEEDED", [4])]


@pytest.mark.parametrize(
    ("call", "verdict"),
    [
        ("tf.decode_csv(line, [[0.0], ['']])", "depends"),
        ("tf.io.decode_csv(line, record_defaults=DEFAULTS)", "depends"),
        ("tf.decode_csv(line, [[0.0], [0]])", None),
        ("tf.data.experimental.CsvDataset(f, [tf.string])", "depends"),
        ("tf.data.experimental.CsvDataset(f, [tf.float32])", None),
        ("tf.FixedLenFeature([], tf.int64)", None),
        ("tf.io.FixedLenFeature([], dtype=tf.string)", "depends"),
        ("tf.FixedLenSequenceFeature([], tf.string)", "depends"),
        ("tf.SparseTensor(a, b, c)", "depends"),
        ("tf.as_string(x)", None),
    ],
)
def test_input_that_may_be_strings_is_reported(call, verdict, tmp_path) -> None:
    text = f"DEFAULTS = [[0], ['']]\ndef input_fn():\n    return {call}\n"
    text += "input_fn()\n"
    expected = [(verdict, "NEEDED", [4])] if verdict else []
    assert findings_of(tmp_path, text) == expected


def test_uncertain_arguments_are_printed_without_failure(tmp_path) -> None:
    path = tmp_path / "main.py"
    path.write_text(
        textwrap.dedent(
            """
            import tensorflow as tf
            SPEC = {"s": tf.FixedLenFeature([], tf.string)}
            """
        )
    )
    report = check(path)
    assert report.runs
    printed = as_text(report, tmp_path)
    title = "\nDepends on values that the source does not show, and needed\n"
    assert f"{title}  tf.FixedLenFeature  main.py:3\n" in printed
    assert "The run stops if one operation of the loss needs both" in printed


def test_rule_validates_itself() -> None:
    with pytest.raises(ValueError, match="must have an `argument` unless"):
        CallRule("f", Where.STEPS, Value.STRINGS, "Leave it out.")
