"""Tests that every field of TensorFlow's objects is used, refused, or causes a warning.

The tables name each field of the installed TensorFlow, so that a new field fails here
until it is handled.
"""

import keras_tpu_estimator as kte  # isort: skip

import dataclasses
import inspect
import logging

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from google.protobuf.descriptor import FieldDescriptor
from tf1_programs import estimator, fed, summaries_in

from keras_tpu_estimator.base.common.logs import warn_once
from keras_tpu_estimator.tf1_tools.tf_estimator import Estimator, RunConfig, tpu

X = np.ones((4, 1), "float32")


@pytest.fixture(autouse=True)
def logged(caplog):
    """Collects the log as if the process had not warned yet."""
    warn_once.cache_clear()
    caplog.set_level(logging.WARNING, "keras_tpu_estimator")
    return caplog


def input_fn():
    return iter([({"x": X}, X)] * 3)


class Program:
    """A script with a scaffold, and its results."""

    def __init__(self, tmp_path, scaffold_of, train=True):
        self.directory = str(tmp_path)
        self.scaffold_of = scaffold_of
        self.estimator = Estimator(
            self.model_fn,
            config=RunConfig(self.directory, save_summary_steps=1),
        )
        if train:
            self.estimator.train(input_fn, steps=1)

    def model_fn(self, features, labels, mode):
        w = tf.get_variable("w", [], initializer=tf.ones_initializer())
        self.local = tf.Variable(
            0.0, name="own", collections=[tf.GraphKeys.LOCAL_VARIABLES]
        )
        features = features["x"]
        loss = tf.reduce_mean(tf.square(features * w - features))
        tf.summary.scalar("all", loss)
        scaffold = self.scaffold_of(w, self.local)
        optimizer = tf.train.GradientDescentOptimizer(0.0)
        step = tf.train.get_global_step()
        return kte.tf1.EstimatorSpec(
            mode,
            loss=loss,
            train_op=optimizer.minimize(loss, step),
            predictions={"y": features * w + self.local},
            eval_metric_ops={"w": tf.metrics.mean(w)},
            scaffold=scaffold,
        )

    @property
    def w(self):
        return float(self.estimator.get_variable_value("w"))

    @property
    def predicted(self):
        rows = [*self.estimator.predict(input_fn)]
        return float(rows[0]["y"][0])


def scaffold_with(**fields):
    """Makes a scaffold from functions of the two variables."""

    def scaffold_of(w, local):
        made = {name: make(w, local) for name, make in fields.items()}
        return tf.train.Scaffold(**made)

    return scaffold_of


def placeholder():
    """The placeholder of this graph that a feed dict feeds."""
    graph = tf.get_default_graph()
    try:
        return graph.get_tensor_by_name("fed:0")
    except KeyError:
        return tf.placeholder(tf.float32, [], name="fed")


def init_op(tmp_path, logged):
    given = scaffold_with(init_op=lambda w, local: w.assign(5.0))
    assert Program(tmp_path, given).w == 5


def init_feed_dict(tmp_path, logged):
    given = scaffold_with(
        init_op=lambda w, local: w.assign(placeholder()),
        init_feed_dict=lambda w, local: {placeholder(): 6.0},
    )
    assert Program(tmp_path, given).w == 6


def init_fn(tmp_path, logged):
    def run(w):
        op = w.assign(7.0)
        return lambda scaffold, session: session.run(op)

    given = scaffold_with(init_fn=lambda w, local: run(w))
    assert Program(tmp_path, given).w == 7


def ready_op(tmp_path, logged):
    given = scaffold_with(ready_op=lambda w, local: tf.report_uninitialized_variables())
    Program(tmp_path, given)
    assert "`ready_op` of a tf.train.Scaffold has no effect" in logged.text


def ready_for_local_init_op(tmp_path, logged):
    given = scaffold_with(
        ready_for_local_init_op=lambda w, local: tf.constant([], tf.string)
    )
    Program(tmp_path, given)
    assert "`ready_for_local_init_op` of a tf.train.Scaffold" in logged.text


def local_init_op(tmp_path, logged):
    given = scaffold_with(local_init_op=lambda w, local: local.assign(8 * w))
    program = Program(tmp_path, given)
    assert program.predicted == 9
    assert program.predicted == 9


