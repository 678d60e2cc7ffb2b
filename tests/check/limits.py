"""The rows of the pages about differences, with code for each row.

A row without code describes a difference that no TensorFlow name shows, so the checker
cannot report it.
"""

from typing import NamedTuple

PROGRAM = """
import tensorflow.compat.v1 as tf

fc = tf.feature_column
HOST


def input_fn(params):
    data = tf.data.Dataset.from_tensors(([[1.0]], [[1.0]])).repeat()
    INPUT
    return data


def model_fn(features, labels, mode, params):
    y = tf.layers.dense(features, 1)
    STEP
    loss = tf.losses.mean_squared_error(labels, y)
    train_op = tf.train.GradientDescentOptimizer(0.1).minimize(
        loss, tf.train.get_global_step()
    )
    return tf.estimator.EstimatorSpec(mode, loss=loss, train_op=train_op)


estimator = tf.estimator.Estimator(model_fn)
estimator.train(input_fn, steps=1)
"""


class Code(NamedTuple):
    """A script.

    Attributes:
        verdict: The checker's verdict.
        step: The code of its `model_fn`. Defaults to none.
        host: Its code outside functions. Defaults to none.
        data: The code of its `input_fn`. Defaults to none.
    """

    verdict: str
    step: str = "pass"
    host: str = ""
    data: str = "pass"

    @property
    def text(self) -> str:
        """The script."""
        text = PROGRAM.replace("HOST", self.host).replace("INPUT", self.data)
        return text.replace("STEP", self.step.replace("\n", "\n    "))


def host(verdict: str, code: str) -> Code:
    """A script with code outside functions."""
    return Code(verdict, host=code)


_LOOP = "tf.while_loop(lambda i: i < y[0, 0], lambda i: i + 1., [0.]"
_HOST_CALL = "def host_call_fn(loss):\n    tf.summary.scalar('loss', loss)"

# The beginnings of the rows, by page and heading.
ROWS: dict[tuple[str, str], dict[str, Code | None]] = {
    ("lifting_limits", "## What is different"): {
        "variables are read and written in any order": None,
        "random ops continue": None,
        "the global step decides when": None,
        "if cores assign different values": None,
        "an operation in a `tf.cond` branch": None,
        "if the condition of `tf.cond` is a constant": None,
        "a false assertion": None,
        "without an operation that changes the global step": None,
        "64-bit numbers": Code("depends", "tf.get_variable('a', [], tf.int64)"),
        "variables are resources only": None,
        "columns of ids are sparse": Code(
            "depends",
            "fc.input_layer(features, "
            '[fc.categorical_column_with_vocabulary_list("a", ["b"])])',
        ),
        "shapes that are unknown": None,
        "sizes may depend on values": None,
        "`tf.while_loop` has a gradient": Code("depends", f"y += {_LOOP})"),
        "`tf.while_loop` may change": None,
        "a summary or another tensor of a `tf.cond`": Code(
            "differs",
            "def branch():\n    tf.summary.scalar('y', y[0, 0])\n    return y\n"
            "y = tf.cond(y[0, 0] > 0, branch, lambda: y)",
        ),
        "a hook may initialize": None,
        "constants that `input_fn` returns": None,
        "optimizers update the rows": None,
    },
    ("lifting_limits", "### Of the estimator"): {
        "parameter servers": None,
        "`RunConfig.dtype_policy`": None,
    },
    ("differences", "# Differences from TPUEstimator"): {
        "`evaluate` needs `steps`": None,
        "all shapes must be static": None,
        '`features["is_padding"]`': None,
        "summaries in a `model_fn`": None,
        "the reported loss": None,
        "`iterations_per_loop` has no effect": None,
        "`TPUConfig().iterations_per_loop` is 2": None,
        "the loss of `evaluate`": None,
        "a `host_call` without tensors": None,
        "a `host_call` every n steps": None,
        "a list `[features, labels]`": None,
        "`use_tpu=False` has many": None,
        "`get_variable_value` fails": None,
        "some errors are swallowed": None,
        "a string in `predict_keys`": None,
        "a variable with another shape": None,
        "a learning rate that is a number": None,
        "`iterations_per_loop=": None,
        "a `CheckpointSaverHook` in": None,
        "hooks of a step are called": None,
        "the input restarts": None,
        "SIGTERM ends": None,
        "`StopAtStepHook` stops": None,
        "`GlobalStepWaiterHook` waits": host(
            "differs", "tf.train.GlobalStepWaiterHook(10)"
        ),
        "`ProfilerHook` writes": host(
            "differs", "tf.train.ProfilerHook(save_steps=10)"
        ),
        "needs a TPU's address": None,
        "`TF_CONFIG` may contain": None,
        "`Scaffold(saver=Saver(names))`": None,  # As in a graph.
        "a failed export leaves": None,
        "`export_saved_model` returns": None,
        "the metagraph `{eval}`": None,
        "`outside_compilation` may run": None,
        "early stopping adds": None,
        "`BestExporter` exports": host("differs", "tf.estimator.BestExporter()"),
        "evaluations are throttled": None,
        "the hooks of a spec": None,
        "an evaluator always waits": None,
        "an evaluator fails if": None,
        "parameter servers train": None,
        "a relative `model_dir`": None,
        "training waits while": None,
        "a corrupt checkpoint": None,
        "checkpoints are TensorFlow's": None,
        "integers in predictions": None,
        "the global step is int64": None,
        "errors have TensorFlow's messages": None,
        "a missing checkpoint or": None,
        "a checkpoint with another dtype": None,
        "a scope without variables": None,
        "`InMemoryEvaluatorHook` rejects": host(
            "differs",
            "tf.estimator.experimental.InMemoryEvaluatorHook(None, input_fn)",
        ),
        "`num_shards=1` with": host(
            "differs", "tf.estimator.tpu.TPUConfig(num_shards=8)"
        ),
        "`RunConfig.master` and": None,
        "`VocabInfo` is for": None,
    },
    ("old_programs", "## What is missing"): {
        "`tf.estimator.BoostedTreesClassifier`": host(
            "missing", "tf.estimator.BoostedTreesClassifier([], 1)"
        ),
        "`tf.contrib.distribute`": host(
            "missing", "tf.contrib.distribute.MirroredStrategy()"
        ),
        "`tf.contrib.tpu.rewrite`": host("missing", "tf.contrib.tpu.rewrite(input_fn)"),
        "`tf.contrib.tpu.keras_to_tpu_model`": host(
            "missing", "tf.contrib.tpu.keras_to_tpu_model(None)"
        ),
        "`tf.contrib.seq2seq`": Code("missing", "tf.contrib.seq2seq.BasicDecoder()"),
        "columns of `tf.contrib.layers`": Code(
            "missing", 'tf.contrib.layers.real_valued_column("x")'
        ),
        "`tf.contrib.learn`": host(
            "missing", "tf.contrib.learn.DNNClassifier([1], [])"
        ),
    },
}

