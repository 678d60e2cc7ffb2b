"""Tests that `check` reports Python 2 and missing libraries."""

import textwrap

import pytest

from keras_tpu_estimator.tf1_tools.check.command import as_text, check
from keras_tpu_estimator.tf1_tools.check.python_2 import python_2_in
from keras_tpu_estimator.tf1_tools.check.reached import Grade
from keras_tpu_estimator.tf1_tools.check.verdicts import Verdict


@pytest.fixture
def report(tmp_path):
    """Checks a script of one file."""

    def checked(text):
        path = tmp_path / "main.py"
        path.write_text(textwrap.dedent(text))
        return check(path)

    return checked


@pytest.mark.parametrize(
    ("code", "now"),
    [
        ("print x", "print(x)"),
        ("print 'a' % b", "print(x)"),
        ("print >>f, x", "print(x)"),
        ("if a: print b", "print(x)"),
        ("try:\n  f()\nexcept E, e:\n  pass", "except E as e"),
        ("try:\n  f()\nexcept (A, B), e:\n  pass", "except E as e"),
        ("raise ValueError, 'a'", "raise E(x)"),
        ("exec code in d", "exec(x)"),
        ("x = `y`", "repr(x)"),
        ("a <> b", "a != b"),
        ("chmod(f, 0777)", "0o777"),
        ("x = 10L", "10"),
        ('ur"abc"', 'r"x"'),
        ("def f(a, (b, c)): pass", "def f(xxx_todo_changeme)"),
    ],
)
def test_syntax_of_python_2_is_named(code, now, report) -> None:
    (found,) = report(f"import os\n{code}\n").unreadable
    assert found.what.startswith("Python 2 (once): ")
    assert found.what.endswith(f"with Python up to 3.12, writes {now}.")
    assert found.line == (4 if code.startswith("try") else 2)


@pytest.mark.parametrize(
    "code",
    [
        "print(x); print(y)",
        "print",
        "a.print (x)",
        "# print x",
        "'''\nprint x\n0777 <> `a`\n'''",
        "except (A, B): pass",
        "raise E(a, b)",
        "00, 10, 1.07, 0x17, 0o7",
        "u'x', r'y'",
        "def f(a=(1, 2), b=g(1)): pass",
    ],
)
def test_python_3_is_not_reported_as_python_2(code) -> None:
    assert [*python_2_in(code)] == []


def test_each_kind_is_named_once(report) -> None:
    found = report("print x\nprint y\na <> b\n").unreadable
    assert [each.line for each in found] == [1, 3]
    assert found[0].what.startswith("Python 2 (2 times): print x.")


def test_other_errors_have_pythons_message(report) -> None:
    (found,) = report("import os\nx = (\n").unreadable
    assert "was never closed" in found.what and found.line == 2


def test_mixed_tabs_are_python_2(report) -> None:
    (found,) = report("import os\nif os:\n        x = 1\n\ty = 2\n").unreadable
    assert found.what.startswith("Python 2: tabs and spaces mixed")
    assert "2to3 -w NEW" in found.what and found.line == 4


def test_missing_library_stops_a_script(report, tmp_path) -> None:
    found = report(
        """
        import os, no_such_library.part as part
        from gin_of_nobody import config
        import tensorflow_estimator
        from . import own
        import main
        """
    )
    absent = found.with_verdict(Verdict.ABSENT, Grade.NEEDED)
    assert [each.name for each in absent] == [
        "gin_of_nobody",
        "no_such_library",
    ]
    assert not found.runs
    printed = as_text(found, tmp_path)
    title = "\nMissing libraries and names of Python 2, and needed\n"
    assert f"{title}  gin_of_nobody  main.py:3\n" in printed
    assert "Run `pip install gin_of_nobody`, or put the folder" in printed
    assert "2 places must change before" in printed


def test_library_of_python_2_has_a_new_name(report) -> None:
    (found,) = report("import cPickle\n").needed
    assert found.advice == (
        "It is a Python 2 module. `2to3 -w FILE` replaces it with pickle."
    )


@pytest.mark.parametrize(
    "code",
    ["x = isinstance(2, (int, long))", "f(1)\ndef f(x):\n    return long(x)"],
)
def test_built_in_name_of_python_2_is_missing(code, report) -> None:
    (found,) = report(f"import os\n{code}\n").needed
    assert found.name == "long"
    assert found.advice == (
        "It is a name of Python 2. `2to3 -w FILE` replaces it with int."
    )


@pytest.mark.parametrize(
    "code",
    [
        "long = int\nlong(1)",
        "from six.moves import xrange\nxrange(1)",
        "from os.path import *\nxrange(1)",
        "try:\n    unicode\nexcept NameError:\n    unicode = str",
        "import six\nif six.PY2:\n    unicode('a')",
        "x = y = 1\nx is y or isinstance(x, long)",
        "import sys\ndef f(x):\n"
        "    if sys.version_info[0] > 2:\n        return x\n"
        "    return unicode(x)\nf(1)",
        "def f(x, reduce):\n    return reduce(x)\nf(1, len)",
    ],
)
def test_names_of_python_2_that_may_be_missing(code, report) -> None:
    assert report(code).runs


