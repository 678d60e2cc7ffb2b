"""Tests TensorFlow's own hooks with TF1 `model_fn`s."""

import keras_tpu_estimator as kte  # isort: skip

import logging
import os
from unittest import mock

import jax
import keras
import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from helpers import estimator_of, linear, model_fn_of
from tf1_programs import estimator, fed, summaries_in

from keras_tpu_estimator.api.hooks.hook_list import HookList, validate_hooks
from keras_tpu_estimator.runs.training_hooks import TrainingSession
from keras_tpu_estimator.tf1.host.tensorflow_hook import adopted

X = np.linspace(1, 2, 32, dtype="float32").reshape(16, 2)


def model_fn(features, labels, mode, params):
    """Doubles a weight that starts at one, independently of the features."""
    w = tf.get_variable("w", [1], initializer=tf.ones_initializer)
    outputs = tf.multiply(features, w, name="outputs")
    if mode == kte.ModeKeys.PREDICT:
        return kte.tf1.TPUEstimatorSpec(mode, predictions={"y": outputs})
    tf.reduce_max(features, name="largest")
    loss = tf.reduce_mean(outputs, name="mean")
    step = tf.train.get_or_create_global_step()
    rate = tf.train.exponential_decay(1.0, step, 1, 0.5)
    tf.identity(rate, name="rate")
    accuracy = tf.metrics.mean(features)
    tf.identity(accuracy[1], name="streamed")
    tf.summary.scalar("summarized", loss * 2)
    train_op = None
    if mode == kte.ModeKeys.TRAIN:
        with tf.control_dependencies([loss]):
            train_op = tf.group(w.assign(2 * w), step.assign_add(1))
    return kte.tf1.TPUEstimatorSpec(mode, loss=loss, train_op=train_op)


def made(tmp_path, **settings):
    """An estimator of `model_fn`."""
    return estimator(model_fn, tmp_path, **{"iterations": 1} | settings)


class Fetching(tf.train.SessionRunHook):
    """Fetches tensors in each run, and records the values."""

    def __init__(self, fetches):
        self.fetches = fetches
        self.got = []
        self.calls = []

    def begin(self):
        self.calls.append("begin")
        assert tf.train.get_global_step() is not None

    def after_create_session(self, session, coord):
        self.calls.append("after_create_session")

    def before_run(self, run_context):
        self.calls.append("before_run")
        fetches = self.fetches
        if callable(fetches):
            fetches = fetches(run_context.session.graph)
        return tf.train.SessionRunArgs(fetches)

    def after_run(self, run_context, run_values):
        self.calls.append("after_run")
        self.got.append(run_values.results)

    def end(self, session):
        self.calls.append("end")


def test_calls_of_a_hook_and_its_values(tmp_path):
    hook = Fetching(
        lambda graph: {
            "tensor": graph.get_tensor_by_name("outputs:0"),
            "names": ["mean:0", "largest"],
            "variable": (graph.get_tensor_by_name("w/Read/ReadVariableOp:0"),),
            "step": tf.train.get_global_step(graph),
        }
    )
    made(tmp_path).train(fed([X, X]), hooks=[hook], steps=2)
    assert hook.calls == [
        "begin",
        "after_create_session",
        *["before_run", "after_run"] * 2,
        "end",
    ]
    second = hook.got[1]
    np.testing.assert_allclose(second["tensor"], X * 2)
    mean, largest = second["names"]
    np.testing.assert_allclose(mean, X.mean() * 2, rtol=1e-6)
    assert largest == 2
    # Variables are those after the run.
    np.testing.assert_allclose(second["variable"][0], [4])
    assert (second["step"], second["step"].dtype) == (2, np.int64)


def test_several_cores_and_steps_of_a_loop(tmp_path):
    hook = Fetching(["outputs", "mean", "largest"])
    made(tmp_path, iterations=3, use_tpu=True).train(
        fed([X] * 6), hooks=[hook], steps=6
    )
    # Each loop is one run with the tensors of its last step: those of all cores, or the
    # mean of scalars.
    assert len(hook.got) == 2
    outputs, mean, largest = hook.got[0]
    np.testing.assert_allclose(outputs, X * 4)
    np.testing.assert_allclose(mean, X.mean() * 4, rtol=1e-6)
    each = X.reshape(8, -1).max(1)
    np.testing.assert_allclose(largest, each.mean(), rtol=1e-6)


