"""Ported programs: what is rewritten, what stays, and what is marked."""

import pathlib
import textwrap

import pytest

from keras_tpu_estimator.__main__ import main
from keras_tpu_estimator.tf1_tools.port.command import port

EXAMPLES = pathlib.Path(__file__).parents[2] / "examples"


def ported(folder: pathlib.Path, source: str) -> str:
    path = folder / "program.py"
    path.write_text("import tensorflow as tf\n\n\n" + textwrap.dedent(source))
    return port(path).files[pathlib.Path("program.py")].code


@pytest.mark.parametrize("name", ["tf1_mnist.py", "tf1_bert_tiny.py"])
def test_examples_are_ported_without_a_hand(name: str) -> None:
    program = port(EXAMPLES / name)
    assert program.sites > 30
    assert program.rewritten == program.sites
    (file,) = program.files.values()
    compile(file.code, name, "exec")
    assert "tf.contrib" not in file.code


# Bodies of a `model_fn` before and after.
BODIES = {
    "scope": (
        'with tf.variable_scope("a", reuse=tf.AUTO_REUSE):\n'
        '    return tf.layers.dense(features, 3, name="d")',
        'with kte.variable_scope("a", reuse=kte.AUTO_REUSE):\n'
        '    return layers.Dense(3, name="d")(features)',
    ),
    "dependencies": (
        "update_ops = tf.get_collection(tf.GraphKeys.UPDATE_OPS)\n"
        "# The step.\n"
        "with tf.control_dependencies(update_ops):\n"
        "    return tf.identity(features)",
        "# The step.\nreturn features",
    ),
    "an update after another": (
        "train_op = params.minimize(loss)\n"
        "ema = tf.train.ExponentialMovingAverage(0.9)\n"
        "with tf.control_dependencies([train_op]):\n"
        "    train_op = ema.apply(tf.trainable_variables())\n"
        "return train_op",
        "train_op = kte.minimize(params, loss)\n"
        "ema = kte.ExponentialMovingAverage(0.9)\n"
        "train_op = [train_op, ema.apply(kte.trainable_variables())]\n"
        "return train_op",
    ),
    "nothing after an update": (
        "update = params.minimize(loss)\n"
        "with tf.control_dependencies([update]):\n"
        "    return tf.no_op()",
        "update = kte.minimize(params, loss)\nreturn update",
    ),
    "names of variables": (
        "return [v.name for v in tf.trainable_variables()]",
        "return [v.path for v in kte.trainable_variables()]",
    ),
    "sizes": (
        "return x.get_shape().as_list()[1], tf.shape(x)[0], x.shape.ndims",
        "return list(x.shape)[1], x.shape[0], len(x.shape)",
    ),
    "variable": (
        'return tf.get_variable("w", [3], initializer=tf.zeros_initializer())',
        'return keras.Variable("zeros", [3], name="w")',
    ),
    "path of a variable": (
        'return tf.get_variable(params["p"] + "/w", shape=[3])',
        'return kte.get_variable(params["p"] + "/w", [3])',
    ),
    "optimizer": (
        "step = tf.train.get_global_step()\n"
        "optimizer = tf.train.AdamOptimizer(0.1)\n"
        "return optimizer.minimize(loss, global_step=step)",
        "step = kte.get_global_step()\n"
        "optimizer = keras.optimizers.Adam(0.1, epsilon=1e-8)\n"
        "return kte.minimize(optimizer, loss)",
    ),
    "counted steps": (
        "step = tf.train.get_global_step()\n"
        "return tf.group(params, step.assign(step + 1))",
        "step = kte.get_global_step()\nreturn params",
    ),
    "comments between arguments": (
        "return tf.concat(\n    [x, features],  # Both.\n    axis=1)",
        "return ops.concatenate(\n    [x, features],  # Both.\n    axis=1)",
    ),
    "a receiver": (
        "return tf.estimator.export.ServingInputReceiver(x, x)",
        "return kte.export.ServingInputReceiver(x, x)",
    ),
    "numbered layers": (
        "return tf.contrib.layers.layer_norm(x, begin_norm_axis=-1, scope=params)",
        "return layers.LayerNormalization(\n"
        '    epsilon=1e-12, name=params or kte.unique_name("LayerNorm")\n'
        ")(x)",
    ),
    "an unused collection": (
        'return tf.trainable_variables() + tf.get_collection("unused")',
        "return kte.trainable_variables() + []",
    ),
    "an object of the program": ("return [task.name for task in [Task(), Task()]]",)
    * 2,
    "a value that a loop changes": (
        "for _ in params:\n    x = tf.square(x)\nreturn x.shape[0].value",
        "for _ in params:\n    x = ops.square(x)\nreturn x.shape[0]",
    ),
    "a set of variables": (
        "found = tf.trainable_variables() + params\nreturn list(set(found))",
        "found = kte.trainable_variables() + params\n"
        "return list({v.path: v for v in found}.values())",
    ),
    "names of tensors in messages": (
        'tf.logging.info("%s: %s", params.name, params.shape)\n'
        "y = isinstance(x, tf.Tensor)\n"
        "z = tf.square(x)\nprint(z.name)",
        'tf.logging.info("%s: %s", "params", params.shape)\n'
        "y = isinstance(x, jax.Array)\n"
        'z = ops.square(x)\nprint("z")',
    ),
    "a shape in a message": (
        'tf.logging.info("%s" % x.shape)\n'
        'return "%s %d" % x.shape, "a%%%r" % x.get_shape(), "%s" % params',
        'tf.logging.info("%s" % (x.shape,))\n'
        'return "%s %d" % x.shape, "a%%%r" % (x.shape,), "%s" % params',
    ),
    "an initializer": (
        "def initialize(shape, dtype=None, partition_info=None):\n"
        "    return tf.random_normal(shape, stddev=0.1, dtype=dtype)\n\n\n"
        'return tf.get_variable("w", [2], initializer=initialize)',
        "def initialize(shape, dtype=None, partition_info=None):\n"
        "    return keras.initializers.RandomNormal(stddev=0.1)(shape, dtype=dtype)\n"
        '\n\nreturn keras.Variable(initialize, [2], name="w")',
    ),
    "a choice by the mode": (
        "is_training = mode == tf.estimator.ModeKeys.TRAIN\n"
        "return tf.cond(tf.constant(is_training), lambda: x[:1], lambda: x + 1)",
        "is_training = mode == kte.ModeKeys.TRAIN\n"
        "return (x[:1] if is_training else (x + 1))",
    ),
    "a choice by a tensor of the mode": (
        "is_training = tf.constant(mode == tf.estimator.ModeKeys.TRAIN)\n"
        "return tf.cond(is_training, lambda: x, lambda: -x)",
        "is_training = ops.convert_to_tensor(mode == kte.ModeKeys.TRAIN)\n"
        "return ops.cond(is_training, lambda: x, lambda: -x)",
    ),
    "a choice by a size": (
        "return tf.cond(\n    tf.logical_not(tf.less(tf.shape(x)[1], 8)),"
        " true_fn=params, false_fn=lambda: x)",
        "return (params() if not (x.shape[1] < 8) else x)",
    ),
    "a choice by a value": (
        "return tf.cond(tf.reduce_any(x > 0), lambda: x, lambda: -x)",
        "return ops.cond(ops.any(x > 0), lambda: x, lambda: -x)",
    ),
    "a hook that fetches the loss": (
        "total = tf.square(x)\n"
        'hook = tf.train.LoggingTensorHook({"loss": total, "rate": "r"}, 10)\n'
        "return tf.estimator.EstimatorSpec(mode, loss=total, training_hooks=[hook])",
        "total = ops.square(x)\n"
        'hook = kte.hooks.LoggingTensorHook({"loss": "loss", "rate": "r"}, 10)\n'
        "return kte.EstimatorSpec(mode, loss=total, training_hooks=[hook])",
    ),
    "no arguments left": (
        "return tf.estimator.RunConfig(\n    session_config=tf.ConfigProto())",
        "return kte.RunConfig()",
    ),
    "keep_prob": (
        "return tf.nn.dropout(x, keep_prob=1.0 - params.rate)",
        "return layers.Dropout(params.rate)(x, training=True)",
    ),
}


