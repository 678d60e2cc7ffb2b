"""The names of TensorFlow 1, read from `names.toml` and `rules.toml`.

Lists beside it contain the modules of TensorFlow 1.15 that scripts import although they
were not public, below `tf.contrib.*.python` and `tf.python.estimator`, and the other
packages of `tf.contrib` and `tf.examples`.
"""

import dataclasses
import fnmatch
import functools
from collections.abc import Iterable, Iterator, Mapping
from importlib import resources
from typing import Any

from keras_tpu_estimator.tf1.names.calls import CallRule, Effect, Value, Where

# The estimator library had the names that TensorFlow had.
ROOTS = ("tensorflow", "tensorflow_core", "tensorflow_estimator")
# Names below the left path are also below the right path.
ALIASES = {
    "_api.v1": "",
    "_api.v2": "compat.v2",
    "compat.v1": "",
    "compat.v2.compat": "compat",
    "compat.v2.estimator": "estimator",
    "python.estimator.api._v1": "",
    "python.estimator.api._v2": "compat.v2",
    "python.keras.api._v1": "",
    "python.keras.api._v2": "compat.v2",
}


def canonical(path: str) -> str:
    """Returns the one path of all aliases of a name without 'tf.'.

    >>> canonical("compat.v1.compat.v1.layers.dense")
    'layers.dense'
    """
    for alias, same in ALIASES.items():
        if path == alias or path.startswith(f"{alias}."):
            remainder = path.removeprefix(alias)
            return canonical(f"{same}{remainder}" if same else remainder[1:])
    return path


def path_of(name: str) -> str | None:
    """Returns the canonical path of a full name, or `None` if it is not TensorFlow's.

    >>> path_of("tensorflow_estimator.python.estimator.training")
    'python.estimator.training'
    >>> path_of("tensorflow.compat.v1"), path_of("numpy.float32")
    ('', None)
    """
    root, _, path = name.partition(".")
    return canonical(path) if root in ROOTS else None


# The facts that an entry may contain. Each one has readers.
_FACTS = ("source", "module", "missing", "refused", "port", "rule")


@dataclasses.dataclass(frozen=True)
class Entry:
    """The facts about a name, or about all names that match a pattern.

    Attributes:
        owner: The module whose table contains it, without 'tf.', or "" for `tf`.
        name: The path below the owner. With ".*" at its end, it covers all names of a
            module that have no entry. A "*" elsewhere is only for `refused`.
        source: The replacement: 'package.module', 'package.module:attribute' or
            'tf.name'. For a module, the source of its other names.
        module: The module that is imported by this name, if it differs from the source.
        missing: Advice for scripts that use the missing name.
        refused: The reason why it does not work in a `model_fn`, and advice.
        port: The replacement in Keras, as Markdown.
        row: The row of the page with more details.
        rule: The replacement of a call, as a rule of `rules.toml`.
    """

    owner: str
    name: str
    source: str = ""
    module: str = ""
    missing: str = ""
    refused: str = ""
    port: str = ""
    row: str = ""
    rule: str = ""

    def __post_init__(self) -> None:
        facts = {fact for fact in _FACTS if getattr(self, fact)}
        stars = self.name.count("*") - self.is_of_module
        if (
            not facts
            or bool(self.port) != bool(self.row)
            or (stars and facts != {"refused"})
            or ({"source", "missing"} <= facts and not self.is_of_module)
        ):
            raise ValueError(
                "An entry must have a fact, a `row` if it has a `port`, only one "
                "of `source` and `missing`, and only `refused` with a '*'. "
                f"Received: {self}"
            )

    @property
    def path(self) -> str:
        """The name without 'tf.'."""
        return below(self.owner, self.name)

    @property
    def is_of_module(self) -> bool:
        """Whether the entry covers the other names of a module."""
        return f".{self.name}".endswith(".*")


@dataclasses.dataclass(frozen=True)
class Row:
    """A row of the tables of counterparts.

    Attributes:
        section: The anchor on the page.
        before: Text that the page shows instead of the names.
        now: Text that the page shows instead of their ports.
        same: Whether the ports take the arguments of the originals.
    """

    section: str
    before: str = ""
    now: str = ""
    note: str = ""
    same: bool = False