class FetchingComposites(Fetching):
    """Fetches tensors that have several components, as TensorFlow 1.15 can."""

    def __init__(self):
        super().__init__(lambda graph: self.composites)

    def begin(self):
        largest = tf.get_default_graph().get_tensor_by_name("largest:0")
        sparse = tf.SparseTensor([[0, 1], [2, 0]], tf.stack([largest, 3]), [3, 4])
        self.constant = tf.SparseTensor([[1, 1]], [5.0], [2, 2])
        self.composites = {
            "sparse": [sparse],
            "slices": tf.IndexedSlices(tf.stack([largest, 3]), tf.constant([4, 2])),
            "ragged": tf.RaggedTensor.from_row_lengths(
                tf.RaggedTensor.from_row_lengths([largest, 3, 7], [1, 0, 2]), [2, 1]
            ),
        }

    def after_run(self, run_context, run_values):
        super().after_run(run_context, run_values)
        self.later = run_context.session.run(self.constant)


def test_tensors_with_components(tmp_path):
    hook = FetchingComposites()
    made(tmp_path).train(fed([X]), hooks=[hook], steps=1)
    (got,) = hook.got
    (sparse,) = got["sparse"]
    assert isinstance(sparse, tf.SparseTensorValue)
    np.testing.assert_array_equal(sparse.indices, [[0, 1], [2, 0]])
    np.testing.assert_array_equal(sparse.values, [2, 3])
    np.testing.assert_array_equal(sparse.dense_shape, [3, 4])
    assert sparse.indices.dtype == np.int64
    slices = got["slices"]
    np.testing.assert_array_equal(slices.values, [2, 3])
    np.testing.assert_array_equal(slices.indices, [4, 2])
    assert slices.dense_shape is None
    assert isinstance(got["ragged"], tf.ragged.RaggedTensorValue)
    assert got["ragged"].to_list() == [[[2], []], [[3, 7]]]
    assert isinstance(hook.later, tf.SparseTensorValue)
    np.testing.assert_array_equal(hook.later.values, [5])


def test_tensors_with_components_are_refused_on_several_cores(tmp_path):
    message = "On several cores hooks must fetch dense tensors"
    with pytest.raises(ValueError, match=message):
        made(tmp_path, use_tpu=True).train(
            fed([X]), hooks=[FetchingComposites()], steps=1
        )


def test_hook_may_extend_the_graph_and_stop(tmp_path):
    class Own(tf.train.SessionRunHook):
        def begin(self):
            outputs = tf.get_default_graph().get_tensor_by_name("outputs:0")
            self.total = tf.reduce_sum(outputs)
            self.rate = tf.get_default_graph().get_tensor_by_name("rate:0")
            self.totals = []

        def before_run(self, run_context):
            return tf.train.SessionRunArgs(self.total)

        def after_run(self, run_context, run_values):
            self.totals.append(float(run_values.results))
            session = run_context.session
            step, rate = session.run([tf.train.get_global_step(), self.rate])
            assert rate == 0.5**step
            assert session.run(self.total) == run_values.results
            if step == 2:
                run_context.request_stop()

        def end(self, session):
            self.weight = session.run("w:0")

    hook = Own()
    made(tmp_path).train(fed([X] * 9), hooks=[hook])
    np.testing.assert_allclose(hook.totals, [X.sum(), 2 * X.sum()], 1e-6)
    assert hook.weight == 4


def test_script_may_disable_tf2_behavior(tmp_path):
    class Own(Fetching):
        def begin(self):
            graph = tf.get_default_graph()
            mean, rate = map(graph.get_tensor_by_name, ("mean:0", "rate:0"))
            _, self.fetches = tf.while_loop(
                lambda i, _: i < 3, lambda i, x: (i + 1, x + rate), (0, mean)
            )

    hook = Own(None)
    tf.disable_resource_variables()
    tf.disable_control_flow_v2()
    try:
        made(tmp_path).train(fed([X]), hooks=[hook], steps=1)
    finally:
        tf.enable_resource_variables()
        tf.enable_control_flow_v2()
    np.testing.assert_allclose(hook.got, [X.mean() + 3], rtol=1e-6)


