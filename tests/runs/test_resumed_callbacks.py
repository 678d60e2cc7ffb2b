"""Tests that callbacks and hooks of a resumed call continue their state."""

import collections
import glob
import logging
import os
import signal

import keras
import numpy as np
import pytest
from helpers import (
    batches_of,
    estimator_of,
    linear,
    model_fn_of,
    regression_data,
    repeated,
)

import keras_tpu_estimator as kte
from keras_tpu_estimator.api.hooks import state_sources
from keras_tpu_estimator.api.hooks.hook_states import HookStates, SavedState
from keras_tpu_estimator.api.hooks.session_run_hook import LoopHook
from keras_tpu_estimator.base.hosts.agreement import Hosts
from keras_tpu_estimator.checkpoints import SaveFiles
from keras_tpu_estimator.engine.device.run_state import Version
from keras_tpu_estimator.files.directory.save_files import ResumeFiles
from keras_tpu_estimator.runs import position_saver
from keras_tpu_estimator.runs.position_saver import PositionSaver

X, Y = regression_data(examples=80)
NOISY = Y + np.random.default_rng(1).normal(size=Y.shape).astype("float32")
STEPS = 48


class Crash(Exception):
    """An error that interrupts training."""


class CrashAfter(kte.hooks.SessionRunHook):
    """Raises an error after a step and its checkpoint."""

    def __init__(self, step):
        self.step = step

    def before_run(self, run_context):
        if run_context.session.run("global_step") == self.step:
            raise Crash


class Halve(keras.callbacks.Callback):
    """Halves the learning rate at every third epoch that it has seen."""

    def __init__(self):
        super().__init__()
        self.seen = 0

    def get_state(self):
        return {"seen": self.seen}

    def set_state(self, state):
        self.seen = state["seen"]

    def on_train_begin(self, logs=None):
        self.seen = 0

    def on_epoch_end(self, epoch, logs=None):
        self.seen += 1
        if self.seen % 3 == 0:
            optimizer = self.model.optimizer
            optimizer.learning_rate = float(optimizer.learning_rate) / 2


class BestWeights(keras.callbacks.EarlyStopping):
    """A subclass of early stopping with its own `on_train_begin`."""

    def __init__(self):
        super().__init__(
            monitor="loss",
            patience=3,
            min_delta=0.2,
            restore_best_weights=True,
        )

    def on_train_begin(self, logs=None):
        super().on_train_begin(logs)
        self.wait, self.best = 0, None


class StopAfterRuns(kte.hooks.SessionRunHook):
    """Stops after a number of runs, counted from `begin`."""

    def __init__(self, runs):
        self.runs = runs

    def begin(self):
        self.made = np.int64(0)

    def state_dict(self):
        return {"made": self.made}

    def load_state_dict(self, state):
        self.made = state["made"]

    def after_run(self, run_context, run_values):
        self.made += 1
        if self.made >= self.runs:
            run_context.request_stop()


def stopping(**settings):
    settings = {"patience": 3, "min_delta": 0.2} | settings
    return keras.callbacks.EarlyStopping(monitor="loss", **settings)


def plateau():
    return keras.callbacks.ReduceLROnPlateau(
        monitor="loss", patience=2, min_delta=0.3, cooldown=1, factor=0.5
    )


def scheduler():
    return keras.callbacks.LearningRateScheduler(lambda epoch, lr: lr * 0.9)


HOOKS = {
    "stopping": lambda: [stopping()],
    "best weights": lambda: [stopping(restore_best_weights=True)],
    "subclass": lambda: [BestWeights()],
    "plateau": lambda: [plateau(), stopping(patience=6)],
    "get_state": lambda: [Halve()],
    "scheduler": lambda: [scheduler()],
    "swapped averages": lambda: [keras.callbacks.SwapEMAWeights(swap_on_epoch=True)],
}
MODEL_FN = model_fn_of(linear, lambda: keras.optimizers.SGD(0.1, use_ema=True))


