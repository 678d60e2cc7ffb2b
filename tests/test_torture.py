"""A short form of `python -m tests.torture`."""

import pytest
from helpers import some_slow

from tests.torture import (
    costs,
    damaging,
    damaging_files,
    disks,
    formats,
    killing,
    restarts,
    saves,
    supervised,
    users,
)
from tests.torture.figures import ViolationError
from tests.torture.operations import FLAW, FULL, KILL


@pytest.mark.usefixtures("forked_programs")
def test_killed_trainings_resume_without_loss(tmp_path):
    figures = killing.kill_and_resume(str(tmp_path), kills=2)
    assert figures["kills"] == 2


@pytest.mark.slow
def test_saves_survive_kills_at_renames(tmp_path):
    changes = ("replace", "remove")
    figures = saves.cut_off(str(tmp_path), fates=(KILL,), only=changes)
    assert len(figures) == 12
    assert min(figures.values()) >= 4


# Orbax's own files take several times as long.
SLOW_WAYS = {saves.TREE, saves.WHOLE_TREE}


@pytest.mark.rows(4)
@pytest.mark.parametrize("fate", [FULL, FLAW])
@pytest.mark.parametrize("way", some_slow(saves.ALL, SLOW_WAYS))
def test_saves_survive_errors_at_renames(tmp_path, way, fate):
    changes = ("replace", "remove")
    assert saves.cut_off(str(tmp_path), (way,), (fate,), changes)


@pytest.mark.usefixtures("forked_programs")
def test_corrupt_checkpoints_are_never_read_as_other_values(tmp_path):
    figures = damaging.damage(str(tmp_path), number=60)
    assert figures["of these refused"] == 30
    assert figures["of these refused, not read correctly"] >= 25


@pytest.mark.usefixtures("forked_programs")
@pytest.mark.parametrize("way", some_slow(saves.SPREAD, SLOW_WAYS))
def test_corruption_of_any_file_is_found(tmp_path, way):
    figures = damaging_files.damage(str(tmp_path), flips=1, way=way)
    files = figures["files of a checkpoint"]
    assert files >= 3
    found = "found by reading, by verifying, and before training"
    assert figures[found] == 4 * files


@pytest.mark.usefixtures("forked_programs")
def test_forged_checkpoints_are_refused(tmp_path):
    assert damaging.forge(str(tmp_path)) == {"forged checkpoints refused": 8}


@pytest.mark.slow
@pytest.mark.parametrize("trial", [disks.read_only, killing.clock_jumps])
def test_dry_runs_have_no_effect(trial, tmp_path):
    assert trial(str(tmp_path))


@pytest.mark.usefixtures("forked_programs")
def test_trainings_survive_full_disks(tmp_path):
    assert disks.full(str(tmp_path))


# After an error in Orbax, its threads fail during the next test.
def test_saves_survive_a_disk_that_fills_up(tmp_path):
    assert disks.full_at_each_stage(str(tmp_path), saves.PARTS, stages=2)


@pytest.mark.usefixtures("forked_programs")
def test_costs_are_measured(tmp_path):
    question = costs.Question(str(tmp_path), None, 1, variables=2, rounds=1)
    figures = question.asked()
    assert figures.keys() == {*costs.WAYS}
    for measured in figures.values():
        waits = measured["seconds that training waits"]
        assert 0 < waits <= measured["seconds of saving"]
    table = formats.table({"seconds": dict.fromkeys(figures, 0.25)})
    head, row = table.splitlines()
    assert len(head) == len(row)
    assert row.split() == ["seconds", *["0.25"] * len(costs.WAYS)]


def test_links_threads_and_edits_are_supported(tmp_path):
    for name in ("links", "threads", "edits"):
        (tmp_path / name).mkdir()
    assert users.link(str(tmp_path / "links"), saves_of_each=4)
    assert users.look_on_threads(str(tmp_path / "threads"), steps=8)
    assert users.edit_at_saves(str(tmp_path / "edits"), (saves.WHOLE,))


def test_lost_checkpoint_is_noticed(tmp_path):
    with pytest.raises(ViolationError, match="step 8 is not lost"):
        killing._check_checkpoints(str(tmp_path), saved=8)


@pytest.mark.usefixtures("forked_programs")
@pytest.mark.rows(1)
@pytest.mark.parametrize("cause", ["SIGKILL", "SIGSTOP", "full disk"])
def test_interrupted_jobs_restart_themselves(cause, tmp_path):
    figures = restarts.interrupt(
        str(tmp_path), jobs=1, processes=(2,), causes=(cause,), most=1
    )
    assert figures["interruptions of their processes"] == 1


@pytest.mark.slow
@pytest.mark.usefixtures("forked_programs")
def test_jobs_of_several_sizes_restart_themselves(tmp_path):
    figures = restarts.interrupt(str(tmp_path), jobs=9)
    assert figures["interruptions of their processes"] >= 9


@pytest.mark.slow
def test_supervised_jobs_end_by_themselves(tmp_path):
    causes = (*restarts.CAUSES, *supervised.CAUSES)
    figures = restarts.interrupt(
        str(tmp_path), jobs=8, causes=causes, run=supervised.run
    )
    assert figures["interruptions of their processes"] >= 8


@pytest.mark.slow
def test_jobs_continue_without_a_host(tmp_path):
    assert restarts.shrink(str(tmp_path), jobs=1, processes=(3,))