def test_hooks_of_a_spec_in_every_mode(tmp_path):
    def own(features, labels, mode, params):
        spec = model_fn(features, labels, mode, params)
        hook = Fetching("outputs:0")
        hooks.append(hook)
        names = ("training_hooks", "evaluation_hooks", "prediction_hooks")
        return spec._replace(**dict.fromkeys(names, [hook]))

    hooks = []
    program = estimator(own, tmp_path)
    program.train(fed([X]), steps=1)
    program.evaluate(fed([X]), steps=1)
    list(program.predict(fed([X])))
    for hook, factor in zip(hooks, [1, 2, 2], strict=True):
        np.testing.assert_allclose(hook.got, [X * factor])


def test_streaming_metrics_in_training(tmp_path):
    hook = Fetching("streamed")
    made(tmp_path).train(fed([X, 3 * X]), hooks=[hook], steps=2)
    np.testing.assert_allclose(hook.got, [X.mean(), 2 * X.mean()], rtol=1e-6)


def test_evaluation_hooks_cannot_fetch_streaming_metrics(tmp_path):
    with pytest.raises(ValueError, match=r"\['streamed'\], which reads"):
        made(tmp_path).evaluate(fed([X]), hooks=[Fetching("streamed")])


def test_logging(tmp_path, caplog):
    hook = tf.train.LoggingTensorHook(
        {"what": "mean:0", "rate": "rate"}, every_n_iter=2, at_end=True
    )
    with caplog.at_level(logging.INFO, "tensorflow"):
        made(tmp_path).train(fed([X] * 3), hooks=[hook], steps=3)
    lines = [r.getMessage() for r in caplog.records if "what" in r.getMessage()]
    means = [float(line.partition("what = ")[2].split()[0]) for line in lines]
    np.testing.assert_allclose(means, X.mean() * np.array([1, 4, 4]), 1e-4)


def test_subclass_may_set_the_summary_op(tmp_path):
    class Own(tf.train.SummarySaverHook):
        def begin(self):
            self._summary_op = tf.summary.merge_all()
            super().begin()

    hook = Own(save_steps=1, output_dir=str(tmp_path / "own"), summary_op=1)
    # The model_fn is called again for the second batch, and the hook is not.
    made(tmp_path).train(fed([X, X[:8]]), hooks=[hook], steps=2)
    written = summaries_in(tmp_path / "own")
    assert {("summarized", 1), ("summarized", 2)} <= written.keys()
    assert written["summarized", 2] == pytest.approx(4 * X[:8].mean())


def test_values_at_the_end(tmp_path):
    class Own(tf.train.FinalOpsHook):
        def begin(self):
            graph = tf.get_default_graph()
            self._final_ops = {"mean": graph.get_tensor_by_name("mean:0")}

    hook = Own(None)
    made(tmp_path).evaluate(fed([X, 2 * X]), hooks=[hook])
    assert hook.final_ops_values["mean"] == pytest.approx(2 * X.mean())


def test_counting_steps(tmp_path):
    hook = tf.train.StepCounterHook(every_n_steps=1, output_dir=str(tmp_path / "own"))
    made(tmp_path).train(fed([X] * 3), hooks=[hook], steps=3)
    tf.summary.FileWriterCache.get(str(tmp_path / "own")).flush()
    assert ("global_step/sec", 3) in summaries_in(tmp_path / "own")


def test_nan_hook(tmp_path):
    class Own(tf.train.NanTensorHook):
        def begin(self):
            graph = tf.get_default_graph()
            self._loss_tensor = graph.get_tensor_by_name("largest:0")

    with pytest.raises(tf.train.NanLossDuringTrainingError):
        made(tmp_path).train(fed([X * np.nan]), hooks=[Own(None)], steps=1)


