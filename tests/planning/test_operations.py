"""Names of operations are those of the layers that a user has written."""

import pytest

from keras_tpu_estimator.planning import operations
from keras_tpu_estimator.planning.operations import Operation

_LOOP = "jit(train_steps)/while/body/closed_call/jit(one)/shard_map"


@pytest.mark.parametrize(
    ("op_name", "layer", "name", "is_gradient"),
    [
        (f"{_LOOP}/jvp(dense_1)/dot_general", "dense_1", "dot_general", False),
        (f"{_LOOP}/transpose(jvp(dense_1))/mul", "dense_1", "mul", True),
        (
            f"{_LOOP}/jvp(bert/layer_0)/query/add",
            "bert/layer_0/query",
            "add",
            0,
        ),
        (f"{_LOOP}/jvp(jit(log_softmax))/log", "", "log", False),
        (f"{_LOOP}/adam/sub", "adam", "sub", False),
        (f"{_LOOP}/psum", "", "psum", False),
        (f"{_LOOP}/jvp()/while/body/closed_call/tanh", "", "tanh", False),
        ("assigned['a/dense/kernel']", "a/dense", "kernel", False),
        ("w", "", "w", False),
        # Of a graph of TensorFlow, names are the user's, whatever they are.
        (f"{_LOOP}/tf1_step/MatMul", "", "MatMul", False),
        (f"{_LOOP}/tf1_step/while/body/scan", "while/body", "scan", False),
        (f"{_LOOP}/tf1_step/gradients/Tanh_grad/TanhGrad", "", "Tanh", True),
        (
            f"{_LOOP}/tf1_step/tower/gradients_1/dense/MatMul_grad/MatMul_1",
            "dense",
            "MatMul",
            True,
        ),
        (f"{_LOOP}/tf1_step/gradients/AddN", "gradients", "AddN", False),
        ("", "", "", False),
    ],
)
def test_names(op_name, layer, name, is_gradient):
    expected = Operation(layer, name, bool(is_gradient))
    assert operations.parse(op_name) == expected


def test_they_are_shown_in_words():
    assert str(Operation("dense", "add", True)) == "add of dense (gradient)"
    assert str(Operation("", "psum")) == "psum"