def new_estimator(model_dir, **settings):
    settings["config"] = {"save_checkpoints_steps": 4} | settings.get("config", {})
    return estimator_of(MODEL_FN, model_dir, **settings)


def values_in(model_dir):
    return {
        name: np.asarray(value)
        for name, value in kte.checkpoints.read(str(model_dir)).items()
    }


def assert_equal(first, second):
    first, second = values_in(first), values_in(second)
    assert first.keys() == second.keys()
    for name, value in first.items():
        assert value.tobytes() == second[name].tobytes(), name


def crash_after(model_dir, hooks, step, **settings):
    with pytest.raises(Crash):
        train(model_dir, [*hooks, CrashAfter(step)], **settings)


def train(model_dir, hooks, max_steps=STEPS, **settings):
    estimator = new_estimator(model_dir, **settings)
    estimator.train(repeated(X, NOISY), hooks=hooks, max_steps=max_steps)


def state_of(model_dir, step):
    states = position_saver.read_states(
        ResumeFiles.at(os.path.join(model_dir, f"model.ckpt-{step}"))
    )
    return {each.kind.rsplit(".", 1)[-1]: each for each in states or ()}


def state_files_in(model_dir):
    return glob.glob(os.path.join(model_dir, "*.callbacks.*"))


def warnings_in(caplog, text):
    return [
        record.getMessage()
        for record in caplog.records
        if record.levelno == logging.WARNING and text in record.getMessage()
    ]


@pytest.mark.rows(4)
@pytest.mark.parametrize(
    ("name", "steps_per_epoch"),
    [
        *[(name, None) for name in HOOKS],
        ("best weights", 8),
        ("plateau", 12),
        ("scheduler", 12),
    ],
)
def test_interrupted_run_equals_an_uninterrupted_one(name, steps_per_epoch, tmp_path):
    def hooks():
        return [kte.hooks.CallbackHook(HOOKS[name](), steps_per_epoch)]

    train(tmp_path / "straight", hooks())
    end = kte.load_variable(str(tmp_path / "straight"), "global_step")
    for step in (4, 8, 20):
        if step < end:
            crash_after(tmp_path / "parts", hooks(), step)
    train(tmp_path / "parts", hooks())
    assert_equal(tmp_path / "straight", tmp_path / "parts")
    assert name not in ("stopping", "best weights") or 8 < end < STEPS


def test_hook_is_restored_after_begin(tmp_path):
    crash_after(tmp_path, [StopAfterRuns(5)], 12)
    train(tmp_path, [StopAfterRuns(5)])
    assert kte.load_variable(str(tmp_path), "global_step") == 20


def test_the_same_objects_resume_in_the_same_process(tmp_path):
    hooks = [stopping(restore_best_weights=True)]
    train(tmp_path / "straight", hooks)
    crash_after(tmp_path / "parts", hooks, 12)
    train(tmp_path / "parts", hooks)
    assert_equal(tmp_path / "straight", tmp_path / "parts")


@pytest.mark.parametrize("steps_per_epoch", [None, 12])
def test_signal_saves_the_state_to_resume(steps_per_epoch, tmp_path):
    """The state holds the best weights and the means of half an epoch."""

    def hooks():
        callbacks = [plateau(), stopping(restore_best_weights=True)]
        return [kte.hooks.CallbackHook(callbacks, steps_per_epoch)]

    class Signal(CrashAfter):
        def before_run(self, run_context):
            if run_context.session.run("global_step") == self.step:
                signal.raise_signal(signal.SIGTERM)

    train(tmp_path / "straight", hooks())
    # Background processes ignore some signals.
    before = signal.signal(signal.SIGTERM, signal.SIG_DFL)
    try:
        with pytest.raises(SystemExit):
            train(tmp_path / "parts", [*hooks(), Signal(4)])
    finally:
        signal.signal(signal.SIGTERM, before)
    assert state_of(tmp_path / "parts", 8)
    train(tmp_path / "parts", hooks())
    assert_equal(tmp_path / "straight", tmp_path / "parts")