def test_hooks_of_the_loop_are_replaced_by_ours(tmp_path, monkeypatch):
    told, traced = [], []
    profiler = jax.profiler
    monkeypatch.setattr(profiler, "start_trace", lambda to, **kwargs: traced.append(to))
    monkeypatch.setattr(profiler, "stop_trace", lambda: traced.append("end"))

    class Listener(tf.train.CheckpointSaverListener):
        def after_save(self, session, global_step_value):
            told.append((global_step_value, session.run("w:0")[0]))

    with tf.Graph().as_default():
        hooks = [
            tf.train.StopAtStepHook(num_steps=3),
            tf.train.CheckpointSaverHook(
                str(tmp_path / "own"), save_steps=2, listeners=[Listener()]
            ),
            tf.train.ProfilerHook(save_steps=100, output_dir=str(tmp_path)),
        ]
    ours = validate_hooks(hooks)
    assert [type(hook) for hook in ours] == [
        kte.hooks.StopAtStepHook,
        kte.hooks.CheckpointSaverHook,
        kte.hooks.ProfilerHook,
    ]
    made(tmp_path, iterations=2).train(fed([X] * 9), hooks=hooks)
    # In loops of two steps, the last of which is shorter.
    assert told == [(0, 1), (2, 4), (3, 8)]
    assert os.path.exists(tmp_path / "own" / "checkpoint")
    assert traced == [str(tmp_path), "end"]


def test_listeners_of_train(tmp_path):
    told = []

    class Listener(tf.train.CheckpointSaverListener):
        def begin(self):
            told.append("begin")

        def before_save(self, session, global_step_value):
            told.append(global_step_value)

        def end(self, session, global_step_value):
            told.append(("end", global_step_value))

    made(tmp_path).train(fed([X]), saving_listeners=[Listener()], steps=1)
    assert told == ["begin", 0, 1, ("end", 1)]


def test_feed_dict_is_refused(tmp_path):
    with pytest.raises(ValueError, match="`feed_fn` must be None"):
        validate_hooks([tf.train.FeedFnHook(dict)])

    class Own(tf.train.SessionRunHook):
        def before_run(self, run_context):
            return tf.train.SessionRunArgs("mean:0", feed_dict={"mean:0": 1.0})

    with pytest.raises(ValueError, match="`feed_dict` must be None"):
        made(tmp_path).train(fed([X]), hooks=[Own()], steps=1)


def test_assigning_within_the_step_is_refused(tmp_path):
    class Own(tf.train.SessionRunHook):
        def begin(self):
            w = tf.global_variables()[1]
            self.assign = w.assign(w * 0)

        def before_run(self, run_context):
            return tf.train.SessionRunArgs(self.assign)

    message = f"no effect on the devices.*made at {__file__}"
    with pytest.raises(ValueError, match=message):
        made(tmp_path).train(fed([X]), hooks=[Own()], steps=1)


@pytest.mark.parametrize("cores", [False, True])
def test_assigning_between_steps(tmp_path, cores):
    class Own(Fetching):
        def begin(self):
            self.w = tf.global_variables()[1]
            self.fed = tf.placeholder(tf.float32, [])
            self.assign = self.w.assign(10 * self.w + self.fed)
            self.group = tf.group(self.assign)

        def after_create_session(self, session, coord):
            feed = {self.fed: 1.0}
            np.testing.assert_allclose(session.run(self.assign, feed), [11])
            assert session.run([self.group], {self.fed: 2.0}) == [None]
            np.testing.assert_allclose(session.run(self.w), [112])

        def after_run(self, run_context, run_values):
            super().after_run(run_context, run_values)
            run_context.session.run(self.group, {self.fed: 0.0})

    hook = Own("mean")
    program = made(tmp_path, use_tpu=cores)
    program.train(fed([X, X]), hooks=[hook], steps=2)
    first = X.mean() * 112
    np.testing.assert_allclose(hook.got, [first, first * 20], rtol=1e-6)
    saved = kte.load_variable(tmp_path, "w")
    np.testing.assert_allclose(saved, [112 * 20 * 20])


def test_restoring_averages_before_an_evaluation(tmp_path):
    program = made(tmp_path)
    program.train(fed([X]), steps=1)
    checkpoint = tf.train.latest_checkpoint(str(tmp_path))

    class Own(tf.train.SessionRunHook):
        def begin(self):
            step, w = tf.global_variables()
            self.saver = tf.train.Saver({"w": w, "global_step": step})
            self.clear = w.assign(w * 0)

        def after_create_session(self, session, coord):
            session.run(self.clear)
            np.testing.assert_allclose(session.run("w:0"), [0])
            self.saver.restore(session, checkpoint)

    result = program.evaluate(fed([X]), hooks=[Own()])
    np.testing.assert_allclose(result["loss"], X.mean() * 2, rtol=1e-6)
    assert result["global_step"] == 1