def local_init_feed_dict(tmp_path, logged):
    given = scaffold_with(
        local_init_op=lambda w, local: local.assign(placeholder()),
        local_init_feed_dict=lambda w, local: {placeholder(): 9.0},
    )
    assert Program(tmp_path, given).predicted == 10


def summary_op(tmp_path, logged):
    given = scaffold_with(
        summary_op=lambda w, local: tf.summary.merge(
            [tf.summary.scalar("mine", w, collections=[])]
        )
    )
    Program(tmp_path, given)
    tags = {tag for tag, _ in summaries_in(tmp_path)}
    assert "mine" in tags and "all" not in tags


def saver(tmp_path, logged):
    with pytest.raises(NotImplementedError, match="{'other': 'w'}"):
        Program(
            tmp_path,
            scaffold_with(saver=lambda w, local: tf.train.Saver({"other": w})),
        )
    Program(
        tmp_path,
        scaffold_with(saver=lambda w, local: tf.train.Saver(max_to_keep=2)),
    )


def copy_from_scaffold(tmp_path, logged):
    given = scaffold_with(
        copy_from_scaffold=lambda w, local: tf.train.Scaffold(init_op=w.assign(11.0))
    )
    assert Program(tmp_path, given).w == 11


SCAFFOLD = {
    test.__name__: test
    for test in (
        init_op,
        init_feed_dict,
        init_fn,
        ready_op,
        ready_for_local_init_op,
        local_init_op,
        local_init_feed_dict,
        summary_op,
        saver,
        copy_from_scaffold,
    )
}


def arguments_of(function):
    return [n for n in inspect.signature(function).parameters if n != "self"]


def test_all_fields_of_a_scaffold_are_handled():
    assert sorted(SCAFFOLD) == sorted(arguments_of(tf.train.Scaffold.__init__))


@pytest.mark.parametrize("name", SCAFFOLD)
def test_field_of_a_scaffold(name, tmp_path, logged):
    SCAFFOLD[name](tmp_path, logged)


def test_scaffold_is_finalized(tmp_path):
    class Own(tf.train.Scaffold):
        """A scaffold whose operation exists only in the complete graph."""

        def finalize(self):
            (w,) = [v for v in tf.global_variables() if v.op.name == "w"]
            self._init_op = w.assign(13.0)
            return super().finalize()

    program = Program(tmp_path, lambda w, local: Own())
    assert program.w == 13
    assert program.predicted == 13
    # Its default has no effect.
    assert {tag for tag, _ in summaries_in(tmp_path)} >= {"all"}


def test_scaffold_calls_a_replaced_finalize(tmp_path):
    calls = []

    def scaffold_of(w, local):
        scaffold = tf.train.Scaffold(init_op=w.assign(13.0))
        original = scaffold.finalize

        def finalize():
            calls.append(scaffold)
            return original()

        scaffold.finalize = finalize
        return scaffold

    program = Program(tmp_path, scaffold_of)
    assert program.w == 13
    assert calls


def test_operations_of_collections(tmp_path):
    def scaffold_of(w, local):
        tf.add_to_collection(tf.GraphKeys.LOCAL_INIT_OP, local.assign(3.0))
        tf.add_to_collection(tf.GraphKeys.INIT_OP, w.assign(4.0))

    program = Program(tmp_path, scaffold_of)
    assert (program.w, program.predicted) == (4, 7)


def test_local_init_op_that_assigns_other_variables_is_refused(tmp_path):
    given = scaffold_with(local_init_op=lambda w, local: w.assign(1.0))
    with pytest.raises(NotImplementedError, match=r"assigns \['w'\]. Move"):
        Program(tmp_path, given)


