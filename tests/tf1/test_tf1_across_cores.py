"""Tests sums over cores, and values that differ between cores."""

import keras_tpu_estimator as kte  # isort: skip

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from tf1_programs import (
    BATCH,
    assert_same,
    batches,
    classes_data,
    dense,
    estimator,
    fed,
    model_fn_of,
    trained,
    values_of,
    variable,
)

X = np.arange(BATCH, dtype="float32")[:, None]


def in_a_loop(x):
    """Sums twice."""
    return tf.while_loop(
        lambda step, _: step < 2,
        lambda step, x: (step + 1, tf.tpu.cross_replica_sum(x)),
        (0, x),
    )[1]


def in_a_condition(x):
    """Sums in a branch that all cores take."""
    sum_of = tf.tpu.cross_replica_sum
    step = tf.train.get_global_step()
    return tf.cond(step < 1, lambda: sum_of(x), lambda: x)


def in_groups(x):
    """Sums over the first four cores and over the others."""
    return tf.tpu.cross_replica_sum(x, [[0, 1, 2, 3], [4, 5, 6, 7]])


# The functions, with their results for 16 examples on eight cores.
SUMS = {
    "plain": (tf.tpu.cross_replica_sum, [56, 64] * 8),
    "in_a_loop": (in_a_loop, [8 * 56, 8 * 64] * 8),
    "in_a_condition": (in_a_condition, [56, 64] * 8),
    "in_groups": (in_groups, [12, 16] * 4 + [44, 48] * 4),
}


def test_sums_over_cores(tmp_path):
    def model_fn(features, labels, mode, params):
        predictions = {name: each(features) for name, (each, _) in SUMS.items()}
        return kte.tf1.TPUEstimatorSpec(mode, predictions=predictions)

    made = estimator(model_fn, tmp_path, use_tpu=True)
    rows = list(made.predict(fed([X])))
    for name, (_, expected) in SUMS.items():
        assert [row[name][0] for row in rows] == expected, name


def trainer(optimize, network=lambda x: dense(x, 1, "y")):
    """A model_fn that trains a network by a function of loss and step."""

    def model_fn(features, labels, mode, params):
        loss = tf.reduce_mean((network(features) - 1.0) ** 2)
        step = tf.train.get_global_step()
        train_op = optimize(loss, step)
        return kte.tf1.TPUEstimatorSpec(mode, loss=loss, train_op=train_op)

    return model_fn


def sgd():
    """Gradient descent."""
    return tf.train.GradientDescentOptimizer(1e-3)


def test_uncombined_gradients_are_an_error(tmp_path):
    model_fn = trainer(lambda loss, step: sgd().minimize(loss, step))
    made = estimator(model_fn, tmp_path, use_tpu=True)
    with pytest.raises(ValueError, match="without CrossShardOptimizer that") as e:
        made.train(fed([X] * 2), steps=2)
    assert "changes ['y/bias', 'y/kernel']" in str(e.value)


def test_one_core_needs_no_sums(tmp_path):
    model_fn = trainer(lambda loss, step: sgd().minimize(loss, step))
    assert trained(model_fn, tmp_path, [X] * 2)["global_step"] == 2


def combined_in_a_condition(loss, step):
    """Sums and applies gradients in a branch that all cores take."""
    own = sgd()
    ((gradient, kernel), *_) = own.compute_gradients(loss / 8.0)

    def apply():
        total = tf.tpu.cross_replica_sum(gradient)
        return own.apply_gradients([(total, kernel)])

    applied = tf.cond(step < 1, apply, tf.no_op)
    with tf.control_dependencies([applied]):
        return tf.assign_add(step, 1)


def test_gradients_may_be_combined_in_a_condition(tmp_path):
    model_fn = trainer(combined_in_a_condition)
    values = trained(model_fn, tmp_path, [X] * 2, use_tpu=True)
    assert np.abs(values["y/kernel"]).max() > 0


def chosen_by_a_batch(loss, step):
    """Applies gradients in a branch that depends on the core's batch."""

    def apply():
        (kernel, *_) = tf.trainable_variables()
        return tf.assign_add(kernel, tf.ones_like(kernel)).op

    with tf.control_dependencies([tf.cond(loss > 1.0, apply, tf.no_op)]):
        return tf.assign_add(step, 1)


def test_update_that_depends_on_a_batch_is_refused(tmp_path):
    made = estimator(trainer(chosen_by_a_batch), tmp_path, use_tpu=True)
    with pytest.raises(ValueError, match=r"that changes \['y/kernel'\]"):
        made.train(fed([X] * 2), steps=2)


