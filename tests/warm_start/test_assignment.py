import collections
import re

import keras
import numpy as np
import pytest
import tensorflow as tf  # noqa: TID253 - the original
from tensorflow_files import graph_of, save_tf1, values_in_tf1

import keras_tpu_estimator as kte
from keras_tpu_estimator.checkpoints import resolve_assignments
from keras_tpu_estimator.files.warm_start.pairing import pairings, read_values


def ones(*shape, times=1):
    return np.full(shape, times, "float32")


SAVED = {
    "bert/embeddings/table": ones(3, 2, times=1),
    "bert/dense/kernel": ones(2, 2, times=2),
    "bert/dense/kernel/adam_m": ones(2, 2, times=3),
    "dense/kernel": ones(2, 2, times=4),
    "dense/bias": ones(2, times=5),
}
BERT = {
    "bert/embeddings/table": ones(3, 2, times=-1),
    "bert/dense/kernel": ones(2, 2, times=-2),
}
ENCODER = {
    "encoder/embeddings/table": ones(3, 2, times=-1),
    "encoder/dense/kernel": ones(2, 2, times=-2),
    "head/bias": ones(2, times=-3),
}
PLAIN = {
    "dense/kernel": ones(2, 2, times=-1),
    "dense/bias": ones(2, times=-2),
}
WITHIN = {f"model/{name}": value for name, value in PLAIN.items()}


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    return save_tf1(str(tmp_path_factory.mktemp("tf1")), SAVED)


ACCEPTED = {
    "scope to itself": (BERT, {"bert/": "bert/"}),
    "scope to another": (ENCODER, {"bert/": "encoder/"}),
    "inner scope": (ENCODER, {"bert/dense/": "encoder/dense/"}),
    "root to scope": (WITHIN, {"/": "model/"}),
    "root to root": (PLAIN, {"/": "/"}),
    "scope to root": (
        {"dense/kernel": BERT["bert/dense/kernel"]},
        {"bert/": "/"},
    ),
    "names": (ENCODER, {"bert/dense/kernel": "encoder/dense/kernel"}),
    "name of another scope": (ENCODER, {"dense/bias": "head/bias"}),
    "pairs": (
        PLAIN | WITHIN,
        [
            ("dense/kernel", "dense/kernel"),
            ("dense/kernel", "model/dense/kernel"),
        ],
    ),
    "the later name counts": (
        {"kernel": ones(2, 2)},
        [("dense/kernel", "kernel"), ("bert/dense/kernel", "kernel")],
    ),
    "a scope, and one of it from elsewhere": (
        ENCODER,
        {"bert/": "encoder/", "dense/kernel": "encoder/dense/kernel"},
    ),
    "nothing": (PLAIN, {}),
}


@pytest.mark.parametrize("case", ACCEPTED)
def test_values_match_the_original(saved, case):
    model, assignment_map = ACCEPTED[case]
    with graph_of(model) as session:
        tf.compat.v1.train.init_from_checkpoint(saved, assignment_map)
        session.run(tf.compat.v1.global_variables_initializer())
        expected = values_in_tf1(session)

    reader = kte.load_checkpoint(saved)
    names = resolve_assignments(assignment_map, model, reader)
    pairs = pairings(names, model, reader.by_any_name())
    values = model | read_values(reader, pairs, model)
    assert values.keys() == expected.keys()
    for path, value in expected.items():
        np.testing.assert_array_equal(values[path], value, err_msg=path)