@pytest.mark.parametrize("use_tpu", [False, True])
def test_local_init_op_runs_last_and_in_each_call(tmp_path, use_tpu):
    losses = []

    class Losses(kte.hooks.SessionRunHook):
        def before_run(self, run_context):
            return kte.hooks.SessionRunArgs("loss")

        def after_run(self, run_context, run_values):
            losses.append(float(run_values.results))

    def model_fn(features, labels, mode, params):
        w = tf.get_variable("w", [], initializer=tf.ones_initializer())
        own = tf.Variable(0.0, name="own", collections=[tf.GraphKeys.LOCAL_VARIABLES])
        loss = tf.reduce_mean(features["x"] * (w + own))
        with tf.control_dependencies([own.assign_add(1.0)]):
            train_op = tf.train.get_global_step().assign_add(1)
        return kte.tf1.TPUEstimatorSpec(
            mode,
            loss=loss,
            train_op=train_op,
            scaffold_fn=lambda: tf.train.Scaffold(
                init_op=w.assign(5.0), local_init_op=own.assign(8 * w)
            ),
        )

    made = estimator(model_fn, tmp_path, use_tpu=use_tpu, iterations=1)
    data = [({"x": np.ones((16, 1), "float32")}, None)] * 2
    for _ in range(2):
        made.train(fed(data), hooks=[Losses()], steps=2)
    assert losses == [45, 46, 45, 46]
    assert made.evaluate(fed(data), steps=1)["loss"] == 45
    assert made.get_variable_names() == ["global_step", "w"]


def test_local_init_op_runs_in_serving(tmp_path):
    given = scaffold_with(local_init_op=lambda w, local: local.assign(14.0))
    program = Program(tmp_path, given)
    receiver_fn = kte.export.build_raw_serving_input_receiver_fn({"x": X})
    path = program.estimator.export_saved_model(str(tmp_path), receiver_fn)
    with tf.Graph().as_default(), tf.Session() as session:
        loaded = tf.saved_model.load(session, ["serve"], path)
        signature = loaded.signature_def["serving_default"]
        (fed,) = signature.inputs.values()
        y = session.run(signature.outputs["y"].name, {fed.name: X})
    np.testing.assert_array_equal(y, 15)


def test_initial_value_of_a_variable_may_be_fed(tmp_path):
    def model_fn(features, labels, mode):
        given = tf.placeholder(tf.float32, [2])
        w = tf.Variable(given, name="w")
        loss = tf.reduce_mean(features["x"]) * tf.reduce_sum(w)
        return kte.tf1.EstimatorSpec(
            mode,
            loss=loss,
            train_op=tf.assign_add(tf.train.get_global_step(), 1),
            scaffold=tf.train.Scaffold(init_feed_dict={given: [1.0, 2.0]}),
        )

    made = Estimator(model_fn, str(tmp_path))
    made.train(input_fn, steps=1)
    np.testing.assert_array_equal(made.get_variable_value("w"), [1, 2])


def test_saver_of_objects_keeps_the_names_of_variables(tmp_path, logged):
    given = scaffold_with(
        saver=lambda w, local: tf.compat.v2.train.Checkpoint(
            w=w, global_step=tf.train.get_global_step()
        )
    )
    program = Program(tmp_path, given)
    assert program.estimator.get_variable_names() == ["global_step", "w"]
    assert "has no effect" not in logged.text


class Recording(tf.train.SessionRunHook):
    """Records its arguments of the last run."""

    def __init__(self, args=None, run=None):
        self.args, self.run = args, run

    def after_create_session(self, session, coord):
        self.coord = coord
        if self.run is not None:
            self.run(session)

    def before_run(self, run_context):
        self.context = run_context
        return self.args

    def after_run(self, run_context, run_values):
        self.values = run_values


def hooked(tmp_path, hook):
    program = Program(tmp_path, lambda w, local: None, train=False)
    program.estimator.train(input_fn, hooks=[hook], steps=2)
    return program


TRACED = tf.RunOptions(trace_level=tf.RunOptions.FULL_TRACE)


def fetches(tmp_path, logged):
    hook = Recording(tf.train.SessionRunArgs("w:0"))
    hooked(tmp_path, hook)
    assert hook.values.results == 1


def feed_dict(tmp_path, logged):
    hook = Recording(tf.train.SessionRunArgs(None, feed_dict={"w:0": 1.0}))
    with pytest.raises(ValueError, match="`feed_dict` must be None"):
        hooked(tmp_path, hook)


def options(tmp_path, logged):
    hooked(tmp_path, Recording(tf.train.SessionRunArgs("w:0", options=TRACED)))
    assert "`options` of SessionRunArgs has no effect" in logged.text


RUN_ARGS = {test.__name__: test for test in (fetches, feed_dict, options)}


@pytest.mark.parametrize("name", RUN_ARGS)
def test_field_of_run_args(name, tmp_path, logged):
    RUN_ARGS[name](tmp_path, logged)


