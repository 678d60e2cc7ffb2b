"""Tests of the errors of embedding tables."""

import keras
import numpy as np
import pytest
from dense_tables import tables, tables_estimator
from helpers import estimator_of, refused

import keras_tpu_estimator as kte

SGD = tables.StochasticGradientDescentParameters(0.1)
TABLE = tables.TableConfig(9, 2)
FEATURE = tables.FeatureConfig("words")
SPEC = tables.EmbeddingConfigSpec(
    optimization_parameters=SGD,
    table_to_config_dict={"words": TABLE},
    feature_to_config_dict={"title": FEATURE},
)


SUM = (9, 2, None, "sum", False)


@pytest.mark.parametrize(
    ("kind", "arguments", "error", "words"),
    [
        (tables.TableConfig, (0, 2), ValueError, "`vocabulary_size` positive"),
        (tables.TableConfig, (9, 2.5), TypeError, "`dimension` int"),
        (tables.TableConfig, (2**31, 2), ValueError, "at most 2147483647"),
        (tables.TableConfig, (9, 2, 3), ValueError, "`initializer` 3"),
        (tables.TableConfig, (9, 2, None, "max"), ValueError, "'max'"),
        (tables.TableConfig, (*SUM, 0.1, abs), ValueError, "one learning rate"),
        (tables.TableConfig, (*SUM, "0.1"), ValueError, "`learning_rate` '0.1'"),
        (
            tables.TableConfig,
            (*SUM, None, None, "sgd"),
            ValueError,
            "`optimization_parameters` AdagradParameters",
        ),
        (tables.FeatureConfig, ("words", -1), ValueError, "zero or positive"),
        (tables.AdagradParameters, (0.1, 0), ValueError, "initial_accumulator"),
        (tables.AdamParameters, (0.1, 1.0), ValueError, "[0, 1)"),
        (tables.AdamParameters, (0.1, 0.9, 0.9, 0), ValueError, "`epsilon`"),
        (
            tables.AdamParameters,
            (0.1, 0.9, 0.9, 1e-8, False),
            NotImplementedError,
            "lazy_adam=False",
        ),
        (tables.RMSPropParameters, (0.1, 0.9, 0.0, 0), ValueError, "`epsilon`"),
        (tables.FtrlParameters, (0.1, 1), ValueError, "learning_rate_power"),
        (tables.FtrlParameters, (0.1, -1, -1), ValueError, "initial_acc"),
        (tables.FtrlParameters, (0.1, -1, 1, -1), ValueError, "l1_regular"),
        (tables.ProximalAdagradParameters, (0.1, 1, 0, -1), ValueError, "l2_regular"),
        (tables.AdagradParameters, (abs,), TypeError, "learning_rate_fn"),
        (tables.AdagradParameters, (None,), TypeError, "None"),
    ],
)
def test_records(kind, arguments, error, words):
    with refused(error, words):
        kind(*arguments)


def test_gradients_are_summed_before_they_are_clipped():
    with pytest.raises(ValueError, match="must be accumulated"):
        tables.AdagradParameters(
            0.1, use_gradient_accumulation=False, clip_gradient_max=1.0
        )


def features_of(*names, **settings):
    """One feature for each name of a table."""
    return {f"of {name}": tables.FeatureConfig(name, **settings) for name in names}


@pytest.mark.parametrize(
    ("changes", "error", "words"),
    [
        ({"feature_columns": [1]}, NotImplementedError, "TableConfig size, dimension"),
        ({"feature_to_config_dict": None}, ValueError, "at least one entry"),
        ({"table_to_config_dict": {}}, ValueError, "at least one entry"),
        ({"partition_strategy": "row"}, ValueError, "'div' 'mod'"),
        ({"optimization_parameters": None}, ValueError, "'words' optimizer"),
        ({"optimization_parameters": "sgd"}, ValueError, "'sgd'"),
        (
            {"table_to_config_dict": {"words": TABLE, "more": TABLE}},
            ValueError,
            "unused ['more']",
        ),
        ({"table_to_config_dict": {"words": 3}}, TypeError, "TableConfig"),
        ({"feature_to_config_dict": {"title": "words"}}, TypeError, "FeatureConfig"),
        ({"feature_to_config_dict": features_of("w")}, ValueError, "'words' 'w'"),
        (
            {
                "feature_to_config_dict": {
                    name: tables.FeatureConfig("words", weight_key="w") for name in "ab"
                }
            },
            ValueError,
            "its own weights",
        ),
    ],
)
def test_specs(changes, error, words):
    with refused(error, words):
        SPEC._replace(**changes)


