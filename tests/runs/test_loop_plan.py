"""Tests the sizes of training loops, by count and by a simulated clock."""

import itertools

import pytest

from keras_tpu_estimator.api.config.tpu_config import IterationsPerLoop
from keras_tpu_estimator.runs.plan import LoopPlan, LoopSpeed, SizesBetween


class Clock:
    """A clock that advances only when a test moves it."""

    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


def plan_of(iterations, steps, clock=None):
    parsed = IterationsPerLoop.parse(iterations)
    return LoopPlan(parsed, steps, clock or Clock())


def sizes_run(iterations, steps, seconds_of, loops=None):
    """Returns the sizes of loops if a loop of `n` steps takes `seconds_of(n)`."""
    clock = Clock()
    plan = plan_of(iterations, steps, clock)
    sizes = []
    for size in itertools.islice(plan, loops):
        clock.now += seconds_of(size)
        plan.ran(size)
        sizes.append(size)
    return sizes


@pytest.mark.parametrize(
    "iterations, steps, sizes",
    [
        (4, 10, [4, 4, 2]),
        (4, 8, [4, 4]),
        (4, 3, [3]),
        (1, 3, [1, 1, 1]),
        (100, 1, [1]),
        (4, 0, []),
        ("1s", 0, []),
    ],
)
def test_count_gives_equal_loops_and_a_remainder(iterations, steps, sizes):
    assert list(plan_of(iterations, steps)) == sizes


def test_count_without_a_limit_continues():
    endless = plan_of(3, None)
    assert list(itertools.islice(endless, 50)) == [3] * 50


@pytest.mark.parametrize("seconds", [0.001, 10.0])
def test_count_ignores_the_clock(seconds):
    assert sizes_run(4, 12, lambda size: size * seconds) == [4, 4, 4]


def test_duration_starts_with_one_step_and_grows_at_most_eightfold():
    sizes = sizes_run("10s", None, lambda size: 0.1 * size, loops=8)
    # The first loop has no duration because its start is unknown.
    assert sizes == [1, 1, 8, 64, 100, 100, 100, 100]


@pytest.mark.parametrize(
    ("step_seconds", "size", "chunk"),
    [(0.001, 100, 100), (0.1, 100, 100), (0.5, 20, 50), (30.0, 1, 50)],
)
def test_next_call_starts_with_the_measured_speed(step_seconds, size, chunk):
    clock, speed = Clock(), LoopSpeed()
    iterations = IterationsPerLoop.parse("10s")
    first = LoopPlan(iterations, None, clock, speed=speed)
    for steps in itertools.islice(first, 9):
        clock.now += step_seconds * steps
        first.ran(steps)
    later = LoopPlan(iterations, None, clock, speed=speed)
    assert (next(iter(later)), later.chunk) == (size, chunk)
    assert later.capacity == first.capacity


def test_steady_loop_does_not_exceed_its_duration():
    for step_seconds in (0.003, 0.07, 0.9):
        sizes = sizes_run("5s", None, lambda n, s=step_seconds: n * s, 20)
        assert sizes[-1] * step_seconds <= 5.0 < 2 * sizes[-1] * step_seconds


def test_loops_of_a_duration_complete_all_steps():
    sizes = sizes_run("7s", 1000, lambda size: 0.2 + 0.03 * size)
    assert sum(sizes) == 1000
    assert len(sizes) < 12


def test_step_longer_than_the_duration_is_one_loop():
    assert sizes_run("1s", 4, lambda size: 30.0 * size) == [1, 1, 1, 1]


def test_duration_adapts_to_slower_steps():
    clock = Clock()
    plan = plan_of("8s", None, clock)
    for number, size in enumerate(itertools.islice(plan, 30)):
        clock.now += size * (0.01 if number < 10 else 1.0)
        plan.ran(size)
        if number == 10:
            assert size == 800
    assert next(iter(plan)) == 8


def test_stopped_clock_is_handled():
    assert sizes_run("1s", 20, lambda size: 0.0) == [1, 1, 8, 10]


def test_remaining_steps_limit_a_timed_loop():
    sizes = sizes_run("10s", 20, lambda size: 0.1 * size)
    assert sizes == [1, 1, 8, 10]


def test_chunk_has_the_size_of_a_full_loop():
    plan = plan_of(4, 10)
    assert [(size, plan.chunk) for size in plan] == [(4, 4), (4, 4), (2, 4)]
    assert plan_of("30s", 10).chunk == 50


@pytest.mark.parametrize(
    "iterations, steps, capacity", [(4, 10, 4), (100, 3, 100), ("30s", 10, 100)]
)
def test_program_has_room_for_a_full_loop(iterations, steps, capacity):
    assert plan_of(iterations, steps).capacity == capacity


def test_sizes_may_be_read_ahead_of_runs():
    clock = Clock()
    plan = plan_of("10s", 6, clock)
    assert list(plan) == [1] * 6
    clock.now += 1
    plan.ran(1)
    assert list(plan) == []


def followed(ends, steps, seconds_of, loops=None):
    """Returns the sizes of loops that end where hooks need it."""
    clock = Clock()
    plan = LoopPlan(None, steps, clock)
    plan.end_at(ends)
    sizes = []
    for size in itertools.islice(plan, loops):
        clock.now += seconds_of(size)
        plan.ran(size)
        sizes.append(size)
    return sizes


def test_loops_without_a_length_end_where_hooks_need_it():
    sizes = followed([1, 3, 3, 10, 12], 14, lambda size: 2.0 * size)
    assert [*itertools.accumulate(sizes)] == [
        *(1, 3, 4, 5, 6, 7, 8, 10, 12),
        *(13, 14),
    ]


def test_loops_between_ends_last_about_a_second():
    every = itertools.count(100, 100)
    quick = followed(every, None, lambda size: 1e-4 * size, loops=25)
    assert quick[-5:] == [100] * 5
    slow = followed(itertools.count(100, 100), 2000, lambda n: 0.1 * n)
    assert max(slow) * 0.1 <= 2 and {100 * n for n in range(1, 21)} <= {
        *itertools.accumulate(slow)
    }


def test_chosen_length_overrides_hooks():
    plan = plan_of(4, 10)
    plan.end_at([1, 2, 3])
    assert list(plan) == [4, 4, 2]


@pytest.mark.parametrize("every", [10, 100, 1000, 1001, 100_000])
def test_loops_reach_each_end_in_few_runs(every):
    ends = itertools.count(every, every)
    sizes = followed(ends, 20 * every, lambda size: 1e-4 * size)
    assert sum(sizes) == 20 * every
    ended = {*itertools.accumulate(sizes)}
    assert ended >= {every * n for n in range(1, 21)}
    # Loops cover the distance of two ends, or about a second.
    assert max(sizes) == every or 1e-4 * max(sizes) <= 2
    assert len(sizes) < 500


def test_loops_before_the_ends_are_known_have_one_step():
    plan = LoopPlan(None, 30, speed=LoopSpeed(1000.0))
    sizes = iter(plan)
    assert [next(sizes), next(sizes)] == [1, 1]
    plan.end_at([7, 14])
    assert [*sizes] == [5, 7, 16]


def test_loops_of_unset_length_end_where_hooks_run():
    plan = LoopPlan(None, steps=4)
    plan.end_at([2, 3, 5])
    assert list(plan) == [2, 1, 1]


def test_sizes_between_ends_have_a_maximum():
    size_after = SizesBetween([1, 3, 10], most=4)
    assert [size_after(done) for done in (0, 1, 3, 7, 10)] == [1, 2, 4, 3, 4]