@pytest.mark.parametrize(("before", "after"), BODIES.values(), ids=BODIES)
def test_bodies_of_model_fns(tmp_path, before: str, after: str) -> None:
    head = (
        "class Task(object):\n    name = 'task'\n\n\n"
        "def model_fn(features, labels, mode, params):\n    x = loss = features\n"
    )
    code = ported(tmp_path, head + textwrap.indent(before, "    ") + "\n")
    assert code.endswith(head + textwrap.indent(after, "    ") + "\n")
    compile(code, "program.py", "exec")


def test_inputs_keep_tensorflow(tmp_path) -> None:
    code = ported(
        tmp_path,
        """
        def scaled(x):
            return tf.cast(x, tf.float32) / 255.0


        def input_fn(params):
            return tf.data.Dataset.from_tensor_slices([1]).map(scaled)
        """,
    )
    assert "tf.cast(x, tf.float32)" in code
    assert "keras" not in code


IMPORTS = {
    "names that stay": (
        "import tensorflow as tf\n\ntf.gfile.Exists('a')\n",
        "import tensorflow.compat.v1 as tf\n\ntf.gfile.Exists('a')\n",
    ),
    "a variable called layers": (
        "import tensorflow as tf\n\n\ndef model_fn(features, labels, mode, params):\n"
        "    layers = []\n    layers.append(tf.square(features))\n    return layers\n",
        "# Import Keras after this package, so that Keras runs on JAX.\n"
        "import keras_tpu_estimator as kte\nfrom keras import ops\n\n\n"
        "def model_fn(features, labels, mode, params):\n"
        "    layers = []\n    layers.append(ops.square(features))\n    return layers\n",
    ),
    "no TensorFlow": ("import keras\n\nkeras.ops.abs(1)\n",) * 2,
}


