"""Tests hooks without an estimator: timers, call order, savers, listeners."""

import collections
import types

import jax
import jax.numpy as jnp
import keras
import numpy as np
import pytest
from helpers import LoopOf

import keras_tpu_estimator as kte
from keras_tpu_estimator.api.hooks.hook_list import (
    HookList,
    validate_hooks,
    validate_listeners,
)
from keras_tpu_estimator.hooks import CheckpointSaverHook
from keras_tpu_estimator.typing import Session

Pair = collections.namedtuple("Pair", ["left", "right"])


class Clock:
    """A clock that advances only when a test moves it."""

    def __init__(self):
        self.now = 50.0

    def __call__(self):
        return self.now


@pytest.mark.parametrize(
    "intervals",
    [{}, {"every_secs": 1, "every_steps": 1}, {"every_secs": None}],
)
def test_timer_has_one_interval(intervals):
    with pytest.raises(ValueError, match="Exactly one of `every_secs`"):
        kte.hooks.SecondOrStepTimer(**intervals)


def test_timer_is_due_at_first():
    timer = kte.hooks.SecondOrStepTimer(every_steps=10)
    assert timer.should_trigger_for_step(7)
    assert timer.should_trigger_for_step(7)
    assert timer.elapsed_since_last(7) is None


def test_timer_counts_steps():
    timer = kte.hooks.SecondOrStepTimer(every_steps=10)
    timer.update_last_triggered_step(7)
    due = [step for step in range(7, 30) if timer.should_trigger_for_step(step)]
    assert due == list(range(17, 30))


def test_timer_is_not_due_twice_at_one_step():
    timer = kte.hooks.SecondOrStepTimer(every_secs=0)
    timer.update_last_triggered_step(3)
    assert not timer.should_trigger_for_step(3)
    assert timer.should_trigger_for_step(4)


def test_timer_counts_seconds():
    clock = Clock()
    timer = kte.hooks.SecondOrStepTimer(every_secs=5.0, clock=clock)
    timer.update_last_triggered_step(1)
    clock.now += 4.9
    assert not timer.should_trigger_for_step(1000)
    clock.now += 0.2
    assert timer.should_trigger_for_step(1000)
    assert not timer.should_trigger_for_step(1)


def test_timer_returns_elapsed_steps_and_seconds():
    clock = Clock()
    timer = kte.hooks.SecondOrStepTimer(every_steps=5, clock=clock)
    timer.update_last_triggered_step(10)
    clock.now += 2.0
    assert timer.elapsed_since_last(18) == (8, 2.0)
    clock.now += 1.0
    assert timer.update_last_triggered_step(20) == (3.0, 10)
    assert timer.elapsed_since_last(20) == (0, 0.0)


def test_timer_may_be_reset():
    timer = kte.hooks.SecondOrStepTimer(every_steps=10)
    assert timer.last_triggered_step() is None
    assert timer.update_last_triggered_step(7) == (None, None)
    assert timer.last_triggered_step() == 7
    timer.reset()
    assert timer.last_triggered_step() is None
    assert timer.should_trigger_for_step(7)


VALUES = {"global_step": 4, "loss": 0.5, "dense/kernel": [1.0, 2.0]}


@pytest.mark.parametrize(
    "fetches, values",
    [
        ("loss", 0.5),
        (["loss", "global_step"], [0.5, 4]),
        (("loss",), (0.5,)),
        ({"a": "loss", "b": ["global_step"]}, {"a": 0.5, "b": [4]}),
        (Pair("loss", ("global_step",)), Pair(0.5, (4,))),
        ([], []),
        ({}, {}),
        ({"a": "loss", 1: "global_step"}, {"a": 0.5, 1: 4}),
        ({"a:0": "loss:0"}, {"a:0": 0.5}),
        (types.MappingProxyType({"a": ["loss"]}), {"a": [0.5]}),
    ],
)
def test_session_keeps_the_structure_of_fetches(fetches, values):
    answer = Session(VALUES.__getitem__).run(fetches)
    assert answer == values
    assert type(answer) in (type(values), np.ndarray)


@pytest.mark.parametrize(
    "fetches, names",
    [
        (None, set()),
        ("loss:0", {"loss"}),
        ({"a": "loss", 1: ("global_step", "loss")}, {"loss", "global_step"}),
        (types.MappingProxyType({"a": Pair("x", [])}), {"x"}),
    ],
)
def test_run_lists_all_fetches(fetches, names):
    hook = Recorder("a", [], fetches)
    run = HookList([hook], Session(VALUES.get)).before_run()
    assert {*run.fetches} == names
    assert len(run.fetches) == len(names)