REFUSED = {
    "name not in the checkpoint": (
        PLAIN,
        {"dense/kernels": "dense/kernel"},
        "has no variable 'dense/kernels'. .* 'dense/kernel'.* to the variable "
        "'dense/kernel' of the model",
    ),
    "one of a scope not in the checkpoint": (
        ENCODER | {"encoder/pooler/kernel": ones(2, 2)},
        {"bert/": "encoder/"},
        "has no variable 'bert/pooler/kernel'.* to the variable "
        "'encoder/pooler/kernel' of the model",
    ),
    "variable not in the model": (
        PLAIN,
        {"dense/kernel": "dense/kernels"},
        r"'dense/kernels', .* not exist in the model.*'dense/kernel'.* slash",
    ),
    "scope to a name": (PLAIN, {"bert/": "encoder"}, "end both names with"),
    "name to a scope": (PLAIN, {"bert": "dense/"}, "end both names with"),
    "shapes": (
        {"dense/kernel": ones(2, 3)},
        {"dense/kernel": "dense/kernel"},
        r"'dense/kernel' of shape \(2, 3\) from 'dense/kernel' of shape "
        r"\(2, 2\). Change the layer's size",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_errors_have_the_original_types(saved, case):
    model, assignment_map, message = REFUSED[case]
    with graph_of(model), pytest.raises(ValueError):
        tf.compat.v1.train.init_from_checkpoint(saved, assignment_map)
    with pytest.raises(ValueError, match=message):
        resolve_assignments(assignment_map, model, kte.load_checkpoint(saved))


@pytest.mark.parametrize(
    ("model", "assignment_map", "message"),
    [
        (
            PLAIN,
            {"bert/": "encoder/"},
            "scope 'encoder/' of the model, .*has no variables",
        ),
        ({}, {"bert/": "bert/"}, "no variables yet: create layers first"),
        (
            # The original detects it when variables are initialized.
            {"bert/dense/kernel": ones(2, 3)},
            {"bert/": "bert/"},
            r"'bert/dense/kernel' of shape \(2, 3\) from",
        ),
    ],
)
def test_errors_where_the_original_continues(saved, model, assignment_map, message):
    with pytest.raises(ValueError, match=message):
        resolve_assignments(assignment_map, model, kte.load_checkpoint(saved))


@pytest.mark.parametrize(
    ("assignment_map", "message"),
    [
        ("bert/", "must be a dict, or a list of pairs. Received: 'bert/'"),
        (5, "must be a dict, or a list of pairs. Received: 5"),
        ({3: "dense/bias"}, "names in the checkpoint. Received: 3 of type int"),
        ({"dense/bias": 3}, "variables or their paths. Received: 3 of type"),
        ({"dense/bias": []}, r"variables or their paths. Received: \[\]"),
    ],
)
def test_other_types_are_refused(saved, assignment_map, message):
    with pytest.raises(TypeError, match=message):
        resolve_assignments(assignment_map, PLAIN, kte.load_checkpoint(saved))


def test_variables_and_tensor_names(saved):
    reader = kte.load_checkpoint(saved)
    kernel = keras.Variable(np.zeros([2, 2], "float32"), name="kernel")
    model = {kernel.path: kernel, "dense/bias": ones(2)}
    for target in (kernel, [kernel], "kernel", "kernel:0"):
        for name in ("dense/kernel", "dense/kernel:0"):
            assert resolve_assignments({name: target}, model, reader) == {
                "kernel": "dense/kernel"
            }


def get_assignment_map_from_checkpoint(variables, checkpoint):
    """The function of BERT's scripts."""
    assignment_map = collections.OrderedDict()
    names = {
        re.match("^(.*):\\d+$", name).group(1): name
        for name in (f"{path}:0" for path in variables)
    }
    for name, _ in kte.list_variables(checkpoint):
        if name in names:
            assignment_map[name] = name
    return assignment_map


def test_assignment_map_of_bert(saved):
    model = BERT | {"output_weights": ones(2, 2)}
    assignment_map = get_assignment_map_from_checkpoint(model, saved)
    assert resolve_assignments(assignment_map, model, kte.load_checkpoint(saved)) == {
        path: path for path in sorted(BERT)
    }


def test_scopes_of_objects_use_variable_names(tmp_path):
    variable = tf.Variable([1.0, 2.0], name="bert/dense/bias")
    path = tf.train.Checkpoint(any=[variable]).save(str(tmp_path / "ckpt"))
    reader = kte.load_checkpoint(path)
    names = resolve_assignments(
        {"bert/": "encoder/"}, {"encoder/dense/bias": ones(2)}, reader
    )
    assert reader.listed_name(names["encoder/dense/bias"]) == "any/0"


@pytest.mark.parametrize(
    ("saved_dtype", "dtype", "value"),
    [
        ("int64", "int32", 7),
        ("float64", "float32", 0.5),
        ("float32", "bfloat16", 0.5),
        ("bool", "float32", True),
        ("int32", "float32", 7),
    ],
)
def test_values_are_cast_to_the_variable(tmp_path, saved_dtype, dtype, value):
    saved = {"a": np.array([value], saved_dtype)}
    reader = kte.load_checkpoint(kte.checkpoints.save(tmp_path, 0, saved))
    model = {"b": np.zeros(1, dtype)}
    pairs = pairings({"b": "a"}, model, reader.by_any_name())
    read = read_values(reader, pairs, model)["b"]
    assert read.dtype == np.dtype(dtype)
    assert read == np.array([value], dtype)


@pytest.mark.parametrize(
    ("saved_dtype", "dtype", "value"),
    [
        ("int64", "int32", 1 << 40),
        ("float32", "int32", 1.0),
        ("int32", "bool", 1),
    ],
)
def test_mismatched_values_are_refused(tmp_path, saved_dtype, dtype, value):
    saved = {"a": np.array([value], saved_dtype)}
    reader = kte.load_checkpoint(kte.checkpoints.save(tmp_path, 0, saved))
    model = {"b": np.zeros(1, dtype)}
    pairs = pairings({"b": "a"}, model, reader.by_any_name())
    with pytest.raises(
        ValueError, match=f"'b' must have .* the {saved_dtype} val.* {dtype}"
    ):
        read_values(reader, pairs, model)