def test_unfetched_values_are_an_error(tmp_path):
    class Own(tf.train.SessionRunHook):
        def after_run(self, run_context, run_values):
            run_context.session.run("outputs:0")

    with pytest.raises(ValueError, match=r"outputs:0 \(Mul\).*before_run"):
        made(tmp_path).train(fed([X]), hooks=[Own()], steps=1)


def test_tensorflow_hooks_need_a_graph(tmp_path):
    program = estimator_of(model_fn_of(linear), tmp_path)
    with pytest.raises(ValueError, match=r"marked by kte\.tf1\.model_fn"):
        program.train(fed([(X, X[:, :1])]), hooks=[tf.train.SessionRunHook()], steps=1)


def test_batches_of_another_size(tmp_path):
    class Own(Fetching):
        def begin(self):
            graph = tf.get_default_graph()
            self.fetches = graph.get_tensor_by_name("outputs:0") * 2

    program = made(tmp_path)
    program.train(fed([X]), steps=1)
    hook = Fetching("outputs:0")
    sizes = fed([X, X[:8]])
    program.evaluate(sizes, hooks=[hook])
    np.testing.assert_allclose(hook.got[-1], X[:8] * 2)
    with pytest.raises(ValueError, match="Own must fetch tensors that model"):
        program.evaluate(sizes, hooks=[Own(None)])


def test_fetches_of_hooks_draw_separate_random_numbers(tmp_path):
    def own(features, labels, mode, params):
        noise = tf.random_uniform([4])
        tf.identity(tf.cond(noise[0] < 2, lambda: noise, lambda: noise), "noise")
        drawn = tf.get_variable("drawn", [4])
        step = tf.train.get_or_create_global_step()
        assign = drawn.assign(tf.random_uniform([4]))
        train_op = tf.group(assign, step.assign_add(1))
        return kte.tf1.TPUEstimatorSpec(
            mode, loss=tf.reduce_mean(features), train_op=train_op
        )

    drawn = []
    for hooks in ([], [Fetching("noise")]):
        program = estimator(own, tmp_path / str(len(hooks)))
        program.train(fed([X]), hooks=hooks, steps=1)
        drawn.append(program.get_variable_value("drawn"))
    assert np.array_equal(*drawn)
    assert not np.array_equal(hooks[0].got[0], drawn[1])


def test_only_tensorflows_own_hooks_allow_running_ahead():
    class Own(tf.train.LoggingTensorHook):
        pass

    allow = [
        HookList([adopted(kind(["loss"], every_n_iter=1))], None).allows_run_ahead
        for kind in (tf.train.LoggingTensorHook, Own)
    ]
    assert allow == [True, False]


class RegularSaver(tf.train.CheckpointSaverHook):
    """Saves at multiples of an interval, independently of the first step."""

    def after_create_session(self, session, coord):
        super().after_create_session(session, coord)
        step = session.run(self._global_step_tensor)
        interval = self._timer._every_steps or 1
        self._timer.update_last_triggered_step(step - step % interval)


@pytest.mark.parametrize("is_ours", [False, True])
def test_custom_saver(tmp_path, is_ours):
    told = []
    base = kte.hooks if is_ours else tf.train

    class Listener(base.CheckpointSaverListener):
        def before_save(self, session, global_step_value):
            weight = session.run("w" if is_ours else weights[-1])
            told.append((global_step_value, *weight.tolist()))

        def after_save(self, session, global_step_value):
            del session
            return global_step_value == 6

    weights = []

    class Noting(tf.train.SessionRunHook):
        def begin(self):
            weights.append(tf.trainable_variables()[0])

    for steps in (1, 9):
        saver = RegularSaver(str(tmp_path), save_steps=3)
        made(tmp_path).train(
            fed([X] * 9),
            steps=steps,
            hooks=[Noting(), saver],
            saving_listeners=[Listener()],
        )
    # No other hook saves.
    assert told == [(0, 1.0), (1, 2.0), (1, 2.0), (3, 8.0), (6, 64.0)]
    names = {path.name for path in tmp_path.glob("model.ckpt-*.index")}
    assert names == {f"model.ckpt-{step}.index" for step in (0, 1, 3, 6)}
    assert (tmp_path / "graph.pbtxt").exists()
    assert kte.load_variable(str(tmp_path), "w").tolist() == [64.0]