def test_session_returns_numpy_arrays():
    kernel = Session(VALUES.__getitem__).run("dense/kernel")
    assert isinstance(kernel, np.ndarray)
    np.testing.assert_array_equal(kernel, [1.0, 2.0])


def test_session_refuses_unknown_names():
    with pytest.raises(KeyError, match="accuracy"):
        Session(VALUES.__getitem__).run(["loss", "accuracy"])


TENSORS = {
    "traced": lambda: jax.make_jaxpr(lambda x: use(x) or x)(1.0),
    "array": lambda: use(jnp.float32(0.5)),
    "variable": lambda: use(keras.Variable(0.5)),
    "number": lambda: use(3),
}


def use(tensor):
    """Passes a tensor inside a pytree where a name is expected."""
    kte.hooks.SessionRunArgs({"loss": ["loss", tensor]})


@pytest.mark.parametrize("kind", TENSORS)
def test_tensors_are_fetched_by_name_only(kind):
    with pytest.raises(
        TypeError,
        match=r"`fetches` must be given by name. Expected 'loss', .* "
        r"Received: .* Name a tensor in model_fn with kte\.identity\(x, name=",
    ):
        TENSORS[kind]()


def test_session_accepts_only_names():
    with pytest.raises(TypeError, match="`fetches` must be given by name"):
        Session(VALUES.__getitem__).run(["loss", 3])


def test_feed_dict_is_refused():
    assert kte.hooks.SessionRunArgs("loss", {}, None).fetches == "loss"
    with pytest.raises(ValueError, match="`feed_dict` .* `input_fn` yields"):
        kte.hooks.SessionRunArgs("loss", feed_dict={"x": 1})


@pytest.mark.parametrize(
    "action",
    [
        lambda session: session.saved_step("somewhere"),
        lambda session: session.save_checkpoint("somewhere"),
        lambda session: session.evaluate(None, None),
    ],
)
def test_only_training_saves_and_evaluates(action):
    with pytest.raises(RuntimeError, match=r"Pass it to `train\(hooks="):
        action(Session(VALUES.__getitem__))


class Recorder(kte.hooks.SessionRunHook):
    """Records every call."""

    def __init__(self, name, log, fetches=None):
        self.name, self.log, self.fetches = name, log, fetches

    def begin(self):
        self.log.append((self.name, "begin"))

    def after_create_session(self, session, coord):
        self.log.append((self.name, "session", coord))

    def before_run(self, run_context):
        self.log.append((self.name, "before"))
        return self.fetches and kte.hooks.SessionRunArgs(self.fetches)

    def after_run(self, run_context, run_values):
        self.log.append((self.name, "after", run_values.results))

    def end(self, session):
        self.log.append((self.name, "end", int(session.run("global_step"))))


def test_hooks_are_called_in_order_in_every_phase():
    log = []
    hooks = HookList(
        [Recorder("a", log, fetches="loss"), Recorder("b", log)],
        Session(VALUES.__getitem__),
    )
    hooks.begin()
    hooks.after_create_session()
    assert not hooks.before_run().after_run()
    hooks.end()
    assert log == [
        ("a", "begin"),
        ("b", "begin"),
        ("a", "session", None),
        ("b", "session", None),
        ("a", "before"),
        ("b", "before"),
        ("a", "after", 0.5),
        ("b", "after", None),
        ("a", "end", 4),
        ("b", "end", 4),
    ]


def test_values_have_the_fields_of_the_original():
    values = kte.hooks.SessionRunValues(0.5)
    assert (values.options, values.run_metadata) == (None, None)
    assert kte.hooks.SessionRunValues(0.5, None, None) == values


def test_values_are_those_after_the_run():
    values, log = dict(VALUES), []
    hooks = HookList([Recorder("a", log, "loss")], Session(values.__getitem__))
    run = hooks.before_run()
    values["loss"] = 0.25
    run.after_run()
    assert log[-1] == ("a", "after", 0.25)


