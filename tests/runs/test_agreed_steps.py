"""Tests how hosts agree on the next steps of an input. Each host is a thread."""

import numpy as np
import pytest

from keras_tpu_estimator.base.common.topology import Topology
from keras_tpu_estimator.base.hosts.agreement import Hosts
from keras_tpu_estimator.engine.inputs.input_shapes import ElementSpec
from keras_tpu_estimator.engine.inputs.stacking import Stack
from keras_tpu_estimator.engine.inputs.unbatched import Unbatched
from keras_tpu_estimator.runs.agreed_steps import AgreedSteps


class Batches:
    """Returns prepared batches."""

    def __init__(self, *features):
        self.is_replicated = False
        self.batches = [Stack(each, None) for each in features]

    def take(self, steps):
        return self.batches.pop(0) if self.batches else None


class Pipeline:
    """Returns stacked steps of given sizes; a stack has steps of one size."""

    def __init__(self, first, sizes, is_replicated=False):
        self.is_replicated = is_replicated
        self.steps = []
        for size in sizes:
            self.steps.append(np.arange(first, first + size))
            first += size

    def take(self, steps):
        taken = []
        while self.steps and len(taken) < steps:
            if taken and len(self.steps[0]) != len(taken[0]):
                break
            taken.append(self.steps.pop(0))
        if not taken:
            return None
        return Stack({"number": np.stack(taken)}, None)


