"""Tests that two and four hosts have the same results as one host.

Starting hosts takes longer than most scenarios. Therefore hosts are started twice and
run all scenarios, and each test checks one of them. The same scenarios also run in this
process, on the same number of cores.
"""

import json
import logging
import os
import shutil

import numpy as np
import pytest

from keras_tpu_estimator.checkpoints import SaveFiles
from keras_tpu_estimator.files.directory.save_files import ResumeFiles
from tests.forking.forks import forking
from tests.many_hosts import (
    caught_scenarios,
    other_scenarios,
    spread_scenarios,
    training_scenarios,
)
from tests.many_hosts.launching import PROGRAM, launch
from tests.many_hosts.other_scenarios import SIZES
from tests.many_hosts.problems import BATCH, Here, assert_close
from tests.many_hosts.program import SCENARIOS
from tests.many_hosts.training_scenarios import ELASTIC_END, ELASTIC_STEPS, WAYS

ON_FOUR = ("evaluations", "ways", "elastic", "moved", "not_a_number")
# The first scenario ends the program, and the second compiles slowly.
NOT_ON_TWO = ("not_a_number", "networks")
ON_TWO = tuple(name for name in SCENARIOS if name not in NOT_ON_TWO)
CALLS_CHANGED = "The number of calls of input_fn has changed from {} to {}"
LIMIT_SECS = 400


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    """The directory of all scenarios."""
    return tmp_path_factory.mktemp("hosts")


@pytest.fixture(scope="module")
def alone(base):
    """Returns the result of a scenario on one host."""
    results = {}

    def run(name):
        if name not in results:
            here = Here(str(base / "alone" / name))
            # Results of other processes also come as JSON.
            results[name] = json.loads(json.dumps(SCENARIOS[name](here)))
        return results[name]

    return run


@pytest.fixture(scope="module")
def first_part(base):
    """Trains the parts of one host, which two hosts continue."""
    spread_scenarios.moved(Here(str(base / "two" / "moved")))
    here = Here(str(base / "two" / "elastic"))
    return training_scenarios.elastic(here)


@pytest.fixture(scope="module")
def start(base):
    """Starts hosts with different hash seeds."""

    def started(directory, names, count=2):
        with forking("package", seeds=2), forking("first_request.py"):
            return launch(
                *PROGRAM,
                str(base / directory),
                *names,
                processes=count,
                cores=4,
                limit_secs=LIMIT_SECS,
            )

    return started


@pytest.fixture(scope="module")
def two(start, first_part):
    """Two ended hosts of four cores, which ran all scenarios."""
    del first_part
    return start("two", ON_TWO)


@pytest.fixture(scope="module")
def four(base, start, two):
    """Four ended hosts of four cores, which continue from two hosts."""
    del two
    for name in ("elastic", "moved"):
        shutil.copytree(base / "two" / name, base / "four" / name)
    return start("four", ON_FOUR, count=4)


def both(two, name):
    """Returns the results of two hosts, first those of the chief."""
    first, second = two.each(name)
    return first, second


def test_all_scenarios_finish_on_two_hosts(two):
    assert two.code == 0, two.text
    assert {*two.results} == {0, 1}
    for results in two.results.values():
        assert [*results] == [*ON_TWO]
    first, second = both(two, "hash_seeds")
    assert first != second


@pytest.mark.parametrize("way", WAYS)
def test_each_way_of_calling_input_fn(way, two, alone):
    first, second = both(two, "ways")
    assert first == second
    assert_close(first[way], alone("ways")[way])


def test_four_hosts(four, alone):
    results = four.each("ways")
    assert len(results) == 4
    for result in results:
        assert result == results[0]
        assert_close(result["PER_HOST_V1"], alone("ways")["PER_HOST_V1"])


@pytest.mark.parametrize(
    ("name", "tolerance"),
    [
        ("with_dropout", 1e-6),
        # Batch norm divides by deviations. Their sums over hosts have another order,
        # which changes results by 2e-6 on some processors.
        ("with_state", 5e-6),
        ("last_batches", 1e-6),
        ("ends_earlier", 1e-6),
    ],
)
def test_training_matches_one_host(name, tolerance, two, alone):
    first, second = both(two, name)
    assert first == second
    expected = alone(name)
    assert first.pop("checkpoints", None) == expected.pop("checkpoints", None)
    assert_close(first, expected, tolerance)


