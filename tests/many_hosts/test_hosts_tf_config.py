"""Tests a chief, a worker and an evaluator from TF_CONFIG."""

import os

import pytest

from tests.many_hosts import other_scenarios
from tests.many_hosts.launching import PROGRAM, launch_cluster
from tests.many_hosts.problems import Here, assert_close


@pytest.mark.usefixtures("forked_programs", "forked_trials")
def test_two_train_and_one_evaluates(tmp_path):
    name = "train_and_evaluate"
    cluster = launch_cluster(*PROGRAM, str(tmp_path), name)
    for ended in cluster.values():
        assert ended.code == 0, ended.text
    results = {kind: ended.each(name)[0] for kind, ended in cluster.items()}
    for kind in ("chief", "worker"):
        assert results[kind]["metrics"] is None
        assert results[kind]["weights"] == results["evaluator"]["weights"]
    assert results["evaluator"]["evaluated"][-1] == 12
    expected = other_scenarios.train_and_evaluate(
        Here(str(tmp_path / "alone")), exporters=[]
    )
    assert_close(results["evaluator"]["metrics"], expected["metrics"])
    (export,) = results["evaluator"]["exports"]
    assert os.path.isfile(os.path.join(export, "saved_model.pb"))
    # Each directory has one writer.
    for directory in ("", "eval"):
        names = os.listdir(tmp_path / name / directory)
        assert len([name for name in names if "tfevents" in name]) == 1
