"""Tests that the catalogue of names is true and matches the pages."""

import functools
import importlib
import pathlib
import re
import tomllib
from importlib import resources

import keras
import numpy as np
import pytest
import tensorflow  # noqa: TID253 - whose names they are
import tensorflow.compat.v1 as tf  # noqa: TID253

import keras_tpu_estimator as kte
from keras_tpu_estimator.tf1.names import porting
from keras_tpu_estimator.tf1.names.calls import Effect
from keras_tpu_estimator.tf1.names.catalogue import Catalogue, Entry, Row, catalogue
from keras_tpu_estimator.tf1.shims import Status, lookup, resolving
from keras_tpu_estimator.tf1.shims.resolving import resolve

ROOT = pathlib.Path(__file__).parents[2]
PAGE = (ROOT / porting.PAGE).read_text()
ENTRIES = [*catalogue().entries.values()]
PORTED = [entry for entry in ENTRIES if entry.port]
# Removed with the estimator, or hidden since Keras 3.
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
NAME = re.compile(r"(?<![\w.])(?:kte|keras|jax|absl|functools|logging)\.[\w.]*\w")


def imported(name):
    """The object with a dotted name in a library."""
    top, *rest = name.split(".")
    found = kte if top == "kte" else importlib.import_module(top)
    for part in rest:
        if not hasattr(found, part):
            importlib.import_module(f"{found.__name__}.{part}")
        found = getattr(found, part)
    return found


def cells(key, row):
    """The two columns of a row on a page."""
    entries = catalogue().of_row(key)
    entries.sort(key=lambda e: (e.owner.startswith("contrib"), e.is_of_module))
    before = row.before or ", ".join(f"`tf.{each.path}`" for each in entries)
    now = row.now or ", ".join(dict.fromkeys(each.port for each in entries))
    return before, "; ".join(filter(None, (now, row.note)))


def table(section):
    """The rows of a section of the page."""
    rows = [
        cells(key, row)
        for key, row in catalogue().rows.items()
        if row.section == section
    ]
    lines = [f"| {before} | {now} |" for before, now in rows]
    return "\n".join(["| before | now |", "|---|---|", *lines])


def named():
    """Names of libraries that the catalogue recommends."""
    texts = [entry.port for entry in PORTED]
    for key, row in catalogue().rows.items():
        texts += cells(key, row)
    spans = [span for text in texts for span in CODE.findall(text)]
    return {name for span in spans for name in NAME.findall(span)}


def test_recommended_names_exist() -> None:
    for name in sorted(named()):
        assert imported(name) is not None


def test_names_exist_in_tensorflow() -> None:
    for entry in PORTED:
        name = f"tf.{entry.path}".removesuffix(".*")
        if not f"{name}.".startswith(GONE):
            parts = name.split(".")[1:]
            assert _is_in(tf, parts) or _is_in(tensorflow, parts), name


def _is_in(module, parts) -> bool:
    """Whether a dotted name, in parts, is below a module."""
    try:
        functools.reduce(getattr, parts, module)
    except AttributeError:
        return False
    return True


def test_every_metric_has_a_counterpart() -> None:
    found = {
        porting.find(f"tf.metrics.{name}").now.strip("`")
        for name in dir(tf.metrics)
        if not name.startswith("_")
    }
    assert found == {f"kte.metrics.{name}" for name in kte.metrics.__all__}


def test_every_source_exists() -> None:
    # Its error names the missing object.
    for entry in ENTRIES:
        if entry.source:
            path = f".{entry.path}".removesuffix(".*").removeprefix(".")
            assert resolve(path) is not None, path


def test_every_missing_name_is_missing_and_has_advice() -> None:
    for entry in ENTRIES:
        if entry.missing and not entry.is_of_module:
            found = lookup(f"tf.{entry.path}")
            expected = (Status.MISSING, entry.missing)
            assert (found.status, found.advice) == expected, entry


@pytest.mark.parametrize(
    "section", dict.fromkeys(row.section for row in catalogue().rows.values())
)
def test_page_has_the_table(section) -> None:
    headings = re.findall("^## (.*)$", PAGE, re.MULTILINE)
    anchors = [
        re.sub("[^a-z0-9 -]", "", heading.lower()).replace(" ", "-")
        for heading in headings
    ]
    assert section in anchors
    part = PAGE.split("\n## ")[anchors.index(section) + 1]
    right = table(section)
    assert right in part, (
        f"Put this under '{headings[anchors.index(section)]}' in "
        f"{porting.PAGE}:\n{right}"
    )


