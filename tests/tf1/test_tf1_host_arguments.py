"""Tests arguments of host functions that are not tensors."""

import keras_tpu_estimator as kte  # isort: skip

import inspect

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from tf1_programs import estimator, fed, variable

X = np.ones((16, 3), "float32")
OTHERS = [4, None, 2.5, True, "text", np.arange(3)]


def kinds(values):
    """The types of values, and those in lists and dicts."""
    if isinstance(values, dict):
        return {name: kinds(value) for name, value in values.items()}
    if isinstance(values, list):
        return [kinds(each) for each in values]
    return "tensor" if tf.is_tensor(values) else type(values)


def program(function, arguments_of, host_call=None):
    """A model_fn with a metric_fn or host_call, whose logits are sums."""

    def model_fn(features, labels, mode, params):
        logits = tf.matmul(features, variable("w", 3, 4) ** 0)
        arguments = arguments_of(logits)
        fields = {"eval_metrics": (function, arguments)}
        if host_call:
            fields = {"host_call": (host_call, arguments)}
        step = tf.train.get_or_create_global_step()
        return kte.tf1.TPUEstimatorSpec(
            mode,
            predictions={"y": logits},
            loss=tf.reduce_mean(logits) + 0 * tf.reduce_sum(variable("v", 1)),
            train_op=tf.assign_add(step, 1),
            **fields,
        )

    return model_fn


@pytest.mark.parametrize("use_tpu", [False, True])
def test_values_reach_a_metric_fn_unchanged(tmp_path, use_tpu):
    seen = []

    def metric_fn(logits, *others):
        seen.append(kinds([logits, *others]))
        pair, settings = others[-2:]
        return {
            "m": tf.metrics.mean(logits * others[0] + others[2]),
            "p": tf.metrics.mean(pair[0] + pair[1]),
            "s": tf.metrics.mean(settings["a"]),
        }

    def arguments(logits):
        return [logits, *OTHERS, [logits, 1], {"b": None, "a": logits}]

    made = estimator(program(metric_fn, arguments), tmp_path, use_tpu=use_tpu)
    made.train(fed([X]), steps=1)
    result = made.evaluate(fed([X]))
    # Results of a script with these values in TensorFlow 1.15.5.
    assert (result["m"], result["p"], result["s"]) == (14.5, 4.0, 3.0)
    others = [int, type(None), float, bool, str, np.ndarray]
    nests = [["tensor", int], {"a": "tensor", "b": type(None)}]
    assert seen == [["tensor", *others, *nests]]


@pytest.mark.parametrize("with_tensors", [False, True])
def test_values_reach_a_host_call_in_each_mode(tmp_path, with_tensors):
    seen, sums = [], []

    def host_call(rows, none, settings):
        seen.append(kinds({"rows": rows, "none": none, "settings": settings}))
        total = tf.reduce_sum(tf.cast(rows, tf.float32))
        return tf.py_func(sums.append, [total], [])

    def arguments(logits):
        rows = logits if with_tensors else 7
        return {"settings": {"s": "x"}, "rows": rows, "none": None}

    made = estimator(program(None, arguments, host_call), tmp_path)
    made.train(fed([X]), steps=1)
    made.evaluate(fed([X]))
    list(made.predict(fed([X])))
    kind = "tensor" if with_tensors else int
    one = {"rows": kind, "none": type(None), "settings": {"s": str}}
    assert seen == [one] * 3
    assert sums == [16 * 4 * 3.0 if with_tensors else 7] * 3


def test_metrics_of_one_core_have_the_values(tmp_path):
    def metric_fn(logits, classes):
        shape = [classes] if isinstance(classes, int) else None
        return {"m": tf.metrics.mean(logits + tf.ones(shape))}

    model_fn = program(metric_fn, lambda logits: [logits, 4])

    def of_one_core(features, labels, mode, params):
        spec = model_fn(features, labels, mode, params)
        return spec.as_estimator_spec()

    made = estimator(of_one_core, tmp_path)
    made.train(fed([X]), steps=1)
    assert made.evaluate(fed([X]))["m"] == 4.0


def test_error_names_arguments_and_the_line(tmp_path):
    def metric_fn(logits, classes):
        return {"m": tf.metrics.mean(logits + np.ones(range(classes)))}

    def arguments(logits):
        return [logits, tf.constant([4])]

    made = estimator(program(metric_fn, arguments), tmp_path)
    made.train(fed([X]), steps=1)
    with pytest.raises(TypeError, match="as an integer") as e:
        made.evaluate(fed([X]))
    (note,) = e.value.__notes__
    line = inspect.getsourcelines(metric_fn)[1] + 1
    assert note.startswith("metric_fn raised this while it built its graph")
    assert f"test_tf1_host_arguments.py:{line}. " in note
    assert "logits (float32 of shape (16, 4))" in note
    assert "classes (int32 of shape (1,))" in note
