import copy
import dataclasses
import pickle

import keras
import numpy as np
import pytest
import tensorflow as tf  # noqa: TID253 - the original
from tensorflow_files import graph_of, save_tf1, values_in_tf1

import keras_tpu_estimator as kte
from keras_tpu_estimator import checkpoints
from keras_tpu_estimator.checkpoints import warm_start_values
from keras_tpu_estimator.files.warm_start.values import compare


def filled(shape, value, dtype="float32"):
    return np.full(shape, value, dtype)


SAVED = {
    "w": filled([3, 1], 1),
    "w2": filled([2], 2),
    "w/adam_m": filled([3, 1], 3),
    "bert/LayerNorm/gamma": filled([2], 4),
    "old_name": filled([2], 5),
    "global_step": filled([], 6, "int64"),
}
MODEL = {
    "w": filled([3, 1], -1),
    "w2": filled([2], -2),
    "w/adam_m": filled([3, 1], -3),
    "bert/LayerNorm/gamma": filled([2], -4),
    "global_step": filled([], -6, "int64"),
}


@dataclasses.dataclass(frozen=True)
class Variable:
    """The attributes of a variable that a warm start needs."""

    shape: tuple
    dtype: str = "float32"
    trainable: bool = True


def described(values):
    """Variables like those of the graph with the same values."""
    return {
        path: Variable(
            value.shape,
            str(value.dtype),
            value.dtype.kind == "f" and "adam" not in path,
        )
        for path, value in values.items()
    }


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    return save_tf1(str(tmp_path_factory.mktemp("tf1")), SAVED)


@pytest.fixture
def vocabularies(tmp_path):
    (tmp_path / "old.txt").write_text("a\nb\nc\n")
    (tmp_path / "new.txt").write_text("c\nz\na\n")
    return (str(tmp_path / "new.txt"), 2, 1, str(tmp_path / "old.txt"))


ACCEPTED = {
    "all trainable": ({}, ["w", "w2", "bert/LayerNorm/gamma"]),
    "a prefix": ({"vars_to_warm_start": "w"}, ["w", "w2"]),
    "an end": ({"vars_to_warm_start": "w:0$"}, ["w"]),
    "a part": ({"vars_to_warm_start": ".*Norm"}, ["bert/LayerNorm/gamma"]),
    "all variables": ({"vars_to_warm_start": [".*"]}, [*MODEL]),
    "a list": (
        {"vars_to_warm_start": ["w2", "global", "w/adam"]},
        ["w2", "w/adam_m", "global_step"],
    ),
    "none": ({"vars_to_warm_start": None}, []),
    "nothing of a list": ({"vars_to_warm_start": []}, []),
    "another name": (
        {"var_name_to_prev_var_name": {"w2": "old_name"}},
        ["w", "w2", "bert/LayerNorm/gamma"],
    ),
    "one name twice": (
        {
            "var_name_to_prev_var_name": {
                "w2": "old_name",
                "bert/LayerNorm/gamma": "old_name",
            }
        },
        ["w", "w2", "bert/LayerNorm/gamma"],
    ),
}


def assert_matches_the_original(settings, paths, vocabularies=None):
    """Compares the values with TensorFlow's, and the paths with the expected ones."""
    with graph_of(MODEL) as session:
        tf.compat.v1.train.warm_start(**settings)
        session.run(tf.compat.v1.global_variables_initializer())
        expected = values_in_tf1(session)
    ours = settings | {"var_name_to_vocab_info": vocabularies}
    values, report = warm_start_values(kte.WarmStartSettings(**ours), described(MODEL))
    assert list(values) == paths
    assert [pair.path for pair in report.matched] == paths
    for path, value in (MODEL | values).items():
        np.testing.assert_array_equal(value, expected[path], err_msg=path)
        assert value.dtype == MODEL[path].dtype
    return values


@pytest.mark.parametrize("case", ACCEPTED)
def test_values_match_the_original(saved, case):
    settings, paths = ACCEPTED[case]
    assert_matches_the_original({"ckpt_to_initialize_from": saved, **settings}, paths)


@pytest.mark.parametrize(
    ("wanted", "paths"),
    [(None, ["w"]), (".*", ["w", "w2", "bert/LayerNorm/gamma"])],
)
def test_vocabularies_match_the_original(saved, vocabularies, wanted, paths):
    settings = {
        "ckpt_to_initialize_from": saved,
        "vars_to_warm_start": wanted,
        "var_name_to_vocab_info": {"w": tf.compat.v1.train.VocabInfo(*vocabularies)},
    }
    values = assert_matches_the_original(
        settings, paths, {"w": kte.VocabInfo(*vocabularies)}
    )
    assert values["w"][:, 0].tolist() == [1, 0, 0]