@pytest.mark.parametrize(
    "settings",
    [
        {"checkpoint_format": "tensorflow"},
        {"checkpoint_format": "orbax"},
        {"resume_input": False},
    ],
)
def test_every_format_saves_the_state(settings, tmp_path):
    hooks = lambda: [Halve()]  # noqa: E731
    crash_after(tmp_path, hooks(), 12, config=settings)
    assert state_of(tmp_path, 12)["Halve"].state["offered"] == {"seen": 3}
    hook = Halve()
    crash_after(tmp_path, [hook], 16, config=settings)
    assert hook.seen == 4


def test_states_are_deleted_with_their_checkpoints(tmp_path):
    config = {"keep_checkpoint_max": 2}
    crash_after(tmp_path, [Halve()], 20, config=config)
    assert len(state_files_in(tmp_path)) == 2
    assert state_of(tmp_path, 16) and state_of(tmp_path, 20)


def test_completed_call_leaves_no_state(tmp_path):
    halve = Halve()
    for steps in (8, 16):
        train(tmp_path, [halve], max_steps=steps)
        # Each call starts without state, like Keras's `fit`.
        assert halve.seen == 2
        assert not state_of(tmp_path, steps)


def test_no_file_is_written_without_state(tmp_path):
    silent = keras.callbacks.LambdaCallback(on_epoch_end=lambda *_: None)
    hook = kte.hooks.StopAtStepHook(last_step=40)
    crash_after(tmp_path, [hook], 8)
    assert not state_files_in(tmp_path)
    crash_after(tmp_path, [silent], 12)
    # The state contains only the epoch number.
    assert {*state_of(tmp_path, 12)} == {"CallbackHook", "CrashAfter"}


def test_unknown_state_warns_once(tmp_path, caplog):
    class Unknown(keras.callbacks.Callback):
        def __init__(self):
            super().__init__()
            self.losses, self.count, self.fixed = [], 0, (1, 2)

        def on_epoch_end(self, epoch, logs=None):
            self.count += 1
            self.losses.append(logs["loss"])

    class UnknownHook(kte.hooks.SessionRunHook):
        def before_run(self, run_context):
            self.step = int(run_context.session.run("global_step"))

    crash_after(tmp_path, [Unknown(), UnknownHook()], 12)
    assert not warnings_in(caplog, "starts without its state")
    crash_after(tmp_path, [Unknown(), Unknown(), UnknownHook()], 16)
    crash_after(tmp_path, [Unknown(), Unknown(), UnknownHook()], 20)
    told = warnings_in(caplog, "starts without its state in this resumed call")
    assert len(told) == 3
    assert told[0].startswith("UnknownHook") and " step " in told[0]
    assert told[1].startswith("Unknown ") and "count, losses had" in told[1]
    assert "get_state" in told[1] and "fixed" not in told[1]


def test_subclass_warns_only_about_its_own_attributes(tmp_path, caplog):
    class Mine(keras.callbacks.EarlyStopping):
        def on_epoch_end(self, epoch, logs=None):
            super().on_epoch_end(epoch, logs)
            self.told = epoch

    class Logging(kte.hooks.LoggingTensorHook):
        def after_run(self, run_context, run_values):
            super().after_run(run_context, run_values)

    def hooks():
        return [Mine(monitor="loss"), Logging(["loss"], every_n_iter=1)]

    crash_after(tmp_path, hooks(), 12)
    crash_after(tmp_path, hooks(), 16)
    (told,) = warnings_in(caplog, "starts without its state")
    assert told.startswith("Mine('loss') ") and "attributes told had" in told