@pytest.mark.parametrize(
    ("names", "optimizer", "words"),
    [
        (("a", "a/Adagrad"), tables.AdagradParameters(0.1), "'a' 'a/Adagrad' both"),
        (
            ("a/Adam", "a", "a/Adam/m"),
            tables.AdamParameters(0.1),
            "'a' 'a/Adam/m' both",
        ),
        # HDF5 does not support these names, or name suffixes would be removed.
        *(
            ((name,), SGD, f"Received: {name!r}")
            for name in ("global_step", "", "a//b", "/a", "a/", "./a", "a:0", 3)
        ),
    ],
)
def test_names_of_tables(names, optimizer, words):
    with refused(ValueError, words):
        SPEC._replace(
            optimization_parameters=optimizer,
            table_to_config_dict={name: TABLE for name in names},
            feature_to_config_dict=features_of(*names),
        )


def test_tables_may_have_names_of_other_slots(tmp_path):
    names = ("a", "a/Adagrad", "a/m")
    spec = SPEC._replace(
        table_to_config_dict={name: TABLE for name in names},
        feature_to_config_dict=features_of(*names),
    )
    estimator = tables_estimator(spec, 6, tmp_path)
    features = {name: ids(32) for name in spec.features}
    labels = np.ones(32, "float32")
    estimator.train(lambda params: iter([(features, labels)]), steps=1)
    assert {*names} < {*estimator.get_variable_names()}


def test_options_without_effect_are_logged(caplog):
    SPEC._replace(clipping_limit=3.0)
    assert "`clipping_limit` has no effect" in caplog.text


def ids(*shape, dtype="int32"):
    return np.ones(shape, dtype)


@pytest.mark.parametrize(
    ("feature", "table", "features", "words"),
    [
        ({}, {}, ids(32), "features dict"),
        ({}, {}, {"x": ids(32)}, "['x'] ['title']"),
        ({}, {}, {"title": ids(32, dtype="float32")}, "integers"),
        ({}, {}, {"title": ids(32, 2, 2)}, "(32, 2, 2)"),
        (
            {"weight_key": "w"},
            {},
            {"title": ids(32, 2), "w": ids(32)},
            "shape of the ids",
        ),
        ({}, {"combiner": None}, {"title": ids(32, 2)}, "one for each example"),
    ],
)
def test_features(tmp_path, feature, table, features, words):
    spec = SPEC._replace(
        table_to_config_dict={"words": TABLE._replace(**table)},
        feature_to_config_dict={"title": FEATURE._replace(**feature)},
    )
    estimator = tables_estimator(spec, 2, tmp_path)
    with refused(ValueError, words):
        estimator.train(lambda params: iter([(features, ids(32))]), steps=1)


def needs_one_loss(times):
    """A `model_fn` that calls for gradients a number of times."""

    def model_fn(features, labels, mode, params):
        weight = keras.Variable(1.0, name="weight")
        loss = keras.ops.mean(features["title"] * weight)
        gradients = [0.5]
        for _ in range(times):
            gradients = kte.gradients(loss, [weight])
        optimizer = kte.CrossShardOptimizer(keras.optimizers.SGD(0.1))
        gradients = map(keras.ops.convert_to_tensor, gradients)
        train_op = optimizer.apply_gradients(zip(gradients, [weight], strict=True))
        return kte.TPUEstimatorSpec(mode, loss=loss, train_op=train_op)

    return model_fn


def named_like_the_table(shape):
    """A `model_fn` with a variable that has the name of the table."""

    def model_fn(features, labels, mode, params):
        weight = keras.Variable(np.ones(shape, "float32"), name="words")
        loss = keras.ops.mean(features["title"]) * keras.ops.mean(weight)
        optimizer = kte.CrossShardOptimizer(keras.optimizers.SGD(0.1))
        return kte.TPUEstimatorSpec(mode, loss=loss, train_op=optimizer.minimize(loss))

    return model_fn


@pytest.mark.parametrize(
    ("model_fn", "words"),
    [
        *((needs_one_loss(times), f"{times} calls for gradients") for times in (0, 2)),
        *(
            (named_like_the_table(shape), "'words' for both")
            for shape in [(9, 2), (16, 2), (3,)]
        ),
    ],
)
def test_model_fns(tmp_path, model_fn, words):
    estimator = estimator_of(model_fn, tmp_path, True, 32, embedding_config_spec=SPEC)
    data = ({"title": ids(32)}, ids(32))
    with refused(ValueError, words):
        estimator.train(lambda params: iter([data]), steps=1)


def never(features, labels, mode, params):
    raise AssertionError


@pytest.mark.parametrize(
    ("model_fn", "settings", "error", "words"),
    [
        (
            never,
            {"embedding_config_spec": object()},
            ValueError,
            "kte.experimental.EmbeddingConfigSpec",
        ),
        (never, {"batch_axis": [0]}, NotImplementedError, "batch_axis"),
        (
            never,
            {"config": {"export_backend": "tensorflow"}},
            NotImplementedError,
            "RunConfig.export_backend",
        ),
        (
            kte.tf1.model_fn(never),
            {},
            NotImplementedError,
            "tf.feature_column.embedding_column",
        ),
    ],
)
def test_estimators(tmp_path, model_fn, settings, error, words):
    settings = {"embedding_config_spec": SPEC, **settings}
    with refused(error, words):
        estimator_of(model_fn, tmp_path, True, 32, **settings)
