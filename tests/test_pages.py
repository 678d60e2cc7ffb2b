"""Tests that the code in the documentation runs and prints what it shows."""

import ast
import json
import logging
import pathlib
import re
import shutil
from collections.abc import Callable
from typing import Any

import griffe
import jax
import jax.numpy as jnp
import keras
import mkdocs.commands.build
import mkdocs.config
import numpy as np
import pytest
import tensorflow as tf  # noqa: TID253 - the pages use tf.data
import yaml
from keras import ops

import keras_tpu_estimator as kte
from docs import pages as site
from docs import shown_defaults
from keras_tpu_estimator.files.directory import layouts
from keras_tpu_estimator.files.formats import registry
from keras_tpu_estimator.parts import COMMANDS

pytestmark = pytest.mark.usefixtures("forked_trials")

ROOT = pathlib.Path(__file__).parents[1]
PACKAGE = ROOT / "keras_tpu_estimator"
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
PAGES_WITH_CODE = [p for p in PAGES if "```python" in p.read_text()]
# Optional libraries that pages use.
_LIBRARY = r"^(?:import|from) (flax|equinox|optax)\b"
X = np.random.default_rng(0).normal(size=(40, 3)).astype("float32")


def batches_of(features: dict[str, Any], labels: Any) -> Callable[..., Any]:
    """An input_fn over arrays, with a smaller last batch."""

    def input_fn(params: dict[str, Any]) -> Any:
        size = params["batch_size"]
        for start in range(0, len(labels), size):
            rows = slice(start, start + size)
            yield {k: v[rows] for k, v in features.items()}, labels[rows]

    return input_fn


NUMBERS = batches_of({"x": X}, X.sum(axis=1, keepdims=True))
IMAGES = batches_of({"image": X}, np.zeros(len(X), "int32"))


def model_fn(
    features: Any, labels: Any, mode: str, params: dict[str, Any]
) -> kte.TPUEstimatorSpec:
    """A linear model."""
    y = keras.layers.Dense(1)(features["x"])
    if mode == kte.ModeKeys.PREDICT:
        return kte.TPUEstimatorSpec(mode, predictions={"y": y})
    loss = ops.mean((y - labels) ** 2)
    train_op = None
    if mode == kte.ModeKeys.TRAIN:
        optimizer = kte.CrossShardOptimizer(keras.optimizers.SGD(0.1))
        train_op = optimizer.minimize(loss)
    return kte.TPUEstimatorSpec(mode, loss=loss, train_op=train_op)


def estimator_of(
    model_fn: Callable[..., Any], model_dir: pathlib.Path, **params: Any
) -> kte.TPUEstimator:
    """An estimator on all cores."""
    return kte.TPUEstimator(
        model_fn,
        config=kte.RunConfig(model_dir=str(model_dir)),
        params=params,
        train_batch_size=16,
        eval_batch_size=16,
        predict_batch_size=16,
    )


def code_blocks(page: pathlib.Path) -> list[str]:
    """The Python code of a page, after the snippets that it includes or links."""
    text = page.read_text()
    snippets = re.findall(r"<!-- code: (docs/snippets/\S+)", text)
    if "[`regression`](model_fn.md#a-complete-model_fn)" in text:
        snippets.append("docs/snippets/regression.py")
    blocks = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    return [(ROOT / path).read_text() for path in snippets] + blocks


def without_numbers(printed: str) -> list[str]:
    """The printed lines without numbers, which are equal in all runs."""
    return re.sub(r"\d+(\.\d+)?", "0", printed).splitlines()


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """The directory of a trained estimator, which tests copy."""
    model_dir = tmp_path_factory.mktemp("trained")
    estimator_of(model_fn, model_dir).train(NUMBERS, steps=2)
    return model_dir