def test_earlier_hooks_cannot_change_the_values_of_the_run():
    values, log = dict(VALUES), []

    class Halving(kte.hooks.SessionRunHook):
        def after_run(self, run_context, run_values):
            values["loss"] /= 2

    hooks = [Halving(), Recorder("a", log, "loss")]
    HookList(hooks, Session(values.__getitem__)).before_run().after_run()
    assert values["loss"] == 0.25
    assert log[-1] == ("a", "after", 0.5)


def test_hook_may_return_the_original_arguments():
    class Passing(Recorder):
        def before_run(self, run_context):
            return run_context.original_args

    log = []
    hooks = HookList([Passing("a", log)], Session(VALUES.__getitem__))
    hooks.before_run().after_run()
    assert log == [("a", "after", None)]


@pytest.mark.parametrize("phase", ["before_run", "after_run"])
def test_other_hooks_are_called_after_a_stop_request(phase):
    log = []
    stopping = kte.hooks.SessionRunHook()

    def stop(run_context, *values):
        run_context.request_stop()

    setattr(stopping, phase, stop)
    hooks = HookList([stopping, Recorder("b", log)], Session(VALUES.get))
    run = hooks.before_run()
    assert run.after_run()
    assert run.context.stop_requested
    assert log == [("b", "before"), ("b", "after", None)]


def test_every_run_has_its_own_context():
    hooks = HookList([], Session(VALUES.get))
    hooks.before_run().context.request_stop()
    assert not hooks.before_run().after_run()


def test_context_has_the_session():
    session = Session(VALUES.get)
    seen = []

    class Asking(kte.hooks.SessionRunHook):
        def before_run(self, run_context):
            seen.append(run_context.session)

    HookList([Asking()], session).before_run()
    assert seen == [session]


def test_base_hook_does_nothing():
    hooks = HookList([kte.hooks.SessionRunHook()], Session(VALUES.get))
    hooks.begin()
    hooks.after_create_session()
    assert not hooks.before_run().after_run()
    hooks.end()


@pytest.mark.parametrize("given", [None, [], (), iter(())])
def test_missing_hooks_become_an_empty_tuple(given):
    assert validate_hooks(given) == ()


def test_hooks_become_a_tuple_in_order():
    hooks = [kte.hooks.SessionRunHook(), Recorder("a", [])]
    assert validate_hooks(hooks) == tuple(hooks)
    assert validate_hooks(iter(hooks)) == tuple(hooks)


@pytest.mark.parametrize(
    "wrong", ["hook", None, kte.hooks.SessionRunHook, lambda: None]
)
def test_other_hooks_are_refused(wrong):
    hooks = [kte.hooks.SessionRunHook(), wrong]
    with pytest.raises(TypeError, match="must be SessionRunHook instances"):
        validate_hooks(hooks)


@pytest.mark.parametrize("wrong", [kte.hooks.SessionRunHook(), 3])
def test_hooks_must_be_in_a_list(wrong):
    with pytest.raises(
        TypeError, match=r"`evaluation_hooks` must be a list .*=\[hook\]"
    ):
        validate_hooks(wrong, "evaluation_hooks")


@pytest.mark.parametrize(
    "argument", ["training_hooks", "evaluation_hooks", "prediction_hooks"]
)
def test_error_names_the_invalid_hook_of_a_spec(argument):
    with pytest.raises(TypeError, match=f"All `{argument}` must be Session"):
        kte.TPUEstimatorSpec("infer", predictions=1.0, **{argument: ["hook"]})


def test_listeners_are_validated():
    listener = kte.hooks.CheckpointSaverListener()
    assert validate_listeners(None) == ()
    assert validate_listeners([listener]) == (listener,)
    with pytest.raises(TypeError, match="CheckpointSaverListener instances"):
        validate_listeners([listener, kte.hooks.SessionRunHook()])


class Listener(kte.hooks.CheckpointSaverListener):
    """Records every call, and may request a stop at one step."""

    def __init__(self, name, log, stop_at=None):
        self.name, self.log, self.stop_at = name, log, stop_at

    def begin(self):
        self.log.append(f"{self.name} begin")

    def before_save(self, session, global_step_value):
        self.log.append(f"{self.name} before {global_step_value}")

    def after_save(self, session, global_step_value):
        self.log.append(f"{self.name} after {global_step_value}")
        return global_step_value == self.stop_at

    def end(self, session, global_step_value):
        self.log.append(f"{self.name} end {global_step_value}")


