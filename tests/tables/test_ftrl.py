"""Tests that the tables' FTRL matches TensorFlow's, without NaN."""

import numpy as np
import pytest
from dense_tables import BATCH, in_checkpoint, input_of, tables, tables_estimator

# One element has no gradient, and one a gradient whose square underflows.
GRADIENTS = ([0.3, -0.2, 0.0, 0.0], [0.1, 0.4, 0.0, 1e-3])
START = [1.0, -0.5, 2.0, 0.25]


def of_tensorflow(l1=0.0, l2=0.0, start=0.1, is_multiplied=False):
    """Weights, squares and linear terms after both gradients."""
    import tensorflow as tf

    variables = [tf.Variable(x) for x in (START, [start] * len(START), [0.0] * 4)]
    for gradient in GRADIENTS:
        tf.raw_ops.ResourceApplyFtrlV2(
            **dict(
                zip(
                    ("var", "accum", "linear"),
                    (each.handle for each in variables),
                    strict=True,
                )
            ),
            grad=gradient,
            lr=0.2,
            l1=l1,
            l2=l2,
            l2_shrinkage=0.0,
            lr_power=-0.5,
            multiply_linear_by_lr=is_multiplied,
        )
    return [each.numpy() for each in variables]


def of_tables(parameters, rate=0.2, gradients=GRADIENTS):
    """The same values of a table's row."""
    rows = np.array([START], "float32")
    slots = {
        name: np.full_like(rows, first) for name, first in parameters.slots.items()
    }
    for gradient in gradients:
        rows, slots = parameters.updated(
            rows, slots, np.array([gradient], "float32"), np.float32(rate)
        )
    return [np.asarray(each)[0] for each in (rows, *slots.values())]


@pytest.mark.parametrize("is_multiplied", [False, True])
@pytest.mark.parametrize("start", [0.0, 0.1])
@pytest.mark.parametrize(("l1", "l2"), [(0.0, 0.0), (0.01, 0.0), (0.01, 0.1)])
def test_results_match_tensorflow(l1, l2, start, is_multiplied):
    parameters = tables.FtrlParameters(
        0.2,
        initial_accumulator_value=start,
        l1_regularization_strength=l1,
        l2_regularization_strength=l2,
        multiply_linear_by_learning_rate=is_multiplied,
    )
    want = of_tensorflow(l1, l2, start, is_multiplied)
    for got, expected in zip(of_tables(parameters), want, strict=True):
        assert np.isfinite(expected).all()
        np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-6)


def test_gradient_whose_square_is_zero():
    parameters = tables.FtrlParameters(0.2, initial_accumulator_value=0.0)
    for each in of_tables(parameters, gradients=([1e-30] * 4,)):
        assert np.isfinite(each).all()


@pytest.mark.parametrize("is_multiplied", [False, True])
def test_rows_do_not_change_at_a_rate_of_zero(is_multiplied):
    parameters = tables.FtrlParameters(
        0.0, multiply_linear_by_learning_rate=is_multiplied
    )
    rows, squares, linear = of_tables(parameters, rate=0.0)
    np.testing.assert_array_equal(rows, START)
    np.testing.assert_array_equal(squares, np.float32([0.1] * 4))
    assert not linear.any()


def test_rate_that_grows_from_zero(tmp_path):
    spec = tables.EmbeddingConfigSpec(
        optimization_parameters=tables.FtrlParameters(0.1),
        table_to_config_dict={
            "words": tables.TableConfig(9, 2, learning_rate_fn=lambda step: 0.1 * step)
        },
        feature_to_config_dict={"title": tables.FeatureConfig("words")},
    )
    estimator = tables_estimator(spec, 2, tmp_path)
    features = {"title": np.arange(BATCH, dtype="int32")[:, None] % 9}
    labels = np.ones(BATCH, "float32")
    rows = []
    for _ in range(3):
        estimator.train(input_of(features, labels), steps=1)
        rows.append(in_checkpoint(estimator)["words"])
    assert np.isfinite(rows).all()
    assert (rows[1] != rows[0]).any()
    assert (rows[2] != rows[1]).any()