def test_other_callbacks_warn_and_start_without_state(tmp_path, caplog):
    crash_after(tmp_path, [stopping(), Halve()], 12)
    saved = state_of(tmp_path, 12)["EarlyStopping('loss')"]
    stop = stopping()
    other = keras.callbacks.EarlyStopping(monitor="learning_rate", mode="min")
    # A callback of another class before them does not matter.
    crash_after(tmp_path, [plateau(), other, stop], 13, iterations=1)
    assert stop.best <= saved.state["attributes"]["best"]
    assert other.best < 0.2
    (told,) = warnings_in(caplog, "differ from those of this call")
    assert "missing: Halve." in told
    caplog.clear()
    # Two callbacks of one class cannot be matched with one saved state.
    two = [stopping(), stopping()]
    crash_after(tmp_path, two, 16)
    assert len(warnings_in(caplog, "differ from those of this call")) == 1


def test_two_callbacks_of_a_class_are_matched_by_order(tmp_path):
    def two():
        return [stopping(patience=9), stopping(patience=9, min_delta=100.0)]

    crash_after(tmp_path, two(), 12)
    first, second = two()
    crash_after(tmp_path, [first, second], 16)
    assert second.wait == 3 and first.wait < 3


def test_failed_save_keeps_the_previous_state(tmp_path, monkeypatch):
    write = position_saver.write_states

    def failing(saved, states, hosts):
        write(saved, states, hosts)
        if saved.prefix.endswith("-12"):
            raise OSError("disk full")

    monkeypatch.setattr(position_saver, "write_states", failing)
    with pytest.raises(OSError, match="disk full"):
        train(tmp_path, [Halve()])
    assert state_of(tmp_path, 8)["Halve"].state["offered"] == {"seen": 2}
    assert not glob.glob(str(tmp_path / "*-12.*"))
    monkeypatch.undo()
    # A killed process leaves such a file.
    orphan = tmp_path / "model.ckpt-12.callbacks.0f0f0f0f.zip"
    orphan.write_bytes(b"KTESAVED0f0f0f0f")
    train(tmp_path, [Halve()])
    train(tmp_path / "straight", [Halve()])
    assert_equal(tmp_path / "straight", tmp_path)
    assert not orphan.exists()


def test_error_names_the_corrupt_file(tmp_path):
    crash_after(tmp_path, [Halve()], 8)
    (path,) = [p for p in state_files_in(tmp_path) if "-8." in p]
    with open(path, "r+b") as file:
        file.seek(60)
        file.write(b"\xff" * 8)
    with pytest.raises(ValueError, match="Delete it so that they start"):
        train(tmp_path, [Halve()])


def test_error_names_the_class_with_an_unsavable_state(tmp_path):
    class Bad(Halve):
        def get_state(self):
            return {"model": object()}

    with pytest.raises(TypeError, match=r"Bad cannot be saved.*Remove it"):
        train(tmp_path, [Bad()])


def test_methods_with_other_arguments_are_ignored(tmp_path):
    class Store(keras.callbacks.Callback):
        def get_state(self, key):
            raise AssertionError

        def set_state(self, key, value):
            raise AssertionError

    crash_after(tmp_path, [Store()], 4)
    assert state_of(tmp_path, 4)["Store"].state is None


def test_each_process_saves_its_state(tmp_path, caplog):
    def write(index):
        hook = StopAfterRuns(3)
        hook.begin()
        states = HookStates([hook], None, has_checkpoint=False)
        with states.resuming(hook):
            hook.made = 2
            hook.made += index
        positions = PositionSaver(None, lambda: False, Hosts(index, 2))
        positions.states = states
        with positions.beside(saved, Version(1)):
            assert os.path.exists(saved.callbacks(index, 2))

    def read(hosts):
        (state,) = position_saver.read_states(ResumeFiles.from_save(saved), hosts)
        return state.changed, state.state

    saved = SaveFiles(str(tmp_path / "model.ckpt-4"))
    for index in range(2):
        write(index)
    own = [read(Hosts(index, 2)) for index in range(2)]
    assert own[0] != own[1]
    assert not warnings_in(caplog, "process 0")
    # Another number of processes.
    assert read(Hosts(0, 1)) == read(Hosts(1, 4)) == own[0]
    assert len(warnings_in(caplog, "resume with the state of process 0")) == 1
    os.remove(saved.callbacks(1, 2))
    assert position_saver.read_states(ResumeFiles.from_save(saved), Hosts(1, 2)) is None