@pytest.mark.parametrize(
    "name", ["spread", "shared_slots", "trees", "spanning", "tables"]
)
def test_sharded_replicas_and_slots_match_one_host(name, two, alone):
    first, second = both(two, name)
    expected = alone(name)
    for key in [key for key in first if key.startswith("predicted")]:
        # Each host predicts its own input.
        predicted = first.pop(key) + second.pop(key)
        np.testing.assert_allclose(predicted, expected.pop(key), atol=1e-6)
    assert first == second
    assert_close(first, expected)


@pytest.mark.slow
def test_networks_on_the_cores_of_two_hosts(start, alone):
    first, second = both(start("networks", ["networks"]), "networks")
    assert first == second
    for network, expected in alone("networks").items():
        assert_close(first[network], expected)


def test_all_hosts_run_the_executables_of_one(two, alone):
    first, second = both(two, "stored")
    expected = alone("stored")
    modes = [
        [name.partition("-")[0] for name in each.pop("ran")]
        for each in (first, second, expected)
    ]
    # Hosts predict independently, and the second host has other devices.
    whole = ["train", "eval", "infer"]
    assert modes == [whole, whole[:2], whole]
    predicted = first.pop("predicted") + second.pop("predicted")
    np.testing.assert_allclose(predicted, expected.pop("predicted"), atol=1e-6)
    assert first == second
    assert_close(first, expected)


def test_all_hosts_skip_a_checkpoint_that_is_corrupt_on_one(two, base):
    first, second = both(two, "damaged_part")
    assert first == second
    expected = spread_scenarios.estimator_of(Here(str(base / "whole")), None)
    expected.train(spread_scenarios.dealt, max_steps=8)
    assert_close(first, spread_scenarios.weights(expected))
    message = "ckpt-4.h5' is truncated or corrupt. Using"
    for host in range(2):
        assert message in two.log(host)


def test_checkpoints_are_read_on_other_numbers_of_hosts(first_part, two, four, base):
    del first_part
    directory = base / "four" / "moved"
    # The stems have no tokens of saves.
    names = {path.stem for path in directory.glob("model.ckpt-*.shard*")}
    written = {0: 1, 4: 1, 8: 2, 12: 4}
    assert names == {
        f"model.ckpt-{step}.shard-{number}-of-{count}"
        for step, count in written.items()
        for number in range(count)
    }
    here = Here(str(directory))
    estimator = spread_scenarios.estimator_of(here, None)
    last = spread_scenarios.part(estimator, spread_scenarios.LAST_STEP, here)
    undisturbed = Here(str(base / "alone" / "unmoved"))
    expected = spread_scenarios.undisturbed(undisturbed)
    for each in two.each("moved"):
        assert_close(each, expected[1])
    for each in four.each("moved"):
        assert_close(each, expected[2])
    assert_close(last, expected[3])


def test_unused_batches_of_the_longer_input_are_logged(two):
    for host in range(2):
        assert (
            "The input of host 1 has ended after 5 steps, so that training "
            "ends on all hosts. Unused batches: host 0 has"
        ) in two.log(host)
    assert both(two, "ends_earlier")[0]["step"] == 5


def test_hosts_agree_on_a_seed(two, alone):
    first, second = both(two, "without_seed_and_directory")
    assert first == second
    # Other trainings have another seed.
    kernel = "dense/kernel"
    assert not np.allclose(first["weights"][kernel], alone("with_dropout")[kernel])


def test_hosts_agree_on_a_directory(two):
    first, second = both(two, "without_seed_and_directory")
    assert first == second
    assert first["latest"] == os.path.join(first["directory"], "model.ckpt-8")
    shutil.rmtree(first["directory"])


@pytest.mark.parametrize("name", ["stop_requests", "callbacks"])
def test_one_host_stops_all(name, two, alone):
    first, second = both(two, name)
    assert first == second
    assert first["step"] == 8
    assert first["checkpoints"] == ["model.ckpt-0.h5", "model.ckpt-8.h5"]
    expected = alone(name)
    assert_close(first["weights"], expected["weights"])
    assert_close(first.get("epochs"), expected.get("epochs"))


def test_callbacks_write_each_file_once(two, alone):
    first, second = both(two, "written_files")
    expected = alone("written_files")
    for each in (first, second):
        assert_close(each.pop("weights"), expected["weights"])
    del expected["weights"]
    assert first == second == expected
    names = [f"{epoch}.weights.h5" for epoch in (1, 2, 3)]
    assert first["files"] == [*names, "rows.csv"]
    assert first["rows"] == ["epoch", "0", "1", "2"]
    assert first["paths"] == [True, None]


