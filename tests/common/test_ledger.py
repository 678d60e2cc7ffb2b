"""Tests of the accounts of time."""

import pytest

from keras_tpu_estimator.base.common import ledger
from keras_tpu_estimator.base.common.ledger import (
    ACCOUNTS,
    Charging,
    StepSeconds,
    TimeLedger,
)


class Clock:
    """A clock that tests move."""

    now = 100.0

    def __call__(self):
        return self.now

    def sleep(self, seconds):
        self.now += seconds


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def charged(clock):
    """The ledger of this thread, in the account `other`."""
    times = TimeLedger(clock=clock)
    times.enter(ledger.OTHER)
    with Charging(times):
        yield times


def of(times):
    """Returns the accounts that are not empty."""
    return {n: round(secs, 6) for n, secs in times.seconds().items() if secs}


def test_blocks_pause_the_outer_ones(clock, charged):
    clock.sleep(1)
    with ledger.calling_hooks:
        clock.sleep(2)
        with ledger.saving:
            clock.sleep(4)
            with ledger.stepping:
                clock.sleep(8)
        clock.sleep(16)
    clock.sleep(32)
    assert of(charged) == {"other": 33, "hooks": 18, "saving": 4, "steps": 8}


def test_accounts_add_up_to_the_time(clock):
    times = TimeLedger(before=5, clock=clock)
    clock.sleep(1)
    times.enter("other")
    clock.sleep(2)
    assert set(times.seconds()) == set(ACCOUNTS)
    assert of(times) == {"start": 5, "between_calls": 1, "other": 2}


def test_errors_end_blocks(clock, charged):
    with pytest.raises(KeyboardInterrupt), ledger.restoring:
        clock.sleep(1)
        raise KeyboardInterrupt
    clock.sleep(2)
    assert of(charged) == {"restore": 1, "other": 2}


def test_interrupted_blocks_end_with_the_call(clock, charged):
    # A signal arrived after `enter`, and before the block began.
    charged.enter("hooks")
    charged.enter("steps")
    charged.leave_all()
    clock.sleep(1)
    charged.leave()
    clock.sleep(1)
    assert of(charged) == {"between_calls": 2}


def test_blocks_without_a_ledger_do_nothing(clock, charged):
    with Charging(None), ledger.stepping:
        clock.sleep(1)
        ledger.note_compiling(1.0, compiles_next=True)
        ledger.note_step(5)
        ledger.note_save()
    assert of(charged) == {"other": 1} and not charged.step
    assert ledger.current() is charged


def test_parts_of_a_compilation_count_once(clock, charged):
    with ledger.stepping:
        clock.sleep(1)
        for _ in range(500):
            # Functions that are traced inside another one.
            clock.sleep(0.01)
            ledger.note_compiling(0.01, compiles_next=False)
            clock.sleep(0.01)
        ledger.note_compiling(10.0, compiles_next=False)
        clock.sleep(2)
        ledger.note_compiling(2.0, compiles_next=True)
        clock.sleep(4)
        # A process that is killed meanwhile was compiling.
        assert of(charged) == {"steps": 1, "compile": 16}
        ledger.note_compiling(4.0, compiles_next=False)
        clock.sleep(8)
    assert of(charged) == {"steps": 9, "compile": 16}


def test_blocks_inside_a_compilation_keep_their_time(clock, charged):
    with ledger.calling_hooks:
        clock.sleep(1)
        with ledger.waiting_for_input:
            clock.sleep(2)
            with ledger.stepping:
                clock.sleep(4)
        ledger.note_compiling(7.0, compiles_next=False)
    assert of(charged) == {"compile": 1, "input": 2, "steps": 4}


def test_steps_after_the_resumed_one_are_lost(clock, charged):
    charged.resume(10)
    for step in (20, 30):
        with ledger.stepping:
            clock.sleep(3)
        ledger.note_step(step)
        if step == 20:
            ledger.note_save()
    charged.resume(20)
    assert of(charged) == {"steps": 3, "lost_steps": 3}
    with ledger.stepping:
        clock.sleep(1)
    ledger.note_step(25)
    assert charged.steps.points[-2:] == ((20, 3.0), (25, 4.0))
    charged.resume(5)
    assert of(charged) == {"lost_steps": 7}
    assert charged.steps.first == 5


def test_seconds_in_background(clock, charged):
    write = ledger.in_background(lambda: None)
    with Charging(None):
        write()
    assert 0 < charged.background < 1


@pytest.mark.parametrize(
    ("step", "seconds"), [(0, 0), (10, 0), (15, 1), (20, 2), (30, 6), (31, 6)]
)
def test_seconds_until_a_step(step, seconds):
    assert StepSeconds(((10, 0.0), (20, 2.0), (30, 6.0))).until(step) == seconds


def test_newest_points_stay_exact():
    steps = StepSeconds(((0, 0.0),))
    for step in range(1, 1001):
        steps = steps.to(step, step**1.5)
    assert len(steps.points) < 30
    assert steps.first == 0
    for step in range(994, 1001):
        assert steps.until(step) == step**1.5
    for step in range(100, 1000, 100):
        assert steps.until(step) == pytest.approx(step**1.5, rel=0.2)


@pytest.mark.parametrize("points", [(), ((2, 0.0), (1, 1.0)), ((1, 1.0), (2, 0.0))])
def test_points_must_ascend(points):
    with pytest.raises(ValueError, match="ascending order"):
        StepSeconds(points)


def test_age_of_the_process():
    assert 0 < ledger.process_age() < 86400