_ACCUMULATED = (
    "step = tf.train.get_global_step()\n"
    "tf.cond(y[0, 0] > 0, lambda: tf.assign_add(step, 1), lambda: step)"
)
_PADDED = "data = data.padded_batch(2, ([None], [None]))"
_IDS = 'fc.categorical_column_with_identity("n", 5)'
_TABLE = 'tf.contrib.lookup.index_table_from_tensor(["a"])'

# Scripts that once differed from TensorFlow 1.15 or stopped.
PROGRAMS = {
    "`tf.distribute` strategies": host(
        "depends",
        "tf.estimator.RunConfig(train_distribute=tf.distribute.MirroredStrategy())",
    ),
    "`embedding_config_spec`": host(
        "refused",
        "tf.estimator.tpu.TPUEstimator(None, embedding_config_spec=[])",
    ),
    "`tf.examples.tutorials`": host(
        "missing",
        "tf.examples.tutorials.mnist.input_data.read_data_sets('a')",
    ),
    "`tf.summary` in a `host_call`": Code(
        "refused", f"{_HOST_CALL}\nhost_call = (host_call_fn, [y])"
    ),
    "`ready_op` and `ready_for_local_init_op`": Code(
        "differs", "tf.train.Scaffold(ready_op=tf.no_op())"
    ),
    "`local_init_op` may assign": Code(
        "depends", "tf.train.Scaffold(local_init_op=tf.no_op())"
    ),
    "partitioners split variables": Code(
        "differs",
        "tf.get_variable('a', [4], partitioner=tf.fixed_size_partitioner(2))",
    ),
    "the tensors of a `tf.while_loop` may grow": Code(
        "depends",
        f"y += {_LOOP}, shape_invariants=[tf.TensorShape([None])], "
        "maximum_iterations=3)",
    ),
    "on a TPU, a `tf.cond` around": Code(
        "depends",
        "y = tf.cond(y[0, 0] > 0, lambda: tf.tpu.cross_replica_sum(y), lambda: y)",
    ),
    "`build_supervised_input_receiver_fn_from": host(
        "differs",
        "tf.estimator.export."
        "build_supervised_input_receiver_fn_from_input_fn(input_fn)",
    ),
    "a `Scaffold(saver=tf.train.Checkpoint": Code(
        "differs", "tf.train.Scaffold(saver=tf.train.Checkpoint(y=y))"
    ),
    "`RunOptions` of a hook": host(
        "differs", "tf.RunOptions(trace_level=tf.RunOptions.FULL_TRACE)"
    ),
    "`py_func`, strings": Code("refused", "y = tf.py_func(abs, [y], tf.float32)"),
    "a script's own copy": host(
        "missing", "tf.contrib.tpu.proto.compilation_result_pb2"
    ),
    "`tf.contrib.quantize`": Code(
        "missing", "tf.contrib.quantize.create_training_graph()"
    ),
    "a step that counts in a branch": Code("runs", _ACCUMULATED),
    "batches of changing shapes": Code("runs", data=_PADDED),
    "an evaluation hook": host("runs", "tf.train.LoggingTensorHook(['y'], 1)"),
    "partitions, looked up": Code(
        "differs",
        "table = tf.get_variable('a', [7, 1], "
        "partitioner=tf.fixed_size_partitioner(3))\n"
        "tf.nn.embedding_lookup(table, [1])",
    ),
    "a partition of the scope": Code(
        "differs",
        "with tf.variable_scope('a', partitioner="
        "tf.variable_axis_size_partitioner(9)):\n    pass",
    ),
    "a loop with a bound": Code("runs", f"y += {_LOOP}, maximum_iterations=3)"),
    "a loop that counts to a size": Code(
        "runs",
        "tf.while_loop(lambda i, _: i < tf.shape(y)[0], "
        "lambda i, y: (i + 1, y * 2.), (0, y))",
    ),
    "a loop whose arguments are hidden": Code("runs", f"y += {_LOOP}, **params)"),
    "a summary beside a branch": Code(
        "runs",
        "y = tf.cond(y[0, 0] > 0, lambda: y, lambda: -y)\n"
        "tf.summary.scalar('y', y[0, 0])",
    ),
    "a summary that a branch calls": Code(
        "differs",
        "def record():\n    tf.summary.histogram('y', y)\n    return y\n"
        "y = tf.cond(y[0, 0] > 0, lambda: record() + 1., lambda: y)",
    ),
    "a loss in a branch": Code(
        "depends",
        "tf.cond(y[0, 0] > 0, "
        "lambda: tf.losses.mean_squared_error(labels, y), lambda: 0.0)",
    ),
    "a regularized layer in a branch": Code(
        "depends",
        "y = tf.cond(y[0, 0] > 0, "
        "lambda: tf.layers.dense(y, 1, kernel_regularizer=tf.nn.l2_loss), "
        "lambda: y)",
    ),
    "a layer in a branch": Code(
        "runs",
        "y = tf.cond(y[0, 0] > 0, lambda: tf.layers.dense(y, 1), lambda: y)",
    ),
    "a summary in a loop": Code(
        "differs",
        "def body(i):\n    tf.summary.scalar('i', i)\n    return i + 1\n"
        "tf.while_loop(lambda i: i < 3, body, [0], maximum_iterations=3)",
    ),
    "a summary of a host_call, with its writer": Code(
        "runs",
        "def host_call_fn(loss):\n"
        "    tf.contrib.summary.scalar('loss', loss)\n"
        "    tf.compat.v2.summary.scalar('loss', loss)",
    ),
    "strings that pass through": Code(
        "depends", data='tf.FixedLenFeature([], tf.string, "")'
    ),
    "a table in model_fn": Code("depends", f"{_TABLE}.lookup(features)"),
    "sparse features": Code(
        "depends",
        f"fc.input_layer(features, [fc.embedding_column({_IDS}, 2)])",
        data="tf.VarLenFeature(tf.int64)",
    ),
    "a conditional random field": Code(
        "runs", "tf.contrib.crf.crf_log_likelihood(y, labels, [1])"
    ),
    "gather_nd of a variable": Code(
        "runs", "tf.gather_nd(tf.get_variable('a', [3, 3]), [[0, 1]])"
    ),
    "a device": Code("runs", "with tf.device('/gpu:0'):\n    y = y * 2.0"),
    "a function of the library": Code(
        "runs",
        "from tensorflow.python.framework import function\n"
        "function.Defun(tf.float32)(tf.square)(y)",
    ),
    "a scaffold without an own saver": Code(
        "runs", "tf.train.Scaffold(init_fn=None, ready_op=None, saver=None)"
    ),
    "a saver for a scaffold": Code("runs", "tf.train.Scaffold(saver=tf.train.Saver())"),
    "a saver that keeps": Code("runs", "tf.train.Saver(max_to_keep=3)"),
    "no strategy": host("runs", "tf.estimator.RunConfig(train_distribute=None)"),
    "a strategy of a flag": host(
        "depends",
        "def run(strategy):\n"
        "    tf.estimator.RunConfig(train_distribute=strategy)\n"
        "run(None)",
    ),
    "an iterator that a hook initializes": host(
        "runs",
        "class Initializes(tf.train.SessionRunHook):\n"
        "    def after_create_session(self, session, coord):\n"
        "        session.run(self.initializer)\n"
        "def initializable_input_fn(params):\n"
        "    iterator = input_fn(params).make_initializable_iterator()\n"
        "    hook.initializer = iterator.initializer\n"
        "    return iterator.get_next()\n"
        "hook = Initializes()",
    ),
    "a branch for batches of one example": Code(
        "runs",
        "y = tf.cond(tf.equal(tf.shape(y)[0], 1),\n"
        "    lambda: tf.squeeze(y, axis=0), lambda: tf.reduce_mean(y, 0))",
    ),
    "a dense layer on selected rows": Code(
        "runs",
        "rows = tf.to_int32(tf.where(y[:, 0] > 0))\n"
        "y = tf.gather_nd(y, rows)\n"
        "y = tf.layers.dense(tf.expand_dims(y, 0), 1)[0]\n"
        "y = tf.scatter_nd(rows, y, [1, 1])",
    ),
    "the heads of canned estimators": Code(
        "runs",
        "from tensorflow.python.estimator.canned import head\n"
        "head._regression_head(label_dimension=1)\n"
        "tf.contrib.estimator.multi_label_head(3)\n"
        "tf.estimator.BinaryClassHead()",
    ),
    "a time in a variable of a hook": host(
        "runs",
        "class Timing(tf.train.SessionRunHook):\n"
        "    def begin(self):\n"
        "        time = tf.get_variable('time', [], tf.int64)\n"
        "        self.update = time.assign(tf.to_int64(tf.timestamp()))\n"
        "    def before_run(self, context):\n"
        "        return tf.train.SessionRunArgs(self.update)\n"
        "hooks = [Timing()]",
    ),
    "a table by its keyword": host(
        "runs",
        "tf.contrib.lookup.index_table_from_tensor(mapping=tf.constant(['a']))\n"
        "tf.contrib.lookup.index_to_string_table_from_tensor(mapping=['a', 'b'])",
    ),
    "a strategy of one device": host(
        "depends",
        "tf.estimator.RunConfig(train_distribute="
        "tf.contrib.distribute.OneDeviceStrategy('device:CPU:0'))",
    ),
    "TF-GAN's estimator": host("missing", "tf.contrib.gan.estimator.GANEstimator('a')"),
    "a sum over a shorter last batch": Code(
        "runs",
        "tf.losses.add_loss(tf.reduce_sum(y))",
        data="data = data.take(3).unbatch().batch(2)",
    ),
    "a launcher of another script": host(
        "runs", "import runpy\nrunpy.run_path('inner.py', run_name='__main__')"
    ),
    "cells that wrap other cells": Code(
        "runs",
        "cell = tf.contrib.rnn.AttentionCellWrapper(tf.contrib.rnn.GRUCell(3), 2)\n"
        "tf.nn.static_rnn(cell, [y], dtype=tf.float32)",
    ),
    "private functions of variables at import": host(
        "runs",
        "from tensorflow.python.ops import resource_variable_ops\n"
        "resource_variable_ops._to_proto_fn",
    ),
    "a copy of TPUEstimator behind a guarded import": host(
        "missing",
        "try:\n"
        "    import absent_package\n"
        "    from absent_package.estimator import model_fn as model_fn_lib\n"
        "except:\n"
        "    from tensorflow.python.estimator import model_fn as model_fn_lib\n"
        "class TPUEstimatorSpec(model_fn_lib._TPUEstimatorSpec):\n    pass",
    ),
    "variables of 32 bits": Code("runs", "tf.get_variable('a', [], tf.int32)"),
    "variables of 64 bits": Code("depends", "tf.Variable(0, dtype='int64')"),
    "names of estimators": host(
        "runs", "from tensorflow_estimator import estimator as tf_estimator"
    ),
}