def test_all_hosts_save_when_one_host_is_due(two):
    first, second = both(two, "time_based")
    assert first == second
    # The host is due after the first loop, and all save after the second.
    assert first == dict.fromkeys("01", [0, 8, 12])


def test_timed_loops_and_saves(two):
    first, second = both(two, "by_seconds")
    assert first == second
    runs = [int(step) for step in first["runs"]]
    assert runs[0] == 1 and runs[-1] == 12
    # Hosts agree on a save after one loop, and save after the next.
    assert first["saves"] == sorted({0, *runs[1::2], runs[-1]})


def test_host_call_has_the_examples_of_all_hosts(two, alone):
    first, second = both(two, "host_calls")
    assert second["seen"] == []
    assert first == alone("host_calls")
    assert first["seen"][-1] == [*range(5 * BATCH, 6 * BATCH)]


def test_signal_to_one_host_stops_all_and_training_resumes(two):
    first, second = both(two, "signals")
    assert first == second
    assert first["code"] == 143
    assert first["checkpoints"] == ["model.ckpt-0.h5", "model.ckpt-8.h5"]
    assert first["resumed"] == first["undisturbed"]
    assert first["has its own state"]


@pytest.mark.parametrize(
    ("hosts", "sizes"),
    [(hosts, sizes) for hosts, cases in SIZES.items() for sizes in cases],
)
def test_evaluation_counts_every_example_once(hosts, sizes, two, four, alone):
    results = {2: two, 4: four}[hosts].each("evaluations")
    assert len(results) == hosts
    own = [result[str(sizes)] for result in results]
    assert all(each == own[0] for each in own)
    assert_close(own[0], alone("evaluations")[str(sizes)])


def test_predictions(two, alone):
    first, second = both(two, "predictions")
    expected = alone("predictions")
    rows = first["rows"] + second["rows"]
    assert [row[0] for row in rows] == [row[0] for row in expected["rows"]]
    assert_close(rows, expected["rows"])
    assert (len(first["rows"]), len(second["rows"])) == (19, 3)


def test_host_may_stop_its_predictions_early(two, alone):
    first, second = both(two, "predictions")
    assert first["few"] == first["rows"]
    assert second["few"] == second["rows"][:1]
    assert first["weights"] == second["weights"]
    assert_close(first["weights"], alone("predictions")["weights"])


def test_train_and_evaluate(two, base):
    first, second = both(two, "train_and_evaluate")
    assert first == second
    assert first["evaluated"] == [4, 8, 12]
    here = Here(str(base / "alone" / "evaluated"))
    expected = other_scenarios.train_and_evaluate(here, exporters=[])
    assert_close(first["metrics"], expected["metrics"])
    assert_close(first["weights"], expected["weights"])
    (export,) = first["exports"]
    assert os.path.isfile(os.path.join(export, "saved_model.pb"))
    final = base / "two" / "train_and_evaluate" / "export" / "final"
    assert os.listdir(final) == [os.path.basename(export)]


def test_the_chief_exports(two, base):
    first, second = both(two, "exports")
    assert first == second
    exports = base / "two" / "exports" / "export"
    assert os.listdir(exports) == [os.path.basename(first["path"])]
    assert (exports / first["path"] / "saved_model.pb").is_file()


def test_one_host_writes_event_files_and_metrics(two, base):
    directories = [path.parent for path in base.glob("two/**/events.*")]
    # The part of one host in a training also has a file.
    directories.remove(base / "two" / "elastic")
    directories.remove(base / "two" / "moved" / "eval")
    others = spread_scenarios.SCENARIOS | caught_scenarios.SCENARIOS
    writing = {*ON_TWO} - others.keys()
    assert len(directories) == len({*directories}) > len(writing)
    files = [*base.glob("two/**/metrics.jsonl")]
    assert len(files) > len(writing)
    for file in files:
        lines = [json.loads(line) for line in file.read_text().splitlines()]
        steps = [line["step"] for line in lines if "time/steps" not in line]
        # A step may be evaluated several times.
        expected = steps if file.parent.name.startswith("eval") else {*steps}
        assert steps == sorted(expected), file


OF_HOST_0 = "resume with the state of process 0"


def test_each_host_saves_its_iterator_and_callbacks(base, two):
    del two
    prefix = str(base / "two" / "elastic" / "model.ckpt-8")
    saved = SaveFiles.at(prefix)
    files = ResumeFiles.from_save(saved)
    assert files.positions == tuple(saved.position(host, 2) for host in range(2))
    assert files.callbacks == tuple(saved.callbacks(host, 2) for host in range(2))