def summed_where(predicate):
    """Trains in a branch, with a sum over the cores in the optimizer."""

    def train_op(loss, step):
        own = tf.tpu.CrossShardOptimizer(sgd())
        return tf.cond(
            predicate(loss),
            lambda: own.minimize(loss, step),
            lambda: tf.assign_add(step, 1).op,
            name="choose",
        )

    return train_op


def test_sum_that_not_all_cores_run_is_refused(tmp_path):
    model_fn = trainer(summed_where(lambda loss: loss > 1.0))
    made = estimator(model_fn, tmp_path, use_tpu=True)
    match = "depends on the batch of each device: choose, made at .*py:"
    with pytest.raises(ValueError, match=match):
        made.train(fed([X] * 2), steps=2)


def test_sum_may_depend_on_values_that_all_cores_share(tmp_path):
    model_fn = trainer(summed_where(lambda loss: tf.tpu.cross_replica_sum(loss) < 1e9))
    values = trained(model_fn, tmp_path, [X] * 2, use_tpu=True)
    assert np.abs(values["y/kernel"]).max() > 0
    assert values["global_step"] == 2


def with_state(loss, step):
    """Stores the loss of the last step, and counts the examples of each core."""
    last = tf.get_variable("last", [], trainable=False)
    seen = tf.get_variable("seen", [], tf.int32, tf.zeros_initializer, trainable=False)
    own = tf.tpu.CrossShardOptimizer(sgd())
    with tf.control_dependencies(
        [
            tf.assign(last, loss),
            tf.assign_add(seen, tf.cast(loss, tf.int32) * 0 + 2),
        ]
    ):
        return own.minimize(loss, step)


def test_values_that_differ_between_cores_are_averaged(tmp_path):
    data = batches(*classes_data(5), steps=3)
    data = [x for x, _ in data]
    one = trained(trainer(with_state), tmp_path / "one", data)
    eight = trained(trainer(with_state), tmp_path / "eight", data, use_tpu=True)
    # The mean of losses is the loss of all cores; a mean count is that of one core.
    assert_same(eight, one)
    assert eight["seen"] == 6


def test_each_core_receives_the_number_of_cores(tmp_path):
    seen = []

    def model_fn(features, labels, mode, params):
        seen.append((params["batch_size"], params["context"].num_replicas))
        scale = variable("scale", 1)
        return kte.tf1.TPUEstimatorSpec(mode, loss=tf.reduce_sum(scale))

    estimator(model_fn, tmp_path, use_tpu=True).evaluate(fed([X]))
    assert seen == [(2, 8)]


def two_layers(x, is_training):
    """Two layers, one of which increases and one decreases."""
    return dense(dense(x, 8, "up", tf.nn.relu), 4, "down", seed=1)


def adam(step):
    """Adam."""
    return tf.train.AdamOptimizer(0.01, epsilon=1e-3)


@pytest.fixture(scope="module")
def on_one_core(tmp_path_factory):
    """The training data, and the resulting values."""
    data = batches(*classes_data(8))
    folder = tmp_path_factory.mktemp("one")
    return data, trained(model_fn_of(two_layers, adam), folder, data)


@pytest.mark.parametrize("dims", [None, [[1, 4], None]])
def test_replicas_of_several_cores(dims, tmp_path, on_one_core):
    data, one = on_one_core
    ways = kte.InputPipelineConfig
    config = kte.RunConfig(
        tpu_config=kte.TPUConfig(
            iterations_per_loop=4,
            num_cores_per_replica=4,
            per_host_input_for_training=ways.PER_HOST_V2 if dims else True,
            input_partition_dims=dims,
        ),
        layout_map={"up/kernel": (None, "model"), "down/kernel": ("model",)},
        model_dir=str(tmp_path / "spread"),
    )
    spread = kte.TPUEstimator(
        kte.tf1.model_fn(model_fn_of(two_layers, adam)),
        config=config,
        train_batch_size=BATCH,
    )
    halves = [
        (x[part], y[part])
        for x, y in data
        for part in (slice(0, BATCH // 2), slice(BATCH // 2, BATCH))
    ]
    spread.train(fed(halves if dims else data), steps=len(data))
    assert_same(values_of(spread), one, 1e-6)
    values = spread._context.runtime.values._cached._values
    for name in ("up/kernel", "up/kernel/Adam", "up/kernel/Adam_1"):
        assert values[name].sharding.shard_shape((8, 8)) == (8, 2)