def test_all_fields_of_runs_are_handled():
    assert sorted(RUN_ARGS) == sorted(tf.train.SessionRunArgs._fields)
    assert {*tf.train.SessionRunValues._fields} == {
        "results",
        "options",
        "run_metadata",
    }
    public = {n for n in dir(tf.train.SessionRunContext) if n[0] != "_"}
    assert public == {
        "original_args",
        "request_stop",
        "session",
        "stop_requested",
    }
    ours = {n for n in dir(kte.hooks.SessionRunContext) if n[0] != "_"}
    assert ours | {"original_args", "session"} == public


def test_arguments_that_a_hook_receives_of_a_run(tmp_path):
    hook = Recording()
    hooked(tmp_path, hook)
    assert hook.values.results is None
    assert hook.values.options == tf.RunOptions()
    assert hook.values.run_metadata == tf.RunMetadata()
    train_op, loss = hook.context.original_args.fetches
    assert (train_op.type, loss.shape) == ("AssignAddVariableOp", ())
    assert hook.context.stop_requested is False
    assert hook.context.session.graph is loss.graph
    assert hook.coord.should_stop()


def test_coordinator_stops_training(tmp_path):
    class Stopping(Recording):
        def after_run(self, run_context, run_values):
            self.coord.request_stop()

    program = Program(tmp_path, lambda w, local: None, train=False)
    program.estimator.train(input_fn, hooks=[Stopping()], steps=3)
    assert program.estimator.get_variable_value("global_step") == 1


@pytest.mark.parametrize(
    ("argument", "value"),
    [("options", TRACED), ("run_metadata", tf.RunMetadata())],
)
def test_arguments_of_a_session(argument, value, tmp_path, logged):
    def run(session):
        assert session.run("w:0", **{argument: value}) == 1

    hooked(tmp_path, Recording(run=run))
    assert f"`{argument}` of session.run has no effect" in logged.text


def test_options_of_own_run_args(logged):
    kte.hooks.SessionRunArgs("loss", options=object())
    assert "`options` of SessionRunArgs has no effect" in logged.text


def test_own_scaffolds():
    used = {"init_fn", "saver", "copy_from_scaffold", "variables_to_restore"}
    names = {field.name for field in dataclasses.fields(kte.Scaffold)}
    assert names - {"variables_to_restore"} == {*SCAFFOLD}
    for name in names - used:
        with pytest.warns(UserWarning, match=f"with JAX: {name}. Leave"):
            kte.Scaffold(**{name: object()})


def paths_in(descriptor, above=()):
    """The paths of all fields of a protocol buffer."""
    for field in descriptor.fields:
        path = (*above, field)
        inner = field.message_type
        if inner is None or field.is_repeated:
            yield path
        else:
            assert inner not in [each.message_type for each in above]
            yield from paths_in(inner, path)


def set_field(message, path):
    """Sets a field of a protocol buffer to a value that is not the default."""
    *above, last = path
    for field in above:
        message = getattr(message, field.name)
    if last.message_type and last.message_type.GetOptions().map_entry:
        values = last.message_type.fields_by_name["value"]
        getattr(message, last.name).update({key_of(last): value_of(values)})
    elif last.is_repeated and last.message_type:
        getattr(message, last.name).add()
    elif last.is_repeated:
        getattr(message, last.name).append(value_of(last))
    else:
        setattr(message, last.name, value_of(last))


def key_of(field):
    return value_of(field.message_type.fields_by_name["key"])


def value_of(field):
    if field.type == FieldDescriptor.TYPE_BOOL:
        return not field.default_value
    if field.type == FieldDescriptor.TYPE_STRING:
        return "a"
    if field.type == FieldDescriptor.TYPE_BYTES:
        return b"a"
    if field.type == FieldDescriptor.TYPE_ENUM:
        numbers = [each.number for each in field.enum_type.values]
        return next(n for n in numbers if n != field.default_value)
    return 2


CONFIG_PROTO = {
    ".".join(field.name for field in path): path
    for path in paths_in(tf.ConfigProto.DESCRIPTOR)
}