def test_training_continues_on_other_numbers_of_hosts(
    first_part, two, four, alone, base, caplog
):
    assert first_part["code"] == 143
    parts = [first_part, two.each("elastic")[0], four.each("elastic")[0]]
    here = Here(str(base / "four" / "elastic"))
    with caplog.at_level(logging.WARNING, "keras_tpu_estimator"):
        parts.append(training_scenarios.elastic(here, until=1000))
    losses = {}
    for part, last in zip(parts, [*ELASTIC_STEPS.values(), ELASTIC_END], strict=True):
        losses |= part["losses"]
        assert [*losses][-1] == str(last)
    undisturbed = Here(str(base / "alone" / "undisturbed"))
    expected = training_scenarios.elastic(undisturbed, until=1000)
    assert_close(losses, expected["losses"], tolerance=2e-5)
    assert_close(parts[-1]["weights"], expected["weights"], tolerance=2e-5)
    assert CALLS_CHANGED.format(4, 1) in caplog.text
    # After a change of their number, hosts resume with the state of host 0.
    assert [part["state of host"] for part in parts] == [None, 0, 0, 0]
    assert four.each("elastic")[3]["state of host"] == 0
    assert OF_HOST_0 in four.log(0)
    assert OF_HOST_0 in caplog.text
    for ended, before, now in ((two, 1, 2), (four, 2, 4)):
        for host in range(now):
            assert CALLS_CHANGED.format(before, now) in ended.log(host)


def test_hosts_continue_after_an_error_that_all_catch(two, alone):
    first, second = both(two, "caught")
    assert first == second
    assert first["error"] == "NanLossDuringTrainingError: NaN loss."
    assert_close(first["weights"], alone("caught")["weights"])


def test_callbacks_assign_equal_values(two, alone):
    first, second = both(two, "assigned")
    assert first["weights"] == second["weights"]
    assert_close(first["weights"], alone("assigned")["weights"])
    assert first["predicted"] == second["predicted"] == 4


def test_callbacks_that_assign_different_values_are_an_error(two):
    first, second = both(two, "assigned")
    assert first == second
    for name, of_two in (
        ("others", "host 1 has assigned values of checksum"),
        ("one", "host 0 has assigned none, host 1 has assigned values"),
    ):
        for event in ("epoch", "train"):
            error = first[f"{name} {event}"]
            assert "ValueError: Callbacks and hooks must assign" in error
            assert "for 'dense/kernel', host 0 has assigned" in error
            assert of_two in error
        # The values were not saved.
        assert first[name] == ["model.ckpt-0.h5"]
    assert "which evaluate one model together" in first["evaluated"]


def test_values_that_are_not_finite_are_an_error_on_all_hosts(two):
    first, second = both(two, "not_saved")
    assert first == second
    for error in first.values():
        assert error.startswith("NanLossDuringTrainingError: The trained")
        assert "'dense/kernel' must be finite after step 4" in error


def test_batches_of_different_shapes_are_an_error(two):
    first, second = both(two, "unlike")
    assert first == second
    for error in first.values():
        assert (
            "For features['ids'], host 0 has float32 of shape (batch, 5); "
            "host 1 has float32 of shape (batch, 3)" in error
        )


def test_evaluations_leave_no_keys_in_the_coordinator(two):
    assert [each["keys"] for each in both(two, "remembered")] == [[], []]


def test_requests_to_the_coordinator(two):
    """A round of an agreement needs three or four requests from each host."""
    for each in both(two, "requests"):
        # Four for the input, and four to agree whether to stop.
        assert 0 < each["loop"] <= 8.8
        assert 0 < each["save"] <= 7 * 4
        assert 0 < each["evaluation"] <= 6 * 4
        last = [name for name in each["files"] if "ckpt-26" in name]
        # The main file, and the iterator state of each host.
        assert len(last) == 1 + 2


def test_nan_on_one_host_ends_all_hosts(four, base):
    assert four.code == 1
    errors = [result["error"] for result in four.each("not_a_number")]
    assert len(errors) == 4
    for error in errors:
        assert error.startswith("NanLossDuringTrainingError")
        assert error == errors[0]
    names = os.listdir(base / "four" / "not_a_number")
    saved = {name for name in names if name.endswith(".h5")}
    assert saved == {"model.ckpt-0.h5"}
