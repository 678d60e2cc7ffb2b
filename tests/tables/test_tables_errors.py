"""Tests of the errors of embedding tables."""

import keras
import numpy as np
import pytest
from dense_tables import tables, tables_estimator
from helpers import estimator_of

import keras_tpu_estimator as kte

SGD = tables.StochasticGradientDescentParameters(0.1)
TABLE = tables.TableConfig(9, 2)
FEATURE = tables.FeatureConfig("words")
SPEC = tables.EmbeddingConfigSpec(
    optimization_parameters=SGD,
    table_to_config_dict={"words": TABLE},
    feature_to_config_dict={"title": FEATURE},
)


@pytest.mark.parametrize(
    ("kind", "arguments", "error", "message"),
    [
        (tables.TableConfig, (0, 2), ValueError, "`vocabulary_size` must be p"),
        (tables.TableConfig, (9, 2.5), TypeError, "`dimension` must be an int"),
        (tables.TableConfig, (2**31, 2), ValueError, "at most 2147483647"),
        (tables.TableConfig, (9, 2, 3), ValueError, "`initializer` .* 3"),
        (tables.TableConfig, (9, 2, None, "max"), ValueError, "'max'"),
        (
            tables.TableConfig,
            (9, 2, None, "sum", False, 0.1, abs),
            ValueError,
            "at most one learning rate",
        ),
        (
            tables.TableConfig,
            (9, 2, None, "sum", False, "0.1"),
            ValueError,
            "`learning_rate` must be a number. Received: '0.1'",
        ),
        (
            tables.TableConfig,
            (9, 2, None, "sum", False, None, None, "sgd"),
            ValueError,
            "`optimization_parameters` must be one of .*AdagradParameters.*",
        ),
        (tables.FeatureConfig, ("words", -1), ValueError, "zero or positive"),
        (tables.AdagradParameters, (0.1, 0), ValueError, "initial_accumulator"),
        (tables.AdamParameters, (0.1, 1.0), ValueError, r"in \[0, 1\)"),
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
        (
            tables.ProximalAdagradParameters,
            (0.1, 1, 0, -1),
            ValueError,
            "l2_regularization_strength",
        ),
        (tables.AdagradParameters, (abs,), TypeError, "learning_rate_fn"),
        (tables.AdagradParameters, (None,), TypeError, "Received: None"),
    ],
)
def test_records(kind, arguments, error, message):
    with pytest.raises(error, match=message):
        kind(*arguments)


def test_gradients_are_summed_before_they_are_clipped():
    with pytest.raises(ValueError, match="must be accumulated"):
        tables.AdagradParameters(
            0.1, use_gradient_accumulation=False, clip_gradient_max=1.0
        )


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        (
            {"feature_columns": [1]},
            NotImplementedError,
            "write TableConfig.size, dimension.",
        ),
        ({"feature_to_config_dict": None}, ValueError, "at least one entry"),
        ({"table_to_config_dict": {}}, ValueError, "at least one entry"),
        ({"partition_strategy": "row"}, ValueError, "'div' or 'mod'"),
        (
            {"optimization_parameters": None},
            ValueError,
            "'words' must have an optimizer",
        ),
        ({"optimization_parameters": "sgd"}, ValueError, "Received: 'sgd'"),
        (
            {"table_to_config_dict": {"words": TABLE, "more": TABLE}},
            ValueError,
            r"unused tables: \['more'\]",
        ),
        ({"table_to_config_dict": {"words": 3}}, TypeError, "a TableConfig"),
        (
            {"feature_to_config_dict": {"title": "words"}},
            TypeError,
            "must have a FeatureConfig",
        ),
        (
            {"feature_to_config_dict": {"title": tables.FeatureConfig("w")}},
            ValueError,
            "one of the tables .*'words'.* Received: 'w'",
        ),
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
def test_specs(changes, error, message):
    with pytest.raises(error, match=message):
        SPEC._replace(**changes)