def test_page_lists_refused_names() -> None:
    page = (ROOT / "docs" / "lifting_limits.md").read_text()
    refused = [entry for entry in ENTRIES if entry.refused]
    for why in dict.fromkeys(entry.refused for entry in refused):
        names = [f"`tf.{e.path}`" for e in refused if e.refused == why]
        row = f"| {', '.join(names)} | {why} |"
        assert row in page, f"Put this into the page:\n{row}"


def test_page_lists_rules_about_arguments() -> None:
    page = (ROOT / "docs" / "lifting_limits.md").read_text()
    part = page.split("\n### By its arguments\n")[1].split("\n### ")[0]
    rules = catalogue().calls
    for effect in Effect:
        same = [rule for rule in rules if rule.effect is effect]
        for why in dict.fromkeys(rule.advice for rule in same):
            calls = [f"`{r.shown}`" for r in same if r.advice == why]
            row = f"| {', '.join(dict.fromkeys(calls))} | {why} |"
            assert row in part, f"Put this into the page:\n{row}"


def test_page_about_old_programs_is_true() -> None:
    def listed(heading):
        page = (ROOT / "docs" / "old_programs.md").read_text()
        part = page.split(f"\n## {heading}\n")[1].split("\n## ")[0]
        cells = re.findall(r"(?m)^\| (.*?) \|", part)
        return [n for cell in cells for n in re.findall(r"`(tf\.[^`]+)`", cell)]

    supplied, missing = listed("What is supplied"), listed("What is missing")
    assert "tf.layers" in supplied and "tf.contrib.learn" in missing
    for name in supplied:
        assert lookup(name).status is Status.SUPPLIED, name
    nothing = lookup("tf.unheard_of").advice
    for name in missing:
        if name != "tf.contrib.layers":  # Only its columns are supplied.
            found = lookup(f"{name}.unheard_of")
            assert found.status is Status.MISSING, name
            assert found.advice != nothing, name


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
        # Names that differ in TensorFlow 1.
        ("tf.contrib.rnn.GRUCell", "`keras.layers.GRUCell`", "2-layers"),
        (
            "tf.contrib.tpu.python.tpu.tpu_config.TPUConfig",
            "`kte.TPUConfig`",
            "1-imports",
        ),
        ("tf.contrib.framework.nest.pack", "`jax.tree`", "4-operations"),
    ],
)
def test_counterparts_are_found(name, now, anchor) -> None:
    found = porting.find(name)
    assert found.name == name and found.now.startswith(now)
    assert found.page.startswith(f"docs/migrating.md#{anchor}")


@pytest.mark.parametrize(
    ("name", "now"),
    [
        ("feature_column.numeric_column", "the feature itself"),
        ("feature_column.indicator_column", "`keras.ops.one_hot`"),
        ("feature_column.embedding_column", "`keras.layers.Embedding`"),
        ("feature_column.crossed_column", "`tf.sparse.cross_hashed`, in"),
        (
            "contrib.feature_column.sequence_numeric_column",
            "the feature itself",
        ),
        ("contrib.layers.real_valued_column", "the feature itself"),
        ("contrib.layers.sparse_column_with_keys", "`tf.lookup.Static"),
    ],
)
def test_each_column_has_its_own_counterpart(name, now) -> None:
    assert porting.find(f"tf.{name}").now.startswith(now)


def test_every_column_has_a_counterpart() -> None:
    columns = [name for name in dir(tf.feature_column) if not name.startswith("_")]
    own = catalogue().entries
    assert [n for n in columns if f"feature_column.{n}" not in own] == []


def test_every_loss_has_a_counterpart_with_equal_results() -> None:
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(6, 3)).astype("float32")
    y = 1 / (1 + np.exp(-logits))
    hot = np.eye(3, dtype="float32")[rng.integers(0, 3, 6)]
    losses, weights = y[:, 0], np.array([1, 0, 2, 0.5, 0, 1], "float32")
    functions = tf.losses
    given = {
        "absolute_difference": (hot, y),
        "compute_weighted_loss": (losses, weights),
        "cosine_distance": (hot, y, 1),
        "hinge_loss": (hot, logits),
        "huber_loss": (hot, y),
        "log_loss": (hot, y),
        "mean_pairwise_squared_error": (hot, y),
        "mean_squared_error": (hot, y),
        "sigmoid_cross_entropy": (hot, logits),
        "softmax_cross_entropy": (hot, logits),
        "sparse_softmax_cross_entropy": (hot.argmax(axis=1), logits),
    }
    others = {"add_loss", "Reduction"} | {
        name for name in dir(functions) if name.startswith("get_")
    }
    public = {name for name in dir(functions) if not name.startswith("_")}
    assert public == {*given} | others
    for name, arguments in given.items():
        with tf.Graph().as_default(), tf.Session() as session:
            expected = session.run(getattr(functions, name)(*arguments))
        code = porting.find(f"tf.losses.{name}").now.strip("`")
        names = {"keras": keras, "labels": arguments[0], "y": y, "n": 3}
        names |= {"logits": logits, "losses": losses, "weights": weights}
        found = eval(code, names, {"axis": 1})
        np.testing.assert_allclose(found, expected, 1e-5, err_msg=name)