def test_best_weights_keep_their_dtypes(tmp_path):
    def half(features, is_training):
        layer = keras.layers.Dense(1, dtype="bfloat16", kernel_initializer="zeros")
        return keras.ops.cast(layer(features), "float32")

    def trained(name, step=None):
        model_fn = model_fn_of(half, lambda: keras.optimizers.SGD(0.1))
        config = {"save_checkpoints_steps": 4}
        estimator = estimator_of(model_fn, tmp_path / name, config=config)
        stop = stopping(restore_best_weights=True)
        hooks = [stop] if step is None else [stop, CrashAfter(step)]
        estimator.train(repeated(X, NOISY), hooks=hooks, max_steps=STEPS)
        return stop

    trained("straight")
    with pytest.raises(Crash):
        trained("parts", 8)
    state = state_of(tmp_path / "parts", 8)["EarlyStopping('loss')"].state
    weights = state["attributes"]["best_weights"]
    assert {str(each.dtype) for each in weights} >= {"bfloat16"}
    trained("parts")
    assert_equal(tmp_path / "straight", tmp_path / "parts")


def test_validation_resumes_with_training(tmp_path):
    def trained(name, *crash):
        stop = keras.callbacks.EarlyStopping(patience=2, min_delta=0.3)
        estimator = new_estimator(tmp_path / name)
        estimator.train(
            repeated(X, NOISY),
            hooks=[stop, *crash],
            max_steps=STEPS,
            validation=batches_of(X, Y),
        )

    trained("straight")
    for step in (8, 12):
        with pytest.raises(Crash):
            trained("parts", CrashAfter(step))
    trained("parts")
    assert_equal(tmp_path / "straight", tmp_path / "parts")
    assert kte.load_variable(str(tmp_path / "parts"), "global_step") < STEPS


@pytest.mark.parametrize(
    "value",
    [
        np.float32(np.inf),
        float("nan"),
        None,
        True,
        "text",
        {"a": [1, (2.5, {"b": np.arange(3)})]},
        [np.ones((2, 2), "bfloat16"), np.zeros((0,), "int8")],
    ],
)
def test_values_keep_their_types(value, tmp_path):
    class Keeping(Halve):
        def get_state(self):
            return value

        def set_state(self, state):
            self.given = state

    crash_after(tmp_path, [Keeping()], 4)
    keeping = Keeping()
    crash_after(tmp_path, [keeping], 4)
    assert repr(keeping.given) == repr(value)
    assert type(keeping.given) is type(value)


def test_explicit_saver_keeps_the_original_order(tmp_path):
    def hooks(first):
        saver = kte.hooks.CheckpointSaverHook(str(tmp_path), save_steps=4)
        return [saver, Halve()] if first else [Halve(), saver]

    for first, seen in ((True, 1), (False, 2)):
        crash_after(tmp_path, hooks(first), 8)
        offered = state_of(tmp_path, 8)["Halve"].state["offered"]
        assert offered == {"seen": seen}
        for path in glob.glob(str(tmp_path / "*")):
            os.remove(path)


def test_hooks_run_before_the_checkpoint_of_their_step(tmp_path):
    order = []

    class Named(LoopHook):
        def __init__(self, name):
            self.name = name

        def after_run(self, run_context, run_values):
            order.append(self.name)

    class Listener(kte.hooks.CheckpointSaverListener):
        def after_save(self, session, global_step_value):
            order.append("save")

    last = Named("last")
    last.acts_last = True
    new_estimator(tmp_path).train(
        repeated(X, Y),
        hooks=[last, Named("first")],
        steps=8,
        saving_listeners=[Listener()],
    )
    first, last = ["save", "first", "save", "last"], ["first", "last", "save"]
    assert order == first + last


