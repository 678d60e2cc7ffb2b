"""Tests moving averages of a model with tables, which exclude the tables."""

import warnings

import keras
import numpy as np
import pytest
from dense_tables import BATCH, in_checkpoint, input_of, tables
from helpers import estimator_of

import keras_tpu_estimator as kte

SPEC = tables.EmbeddingConfigSpec(
    optimization_parameters=tables.AdagradParameters(0.1),
    table_to_config_dict={
        "words": tables.TableConfig(13, 2),
        "users": tables.TableConfig(5, 2),
    },
    feature_to_config_dict={
        "title": tables.FeatureConfig("words"),
        "user": tables.FeatureConfig("users"),
    },
)
LEFT_OUT = r"the embedding tables \['users', 'words'\] are not averaged"


def data_of():
    rng = np.random.default_rng(0)
    features = {
        "title": rng.integers(-1, 13, (BATCH, 3)),
        "user": rng.integers(0, 5, BATCH),
    }
    return features, np.ones(BATCH, "float32")


def averaged(model_dir, spec=SPEC, says=False, in_scaffold=False):
    """An estimator that evaluates averages.

    Args:
        model_dir: Its folder.
        spec: The tables, or `None`.
        says: Whether model_fn lists the variables to average.
        in_scaffold: Whether scaffold_fn requests the names.
    """

    def model_fn(features, labels, mode, params):
        kernel = keras.Variable(np.ones(2, "float32"), name="kernel")
        rows = [
            keras.ops.cast(x, "float32").reshape(BATCH // 8, -1)[:, :2]
            for _, x in sorted(features.items())
        ]
        y = keras.ops.sum(sum(rows) * kernel, 1)
        loss = None
        if mode != kte.ModeKeys.PREDICT:
            loss = keras.ops.mean((y - labels) ** 2)
        averages = kte.ExponentialMovingAverage(0.5)
        if mode == kte.ModeKeys.TRAIN:
            optimizer = kte.CrossShardOptimizer(keras.optimizers.SGD(0.1))
            op = optimizer.minimize(loss)
            of = kte.trainable_variables() if says else None
            return kte.TPUEstimatorSpec(
                mode, loss=loss, train_op=[op, averages.apply(of)]
            )

        names = None if in_scaffold else averages.variables_to_restore()

        def scaffold_fn():
            return kte.Scaffold(
                variables_to_restore=names or averages.variables_to_restore()
            )

        return kte.TPUEstimatorSpec(mode, {"y": y}, loss, scaffold_fn=scaffold_fn)

    return estimator_of(model_fn, model_dir, True, BATCH, embedding_config_spec=spec)


def test_excluded_tables_are_logged(tmp_path):
    estimator = averaged(tmp_path)
    with pytest.warns(UserWarning, match=LEFT_OUT):
        estimator.train(input_of(*data_of()), steps=2)
    names = [n for n in estimator.get_variable_names() if "Moving" in n]
    assert names == ["kernel/ExponentialMovingAverage"]


def test_nothing_is_logged_for_a_list_or_without_tables(tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        averaged(tmp_path / "list", says=True).train(input_of(*data_of()), steps=1)
        averaged(tmp_path / "none", spec=None).train(input_of(*data_of()), steps=1)


@pytest.mark.parametrize("in_scaffold", [False, True])
def test_averages_are_evaluated_with_unaveraged_tables(tmp_path, in_scaffold):
    features, labels = data_of()
    estimator = averaged(tmp_path, says=True, in_scaffold=in_scaffold)
    estimator.train(input_of(features, labels), steps=2)
    values = in_checkpoint(estimator)
    kernel = values["kernel/ExponentialMovingAverage"]
    assert (kernel != values["kernel"]).all()
    ids = features["title"]
    there = (ids >= 0)[..., None]
    title = (values["words"][np.maximum(ids, 0)] * there).sum(1)
    title = title / np.maximum(there.sum(1), 1)
    y = ((title + values["users"][features["user"]]) * kernel).sum(1)
    predicted = list(estimator.predict(lambda params: iter([features])))
    np.testing.assert_allclose([p["y"] for p in predicted], y, atol=1e-6)
    loss = estimator.evaluate(input_of(features, labels), steps=1)["loss"]
    assert loss == pytest.approx(np.mean((y - labels) ** 2), rel=1e-5)