def test_links_are_left_out_of_messages() -> None:
    found = porting.find("tf.train.ExponentialMovingAverage")
    assert found.note == "see moving averages"


def test_missing_name_does_not_inherit_its_modules_counterpart() -> None:
    assert porting.find("tf.contrib.opt.AGNOptimizer") is None
    assert porting.find("tf.contrib.opt.unheard_of").now == "`keras.optimizers`"


@pytest.mark.parametrize(
    ("name", "advice"),
    [
        (
            "tf.contrib.opt.AGNOptimizer",
            "There are no parameter servers. Leave",
        ),
        (
            "tf.contrib.opt.python.training.agn_optimizer.AGNOptimizer",
            "There are no parameter servers. Leave it out",
        ),
        ("tf.contrib.data.reduce_dataset", "Use Dataset.reduce"),
        # Ported code has a better counterpart than an unchanged script.
        ("tf.contrib.opt.GGTOptimizer", "Its counterpart: `keras.optimizers.A"),
        ("tf.contrib.crf.CrfForwardRnnCell", "Port it to Keras or JAX; see"),
        ("tf.contrib.opt.RegAdagradOptimizer", "Port it to Keras or JAX; see"),
        ("tf.contrib.all_reduce.anything", "Port it to Keras or JAX; see"),
        ("np.mean", "Port it to Keras or JAX; see docs/migrating.md"),
    ],
)
def test_advice_says_what_to_leave_out(name, advice) -> None:
    assert porting.advice(name).startswith(advice)
    assert not porting.advice(name).endswith(".")


def test_other_names_have_no_counterpart() -> None:
    assert porting.find("np.mean") is None
    assert porting.find("tf") is None
    assert porting.find("tf.unheard_of") is None
    assert porting.find("tf.contrib.unheard_of.f") is None


@pytest.mark.parametrize(
    "facts",
    [
        {},
        {"port": "nothing"},
        {"row": "dense"},
        {"source": "tf.", "missing": "Leave it out."},
    ],
)
def test_incomplete_or_contradictory_entries_are_refused(facts) -> None:
    with pytest.raises(ValueError, match="An entry must have a fact"):
        Entry("layers", "dense", **facts)


def test_patterns_are_only_for_refused_names() -> None:
    assert Entry("nn", "ctc_*", refused="Leave it out.").path == "nn.ctc_*"
    with pytest.raises(ValueError, match="only `refused` with a '\\*'"):
        Entry("nn", "ctc_*", source="tf.nn.")


def test_rows_and_names_agree() -> None:
    dense = Entry("layers", "dense", port="`keras.layers.Dense`", row="dense")
    with pytest.raises(ValueError, match=r"Received: \['dense'\]"):
        Catalogue({dense.path: dense}, {})
    with pytest.raises(ValueError, match=r"Received: \['dense'\]"):
        Catalogue({}, {"dense": Row("2-layers", before="`tf.layers.dense`")})


def test_file_is_sorted() -> None:
    folder = resources.files("keras_tpu_estimator.tf1.names")
    file = folder.joinpath("names.toml")
    tables = tomllib.loads(file.read_text("utf-8"))
    advice = tables.pop("advice")
    pages = tables.pop("page").values()
    of_calls = {each["advice"] for each in tables.pop("calls")}
    readers = tables.pop("column_readers")
    assert readers == sorted(readers)
    assert sum(map(len, pages)) == len(catalogue().rows)
    assert [*tables] == sorted(tables)
    for names in tables.values():
        assert [*names] == sorted(names, key=lambda n: (n != "*", n.lower(), n))
    said = [
        facts[fact]
        for names in tables.values()
        for facts in names.values()
        for fact in ("missing", "refused")
        if fact in facts
    ]
    # The counterpart of a single name needs no explanation.
    alone = [word for word in advice if said.count(word) < 2]
    assert {*alone} <= of_calls


def test_line_is_in_user_code():
    # `python -m` runs the package's commands and `runpy` runs scripts like this.
    pythons = compile("found = users_line()", "<frozen runpy>", "exec")
    names = {"users_line": resolving.users_line}
    exec(pythons, names)
    assert f"Used in {__file__}, line " in names["found"]