@pytest.mark.rows(40)
@pytest.mark.parametrize("name", CONFIG_PROTO)
def test_field_of_a_config_proto_warns_once(name, logged):
    config = tf.ConfigProto()
    set_field(config, CONFIG_PROTO[name])
    RunConfig(session_config=config)
    tpu.RunConfig(session_config=config)
    RunConfig().replace(session_config=config)
    (record,) = logged.records
    assert f"with JAX: session_config.{name}. Leave" in record.getMessage()
    with pytest.warns(UserWarning, match=f"session_config.{name}. Leave"):
        kte.RunConfig(session_config=config)


def test_fields_of_a_config_proto_include_nested_ones():
    assert CONFIG_PROTO.keys() >= {
        "gpu_options.allow_growth",
        "graph_options.rewrite_options.auto_mixed_precision",
        "graph_options.optimizer_options.global_jit_level",
    }


def test_empty_config_proto_does_not_warn(logged):
    config = tf.ConfigProto()
    config.gpu_options.SetInParent()
    RunConfig(session_config=config)
    kte.RunConfig(session_config=config)
    assert not logged.records


# Fields of tf.estimator's and tf.estimator.tpu's RunConfig, and TPUConfig's.
USED = {
    "model_dir": "/tmp/run",
    "tf_random_seed": 1,
    "save_summary_steps": 5,
    "save_checkpoints_secs": 30,
    "save_checkpoints_steps": 5,
    "keep_checkpoint_max": 1,
    "keep_checkpoint_every_n_hours": 2,
    "log_step_count_steps": 7,
    "tpu_config": tpu.TPUConfig(7),
    "TPUConfig.iterations_per_loop": 7,
    "TPUConfig.num_shards": 8,
    "TPUConfig.num_cores_per_replica": 2,
    "TPUConfig.per_host_input_for_training": False,
    "TPUConfig.eval_training_input_configuration": 5,
    "TPUConfig.experimental_host_call_every_n_steps": 3,
}
REFUSED = {
    "train_distribute": object(),
    "eval_distribute": object(),
    "experimental_distribute": object(),
    # The other settings that it needs are missing.
    "TPUConfig.input_partition_dims": [[1, 2]],
}
WARNED = {
    "device_fn": lambda op: None,
    "protocol": "grpc",
    "session_creation_timeout_secs": 60,
    "experimental_max_worker_delay_secs": 3,
    "checkpoint_save_graph_def": False,
    "master": "grpc://tpu:8470",
    "evaluation_master": "grpc://tpu:8470",
    "cluster": object(),
    "TPUConfig.tpu_job_name": "worker",
    "TPUConfig.initial_infeed_sleep_secs": 3,
    "TPUConfig.experimental_allow_per_host_v2_parallel_get_next": True,
    "TPUConfig.experimental_feed_hook": dict,
}
# The fields of TensorFlow 1.15 with another treatment, and those of later versions.
OTHERS = {"session_config"}
LATER = {
    "checkpoint_save_graph_def",
    "TPUConfig.experimental_allow_per_host_v2_parallel_get_next",
    "TPUConfig.experimental_feed_hook",
}
# The fields of TensorFlow 1.15.5. Fields that only this package has are not listed.
ORIGINAL = """
model_dir tf_random_seed save_summary_steps save_checkpoints_steps
save_checkpoints_secs session_config keep_checkpoint_max
keep_checkpoint_every_n_hours log_step_count_steps train_distribute device_fn protocol
eval_distribute experimental_distribute experimental_max_worker_delay_secs
session_creation_timeout_secs tpu_config evaluation_master master cluster
TPUConfig.iterations_per_loop TPUConfig.num_shards TPUConfig.num_cores_per_replica
TPUConfig.per_host_input_for_training TPUConfig.tpu_job_name
TPUConfig.initial_infeed_sleep_secs TPUConfig.input_partition_dims
TPUConfig.eval_training_input_configuration
TPUConfig.experimental_host_call_every_n_steps
"""


def configured(name, value):
    """A TF1 configuration with one field."""
    above, _, field = name.rpartition(".")
    if above:
        return tpu.RunConfig(tpu_config=tpu.TPUConfig(**{field: value}))
    return tpu.RunConfig(**{name: value})


def test_all_fields_of_run_configs_are_handled():
    decided = {*USED, *REFUSED, *WARNED, *OTHERS}
    assert decided == {*ORIGINAL.split(), *LATER}, (
        "Each field of the original must be in USED, REFUSED or WARNED, with a value "
        "for the tests below."
    )
    fields = {f.name for f in dataclasses.fields(kte.RunConfig) if f.init}
    fields |= {f"TPUConfig.{f.name}" for f in dataclasses.fields(kte.TPUConfig)}
    assert decided <= fields, "A field of the original must not be removed."


