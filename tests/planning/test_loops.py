"""Instructions count once for each time that they run."""

import collections

import pytest

from keras_tpu_estimator.planning import hlo, loops
from keras_tpu_estimator.planning.loops import trip_count
from tests.planning import recorded


def _runs(runs):
    return {run.instruction.name: run for run in runs}


def test_steps_are_those_of_the_longest_loop():
    parts = loops.split(hlo.parse(recorded.LOOPS), steps=3)
    step, others = _runs(parts.step), _runs(parts.outside)
    assert step["square"].times == 1
    # From 1 to 9 by two.
    assert step["tanh.1"].times == 4
    assert step["tanh.1"].is_known
    assert "loss" in others
    assert not step.keys() & others.keys()
    # The reducer of a sum is not an instruction that runs.
    assert "sum" not in step
    assert parts.share == 1


def test_one_step_is_the_complete_program():
    parts = loops.split(hlo.parse(recorded.LOOPS), steps=1)
    assert not parts.outside
    assert _runs(parts.step)["tanh.1"].times == 3 * 4


def test_two_steps_in_one_iteration():
    parts = loops.split(hlo.parse(recorded.LOOPS), steps=6)
    assert parts.share == 0.5


def test_a_program_without_loops_makes_all_steps():
    text = recorded.entry("%x = f32[] parameter(0)")
    parts = loops.split(hlo.parse(text), steps=5)
    assert list(_runs(parts.step)) == ["x"]
    assert parts.share == 1 / 5


def test_a_loop_of_another_length_is_not_over_steps():
    parts = loops.split(hlo.parse(recorded.LOOPS), steps=7)
    assert _runs(parts.step)["tanh.1"].times == 3 * 4
    assert not parts.outside
    assert parts.share == 1 / 7


def test_loop_over_steps_has_one_iteration_per_step():
    again = recorded.LOOPS.replace(
        "  %last =",
        "  %short = (s32[], f32[8,128]{1,0}) while(%first), "
        "condition=%condition, body=%other_body\n  %last =",
    )
    long = again.replace(
        "%condition (q.1",
        "%other_body (o: (s32[])) -> (s32[]) {\n"
        + "  %more = f32[] add(%o, %o)\n" * 40
        + "}\n\n%condition (q.1",
    )
    parts = loops.split(hlo.parse(long), steps=3)
    assert "square" in _runs(parts.step)
    assert "more" in _runs(parts.outside)


def test_nothing_runs_without_an_entry():
    assert loops.split(hlo.parse(""), steps=3) == loops.Parts((), ())


def test_fused_and_called_instructions_run():
    inner = "%one (a: f32[2]) -> f32[2] {\n  %in = f32[2] tanh(%a)\n}\n"
    inner += inner.replace("one", "two").replace("%in", "%in.2")
    inner += inner.replace("one", "three").replace("%in ", "%in.3 ")
    module = hlo.parse(
        recorded.entry(
            "%f = f32[2] fusion(%x), kind=kLoop, calls=%one",
            "%s = (f32[2], f32[2]) call-start(%x), to_apply=%two",
            "%d = f32[2] call-done(%s), to_apply=%three",
            "%r = f32[] reduce(%x, %z), to_apply=%three",
            others=inner,
        )
    )
    runs = loops.split(module, steps=1).step
    assert collections.Counter(run.instruction.name for run in runs) == {
        name: 1 for name in ("f", "in", "s", "in.2", "d", "r")
    }
    assert [run.instruction.name for run in runs if run.is_fused] == ["in"]


@pytest.mark.parametrize(
    ("old", "new", "count"),
    [
        ("", "", 4),
        ("constant(9)", "constant(8)", 4),
        ("constant(9)", "constant(1)", 0),
        # It does not count to a number, or not in equal steps, or down.
        ("constant(9)", "parameter(1)", None),
        ("add(%one.1, %next)", "multiply(%one.1, %next)", None),
        ("compare(%i.1, %nine), direction=LT", "not(%i.1)", None),
        ("%nine), direction=LT", "%nine), direction=GT", None),
        ("condition=%inner_condition", "condition=%missing", None),
        # The counter has another position in the state.
        (
            "%i.1 = s32[] get-tuple-element(%p.1), index=0",
            "%i.1 = s32[] get-tuple-element(%p.1), index=1",
            None,
        ),
        # XLA's annotation contains the count.
        (
            "body=%inner_body",
            'body=%inner_body, backend_config={"known_trip_count":{"n":"77"}}',
            77,
        ),
    ],
)
def test_trip_counts(old, new, count):
    module = hlo.parse(recorded.LOOPS.replace(old, new, 1))
    body = module.computations["body"]
    found = trip_count(body, body.by_name["inner"], module.computations)
    assert found == count


def test_loops_of_unknown_length_count_once():
    text = recorded.LOOPS.replace("constant(9)", "parameter(1)")
    run = _runs(loops.split(hlo.parse(text), steps=3).step)["tanh.1"]
    assert (run.times, run.is_known) == (1, False)