@pytest.mark.parametrize(
    ("code", "name", "now"),
    [
        ("map(str, [1])[-1]", "map(...)[i]", "list(map(...))[i]"),
        ("zip([1], [2])[:-1]", "zip(...)[i]", "list(zip(...))[i]"),
        ("x = filter(None, [1])\nx[0]", "filter(...)[i]", "list(filter(...))[i]"),
        ("len(zip([1], [2]))", "len(zip(...))", "len(list(zip(...)))"),
        ("{1: 2}.keys()[0]", "x.keys()[i]", "list(x.keys())[i]"),
        ("d = dict(a=1)\nd.values()[:1]", "x.values()[i]", "list(x.values())[i]"),
        ("d = {}\ni = d.items()\ni[0]", "x.items()[i]", "list(x.items())[i]"),
        (
            "import collections\ncollections.OrderedDict().items()[0]",
            "x.items()[i]",
            "list(x.items())[i]",
        ),
        ("{}.iteritems()", "x.iteritems()", "x.items()"),
        ("{}.has_key(1)", "x.has_key()", "key in x"),
        ("def g():\n    yield 1\ng().next()", "x.next()", "next(x)"),
        ("i = iter([1])\ni.next()", "x.next()", "next(x)"),
        ("(x for x in [1]).next()", "x.next()", "next(x)"),
        ("f = open('a')\nf.next()", "x.next()", "next(x)"),
        ("import csv\ncsv.reader([]).next()", "x.next()", "next(x)"),
        (
            "import tensorflow as tf\ntf.python_io.tf_record_iterator('a').next()",
            "x.next()",
            "next(x)",
        ),
    ],
)
def test_lists_and_methods_of_python_2_are_missing(code, name, now, report) -> None:
    (found,) = report(f"import os\n{code}\n").needed
    assert (found.name, found.verdict) == (name, Verdict.ABSENT)
    assert found.advice.startswith("It is Python 2.")
    assert found.advice.endswith(f"`2to3 -w FILE` writes {now}.")


@pytest.mark.parametrize(
    "code",
    [
        "from six.moves import map, zip\nzip([1])[0]",
        "list(map(str, [1]))[0]",
        "d = {}\nd = f\nd.items()[0]",
        "def f(x):\n    x.items()[0]\n    x.keys()[:1]\nf(1)",
        "x = map(str, [1])\nx = list(x)\nx[0], len(x)",
        "{}.get(1)[0]",
        "import six\nsix.iteritems({})",
        "import sys\nif sys.version_info[0] < 3:\n    map(str, [1])[0]",
        "def f():\n    return 1\nf().next()",
        "class A:\n    def next(self):\n        pass\nA().next()",
        "try:\n    iter([1]).next()\nexcept AttributeError:\n    pass",
        "try:\n    zip([1])[0]\nexcept TypeError:\n    pass",
    ],
)
def test_lists_of_python_3_are_no_failure(code, report) -> None:
    found = report(code)
    assert found.runs and not found.with_verdict(Verdict.ABSENT)


def test_methods_of_unknown_objects_are_remarks(report) -> None:
    found = report("def f(x):\n    x.next()\n    x.iteritems()\nf(1)\n")
    assert found.runs
    assert [each.what for each in found.unfollowed] == [
        "x.next(): if it is Python 2, `2to3 -w FILE` writes next(x)",
        "x.iteritems(): if it is Python 2, `2to3 -w FILE` writes x.items()",
    ]
    own = "class A:\n    def next(self):\n        pass\ndef f(x):\n    x.next()\n"
    assert not report(own).unfollowed


def test_lists_of_python_2_in_a_branch_are_no_failure(report) -> None:
    found = report(
        "def f():\n    return zip([1])[0]\nif __name__ == '__main__':\n    pass\n"
    )
    assert found.with_verdict(Verdict.ABSENT, Grade.IN_BRANCH)
    assert found.runs


def test_protocol_buffers_of_old_protoc_are_named(report, monkeypatch) -> None:
    text = """
        from google.protobuf import descriptor as _descriptor
        DESCRIPTOR = _descriptor.FileDescriptor(name='a')
        _A = _descriptor.Descriptor(name='A', fields=[
            _descriptor.FieldDescriptor(name='b'),
            _descriptor.FieldDescriptor(name='c')])
        """
    monkeypatch.delenv("PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION", raising=False)
    (found,) = report(text).needed
    assert found.name == "google.protobuf.descriptor.Descriptor"
    assert [each.line for each in found.uses] == [4]
    assert "PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION=python" in found.advice
    monkeypatch.setenv("PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION", "python")
    assert report(text).runs


def test_optional_library_is_no_failure(report) -> None:
    found = report(
        """
        try:
            import cPickle as pickle
        except ImportError:
            import pickle
        """
    )
    assert found.runs
    assert [each.what for each in found.unfollowed] == [
        "cPickle is absent, but its use is guarded"
    ]


def test_library_in_a_branch_may_be_missing(report) -> None:
    found = report(
        """
        import argparse
        if argparse.ArgumentParser().parse_args().plot:
            import no_such_library
        """
    )
    assert found.with_verdict(Verdict.ABSENT, Grade.IN_BRANCH)
    assert found.runs


@pytest.mark.parametrize(
    "line",
    [
        "from tensorflow_estimator import estimator",
        "from tensorflow_estimator.python.estimator import run_config",
        "from tensorflow.contrib.tensorboard.plugins import projector",
        "import tensorflow.compat.v2 as tf\ntf.estimator.Estimator",
        "from tensorflow_core.python.estimator.model_fn import ModeKeys",
        "import collections\ncollections.Mapping",
    ],
)
def test_libraries_that_the_runner_supplies_are_not_missing(line, report) -> None:
    assert report(line).runs


def test_private_name_of_estimators_is_missing(report) -> None:
    (found,) = report(
        "from tensorflow_estimator.python.estimator.canned import head as h\n"
        "h._binary_logistic_head()\n"
    ).needed
    name = "tf.python.estimator.canned.head._binary_logistic_head"
    assert (found.name, found.verdict) == (name, Verdict.MISSING)
    assert found.advice.startswith("Use the heads of tf.estimator")
