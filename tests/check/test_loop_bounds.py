"""Tests that bounds of loops are found in the source."""

import ast
import pathlib

import pytest

from keras_tpu_estimator.base.common.sources import Source
from keras_tpu_estimator.tf1_tools.check.loops import has_bound
from keras_tpu_estimator.tf1_tools.check.scopes import scopes_of

PROGRAM = """
import tensorflow.compat.v1 as tf

FLAGS = tf.app.flags.FLAGS
ROUNDS = 3


def model(x, params, limit):
    def body(i, y):
        return i + 1, y * x

    {}
    loop({})
"""
BODY = "lambda i, y: (i + 1, y * x)"
FROM_0 = "[tf.constant(0), x]"
BOUNDED = {
    "constant": f"lambda i, y: i < 3, {BODY}, {FROM_0}",
    "list": "lambda i, y: 3 > i, lambda i, y: [i + 1, y * x], (0, x)",
    "single": "lambda i: i < 3, lambda i: i + 1, [0]",
    "named": f"lambda i, y: tf.less(i, ROUNDS), body, {FROM_0}",
    "second": "lambda y, i: i < 3, lambda y, i: (y, tf.add(i, 1)), [x, 0]",
    "size": f"lambda i, *_: i < tf.shape(x)[1], {BODY}, {FROM_0}",
    "static_size": f"lambda i, y: i < x.shape[1], {BODY}, {FROM_0}",
    "listed_size": f"lambda i, y: i < x.get_shape().as_list()[1] - 1, body, {FROM_0}",
    "params": f"lambda i, y: i < params['rounds'], {BODY}, {FROM_0}",
    "flag": f"lambda i, y: tf.math.less_equal(i, FLAGS.rounds), body, {FROM_0}",
    "down": "lambda i, y: i >= 1, lambda i, y: (i - 1, y), [tf.shape(x)[0], x]",
    "both": f"lambda i, y: tf.logical_and(tf.norm(y) < limit, i < 9), body, {FROM_0}",
    "least": f"lambda i, y: i < tf.minimum(limit, 9), body, {FROM_0}",
    "unequal": "lambda i: tf.not_equal(i, 6), lambda i: i + 2, [0]",
    "kept": "lambda i, n: i < n, lambda i, n: (i + 1, n), [0, 5]",
}
UNBOUNDED = {
    "values": "lambda y: y < 3.0, lambda y: y * x, [x]",
    "limit": f"lambda i, y: i < limit, {BODY}, {FROM_0}",
    "float_counter": "lambda i: i < 3.0, lambda i: i + 1.0, [0.0]",
    "wrong_way": "lambda i, y: i < 3, lambda i, y: (i - 1, y * x), [0, x]",
    "not_counting": "lambda i, y: i < 3, lambda i, y: (i * 2, y * x), [1, x]",
    "changing_step": "lambda i, y: i < 3, lambda i, y: (i + y, y), [0, x]",
    "changing_end": "lambda i, n: i < n, lambda i, n: (i + 1, n + 1), [0, 5]",
    "passed_over": "lambda i: tf.not_equal(i, 5), lambda i: i + 2, [0]",
    "either": f"lambda i, y: tf.logical_or(i < 3, y < limit), body, {FROM_0}",
    "greatest": f"lambda i, y: i < tf.maximum(limit, 9), body, {FROM_0}",
    "unknown_function": f"limit, body, {FROM_0}",
    "unknown_start": "lambda i, y: i < 3, body, [limit, x]",
    "hidden_starts": "lambda i, y: i < 3, body, limit",
    "equal": f"lambda i, y: tf.equal(i, 0), body, {FROM_0}",
}
DEFINED = {
    "returns": ("return i < 3", "return i + 1, y", True),
    "assigns": ("return i < 3", "j = i + 1; return j, y", True),
    "assigns_all": ("is_less = i < 3; return is_less", "z = i + 1, y; return z", True),
    "reassigns": ("return i < 3", "i = i * 0; return i + 1, y", False),
    "returns_twice": (
        "return i < 3",
        "if y: return i, y\n        return i + 1, y",
        False,
    ),
    "returns_nothing": ("return", "return i + 1, y", False),
}


def _has_bound(arguments, defined="pass"):
    text = PROGRAM.format(defined, arguments)
    source = Source(pathlib.Path("main.py"), "main", ast.parse(text))
    (scope,) = scopes_of((source,)).values()
    inner, call = next(
        (inner, node)
        for inner, node in scope.walk()
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "loop"
    )
    return has_bound(inner, *call.args)


@pytest.mark.parametrize("kind", BOUNDED)
def test_bound_is_found(kind):
    assert _has_bound(BOUNDED[kind])


@pytest.mark.parametrize("kind", UNBOUNDED)
def test_loop_without_a_bound(kind):
    assert not _has_bound(UNBOUNDED[kind])


@pytest.mark.parametrize("kind", DEFINED)
def test_functions_of_loops(kind):
    condition, body, expected = DEFINED[kind]
    defined = (
        f"def go_on(i, y):\n        {condition}\n\n    def round(i, y):\n        {body}"
    )
    assert _has_bound("go_on, round, [0, x]", defined) is expected