@pytest.mark.parametrize(
    ("names", "optimizer", "message"),
    [
        (
            ("a", "a/Adagrad"),
            tables.AdagradParameters(0.1),
            "'a' and 'a/Adagrad', which both have a variable 'a/Adagrad'",
        ),
        (
            ("a/Adam", "a", "a/Adam/m"),
            tables.AdamParameters(0.1),
            "'a' and 'a/Adam/m', which both have a variable 'a/Adam/m'",
        ),
        (("global_step",), SGD, "Received: 'global_step'"),
        (("",), SGD, "Received: ''"),
        # HDF5 does not support these names, or name suffixes would be removed.
        (("a//b",), SGD, "Received: 'a//b'"),
        (("/a",), SGD, "Received: '/a'"),
        (("a/",), SGD, "Received: 'a/'"),
        (("./a",), SGD, "Received: './a'"),
        (("a:0",), SGD, "Received: 'a:0'"),
        ((3,), SGD, "Received: 3"),
    ],
)
def test_names_of_tables(names, optimizer, message):
    with pytest.raises(ValueError, match=message):
        SPEC._replace(
            optimization_parameters=optimizer,
            table_to_config_dict={name: TABLE for name in names},
            feature_to_config_dict={
                f"of {name}": tables.FeatureConfig(name) for name in names
            },
        )


def test_tables_may_have_names_of_other_slots(tmp_path):
    names = ("a", "a/Adagrad", "a/m")
    spec = SPEC._replace(
        table_to_config_dict={name: TABLE for name in names},
        feature_to_config_dict={
            f"of {name}": tables.FeatureConfig(name) for name in names
        },
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
    ("feature", "table", "features", "message"),
    [
        ({}, {}, ids(32), "features must be a dict"),
        ({}, {}, {"x": ids(32)}, r"\['x'\] without \['title'\]"),
        ({}, {}, {"title": ids(32, dtype="float32")}, "must be integers"),
        ({}, {}, {"title": ids(32, 2, 2)}, r"of shape \(32, 2, 2\)"),
        (
            {"weight_key": "w"},
            {},
            {"title": ids(32, 2), "w": ids(32)},
            "the shape of the ids",
        ),
        (
            {},
            {"combiner": None},
            {"title": ids(32, 2)},
            "one for each example",
        ),
    ],
)
def test_features(tmp_path, feature, table, features, message):
    spec = SPEC._replace(
        table_to_config_dict={"words": TABLE._replace(**table)},
        feature_to_config_dict={"title": FEATURE._replace(**feature)},
    )
    estimator = tables_estimator(spec, 2, tmp_path)
    with pytest.raises(ValueError, match=message):
        estimator.train(lambda params: iter([(features, ids(32))]), steps=1)


@pytest.mark.parametrize("times", [0, 2])
def test_gradients_need_exactly_one_loss(tmp_path, times):
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

    estimator = estimator_of(model_fn, tmp_path, True, 32, embedding_config_spec=SPEC)
    data = ({"title": ids(32)}, ids(32))
    with pytest.raises(ValueError, match=f"of {times} calls for gradients"):
        estimator.train(lambda params: iter([data]), steps=1)


@pytest.mark.parametrize("shape", [(9, 2), (16, 2), (3,)])
def test_variable_with_the_name_of_a_table_is_an_error(tmp_path, shape):
    def model_fn(features, labels, mode, params):
        weight = keras.Variable(np.ones(shape, "float32"), name="words")
        loss = keras.ops.mean(features["title"]) * keras.ops.mean(weight)
        optimizer = kte.CrossShardOptimizer(keras.optimizers.SGD(0.1))
        train_op = optimizer.minimize(loss)
        return kte.TPUEstimatorSpec(mode, loss=loss, train_op=train_op)

    estimator = estimator_of(model_fn, tmp_path, True, 32, embedding_config_spec=SPEC)
    data = ({"title": ids(32)}, ids(32))
    with pytest.raises(ValueError, match="Received: 'words' for both"):
        estimator.train(lambda params: iter([data]), steps=1)


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        (
            {"embedding_config_spec": object()},
            ValueError,
            "must be a kte.experimental.EmbeddingConfigSpec",
        ),
        ({"batch_axis": [0]}, NotImplementedError, "batch_axis"),
        (
            {"config": {"export_backend": "tensorflow"}},
            NotImplementedError,
            "RunConfig.export_backend",
        ),
    ],
)
def test_estimators(tmp_path, settings, error, message):
    def model_fn(features, labels, mode, params):
        raise AssertionError

    settings = {"embedding_config_spec": SPEC, **settings}
    with pytest.raises(error, match=message):
        estimator_of(model_fn, tmp_path, True, 32, **settings)


def test_tf1_model_fn_is_refused(tmp_path):
    def model_fn(features, labels, mode, params):
        raise AssertionError

    with pytest.raises(NotImplementedError, match="tf.feature_column.embedding_column"):
        estimator_of(
            kte.tf1.model_fn(model_fn),
            tmp_path,
            True,
            32,
            embedding_config_spec=SPEC,
        )