@pytest.mark.parametrize(("before", "after"), IMPORTS.values(), ids=IMPORTS)
def test_imports_are_those_that_a_file_needs(tmp_path, before, after) -> None:
    path = tmp_path / "program.py"
    path.write_text(before)
    assert port(path).files[pathlib.Path("program.py")].code == after


# Statements without a certain counterpart, and a word of the advice.
MARKED = {
    "return tf.train.ExponentialMovingAverage(0.9, features)": "global_step + 1",
    "with tf.variable_scope(''):\n        return 1": "an empty part",
    "return tf.div(features, 2)": "keras.ops.floor_divide",
    "tf.assert_equal(features, 2)": "Python's `if` for shapes",
    "return tf.unheard_of(features)": "Port it to Keras or JAX",
    "return tf.cumsum(features, exclusive=True)": "exclusive",
    "return tf.reshape(features, *params)": "without a star",
    "return tf.layers.dense(features, 1, kernel_regularizer=params)": "regularizer",
    'return tf.get_collection("losses")': "pass on the values",
    "return tf.gradients(features, tf.square(features))": "jax.grad",
    "return tf.contrib.layers.layer_norm(features)": "all axes but the first",
    "return [v.name for v in params]": "path",
    "return tf.saved_model.signature_constants.PREDICT_INPUTS": "kte.export",
    "with tf.control_dependencies([params.minimize(features)]):\n"
    "        return tf.square(features)": "`train_op` must be a list",
    "x = tf.no_op()\n    return x.name": "no counterpart",
    "if tf.Session():\n        return 1": "no counterpart",
}


@pytest.mark.parametrize(("statement", "advice"), MARKED.items(), ids=MARKED)
def test_uncertain_statements_stay_below_a_comment(
    tmp_path, statement: str, advice: str
) -> None:
    head = "def model_fn(features, labels, mode, params):\n    "
    code = ported(tmp_path, head + statement + "\n")
    comment, _, body = code.partition(head)[2].partition(statement)
    assert comment.startswith("# port: ")
    assert advice in " ".join(comment.replace("#", "").split())
    assert not body.strip()