def test_custom_saver_in_two_calls(tmp_path):
    told = []

    class Listener(kte.hooks.CheckpointSaverListener):
        def __init__(self, name):
            self.name = name

        def before_save(self, session, global_step_value):
            told.append((self.name, global_step_value, *session.run("w")))

    saver = RegularSaver(str(tmp_path), save_steps=3)
    for call in (1, 2):
        made(tmp_path).train(
            fed([X]), steps=1, hooks=[saver], saving_listeners=[Listener(call)]
        )
    assert told == [(1, 0, 1.0), (1, 1, 2.0), (2, 1, 2.0), (2, 2, 4.0)]


def test_custom_saver_reports_no_save_that_nan_prevented(tmp_path):
    told = []

    def telling(base):
        class Listener(base.CheckpointSaverListener):
            def before_save(self, session, global_step_value):
                told.append((base.__name__, "before", int(global_step_value)))

            def after_save(self, session, global_step_value):
                told.append((base.__name__, "after", int(global_step_value)))

            def end(self, session, global_step_value):
                told.append((base.__name__, "end", int(global_step_value)))

        return Listener()

    saver = RegularSaver(str(tmp_path), save_steps=1, listeners=[telling(tf.train)])
    # The same hook is used twice; neither call ends with an error.
    for _ in range(2):
        told.clear()
        made(tmp_path).train(
            fed([X * np.nan]),
            steps=1,
            hooks=[saver, keras.callbacks.TerminateOnNaN()],
            saving_listeners=[telling(kte.hooks)],
        )
        assert told == [
            (who, *call)
            for call in (("before", 0), ("after", 0), ("before", 1), ("end", 1))
            for who in (tf.train.__name__, kte.hooks.__name__)
        ]
    names = [path.name for path in tmp_path.glob("*.index")]
    assert names == ["model.ckpt-0.index"]


def test_custom_saver_agrees_with_other_hosts_on_the_time(tmp_path, monkeypatch):
    own, told = [], []

    class Listener(kte.hooks.CheckpointSaverListener):
        def before_save(self, session, global_step_value):
            told.append(global_step_value)

    def is_so_anywhere(session, is_so):
        own.append(is_so)
        # Another host wants to save now.
        return is_so or int(session.run("global_step")) == 2

    monkeypatch.setattr(TrainingSession, "is_so_anywhere", is_so_anywhere)
    saver = RegularSaver(str(tmp_path), save_secs=10**6)
    for expected in ([0, 2, 4], [4, 8]):
        told.clear()
        made(tmp_path).train(
            fed([X] * 9), steps=4, hooks=[saver], saving_listeners=[Listener()]
        )
        assert told == expected
    # Once for each step, and once more when it is time to save.
    assert own == [False] * (4 + 1 + 4)


def test_custom_saver_that_counts_steps_does_not_ask_hosts(tmp_path, monkeypatch):
    monkeypatch.delattr(TrainingSession, "is_so_anywhere")
    saver = RegularSaver(str(tmp_path), save_steps=2)
    made(tmp_path).train(fed([X] * 4), steps=4, hooks=[saver])
    assert len([*tmp_path.glob("*.index")]) == 3


def test_custom_saver_only_saves_in_training(tmp_path):
    saver = RegularSaver(str(tmp_path), save_steps=3)
    made(tmp_path).train(fed([X]), steps=1)
    with pytest.raises(RuntimeError, match="save checkpoints"):
        made(tmp_path).evaluate(fed([X]), steps=1, hooks=[saver])


def test_early_stopping_in_a_session_of_tensorflow(tmp_path):
    hook = kte.experimental.make_early_stopping_hook(
        estimator(model_fn, tmp_path),
        lambda: True,
        run_every_secs=None,
        run_every_steps=3,
    )
    with tf.Graph().as_default():
        run = tf.train.get_or_create_global_step().assign_add(1)
        with tf.train.SingularMonitoredSession(hooks=[hook]) as session:
            while not session.should_stop():
                last = session.run(run)
    assert last == 1