class SavingSession(Session):
    """A session that only records the steps to save."""

    def __init__(self, values, note, saved_step=None):
        super().__init__(values.__getitem__, loop=LoopOf(values))
        self.values, self.note, self.last = values, note, saved_step

    def saved_step(self, directory):
        assert directory == "somewhere"
        return self.last

    def save_checkpoint(self, directory, basename, wait, retention):
        assert (directory, basename) == ("somewhere", "model.ckpt")
        self.last = self.values["global_step"]
        self.note(self.last)


def saved_by(steps, saved_step=None, **arguments):
    """Runs a saver over steps; returns its saves and the step where it stopped."""
    now, saves = {"global_step": steps[0]}, []
    saver = CheckpointSaverHook("somewhere", **arguments)
    hooks = HookList([saver], SavingSession(now, saves.append, saved_step))
    hooks.begin()
    hooks.after_create_session()
    for now["global_step"] in steps[1:]:
        if hooks.before_run().after_run():
            break
    hooks.end()
    return saves, now["global_step"]


@pytest.mark.parametrize(
    "steps, save_steps, saved_step, saves",
    [
        (range(8), 3, None, [0, 3, 6, 7]),
        (range(7), 3, None, [0, 3, 6]),
        (range(0, 21, 4), 5, None, [0, 8, 16, 20]),
        (range(5, 9), 2, 5, [7, 8]),
        (range(5, 9), 2, None, [5, 7, 8]),
        (range(5, 9), 100, 5, [8]),
        ([5], 2, 5, []),
        ([5], 2, None, [5]),
    ],
)
def test_saver_saves_at_the_start_between_and_at_the_end(
    steps, save_steps, saved_step, saves
):
    result = saved_by(steps, save_steps=save_steps, saved_step=saved_step)
    assert result == (saves, steps[-1])


@pytest.mark.parametrize("save_secs, saves", [(0, [0, 1, 2, 3]), (3600, [0, 3])])
def test_saver_counts_seconds(save_secs, saves):
    assert saved_by(range(4), save_secs=save_secs) == (saves, 3)


def test_saver_needs_one_interval():
    with pytest.raises(ValueError, match="Exactly one"):
        CheckpointSaverHook("somewhere")
    with pytest.raises(ValueError, match="Exactly one"):
        CheckpointSaverHook("somewhere", save_secs=1, save_steps=1)


def test_listeners_surround_every_save():
    log = []
    now = {"global_step": 0}
    saver = CheckpointSaverHook(
        "somewhere",
        save_steps=2,
        listeners=[Listener("a", log), Listener("b", log)],
    )
    session = SavingSession(now, lambda step: log.append(f"save {step}"))
    hooks = HookList([saver], session)
    hooks.begin()
    hooks.after_create_session()
    for now["global_step"] in (1, 2, 3):
        hooks.before_run().after_run()
    hooks.end()
    around = [
        [f"a before {n}", f"b before {n}", f"save {n}"]
        + [f"a after {n}", f"b after {n}"]
        for n in (0, 2, 3)
    ]
    assert log == ["a begin", "b begin", *sum(around, [])] + [
        "a end 3",
        "b end 3",
    ]


def test_listeners_are_called_for_the_checkpoint_that_training_resumes_from():
    log, saves = [], []
    saver = CheckpointSaverHook(
        "somewhere", save_steps=9, listeners=[Listener("a", log)]
    )
    session = SavingSession({"global_step": 4}, saves.append, saved_step=4)
    hooks = HookList([saver], session)
    hooks.begin()
    hooks.after_create_session()
    hooks.end()
    assert log == ["a begin", "a before 4", "a after 4", "a end 4"]
    assert saves == []


@pytest.mark.parametrize(
    "stop_at, saves, stopped",
    [
        (2, [0, 2], 2),
        # The first save is too early to stop, and the last one too late.
        (0, [0, 2, 4, 5], 5),
        (5, [0, 2, 4, 5], 5),
    ],
)
def test_listener_may_stop_training(stop_at, saves, stopped):
    log = []
    listeners = [Listener("a", log, stop_at), Listener("b", log)]
    result = saved_by(range(6), save_steps=2, listeners=listeners)
    assert result == (saves, stopped)
    # A stop request does not prevent calls of the other listeners.
    assert f"b after {stop_at}" in log


def test_base_listener_does_nothing():
    listener = kte.hooks.CheckpointSaverListener()
    assert saved_by(range(3), save_steps=2, listeners=[listener]) == ([0, 2], 2)
