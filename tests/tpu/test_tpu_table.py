"""Tests that the table of compiled programs matches the tests."""

import importlib

import pytest
import tpu_table
from tpu_table import TOPOLOGIES, Row

GROUPS = (
    "embeddings",
    "examples",
    "golden",
    "hosts",
    "layers",
    "optimizers",
    "options",
    "tf1",
)
ROWS = [
    Row("layers", "Dense", "v5e:2x2", "train", "compiles"),
    Row("layers", "Dense", "v5e:2x2", "infer", "compiles"),
    Row("layers", "Dense", "v4:2x2x1", "train", "refused: it has no tables."),
    Row("options", 'iterations="30s"', "v5e:4x4", "eval", "compiles"),
]


def test_written_table_is_read():
    text = tpu_table.written(ROWS)
    assert "| `Dense` | train, infer |  | train [1] |  |" in text
    assert "\n1. refused: it has no tables.\n" in text
    assert list(tpu_table.read(text)) == ROWS
    assert list(tpu_table.read(f"By libtpu.\n\n{text}")) == ROWS


@pytest.mark.parametrize("group", GROUPS)
def test_table_has_all_programs_on_all_topologies(group):
    programs = importlib.import_module(f"test_tpu_{group}").PROGRAMS
    keys = [key for key in tpu_table.stored() if key[0] == group]
    assert {name for _, name, *_ in keys} == programs.keys()
    for name in programs:
        found = {key[2] for key in keys if key[1] == name}
        assert found >= set(TOPOLOGIES), tpu_table.STALE


def test_table_has_no_other_programs():
    assert {key[0] for key in tpu_table.stored()} == set(GROUPS)