def test_csv_file_continues_at_the_checkpoint(tmp_path):
    def log(name):
        return [keras.callbacks.CSVLogger(str(tmp_path / name))]

    train(tmp_path / "straight", log("straight.csv"))
    (interrupted,) = log("parts.csv")
    config = {"save_checkpoints_steps": 12}
    crash_after(tmp_path / "parts", [interrupted], 16, config=config)
    interrupted.csv_file.close()
    train(tmp_path / "parts", log("parts.csv"))
    straight = (tmp_path / "straight.csv").read_text()
    assert (tmp_path / "parts.csv").read_text() == straight
    # A new call starts a new file.
    train(tmp_path / "parts", log("parts.csv"), max_steps=STEPS + 4)
    header, row = (tmp_path / "parts.csv").read_text().split()
    assert header == straight.split()[0] and row.startswith("0,")


def test_backup_does_not_replace_the_checkpoint(tmp_path, caplog):
    def backup():
        return [keras.callbacks.BackupAndRestore(str(tmp_path / "backup"))]

    train(tmp_path / "straight", backup())
    config = {"save_checkpoints_steps": 12}
    crash_after(tmp_path / "parts", backup(), 16, config=config)
    assert not warnings_in(caplog, "BackupAndRestore")
    assert (tmp_path / "backup").exists()
    train(tmp_path / "parts", backup())
    assert len(warnings_in(caplog, "BackupAndRestore")) == 1
    assert_equal(tmp_path / "straight", tmp_path / "parts")


def test_history_and_model_checkpoint_continue(tmp_path):
    def callbacks():
        return [
            keras.callbacks.History(),
            keras.callbacks.ModelCheckpoint(
                str(tmp_path / "best.weights.h5"),
                monitor="loss",
                save_best_only=True,
                save_weights_only=True,
                verbose=1,
            ),
        ]

    straight = callbacks()
    train(tmp_path / "straight", straight)
    crash_after(tmp_path / "parts", callbacks(), 20)
    parts = callbacks()
    train(tmp_path / "parts", parts)
    assert parts[0].history == straight[0].history
    assert parts[0].epoch == straight[0].epoch == [*range(12)]
    assert parts[1].best == straight[1].best


def test_every_keras_callback_is_covered():
    classes = {
        each
        for each in vars(keras.callbacks).values()
        if isinstance(each, type) and issubclass(each, keras.callbacks.Callback)
    }
    assert {*state_sources._OF_KERAS} == classes


def test_keras_still_has_the_saved_attributes():
    """Keras still uses these names, some of which are private."""
    made = {
        keras.callbacks.BackupAndRestore: ("/tmp/backup",),
        keras.callbacks.EarlyStopping: (),
        keras.callbacks.History: (),
        keras.callbacks.ModelCheckpoint: ("/tmp/x.keras",),
        keras.callbacks.ReduceLROnPlateau: (),
        keras.callbacks.SwapEMAWeights: (),
        keras.callbacks.TensorBoard: (),
    }
    missing = collections.defaultdict(set)
    for kind, arguments in made.items():
        callback = kind(*arguments)
        if kind is not keras.callbacks.TensorBoard:
            callback.on_epoch_begin(0)
        if kind in (keras.callbacks.EarlyStopping, keras.callbacks.History):
            callback.on_train_begin()
        for name in state_sources.known_attributes(callback).names:
            if not hasattr(callback, name):
                missing[kind].add(name)
    assert not missing
    assert hasattr(keras.callbacks.BackupAndRestore, "_load_model")


@pytest.mark.parametrize(
    "fields",
    [{"kind": 1, "number": 0, "state": None}, {"kind": "A", "number": [], "state": 1}],
)
def test_states_have_a_class_and_a_number(fields):
    with pytest.raises(TypeError, match="A state must be that of a class"):
        SavedState(**fields)