@pytest.mark.parametrize("page", PAGES_WITH_CODE, ids=lambda page: page.stem)
def test_code_of_the_documentation(
    page: pathlib.Path,
    trained: pathlib.Path,
    tmp_path: pathlib.Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    logger = logging.getLogger("keras_tpu_estimator")
    monkeypatch.setattr(logger, "setLevel", lambda level: None)
    # Pages register checkpoint formats.
    monkeypatch.setattr(layouts, "LAYOUTS", [*layouts.LAYOUTS])
    monkeypatch.setattr(registry, "_FORMATS", {**registry._FORMATS})
    monkeypatch.setattr(registry, "_LAYOUTS", {**registry._LAYOUTS})
    names = {
        **{"kte": kte, "keras": keras, "ops": ops, "np": np, "tf": tf},
        **{"jax": jax, "jnp": jnp, "input_fn": NUMBERS},
        "estimator": estimator_of(
            model_fn, shutil.copytree(trained, tmp_path / "given")
        ),
    }
    for name in re.findall(_LIBRARY, page.read_text(), re.MULTILINE):
        pytest.importorskip(name, reason=f"{name} is not installed")
    for number, code in enumerate(code_blocks(page)):
        code = code.replace("/tmp/prices", str(tmp_path / "prices"))
        exec(compile(code, f"{page.name}, block {number}", "exec"), names)
        if "def input_fn" in code:
            check_input_fn(names["input_fn"], tmp_path / f"input{number}")
        if "def model_fn" in code:
            data = IMAGES if 'features["image"]' in code else NUMBERS
            for clip in (False, True) if '"clip"' in code else (False,):
                directory = tmp_path / f"model{number}-{clip}"
                made = estimator_of(names["model_fn"], directory, clip=clip, units=4)
                check_model_fn(made, data)
    if page.stem == "quickstart":
        (shown,) = re.findall(r"```text\n(.*?)```", page.read_text(), re.DOTALL)
        printed = without_numbers(capsys.readouterr().out)
        assert printed == without_numbers(shown)


def every_page() -> list[pathlib.Path]:
    pages = sorted((ROOT / "docs").rglob("*.md"))
    # Included files are not pages.
    own = [page for page in pages if page.parent.name != "outputs"]
    return [ROOT / "README.md", *own]


def test_snippets_of_examples_exist() -> None:
    included = {
        page.stem: site.on_page_markdown(page.read_text())
        for page in every_page()
        if "<!-- " in page.read_text()
    }
    assert {"digits", "gan", "before_after"} <= included.keys()
    assert not [name for name, text in included.items() if "<!-- " in text]
    assert "def model_fn(features" in included["digits"]
    assert "accuracy on 360 held-out images" in included["digits"]
    assert "+import keras_tpu_estimator as kte" in included["before_after"]
    with pytest.raises(ValueError, match="Received: .'nothing'"):
        site.code("examples/digits.py", "nothing")


@pytest.mark.parametrize(
    ("html", "expected"),
    [
        (
            "<code>plan X --use_tpu</code> -- <code>b</code>",
            '<code>plan X <span class="whole">--use_tpu</span></code> -- '
            "<code>b</code>",
        ),
        (
            '<code class="a"><a href="b-c">d-e</a>&lt;f&gt;-g</code>',
            '<code class="a"><a href="b-c"><span class="whole">d-e</span></a>'
            '<span class="whole">&lt;f&gt;-g</span></code>',
        ),
        (f"<code>a-{'b' * 40}</code>", f"<code>a-{'b' * 40}</code>"),
        (
            "<pre><span></span><code>a --b\n\nc</code></pre>",
            "<pre><span></span><code>a --b\n\nc</code></pre>",
        ),
    ],
)
def test_options_and_values_share_a_line(html: str, expected: str) -> None:
    assert site.on_page_content(html) == expected


def test_every_command_has_an_example() -> None:
    page = (ROOT / "docs" / "commands.md").read_text()
    shown = re.findall(r"^    python -m keras_tpu_estimator (\w+)", page, re.M)
    assert shown == list(COMMANDS)


def test_readme_links_all_pages() -> None:
    links = set(re.findall(r"\]\(([^)#]+)\)", (ROOT / "README.md").read_text()))
    assert not [link for link in links if not (ROOT / link).exists()]
    pages = {str(page.relative_to(ROOT)) for page in every_page()}
    api = {page for page in pages if page.startswith("docs/api/")}
    assert pages - api - links == {"README.md", "docs/changelog.md"}


def site_settings() -> dict[str, Any]:
    settings = yaml.safe_load((ROOT / "mkdocs.yml").read_text())
    assert isinstance(settings, dict)
    return settings


def groups(nav: list[Any]) -> list[list[Any]]:
    """The lists of entries in a navigation, outermost first."""
    entries = [value for entry in nav for value in entry.values()]
    inner = [entry for entry in entries if isinstance(entry, list)]
    return [entries, *(each for entry in inner for each in groups(entry))]


def test_navigation_has_small_groups_and_each_page_once() -> None:
    found = groups(site_settings()["nav"])
    assert max(map(len, found)) <= 9
    shown = [page for group in found for page in group if isinstance(page, str)]
    docs = ROOT / "docs"
    pages = [str(p.relative_to(docs)) for p in every_page() if docs in p.parents]
    assert sorted(shown) == sorted(pages)


def searched(text: str) -> list[str]:
    """The words that the site's search extracts from a text."""
    (search,) = (
        plugin["search"] for plugin in site_settings()["plugins"] if "search" in plugin
    )
    words = re.split(search["separator"], text)
    return [word.lower() for word in words if word]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("sample_weights", "sampl weight"),
        ('params["sample_weight"]', "param sampl weight"),
        ("iterations_per_loop=100", "iterat loop 100"),
        ("tf.train.AdamOptimizer(rate)", "adamoptimizer rate"),
        ("(kte.hooks.LoggingTensorHook)", "loggingtensorhook"),
        ("estimator.train(input_fn).", "estimator train input fn"),
        ("model.ckpt-5.h5", "model ckpt 5 h5"),
        ("losses, a loss; classes of a class", "loss a loss class of a class"),
        ("“NaN” &lt;b&gt;", "nan b"),
        ("use, used, string, axis", "use used string axis"),
    ],
)
def test_search_cuts_text_into_words(text: str, words: str) -> None:
    assert " ".join(searched(text)) == words


