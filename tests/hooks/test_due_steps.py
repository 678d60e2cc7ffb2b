"""Tests that hooks determine the ends of runs by `due_steps`, without a set length."""

import itertools

import pytest
from helpers import linear, model_fn_of, regression_data, repeated

import keras_tpu_estimator as kte
from keras_tpu_estimator.api.hooks.hook_list import HookList
from keras_tpu_estimator.api.hooks.stopping import NanLossHook
from keras_tpu_estimator.api.hooks.summary_saver import RecordedSummariesHook
from keras_tpu_estimator.files.summary.event_file import read_scalars

X, Y = regression_data(examples=32)


class Counting(kte.hooks.SessionRunHook):
    """Records the steps at which runs end, and requests some ends."""

    def __init__(self, every=None):
        self.every, self.ends = every, []

    def due_steps(self, start):
        if self.every is None:
            return super().due_steps(start)
        return itertools.count(start + self.every, self.every)

    def after_run(self, run_context, run_values):
        self.ends.append(int(run_context.session.run("global_step")))


class Other(Counting):
    """Overrides `after_run` without `due_steps`."""

    def after_run(self, run_context, run_values):
        super().after_run(run_context, run_values)


class AtEnd(kte.hooks.SessionRunHook):
    """Does nothing after runs."""

    def end(self, session):
        pass


def train(tmp_path, hooks, tpu_config=None, steps=12, **config):
    estimator = kte.TPUEstimator(
        model_fn_of(linear),
        config=kte.RunConfig(
            model_dir=str(tmp_path),
            tpu_config=tpu_config or kte.TPUConfig(),
            **{
                "save_summary_steps": None,
                "log_step_count_steps": None,
                **config,
            },
        ),
        use_tpu=False,
        train_batch_size=16,
    )
    estimator.train(repeated(X, Y), hooks=hooks, steps=steps)


@pytest.mark.parametrize(
    ("hook", "ends"),
    [
        (kte.hooks.SessionRunHook(), []),
        (AtEnd(), []),
        (Counting(), [6, 7, 8]),
        (Counting(4), [9, 13, 17]),
        (Other(4), [6, 7, 8]),
        (NanLossHook(), []),
        (kte.hooks.StopAtStepHook(last_step=9), [9]),
        (kte.hooks.StopAtStepHook(last_step=2), [6]),
        (kte.hooks.StopAtStepHook(last_step=8.5), [9]),
        (kte.hooks.StopAtStepHook(num_steps=3.5), [9]),
        (kte.hooks.CheckpointSaverHook("x", save_steps=2.5), [5, 8, 11]),
        (kte.hooks.CheckpointSaverHook("x", save_steps=0.5), [5, 6, 7]),
        (kte.hooks.StepCounterHook(10), [6, 16, 26]),
        (kte.hooks.StepCounterHook(None, 10), []),
        (kte.hooks.CheckpointSaverHook("x", save_steps=3), [5, 8, 11]),
        (kte.hooks.CallbackHook((), steps_per_epoch=4), [8, 12, 16]),
        (kte.hooks.CallbackHook(()), [6, 7, 8]),
        (kte.hooks.LoggingTensorHook("loss", 10), [6, 7, 8]),
        (RecordedSummariesHook(None, 10), [6, 16, 26]),
        (RecordedSummariesHook(None, 10, only_losses=True), []),
    ],
)
def test_hooks_return_the_steps_that_they_need(hook, ends):
    ends_of_runs = HookList([hook], None).run_ends(5)
    assert [*itertools.islice(ends_of_runs, 3)] == ends


def test_runs_end_where_hooks_need_it_and_at_checkpoints(tmp_path):
    hook = Counting(4)
    train(tmp_path, [hook], save_checkpoints_steps=5, keep_checkpoint_max=9)
    assert {4, 5, 8, 10, 12} <= {*hook.ends}
    for step in (0, 5, 10, 12):
        assert (tmp_path / f"model.ckpt-{step}.h5").exists()


def test_chosen_loop_length_is_kept(tmp_path):
    hook = Counting()
    train(tmp_path, [hook], kte.TPUConfig(iterations_per_loop=5))
    assert hook.ends == [5, 10, 12]


def test_loss_is_that_of_the_step(tmp_path, caplog):
    class Losses(kte.hooks.SessionRunHook):
        def __init__(self):
            self.losses = []

        def before_run(self, run_context):
            return kte.hooks.SessionRunArgs("loss")

        def after_run(self, run_context, run_values):
            self.losses.append(float(run_values.results))

    each, last = Losses(), Losses()
    last.due_steps = lambda start: [start + 12]
    train(tmp_path / "each", [each], tf_random_seed=1)
    caplog.set_level("INFO")
    train(tmp_path / "last", [last], tf_random_seed=1)
    assert last.losses[-1] == pytest.approx(each.losses[-1], rel=1e-6)
    assert f"Loss for final step: {each.losses[-1]:.6g}." in caplog.text


def test_summaries_of_losses_do_not_end_loops(tmp_path):
    def runs_and_losses(tpu_config):
        hook = Counting(20)
        directory = tmp_path / str(tpu_config is None)
        for steps in (33, 7):
            train(
                *(directory, [hook], tpu_config, steps),
                save_summary_steps=5,
                tf_random_seed=1,
            )
        events = read_scalars(directory.glob("*.tfevents.*"))
        losses = {
            step: values["loss"] for step, values in events.items() if "loss" in values
        }
        return len(hook.ends), losses

    each, expected = runs_and_losses(kte.TPUConfig(iterations_per_loop=1))
    runs, losses = runs_and_losses(None)
    assert [*losses] == [1, 6, 11, 16, 21, 26, 31, 34, 39]
    assert losses == pytest.approx(expected, rel=1e-6)
    assert runs < each