@dataclasses.dataclass(frozen=True)
class Catalogue:
    """All names, with entries by path and rows by key in the order of the page.

    Attributes:
        public: For a module without entries, the module that makes its names public, by
            path.
        modules: The paths of other modules that can be imported even if nothing
            supplies their names.
        column_readers: The names, without 'tf.', that read feature columns.
    """

    entries: Mapping[str, Entry]
    rows: Mapping[str, Row]
    public: Mapping[str, str] = dataclasses.field(default_factory=dict)
    modules: frozenset[str] = frozenset()
    calls: tuple[CallRule, ...] = ()
    column_readers: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        named = {entry.row for entry in self.entries.values() if entry.row}
        shown = {key for key, row in self.rows.items() if row.before and row.now}
        wrong = (named - {*self.rows}) | ({*self.rows} - named - shown)
        if wrong:
            raise ValueError(
                "Each row must be on the page, and have names or both "
                f"`before` and `now`. Received: {sorted(wrong)}"
            )

    def of_module(self, path: str) -> Entry | None:
        """Returns the entry for all names of a module that have no own entry."""
        return self.entries.get(below(path, "*"))

    def moved(self, module: str) -> str:
        """Returns the path that also contains the names of a module, or ""."""
        entry = self.entries.get(module)
        if entry and entry.source.startswith("tf."):
            return entry.source.removeprefix("tf.")
        return self.public.get(module, "")

    def of_row(self, row: str) -> list[Entry]:
        """Returns the entries of a row."""
        return [entry for entry in self.entries.values() if entry.row == row]

    def calls_of(self, path: str) -> list[CallRule]:
        """Returns the rules about the arguments of a name."""
        return [rule for rule in self.calls if rule.is_about(path)]

    def refusal(self, path: str) -> str:
        """Returns the reason why a name does not work in a `model_fn`, or ""."""
        for entry in self.entries.values():
            if entry.refused and fnmatch.fnmatchcase(path, entry.path):
                return entry.refused
        return ""

    @functools.cached_property
    def supplied(self) -> frozenset[str]:
        """The paths of names that have a source."""
        entries = self.entries.values()
        return frozenset(e.path for e in entries if e.source)

    @functools.cached_property
    def packages(self) -> frozenset[str]:
        """The modules that contain supplied or missing names."""
        entries = self.entries.values()
        paths = [e.path for e in entries if e.source or e.missing]
        named = [*paths, *self.public, *ALIASES]
        above = {module for path in named for module in ancestors(path)}
        return frozenset(above | {*self.public}) - self.supplied


def below(module: str, name: str) -> str:
    """Returns the path of a name in a module."""
    return f"{module}.{name}" if module else name


def ancestors(path: str) -> list[str]:
    """Returns all modules that contain a name, starting with "" for `tf`.

    >>> ancestors("contrib.tpu.TPUConfig")
    ['', 'contrib', 'contrib.tpu']
    """
    parts = path.split(".")
    return [".".join(parts[:number]) for number in range(len(parts))]


def with_name(text: str, name: str) -> str:
    """Adds a name to a source or port that ends in "." or ":".

    >>> with_name("`keras.ops.`", "matmul"), with_name("nothing", "group")
    ('`keras.ops.matmul`', 'nothing')
    """
    stem = text.removesuffix("`")
    if not stem.endswith((".", ":")):
        return text
    return f"{stem}{name}{text.removeprefix(stem)}"


@functools.cache
def catalogue() -> Catalogue:
    """Reads `names.toml`, and checks the rules in its first lines."""
    # This import is slow, and most scripts do not need it.
    import tomllib

    folder = resources.files(__package__)
    file = folder.joinpath("names.toml")
    tables = tomllib.loads(file.read_text("utf-8"))
    advice, pages = tables.pop("advice"), tables.pop("page")
    rules, readers = tables.pop("calls"), tables.pop("column_readers")
    entries: dict[str, Entry] = {}
    for entry in _entries(tables, advice):
        if entry.path in entries:
            raise ValueError(f"{entry.path!r} must have only one entry.")
        entries[entry.path] = entry
    rules_of_ports = tomllib.loads(folder.joinpath("rules.toml").read_text("utf-8"))
    for path, rule in rules_of_ports.items():
        owner, _, name = path.rpartition(".")
        entry = entries.get(path) or Entry(owner, name, rule=rule)
        entries[path] = dataclasses.replace(entry, rule=rule)
    rows = {
        key: Row(section, **facts)
        for section, page in pages.items()
        for key, facts in page.items()
    }

    def listed(name: str) -> list[str]:
        return folder.joinpath(name).read_text("utf-8").splitlines()

    contrib = [below("contrib", module) for module in listed("contrib_modules.txt")]
    of_estimator = dict(map(str.split, listed("estimator_modules.txt")))
    return Catalogue(
        entries,
        rows,
        dict(_public(contrib, entries)) | of_estimator,
        frozenset([*contrib, *listed("packages.txt")]),
        tuple(_rule(advice, **facts) for facts in rules),
        frozenset(readers),
    )


def _rule(
    words: Mapping[str, str],
    where: str,
    value: str,
    advice: str,
    effect: str = "stops",
    **facts: Any,
) -> CallRule:
    return CallRule(
        where=Where(where),
        value=Value(value),
        advice=advice if advice.endswith(".") else words[advice],
        effect=Effect(effect),
        **facts,
    )


def _public(
    modules: Iterable[str], entries: Mapping[str, Entry]
) -> Iterator[tuple[str, str]]:
    """Yields modules of `tf.contrib` and those that make their names public."""
    for path in modules:
        part, *below_it = [*ancestors(path)[2:], path]
        for module in below_it:
            entry = entries.get(module)
            if below(module, "*") in entries or (entry and entry.source):
                break  # The entry covers this module and all below.
            yield module, part


def _entries(tables: Mapping[str, Any], advice: Mapping[str, str]) -> Iterator[Entry]:
    for table, names in tables.items():
        owner = table.removeprefix("tf").removeprefix(".")
        for name, facts in names.items():
            for fact in {"missing", "refused"} & {*facts}:
                if not facts[fact].endswith("."):
                    facts[fact] = advice[facts[fact]]
            if "*" not in name:
                last = name.rpartition(".")[2]
                for fact in {"source", "port"} & {*facts}:
                    facts[fact] = with_name(facts[fact], last)
            yield Entry(owner, name, **facts)