@pytest.mark.parametrize(
    "forms",
    [
        "resume resumes resumed resuming",
        "restore restored restoring",
        "evaluate evaluates evaluated evaluating evaluation evaluations",
        "checkpoint checkpoints checkpointed checkpointing",
        "policy policies",
        "batch batches batched batching",
    ],
)
def test_search_finds_all_forms_of_a_word(forms: str) -> None:
    assert len({*map(tuple, map(searched, forms.split()))}) == 1


# The words that users search for, and the page for each.
QUERIES = {
    "multiple gpus": "cores",
    "out of memory": "troubleshooting",
    "generate text": "prediction",
    "batch size": "input_fn",
    "gpu": "devices",
    "early stopping": "train_and_evaluate",
    "mixed precision": "options",
    "custom optimizer": "optimizers",
    "resume": "resume",
    "hugging face": "input_fn",
    "checkpoint": "checkpoints",
}


@pytest.fixture(scope="module")
def search_index(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, str]]:
    """The sections in the search index of a site with only the pages of `QUERIES`."""
    folder = tmp_path_factory.mktemp("site")
    (folder / "docs").mkdir()
    for page in {*QUERIES.values()}:
        shutil.copy(ROOT / "docs" / f"{page}.md", folder / "docs")
    (search,) = (each for each in site_settings()["plugins"] if "search" in each)
    settings = {"site_name": "site", "theme": "mkdocs", "plugins": [search]}
    (folder / "mkdocs.yml").write_text(yaml.safe_dump(settings))
    mkdocs.commands.build.build(mkdocs.config.load_config(str(folder / "mkdocs.yml")))
    index = json.loads((folder / "site/search/search_index.json").read_text())
    sections: list[dict[str, str]] = index["docs"]
    return sections