def test_vocabulary_with_another_name(saved, vocabularies):
    values, _ = warm_start_values(
        kte.WarmStartSettings(
            saved,
            vars_to_warm_start="table",
            var_name_to_vocab_info={"table:0": kte.VocabInfo(*vocabularies)},
            var_name_to_prev_var_name={"table:0": "w:0"},
        ),
        {"table": Variable((3, 1), "bfloat16")},
    )
    assert values["table"].dtype == "bfloat16"
    assert values["table"][:, 0].tolist() == [1, 0, 0]


def test_empty_selection_is_logged(tmp_path, caplog):
    prefix = kte.checkpoints.save(tmp_path, 20, {"kernel": np.ones(2)})
    variable = keras.Variable(np.zeros(2), name="kernel")
    settings = kte.WarmStartSettings(prefix, vars_to_warm_start="bert/")
    values, _ = kte.checkpoints.warm_start_values(settings, {"kernel": variable})
    assert not values
    assert "selects none of ['kernel']" in caplog.text


def test_list_of_variables():
    first = keras.Variable(np.zeros(2), name="first", trainable=False)
    second = keras.Variable(np.zeros(2), name="second")
    settings = kte.WarmStartSettings("path", vars_to_warm_start=[first])
    assert settings.select({"first": first, "second": second}) == ["first"]


def test_objects_are_found_by_variable_names(tmp_path):
    variables = [
        tf.Variable([1.0, 2.0], name="dense/bias"),
        tf.Variable([3.0], name="scale"),
    ]
    path = tf.train.Checkpoint(all=variables).save(str(tmp_path / "ckpt"))
    values, report = warm_start_values(
        kte.WarmStartSettings(path), {"dense/bias": Variable((2,))}
    )
    assert values["dense/bias"].tolist() == [1, 2]
    assert report.unused == ("all/1", "save_counter")


@pytest.mark.parametrize("suffix", [".weights.h5", ".keras", "", ".tf"])
def test_warm_start_from_a_keras_file(tmp_path, suffix):
    keras.utils.clear_session(free_memory=False)
    model = keras.Sequential([keras.Input([3]), keras.layers.Dense(2)])
    kernel = np.arange(6).reshape(3, 2)
    model.set_weights([kernel, np.array([7, 8])])
    values = {"dense/kernel": kernel, "dense/bias": np.array([7, 8])}
    path = tmp_path / f"a{suffix}"
    match suffix:
        case ".weights.h5":
            model.save_weights(path)
        case ".keras":
            model.save(path)
        case ".tf":
            module = tf.Module()
            module.kernel = tf.Variable(kernel, name="dense/kernel")
            module.bias = tf.Variable([7, 8], name="dense/bias")
            tf.saved_model.save(module, str(path))
        case "":
            checkpoints.save(path, 3, values)

    read, _ = warm_start_values(
        kte.WarmStartSettings(path), {v.path: v for v in layer().variables}
    )
    assert {p: v.tolist() for p, v in read.items()} == {
        p: v.tolist() for p, v in values.items()
    }
    assert {v.dtype.name for v in read.values()} == {"float32"}


def layer():
    keras.utils.clear_session(free_memory=False)
    dense = keras.layers.Dense(2)
    dense.build((None, 3))
    return dense


# Refused settings.


def test_error_and_report_have_all_problems(saved):
    model = {
        "w": Variable((3, 1)),
        "w2": Variable((5,)),
        "w3": Variable((1,)),
        "moving_mean": Variable((2,), trainable=False),
    }
    with pytest.raises(checkpoints.WarmStartError, match="`vars_to_warm") as e:
        warm_start_values(kte.WarmStartSettings(saved), model)
    assert isinstance(e.value, ValueError)
    report = e.value.report
    assert not report.is_complete
    assert [pair.path for pair in report.matched] == ["w"]
    assert [pair.path for pair in report.missing] == ["w3"]
    assert [
        (pair.path, pair.shape, pair.stored_shape) for pair in report.mismatched
    ] == [("w2", (5,), (2,))]
    assert report.unselected == ("moving_mean",)
    assert report.unused == (
        "bert/LayerNorm/gamma",
        "global_step",
        "old_name",
        "w/adam_m",
    )
    assert str(e.value).endswith(str(report))


