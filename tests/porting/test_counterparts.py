"""The table of counterparts: its names exist, and the page agrees with it."""

import functools
import importlib
import pathlib
import re

import pytest
import tensorflow  # noqa: TID253 - whose names they are
import tensorflow.compat.v1 as tf  # noqa: TID253

import keras_tpu_estimator as kte
from keras_tpu_estimator.tf1_tools.porting import table
from keras_tpu_estimator.tf1_tools.porting.records import Row

ROOT = pathlib.Path(__file__).parents[2]
PAGE = (ROOT / table.PAGE).read_text()
ROWS = [row for section in table.SECTIONS for row in section.rows]
# Gone with the estimator, or hidden since Keras 3.
GONE = (
    "tf.contrib.",
    "tf.estimator.",
    "tf.keras.",
    "tf.layers.",
    "tf.nn.rnn_",
    "tf.python.estimator.",
    "tf.tpu.experimental.",
)
CODE = re.compile(r"`([^`]*)`")
NAME = re.compile(
    r"(?<![\w.])(?:kte|keras|jax|absl|functools|logging)\.[\w.]*\w"
)


def resolve(name):
    """What a dotted name stands for."""
    top, *rest = name.split(".")
    found = kte if top == "kte" else importlib.import_module(top)
    for part in rest:
        if not hasattr(found, part):
            importlib.import_module(f"{found.__name__}.{part}")
        found = getattr(found, part)
    return found


def named():
    """Names of libraries that the table says to use."""
    texts = [
        text for row in ROWS for text in (*row.names.values(), *row.cells())
    ]
    spans = [span for text in texts for span in CODE.findall(text)]
    return {name for span in spans for name in NAME.findall(span)}


def test_what_the_table_says_to_use_is_there() -> None:
    for name in sorted(named()):
        assert resolve(name) is not None


def test_the_names_are_tensorflows() -> None:
    names = {name for row in ROWS for name in row.names}
    for name in sorted(names):
        if not name.startswith(GONE):
            parts = name.removesuffix(".*").split(".")[1:]
            assert _is_in(tf, parts) or _is_in(tensorflow, parts), name


def _is_in(module, parts) -> bool:
    """Whether a dotted name, in parts, is below a module."""
    try:
        functools.reduce(getattr, parts, module)
    except AttributeError:
        return False
    return True


def test_every_name_has_one_row() -> None:
    names = [name for row in ROWS for name in row.names]
    assert len(names) == len(set(names))


def test_every_metric_is_there() -> None:
    now = {now for row in ROWS for now in row.names.values()}
    assert {f"`kte.metrics.{name}`" for name in kte.metrics.__all__} <= now


@pytest.mark.parametrize(
    "section", table.SECTIONS, ids=lambda section: section.anchor
)
def test_the_page_has_the_table(section) -> None:
    headings = re.findall("^## (.*)$", PAGE, re.MULTILINE)
    anchors = [
        re.sub("[^a-z0-9 -]", "", heading.lower()).replace(" ", "-")
        for heading in headings
    ]
    assert section.anchor in anchors
    part = PAGE.split("\n## ")[anchors.index(section.anchor) + 1]
    right = section.markdown()
    assert right in part, (
        f"Put this under '{headings[anchors.index(section.anchor)]}' in "
        f"{table.PAGE}:\n{right}"
    )


@pytest.mark.parametrize(
    ("name", "now", "anchor"),
    [
        ("tf.reduce_mean", "`keras.ops.mean`", "4-operations"),
        ("tf.math.reduce_mean", "`keras.ops.mean`", "4-operations"),
        (
            "tf.layers.dense",
            '`keras.layers.Dense(10, name="out")(x)`',
            "2-layers",
        ),
        ("tf.contrib.tpu.TPUConfig", "`kte.TPUConfig`", "1-imports"),
        ("tf.estimator.SessionRunHook", "`kte.hooks.SessionRunHook`", "7-"),
        ("tf.contrib.layers.embed_sequence", "`keras.layers`", "2-layers"),
        ("tf.train.AdamOptimizer.minimize", "`keras.optimizers.Adam", "6-"),
        ("tf.estimator.ModeKeys.TRAIN", "`kte.ModeKeys`", "1-imports"),
        ("tf.initializers.zeros", "`keras.initializers`", "2-layers"),
    ],
)
def test_counterparts_are_found(name, now, anchor) -> None:
    found = table.find(name)
    assert found.name == name and found.now.startswith(now)
    assert found.page.startswith(f"docs/migrating.md#{anchor}")


def test_links_are_left_out_of_messages() -> None:
    found = table.find("tf.train.ExponentialMovingAverage")
    assert found.note == "see moving averages"


def test_what_is_not_tensorflows_has_no_counterpart() -> None:
    assert table.find("np.mean") is None
    assert table.find("tf") is None
    assert table.find("tf.unheard_of") is None
    assert table.find("tf.contrib.unheard_of.f") is None


@pytest.mark.parametrize("names", [{}, {"np.mean": "`keras.ops.mean`"}])
def test_a_row_is_about_something(names) -> None:
    with pytest.raises(ValueError, match="`names` should start with 'tf.'"):
        Row(names)