@pytest.mark.parametrize("name", USED)
def test_used_field(name, logged):
    config = configured(name, USED[name])
    above, _, field = name.rpartition(".")
    owner = config.tpu_config if above else config
    assert getattr(owner, field) == USED[name] or field.startswith("per_host")
    assert not logged.records


@pytest.mark.parametrize("name", REFUSED)
def test_refused_field(name):
    with pytest.raises(ValueError, match=name.rpartition(".")[2]):
        configured(name, REFUSED[name])


@pytest.mark.parametrize("name", WARNED)
def test_field_without_effect_warns_once(name, logged):
    configured(name, WARNED[name])
    configured(name, WARNED[name])
    (record,) = logged.records
    assert f"with JAX: {name}. Leave" in record.getMessage()


SPECS = {
    kte.tf1.EstimatorSpec: {
        "training_chief_hooks",
        "scaffold",
        "eval_metric_ops",
    },
    kte.tf1.TPUEstimatorSpec: {"scaffold_fn", "eval_metrics"},
}
OF_BOTH = {
    "mode",
    "predictions",
    "loss",
    "train_op",
    "export_outputs",
    "host_call",
    "training_hooks",
    "evaluation_hooks",
    "prediction_hooks",
    "train_metrics",
}


class Everything:
    """A script that sets all fields of a spec, and records its calls."""

    def __init__(self, kind):
        self.kind = kind
        self.names = {field.name for field in dataclasses.fields(kind)}
        self.calls = []

    def hook(self, name):
        program = self

        class Called(tf.train.SessionRunHook):
            def end(self, session):
                program.calls.append(name)

        return Called()

    def host_call(self, x):
        return tf.py_func(lambda a: self.calls.append("host_call"), [x], [])

    def metric_fn(self, x):
        self.calls.append("metrics")
        return {"mean": tf.metrics.mean(x)}

    def scaffold(self, w):
        self.calls.append("scaffold")
        return tf.train.Scaffold(init_op=w.assign(3.0))

    def model_fn(self, features, labels, mode):
        w = tf.get_variable("w", [], initializer=tf.ones_initializer())
        y = features["x"] * w
        fields = {
            "mode": mode,
            "predictions": {"y": y},
            "loss": tf.reduce_sum(w),
            "train_op": tf.assign_add(tf.train.get_global_step(), 1),
            "export_outputs": {"serving_default": kte.export.PredictOutput({"out": y})},
            "host_call": (self.host_call, [y]),
            "train_metrics": (self.metric_fn, [y]),
        }
        for name in self.names:
            if name.endswith("_hooks"):
                fields[name] = [self.hook(name)]
        if self.kind is kte.tf1.EstimatorSpec:
            fields["scaffold"] = self.scaffold(w)
            fields["eval_metric_ops"] = self.metric_fn(y)
        else:
            fields["scaffold_fn"] = lambda: self.scaffold(w)
            fields["eval_metrics"] = (self.metric_fn, [y])
        assert fields.keys() == self.names
        return self.kind(**fields)


@pytest.mark.parametrize("kind", SPECS)
def test_all_fields_of_specs_are_used(kind, tmp_path):
    program = Everything(kind)
    assert program.names == SPECS[kind] | OF_BOTH
    made = Estimator(program.model_fn, str(tmp_path))
    made.train(input_fn, steps=1)
    assert made.get_variable_value("w") == 3
    result = made.evaluate(input_fn)
    assert (result["loss"], result["mean"], result["global_step"]) == (3, 3, 1)
    assert [*made.predict(input_fn)][0]["y"] == 3
    wanted = {"host_call", "metrics", "scaffold"}
    wanted |= {name for name in program.names if name.endswith("_hooks")}
    assert wanted <= {*program.calls}
    receiver_fn = kte.export.build_raw_serving_input_receiver_fn({"x": X})
    path = made.export_saved_model(str(tmp_path / "export"), receiver_fn)
    with tf.Graph().as_default(), tf.Session() as session:
        loaded = tf.saved_model.load(session, ["serve"], path)
    assert [*loaded.signature_def["serving_default"].outputs] == ["out"]