@pytest.fixture
def read(on_each, store, hosts_of):
    """Returns the steps that each host receives until its input ends."""

    def run(mode, sizes, at_once=4, is_replicated=False, shared=None):
        store.values.clear()
        firsts = shared or [100 * host for host in range(len(sizes))]
        replicas = Topology(2 * len(sizes), len(sizes))
        if shared:
            replicas = Topology(2, 4, hosts_per_replica=2)

        def take_all(host):
            hosts = hosts_of(host, len(sizes))
            pipeline = Pipeline(firsts[host], sizes[host], is_replicated)
            steps = AgreedSteps(mode, pipeline, hosts, replicas)
            taken = []
            while (each := steps.take(at_once)) is not None:
                numbers = each.features["number"].tolist()
                taken.append((each.is_part, each.part_sizes, numbers))
            return taken

        found = on_each(take_all, len(sizes))
        if any(isinstance(each, Exception) for each in found):
            return found
        steps = map(without_padding, zip(*found, strict=True))
        return [[*each] for each in zip(*steps, strict=True)]

    def without_padding(steps):
        """Returns the steps of all hosts without the padding for devices."""
        is_part, agreed, _ = steps[0]
        if not agreed:
            return [(is_part, numbers) for is_part, _, numbers in steps]
        assert all(each[:2] == (True, agreed) for each in steps)
        readers = steps[:: len(steps) // len(agreed)]
        parts = [n for *_, (n,) in readers]
        whole = [k for part, n in zip(parts, agreed, strict=True) for k in part[:n]]
        return [(False, [whole])] * len(steps)

    return run


def test_single_host_does_not_change_its_input():
    steps = AgreedSteps("train", Pipeline(0, [4, 4, 3]), Hosts(), Topology(2))
    taken = [steps.take(5), steps.take(5), steps.take(5)]
    assert [each and each.examples for each in taken] == [4, 3, None]
    assert not taken[0].is_part


@pytest.mark.parametrize("mode", ["train", "eval"])
def test_equal_steps_stay_on_their_hosts(read, mode):
    one, two = read(mode, [[2, 2, 2], [2, 2, 2]], at_once=2)
    assert one == [(True, [[0, 1], [2, 3]]), (True, [[4, 5]])]
    assert two == [(True, [[100, 101], [102, 103]]), (True, [[104, 105]])]


def test_hosts_agree_on_the_smaller_number_of_ready_steps(read):
    """One host's last batch is smaller and forms a separate stack."""
    one, two = read("eval", [[2, 2, 2], [2, 1]], at_once=4)
    assert one[0] == (True, [[0, 1]])
    assert two[0] == (True, [[100, 101]])
    assert one[1:] == two[1:] == [(False, [[2, 3, 102]]), (False, [[4, 5]])]


@pytest.mark.parametrize("sizes", [[[4, 3], []], [[], [2, 2, 1]]])
def test_host_without_examples_takes_part(read, sizes):
    one, two = read("eval", sizes)
    numbers = [n for is_part, steps in one for step in steps for n in step]
    assert one == two and len(numbers) == sum(map(sum, sizes))
    assert not any(is_part for is_part, _ in one)


def test_hosts_that_share_a_replica_count_once(read):
    sizes = [[2, 1], [2, 1], [2], [2]]
    each = read("eval", sizes, shared=[0, 0, 100, 100])
    assert each[0] == each[1]
    assert each[0][0] == (True, [[0, 1]])
    assert each[2][0] == (True, [[100, 101]])
    assert [one[1:] for one in each] == [[(False, [[2]])]] * 4


def test_hosts_that_share_a_replica_read_the_same(read):
    for error in read("train", [[2]] * 4, shared=[0, 0, 100, 101]):
        assert "must read the same examples" in str(error)
        assert "on hosts 2 to 3" in str(error)


def test_indivisible_batches_are_redistributed(read):
    one, two = read("train", [[3], [3]])
    assert one == two == [(False, [[0, 1, 2, 100, 101, 102]])]


def test_training_ends_with_the_first_input(read, caplog):
    one, two = read("train", [[2] * 7, [2] * 4], at_once=3)
    assert [len(steps) for _, steps in one] == [3, 1]
    assert [len(steps) for _, steps in two] == [3, 1]
    assert (
        "The input of host 1 has ended after 4 steps, so that training ends on "
        "all hosts. Unused batches: host 0 has 2 steps of 2 examples." in caplog.text
    )


def test_unequal_last_batches_are_trained_on(read):
    one, two = read("train", [[4, 4], [4, 1]])
    assert one[1] == two[1] == (False, [[4, 5, 6, 7, 104]])


def test_replicated_batches_must_be_equal_on_all_hosts(read):
    one, two = read("train", [[2, 2], [2, 2]], is_replicated=True)
    assert not one[0][0] and len(one[0][1]) == 2
    for error in read("train", [[2], [3]], is_replicated=True):
        assert isinstance(error, ValueError)
        assert "Received batches of [2, 3] examples" in str(error)


@pytest.fixture
def taken(on_each, store, hosts_of):
    """Returns the batches or the error of each host for prepared batches."""

    def run(*of_hosts, mode="train"):
        store.values.clear()
        count = len(of_hosts)

        def take_all(host):
            pipeline, hosts = Batches(*of_hosts[host]), hosts_of(host, count)
            topology = Topology(2 * count, count)
            steps = AgreedSteps(mode, pipeline, hosts, topology)
            batches = []
            while (each := steps.take(4)) is not None:
                batches.append(each.features)
            return batches

        return on_each(take_all, count)

    return run


def padded(length, size=2, dtype="float32"):
    return {"ids": np.zeros((1, size, length), dtype)}


@pytest.mark.parametrize("mode", ["train", "eval"])
@pytest.mark.parametrize(
    ("other", "told"),
    [
        (padded(3), "host 1 has float32 of shape (batch, 3)"),
        (padded(5, dtype="int32"), "host 1 has int32 of shape (batch, 5)"),
        ({"x": padded(5)["ids"]}, "host 1 has nothing"),
    ],
)
def test_batches_may_differ_only_in_size(other, told, mode, taken):
    """All hosts raise an error at the first batch with another difference."""
    for error in taken([padded(5)] * 2, [padded(5), other], mode=mode):
        assert isinstance(error, ValueError)
        assert (
            "For features['ids'], host 0 has float32 of shape (batch, 5); "
            f"{told}." in str(error)
        )


def test_host_without_batches_accepts_any_shape(taken):
    for batches in taken([padded(3, size=4)], [], mode="eval"):
        assert [each["ids"].shape for each in batches] == [(1, 4, 3)]


def test_element_spec_is_computed_once(taken, monkeypatch):
    made = []
    from_stack = ElementSpec.from_stack
    monkeypatch.setattr(
        ElementSpec,
        "from_stack",
        lambda stack: made.append(stack) or from_stack(stack),
    )
    each = [padded(5), padded(5), padded(5, size=1)]
    taken(each, [*each])
    assert len(made) == 2


def test_coordinator_does_not_transfer_examples(taken, store, monkeypatch):
    sent, write = [], store.key_value_set_bytes

    def noted(key, value, *args):
        sent.append(len(value))
        write(key, value, *args)

    monkeypatch.setattr(store, "key_value_set_bytes", noted)
    taken([padded(1000, size=400)], [padded(1000, size=1)], mode="eval")
    assert sent and max(sent) < 400


def with_rate(size, *rates):
    rates = np.array([rates], "float32")
    return {"x": np.zeros((1, size, 3)), "rate": Unbatched(rates)}


def test_shared_tensors_of_an_uneven_step_reach_all_cores(taken):
    batches = [with_rate(4, 0.5, 0.5)], [with_rate(2, 0.5, 0.5)]
    for (only,) in taken(*batches, mode="eval"):
        assert only["x"].shape == (1, 4, 3)
        np.testing.assert_array_equal(only["rate"].value, [[0.5] * 2])
    # A host without examples receives them from the other host.
    for (only,) in taken([with_rate(4, 0.5, 0.5)], [], mode="eval"):
        np.testing.assert_array_equal(only["rate"].value, [[0.5] * 2])


def test_shared_tensors_of_an_uneven_step_must_be_equal(taken):
    batches = [with_rate(4, 0.5, 0.5)], [with_rate(2, 0.5, 0.25)]
    for error in taken(*batches):
        assert isinstance(error, ValueError)
        assert "features['rate'] must be equal in the batches" in str(error)
