"""A TensorFlow 1 program and its ports to Keras."""

import importlib
import pathlib
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow
import tensorflow.compat.v1 as tf
from tensorflow_files import save_tf1
from tf1_golden import GOLDEN

import keras_tpu_estimator as kte


def old_model_fn(features: Any, labels: Any, mode: str, params: Any) -> Any:
    """A program of 2018 in operations that TensorFlow 2 still has."""
    del params

    def dense(x: Any, units: int, name: str) -> Any:
        with tf.variable_scope(name):
            kernel = tf.get_variable("kernel", [x.shape[-1], units])
            bias = tf.get_variable("bias", [units], initializer=tf.zeros_initializer())
            return tf.nn.bias_add(tf.matmul(x, kernel), bias)

    x = tf.nn.relu(dense(features, 8, "hidden"))
    if mode == "train":
        x = tf.nn.dropout(x, rate=0.3)
    with tf.variable_scope("norm"):
        gamma = tf.get_variable("gamma", [8], initializer=tf.ones_initializer())
        beta = tf.get_variable("beta", [8], initializer=tf.zeros_initializer())
    mean, variance = tf.nn.moments(x, [-1], keep_dims=True)
    x = tf.nn.batch_normalization(x, mean, variance, beta, gamma, 1e-3)
    outputs = dense(x, 1, "output")
    if mode == "infer":
        return kte.tf1.TPUEstimatorSpec(mode, predictions={"y": outputs})
    loss = tf.reduce_mean((outputs - labels) ** 2)
    train_op = None
    if mode == "train":
        optimizer = tf.train.AdamOptimizer(0.01, epsilon=1e-7)
        train_op = optimizer.minimize(loss, tf.train.get_global_step())
    return kte.tf1.TPUEstimatorSpec(mode, loss=loss, train_op=train_op)


def port(activation: str = "relu", epsilon: float = 1e-3, rate: float = 0.01) -> Any:
    """Returns a port, which may have a fault."""

    def model_fn(features: Any, labels: Any, mode: str, params: Any) -> Any:
        del params
        x = keras.layers.Dense(8, activation=activation, name="hidden")(features)
        x = keras.layers.Dropout(0.3)(x, training=mode == "train")
        x = keras.layers.LayerNormalization(epsilon=epsilon, name="norm")(x)
        outputs = keras.layers.Dense(1)(x)
        if mode == "infer":
            return kte.TPUEstimatorSpec(mode, predictions={"y": outputs})
        loss = keras.ops.mean((outputs - labels) ** 2)
        optimizer = kte.CrossShardOptimizer(keras.optimizers.Adam(rate, epsilon=1e-7))
        return kte.TPUEstimatorSpec(mode, loss=loss, train_op=optimizer.minimize(loss))

    return model_fn


def input_fn(params: Any) -> Any:
    """Returns a data set that both kinds of programs read."""
    del params
    x = np.random.default_rng(0).normal(size=(48, 4)).astype("float32")
    data = tensorflow.data.Dataset.from_tensor_slices((x, x.sum(1, keepdims=True)))
    return data.batch(16, drop_remainder=True)


@pytest.mark.parametrize(
    ("new", "kind", "words"),
    [
        (port(), None, ""),
        (port(activation="gelu"), "loss", "`hidden/bias`, and differ before `norm/"),
        (port(epsilon=1e-2), "loss", "and differ before `norm/gamma`"),
        (port(rate=0.02), "variable", "2 times"),
    ],
    ids=["port", "gelu", "epsilon", "rate"],
)
def test_port_is_compared(new: Any, kind: str | None, words: str) -> None:
    old = kte.tf1.model_fn(old_model_fn)
    report = kte.compare(old, new, input_fn, steps=2)
    if kind is None:
        assert report.is_equal, str(report)
        assert {one.kind for one in report.compared} >= {"gradient", "prediction"}
        assert [pair.old for pair in report.pairing.guesses] == [
            "output/kernel",
            "output/bias",
        ]
        return
    assert report.finding is not None, str(report)
    assert report.finding.compared.kind == kind, str(report)
    assert words in report.finding.explanation, str(report)