@pytest.mark.parametrize(("query", "page"), QUERIES.items())
def test_search_finds_the_page(
    search_index: list[dict[str, str]], query: str, page: str
) -> None:
    """The theme ranks a section first if its title has the words of the query."""
    assert any(
        section["location"].startswith(f"{page}/")
        and all(
            any(word.startswith(wanted) for word in searched(section["title"]))
            for wanted in searched(query)
        )
        for section in search_index
    ), f"A heading of docs/{page}.md must contain {query!r}."


def shown_default(function: str) -> list[str]:
    """The defaults that the reference shows for a function's parameters."""
    module = griffe.visit(
        "module",
        filepath=pathlib.Path("module.py"),
        code=f"_SECS = 40\n_NONE = _Unset(None)\n_AFTER = _Unset(_SECS)\n"
        f"PUBLIC = 1\n{function}",
    )
    found = module["f"]
    shown_defaults.ShownDefaults().on_function(func=found)
    return [str(parameter.default) for parameter in found.parameters]


def test_reference_shows_values_of_private_defaults() -> None:
    assert shown_default(
        "def f(a, b=_SECS, c=_NONE, d=_AFTER, e=_Int(2), g=PUBLIC, h=None,\n"
        "      i=_OTHER, j=C(1)): ..."
    ) == ["None", "40", "None", "40", "2", "PUBLIC", "None", "_OTHER", "C(1)"]


def test_troubleshooting_quotes_real_messages() -> None:
    page = (ROOT / "docs" / "troubleshooting.md").read_text()
    table = page.split("| the message begins with |")[1].split("\n\n")[0]
    cells = re.findall(r"^\| (?!-)(.*?) \|", table.split("\n", 2)[2], re.M)
    said = {text for path in PACKAGE.rglob("*.py") for text in messages(path)}
    begins = [each for cell in cells for each in cell.split("; ")]
    assert len(begins) > 25
    assert [
        each
        for each in begins
        if not any(m.startswith(tuple(forms(each))) for m in said)
    ] == []


def messages(path: pathlib.Path) -> set[str]:
    """The texts of a file, with dots for the values that are filled in."""
    texts = {
        "".join(map(_part, node.values))
        if isinstance(node, ast.JoinedStr)
        else node.value
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.JoinedStr)
        or (isinstance(node, ast.Constant) and isinstance(node.value, str))
    }
    return {re.sub(r"%[dsr]|(\.\.\.){2,}", "...", text) for text in texts}


def _part(node: ast.expr) -> str:
    return str(node.value) if isinstance(node, ast.Constant) else "..."


def forms(cell: str) -> set[str]:
    """The beginning of a message, with dots for the names in it."""
    begin = re.sub(r" \([^)]*\)$", "", cell)
    return {
        begin,
        re.sub(r"`\w+`", "`...`", begin),
        re.sub(r"^\S+", "...", begin),
    }


def check_input_fn(input_fn: Callable[..., Any], model_dir: pathlib.Path) -> None:
    """Checks that a documented input_fn feeds every mode."""
    estimator = estimator_of(model_fn, model_dir)
    estimator.train(input_fn, steps=3)
    assert estimator.evaluate(input_fn)["global_step"] == 3
    assert next(estimator.predict(input_fn))["y"].shape == (1,)


def check_model_fn(estimator: kte.TPUEstimator, input_fn: Callable[..., Any]) -> None:
    """Checks that a documented model_fn works in every mode."""
    estimator.train(input_fn, steps=2)
    assert np.isfinite(estimator.evaluate(input_fn)["loss"])
    assert len(list(estimator.predict(input_fn))) == len(X)