def test_methods_of_an_object_are_called_in_each_step(tmp_path):
    steps = []
    own = tf.train.SessionRunHook()
    own.after_run = lambda context, values: steps.append("own")
    mocked = mock.MagicMock(
        spec=tf.train.SessionRunHook, wraps=tf.train.SessionRunHook()
    )
    made = estimator(model_fn, tmp_path, iterations=1)
    made.train(fed([X, X]), steps=2, hooks=[own, mocked])
    assert steps == ["own"] * 2
    assert mocked.before_run.call_count == mocked.after_run.call_count == 2
    assert mocked.begin.called
    assert mocked.end.called


@pytest.mark.parametrize("call", ["train", "evaluate"])
def test_strings_of_batches_of_another_shape(tmp_path, call):
    def own(features, labels, mode, params):
        spec = model_fn(features, labels, mode, params)
        flat = tf.reshape(tf.as_string(features * 0 + 1), [features.shape[0] * 2])
        tf.identity(tf.strings.reduce_join(flat), name="text")
        return spec

    hook = Fetching("text:0")
    program = estimator(own, tmp_path, iterations=1)
    if call == "evaluate":
        program.train(fed([X]), steps=1)
    getattr(program, call)(fed([X, X[:8], X]), steps=3, hooks=[hook])
    assert [text.count(b"1.") for text in hook.got] == [32, 16, 32]


@pytest.mark.parametrize("call", ["train", "evaluate"])
def test_strings_of_the_input_are_refused(tmp_path, call):
    def own(features, labels, mode, params):
        tf.strings.join([features["word"], "!"], name="text")
        return model_fn(features["x"], labels, mode, params)

    def input_fn(params):
        words = np.array(["a"] * len(X))
        return tf.data.Dataset.from_tensors({"x": X, "word": words})

    program = estimator(own, tmp_path, iterations=1, use_tpu=False)
    if call == "evaluate":
        program.train(input_fn, steps=1)
    message = f"fetch strings or sparse .* Received: text:0, made at {__file__}"
    with pytest.raises(ValueError, match=message):
        getattr(program, call)(input_fn, steps=1, hooks=[Fetching("text:0")])


def saved_step(folder):
    """The step of the latest checkpoint, or `None`."""
    latest = kte.checkpoints.latest(folder)
    return None if latest is None else kte.checkpoints.step_of(latest)


class Reading(tf.train.SessionRunHook):
    """Records the latest checkpoint in each call, and may stop training."""

    def __init__(self, folder, stop=None, error=None):
        self.folder, self.stop, self.error = folder, stop, error
        self.seen = []

    def _read(self):
        self.seen.append(saved_step(self.folder))

    def after_create_session(self, session, coord):
        self._read()

    def before_run(self, run_context):
        return tf.train.SessionRunArgs(tf.train.get_global_step())

    def after_run(self, run_context, run_values):
        self._read()
        if run_values.results == self.stop:
            run_context.request_stop()
        if run_values.results == self.error:
            raise RuntimeError("A hook fails.")

    def end(self, session):
        self._read()


# The results of TensorFlow 1.15.
@pytest.mark.parametrize(
    "steps, stop, seen", [(5, None, [0, 0, 2, 2, 4, 4, 5]), (8, 4, [0, 0, 2, 2, 4, 4])]
)
def test_hooks_see_the_checkpoint_of_their_step(steps, stop, seen, tmp_path):
    hook = Reading(tmp_path, stop)
    made(tmp_path, config={"save_checkpoints_steps": 2}).train(
        fed([X] * steps), steps=steps, hooks=[hook]
    )
    assert hook.seen == seen


def test_checkpoint_of_a_step_in_which_a_hook_fails_exists(tmp_path):
    hook = Reading(tmp_path, error=2)
    with pytest.raises(RuntimeError, match="A hook fails"):
        made(tmp_path, config={"save_checkpoints_steps": 2}).train(
            fed([X] * 5), steps=5, hooks=[hook]
        )
    assert hook.seen == [0, 0, 2]
    assert saved_step(tmp_path) == 2


def test_saver_of_a_script_acts_among_its_hooks(tmp_path):
    before, after = Reading(tmp_path), Reading(tmp_path)
    saver = tf.train.CheckpointSaverHook(str(tmp_path), save_steps=2)
    made(tmp_path).train(fed([X] * 3), steps=3, hooks=[before, saver, after])
    assert before.seen == [None, 0, 0, 2, 2]
    assert after.seen == [0, 0, 2, 2, 3]