def test_loss_of_a_shorter_last_batch_is_no_difference() -> None:
    def batches(params: Any) -> Any:
        x = np.random.default_rng(0).normal(size=(12, 4)).astype("float32")
        labels = np.repeat([[0.0], [9.0]], [8, 4], axis=0).astype("float32")
        return tensorflow.data.Dataset.from_tensor_slices((x, labels)).batch(8)

    old = kte.tf1.model_fn(old_model_fn)
    report = kte.compare(old, port(), batches, steps=2)
    assert report.is_equal, str(report)
    assert "metric" in {one.kind for one in report.compared}


def old_bert_model_fn(features: Any, labels: Any, mode: str, params: Any) -> Any:
    """A linear model with BERT's optimizer, whose slots are `adam_m` and `adam_v`."""
    import bert_optimization

    del params
    with tf.variable_scope("output"):
        kernel = tf.get_variable("kernel", [4, 1], initializer=tf.zeros_initializer())
        bias = tf.get_variable("bias", [1], initializer=tf.zeros_initializer())
    loss = tf.reduce_mean((tf.matmul(features, kernel) + bias - labels) ** 2)
    optimizer = bert_optimization.AdamWeightDecayOptimizer(0.01, 0.1, ["bias"])
    step = tf.train.get_global_step()
    applied = optimizer.apply_gradients(_pairs(loss))
    train_op = tf.group(applied, step.assign(step + 1))
    return kte.tf1.TPUEstimatorSpec(mode, loss=loss, train_op=train_op)


def _pairs(loss: Any) -> Any:
    variables = tf.trainable_variables()
    return zip(tf.gradients(loss, variables), variables, strict=True)


def port_of_bert(excluded: list[str]) -> Any:
    """Returns a port of `old_bert_model_fn`."""

    def model_fn(features: Any, labels: Any, mode: str, params: Any) -> Any:
        del params
        outputs = keras.layers.Dense(1, name="output")(features)
        loss = keras.ops.mean((outputs - labels) ** 2)
        optimizer = kte.optimizers.AdamWeightDecay(
            0.01, weight_decay_rate=0.1, exclude_from_weight_decay=excluded
        )
        train_op = kte.CrossShardOptimizer(optimizer).minimize(loss)
        return kte.TPUEstimatorSpec(mode, loss=loss, train_op=train_op)

    return model_fn


def test_port_starts_from_a_checkpoint_of_bert(tmp_path: pathlib.Path) -> None:
    random = np.random.default_rng(0)
    shapes = {"output/kernel": (4, 1), "output/bias": (1,)}
    values = {"global_step": np.int64(70)}
    for path, shape in shapes.items():
        for name in (path, f"{path}/adam_m", f"{path}/adam_v"):
            values[name] = random.uniform(0.1, 1.0, shape).astype("float32")
    checkpoint = save_tf1(str(tmp_path), values)
    old = kte.tf1.model_fn(old_bert_model_fn)
    start = {"checkpoint": checkpoint, "steps": 2}
    report = kte.compare(old, port_of_bert(["bias"]), input_fn, **start)
    assert report.is_equal, str(report)
    states = [one for one in report.compared if one.kind == "optimizer state"]
    assert len(states) == 8
    report = kte.compare(old, port_of_bert([]), input_fn, **start)
    assert report.finding is not None, str(report)
    assert report.finding.compared.name == "output/bias"
    assert "weight decay" in report.finding.explanation


def test_checkpoint_of_tensorflow_1_15_is_a_start() -> None:
    import checkpoint_program

    program = kte.tf1.model_fn(checkpoint_program.model_fn_of(kte.tf1.TPUEstimatorSpec))
    checkpoint = str(GOLDEN / "checkpoint_1_15" / "model.ckpt-5")

    def batches(params: Any) -> Any:
        return checkpoint_program.input_fn_from(5)({**params, "batch_size": 8})

    report = kte.compare(program, program, batches, checkpoint=checkpoint, steps=1)
    assert report.is_equal, str(report)
    names = {one.name for one in report.compared if one.kind == "optimizer state"}
    assert names >= {"tower/hidden/kernel/Adam", "tower/hidden/bias/Momentum"}