def test_hooks_of_other_tensors_are_marked(tmp_path) -> None:
    code = ported(
        tmp_path,
        """
        def model_fn(features, labels, mode, params):
            loss = tf.square(features)
            hook = tf.train.NanTensorHook(loss)
            loss = loss * 2
            return tf.estimator.EstimatorSpec(mode, loss=loss, training_hooks=[hook])
        """,
    )
    assert "which `kte.identity(x, name=...)` gives it" in " ".join(
        code.replace("#", "").split()
    )
    assert "hook = tf.train.NanTensorHook(loss)" in code


@pytest.mark.parametrize(
    ("name", "optimizer"),
    [
        ("DNNClassifier", "Adagrad(0.05, epsilon=0)"),
        ("LinearRegressor", "Ftrl(0.2)"),
        ("DNNLinearCombinedClassifier", "Ftrl(0.005)"),
    ],
)
def test_ready_made_estimators_name_their_parts(tmp_path, name, optimizer) -> None:
    code = ported(tmp_path, f"estimator = tf.estimator.{name}([])\n")
    comment = " ".join(code.replace("#", "").split())
    assert f"keras.optimizers.{optimizer}" in comment
    assert "docs/wide_and_deep.md" in comment
    assert f"estimator = tf.estimator.{name}([])" in code


def test_optimizers_and_libraries_of_scripts(tmp_path) -> None:
    """Code outside of a `model_fn` may make what the `model_fn` needs."""
    code = ported(
        tmp_path,
        """
        import tensorflow_gan as tfgan

        optimizer = tf.train.GradientDescentOptimizer(0.1)
        writer = tf.summary.FileWriter("folder")
        estimator = tfgan.estimator.TPUGANEstimator(optimizer)
        step = tf.estimator._load_global_step_from_checkpoint_dir(FLAGS.model_dir)
        """,
    )
    comments = " ".join(code.replace("#", "").split())
    assert "optimizer = keras.optimizers.SGD(0.1)" in code
    step = """(
    kte.load_variable(FLAGS.model_dir, "global_step")
    if kte.latest_checkpoint(FLAGS.model_dir)
    else 0
)"""
    assert f"step = {step}\n" in code
    assert "tf.summary.FileWriter: Its counterpart" in comments
    assert "two optimizers in one step" in comments
    assert "estimator = tfgan.estimator.TPUGANEstimator(optimizer)" in code


def test_code_of_inputs_and_steps_is_marked(tmp_path) -> None:
    code = ported(
        tmp_path,
        """
        def shared(x):
            return tf.square(x)


        def input_fn(params):
            return shared(params)


        def model_fn(features, labels, mode, params):
            return shared(features)
        """,
    )
    assert "write two functions" in " ".join(code.replace("#", "").split())
    assert "return tf.square(x)" in code


def test_command_writes_files_once(tmp_path, capsys) -> None:
    arguments = ["port", str(EXAMPLES / "tf1_mnist.py"), "--to", str(tmp_path)]
    assert main(arguments) == 0
    assert "38 rewritten, 100%" in capsys.readouterr().out
    assert main(arguments) == 2
    assert "must not contain 'tf1_mnist.py'" in capsys.readouterr().err


def test_modules_of_other_folders_are_listed(tmp_path, monkeypatch) -> None:
    """They stay as they are, and the new program must not import the old code."""
    for name in ("program", "library"):
        (tmp_path / name).mkdir()
    (tmp_path / "program" / "main.py").write_text("import with_graph\nimport plain\n")
    module = tmp_path / "library" / "with_graph.py"
    module.write_text("import tensorflow as tf\n")
    (tmp_path / "library" / "plain.py").write_text("import os\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "library"))
    program = port(tmp_path / "program" / "main.py")
    assert program.elsewhere == (module,)
    assert f"in other folders\n  {module}" in program.text()


def test_missing_program_is_an_error(tmp_path, capsys) -> None:
    path = str(tmp_path / "none.py")
    assert main(["port", path, "--to", str(tmp_path / "new")]) == 2
    assert "must be a Python file" in capsys.readouterr().err