def test_report_is_a_table(saved):
    model = {
        "w": Variable((3, 1)),
        "w2": Variable((5,)),
        "w3": Variable((1,)),
        "moving_mean": Variable((2,), trainable=False),
    }
    report = compare(kte.WarmStartSettings(saved), model, kte.load_checkpoint(saved))
    assert str(report).splitlines() == [
        f"Warm start from {saved!r}: 1 matched, 1 missing, 1 mismatched, "
        "1 unselected, 4 unused",
        "            variable     shape   in the checkpoint     shape there",
        "missing     w3           (1,)    w3                    none",
        "mismatched  w2           (5,)    w2                    (2,)",
        "matched     w            (3, 1)  w                     (3, 1)",
        "unselected  moving_mean",
        "unused                           bert/LayerNorm/gamma",
        "unused                           global_step",
        "unused                           old_name",
        "unused                           w/adam_m",
    ]


@pytest.mark.parametrize(
    "settings",
    [
        {"var_name_to_prev_var_name": {"w3": "w"}},
        {"var_name_to_prev_var_name": {"w/adam_m": "w"}},
        {
            "vars_to_warm_start": "w2",
            "var_name_to_prev_var_name": {"w": "w"},
        },
    ],
)
def test_unused_names_are_refused_as_in_the_original(saved, settings):
    settings = {"ckpt_to_initialize_from": saved, **settings}
    with graph_of(MODEL), pytest.raises(ValueError):
        tf.compat.v1.train.warm_start(**settings)
    [unused] = settings["var_name_to_prev_var_name"]
    with pytest.raises(
        ValueError,
        match=rf"`var_name_to_prev_var_name` must name .* others: \['{unused}'",
    ):
        warm_start_values(kte.WarmStartSettings(**settings), described(MODEL))


def test_unused_vocabularies_are_refused(saved, vocabularies):
    settings = kte.WarmStartSettings(saved, "w2", {"w": kte.VocabInfo(*vocabularies)})
    with pytest.raises(ValueError, match="`var_name_to_vocab_info` must name"):
        warm_start_values(settings, described(MODEL))


def test_error_for_a_mismatched_vocabulary_names_the_variable(saved, vocabularies):
    settings = kte.WarmStartSettings(saved, "w$", {"w": kte.VocabInfo(*vocabularies)})
    with pytest.raises(ValueError, match="VocabInfo of the variable 'w' must"):
        warm_start_values(settings, {"w": Variable((4, 1))})


def test_missing_checkpoint_is_refused():
    with pytest.raises(ValueError, match="'/nowhere/a' is not a checkpoint"):
        warm_start_values(kte.WarmStartSettings("/nowhere/a"), {})


VARIABLE = keras.Variable(np.zeros(1), name="a")


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"ckpt_to_initialize_from": ""}, ValueError, "be a checkpoint. Recei"),
        ({"ckpt_to_initialize_from": None}, ValueError, "Received: None"),
        (
            {"ckpt_to_initialize_from": {"a": "b"}},
            TypeError,
            "for 'a': 'b'.* `var_name_to_prev_var_name`",
        ),
        (
            {"ckpt_to_initialize_from": {"a": {"b": None}}},
            TypeError,
            "Received for 'b': None",
        ),
        ({"ckpt_to_initialize_from": 3}, TypeError, "be a path, or a dict"),
        ({"vars_to_warm_start": 3}, ValueError, "a string, a list or None. Re"),
        ({"vars_to_warm_start": ["a", VARIABLE]}, ValueError, "only strings, "),
        ({"vars_to_warm_start": ["a", 3]}, ValueError, "of only strings, or "),
        ({"vars_to_warm_start": "("}, ValueError, r"'\(' .* a regular expres"),
        ({"vars_to_warm_start": ["a", "["]}, ValueError, r"'\[' .* a regular"),
        ({"var_name_to_vocab_info": {"a": "b"}}, TypeError, "to VocabInfo. Re"),
        ({"var_name_to_prev_var_name": {"a": 3}}, TypeError, "to str. Receive"),
        ({"var_name_to_prev_var_name": ["a"]}, TypeError, "be a dict from pat"),
    ],
)
def test_fields_are_validated(arguments, error, message):
    with pytest.raises(error, match=message):
        kte.WarmStartSettings(**{"ckpt_to_initialize_from": "a"} | arguments)


def test_settings_are_a_record():
    names, wanted = {"a": "b"}, ["a"]
    settings = kte.WarmStartSettings("path", wanted, None, names)
    names["c"] = "d"
    wanted.append("c")
    assert settings.vars_to_warm_start == ("a",)
    assert settings.var_name_to_vocab_info == {}
    assert settings.var_name_to_prev_var_name == {"a": "b"}
    with pytest.raises(dataclasses.FrozenInstanceError):
        settings.vars_to_warm_start = "b"
    assert copy.deepcopy(settings) == settings
    assert pickle.loads(pickle.dumps(settings)) == settings
    assert dataclasses.replace(settings, vars_to_warm_start=".*") == (
        kte.WarmStartSettings("path", ".*", None, {"a": "b"})
    )