def old_on_cores(clip: float | None) -> Any:
    """Returns a program whose cores clip their gradients before these are summed."""

    def model_fn(features: Any, labels: Any, mode: str, params: Any) -> Any:
        del params
        with tf.variable_scope("output"):
            zeros = tf.zeros_initializer()
            kernel = tf.get_variable("kernel", [4, 1], initializer=zeros)
            bias = tf.get_variable("bias", [1], initializer=zeros)
        loss = tf.reduce_mean((tf.matmul(features, kernel) + bias - labels) ** 2)
        optimizer = tf.train.GradientDescentOptimizer(0.1)
        optimizer = tf.tpu.CrossShardOptimizer(optimizer)
        gradients, variables = zip(*optimizer.compute_gradients(loss), strict=True)
        if clip is not None:
            gradients, _ = tf.clip_by_global_norm(gradients, clip)
        train_op = optimizer.apply_gradients(
            zip(gradients, variables, strict=True), tf.train.get_global_step()
        )
        return kte.tf1.TPUEstimatorSpec(mode, loss=loss, train_op=train_op)

    return kte.tf1.model_fn(model_fn)


def new_on_cores(clip: float | None, scale: float = 1.0) -> Any:
    """Returns a port that clips the mean of the gradients."""

    def model_fn(features: Any, labels: Any, mode: str, params: Any) -> Any:
        del params
        outputs = keras.layers.Dense(1, name="output")(features)
        loss = scale * keras.ops.mean((outputs - labels) ** 2)
        optimizer = keras.optimizers.SGD(0.1, global_clipnorm=clip)
        train_op = kte.CrossShardOptimizer(optimizer).minimize(loss)
        return kte.TPUEstimatorSpec(mode, loss=loss, train_op=train_op)

    return model_fn


def on_eight(model_fn: Any) -> Any:
    """Returns an estimator on eight cores."""
    config = kte.RunConfig(tf_random_seed=1)
    return kte.TPUEstimator(model_fn, config=config, use_tpu=True, train_batch_size=16)


@pytest.mark.parametrize(
    ("clip", "scale", "kind", "words"),
    [
        (None, 1.0, None, ""),
        (None, 2.0, "loss", "differ before the loss"),
        (0.1, 1.0, "gradient", "clips gradients"),
    ],
    ids=["port", "scale", "clipping"],
)
def test_port_is_compared_on_eight_cores(
    clip: float | None, scale: float, kind: str | None, words: str
) -> None:
    old, new = on_eight(old_on_cores(clip)), on_eight(new_on_cores(clip, scale))
    report = kte.compare(old, new, input_fn, steps=1)
    if kind is None:
        assert report.is_equal, str(report)
        assert "gradient" in {one.kind for one in report.compared}
        return
    assert report.finding is not None, str(report)
    assert report.finding.compared.kind == kind, str(report)
    assert words in report.finding.explanation, str(report)


def test_program_of_tensorflow_continues_adam_of_keras(
    tmp_path: pathlib.Path,
) -> None:
    config = kte.RunConfig(model_dir=str(tmp_path), tf_random_seed=1)
    estimator = kte.TPUEstimator(port(), config=config, use_tpu=False)
    estimator.train(input_fn, steps=2)
    report = kte.compare(
        port(),
        kte.tf1.model_fn(old_model_fn),
        input_fn,
        checkpoint=tmp_path,
        steps=1,
    )
    assert report.is_equal, str(report)


def compared_with_itself(name: str, use_tpu: bool, tmp_path: pathlib.Path) -> Any:
    """Returns the report on a golden program and itself."""
    import running

    program = importlib.import_module(name)
    old, new = (
        running.make_estimator(program, str(tmp_path / role), use_tpu=use_tpu)
        for role in ("old", "new")
    )
    return kte.compare(old, new, program.train_input_fn, steps=2)


@pytest.mark.parametrize(
    ("name", "use_tpu"), [("mnist_cnn", False), ("gan", True)], ids=["1", "8"]
)
def test_golden_program_equals_itself(
    name: str, use_tpu: bool, tmp_path: pathlib.Path
) -> None:
    report = compared_with_itself(name, use_tpu, tmp_path)
    assert report.is_equal, str(report)
    kinds = {one.kind for one in report.compared}
    assert kinds >= {"gradient", "variable", "metric", "prediction"}


@pytest.mark.slow
@pytest.mark.parametrize("use_tpu", [False, True], ids=["1", "8"])
@pytest.mark.parametrize(
    "name",
    [
        "bert_classifier",
        "bert_pretraining",
        "bert_spans",
        "recurrent",
        "replaced_tokens",
        "resnet_lars",
        "wide_and_deep",
    ],
)
def test_each_golden_program_equals_itself(
    name: str, use_tpu: bool, tmp_path: pathlib.Path
) -> None:
    report = compared_with_itself(name, use_tpu, tmp_path)
    assert report.is_equal, str(report)
