"""Tests that operations in `tf.cond` and in loops run as in TensorFlow 1.15."""

import keras_tpu_estimator as kte  # isort: skip

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from helpers import estimator_of
from tf1_programs import fed, summaries_in, values_of

from keras_tpu_estimator.tf1.graph.building import building

BATCH = 4
# Results of TensorFlow 1.15.5 with its own control flow: the weights, the count in the
# branch, and the number of runs for six steps.
WEIGHTS_OF_ALL = [0.33075267, 0.2843566]
EXPECTED = {
    "taken": (WEIGHTS_OF_ALL, 6, 6),
    "taken_group": (WEIGHTS_OF_ALL, 6, 6),
    "unneeded": (WEIGHTS_OF_ALL, 0, 6),
    "data": ([0.5924389, 0.5503651], 6, 8),
    "data_group": ([0.6324713, 0.5982397], 4, 6),
    "nested": ([0.5924389, 0.5503651], 6, 8),
    "two": ([0.89254725, 0.8679048], 71, 16),
    "case": ([0.5924389, 0.5503651], 6, 8),
}


def data(count=40):
    """Three batches, repeated."""
    x = np.arange(24, dtype="float32").reshape(3, BATCH, 2) / 10
    return [(x[i % 3], x[i % 3, :, :1]) for i in range(count)]


def branched(kind, features, y, count):
    """Counts in a branch, which doubles its input."""

    def inside():
        added = tf.assign_add(count, tf.reduce_mean(y) * 0 + 1.0)
        tf.add_to_collection(tf.GraphKeys.UPDATE_OPS, added.op)
        return y * 2.0

    def outside():
        return tf.identity(y)

    def ten():
        added = tf.assign_add(count, 10.0)
        tf.add_to_collection(tf.GraphKeys.UPDATE_OPS, added)
        return tf.constant(1.0)

    is_small = tf.reduce_max(features) < 2.0
    always = tf.reduce_max(features) < 1e9
    if kind == "nested":
        return tf.cond(always, lambda: tf.cond(is_small, inside, outside), outside)
    if kind == "two":
        tf.cond(tf.reduce_max(features) < 1.0, ten, lambda: tf.constant(0.0))
    if kind == "step":
        step = tf.train.get_global_step()
        return tf.cond(tf.less(step, 100), inside, outside)
    if kind == "case":
        return tf.switch_case(tf.cast(is_small, tf.int32), [outside, inside])
    is_always = kind.startswith("taken") or kind == "unneeded"
    return tf.cond(always if is_always else is_small, inside, outside)


def model_fn_of(kind):
    """A linear model that counts in a branch."""

    def model_fn(features, labels, mode, params):
        step = tf.train.get_or_create_global_step()
        w = tf.get_variable("w", [2, 1], initializer=tf.ones_initializer())
        count = tf.get_variable(
            "count", [], initializer=tf.zeros_initializer(), trainable=False
        )
        runs = tf.get_variable(
            "runs", [], initializer=tf.zeros_initializer(), trainable=False
        )
        y = branched(kind, features, tf.matmul(features, w), count)
        loss = tf.reduce_mean(tf.square(tf.reshape(y, [-1, 1]) - labels))
        updates = tf.get_collection(tf.GraphKeys.UPDATE_OPS)
        optimizer = tf.train.GradientDescentOptimizer(0.01)
        if params["use_tpu"]:
            optimizer = tf.tpu.CrossShardOptimizer(optimizer)
        if kind == "unneeded":
            train_op = optimizer.minimize(loss, step)
        elif kind.endswith("group"):
            train_op = tf.group(optimizer.minimize(loss, step), *updates)
        else:
            with tf.control_dependencies(updates):
                train_op = optimizer.minimize(loss, step)
        train_op = tf.group(train_op, tf.assign_add(runs, 1.0))
        return kte.tf1.TPUEstimatorSpec(mode, loss=loss, train_op=train_op)

    return model_fn


@pytest.mark.rows(5)
@pytest.mark.parametrize("kind", EXPECTED)
def test_operations_that_depend_on_a_branch_run_if_it_is_taken(tmp_path, kind):
    weights, count, runs = EXPECTED[kind]
    estimator = estimator_of(kte.tf1.model_fn(model_fn_of(kind)), tmp_path, batch=BATCH)
    estimator.train(fed(data()), steps=6)
    values = values_of(estimator)
    np.testing.assert_allclose(values["w"].ravel(), weights, rtol=1e-5)
    found = (values["count"], values["runs"], values["global_step"])
    assert found == (count, runs, 6)


def test_operations_that_depend_on_a_branch_run_on_several_cores(tmp_path):
    x = np.ones([8, 2], "float32")
    estimator = estimator_of(
        kte.tf1.model_fn(model_fn_of("step")), tmp_path, use_tpu=True, batch=8
    )
    estimator.train(fed([(x, x[:, :1])] * 5), steps=3)
    values = values_of(estimator)
    assert (values["count"], values["runs"], values["global_step"]) == (3, 3, 3)
    assert abs(values["w"] - 1).min() > 0


def test_operations_that_depend_on_a_loop_are_refused_by_name(tmp_path):
    def model_fn(features, labels, mode, params):
        w = tf.get_variable("w", [2, 1])
        loss = tf.reduce_mean(tf.matmul(features, w) - labels)

        def body(i):
            tf.add_to_collection(tf.GraphKeys.UPDATE_OPS, tf.assign_add(w, w).op)
            return i + 1

        tf.while_loop(lambda i: i < 3, body, [0], name="counting")
        with tf.control_dependencies(tf.get_collection(tf.GraphKeys.UPDATE_OPS)):
            train_op = tf.assign_add(tf.train.get_global_step(), 1)
        return kte.tf1.TPUEstimatorSpec(mode, loss=loss, train_op=train_op)

    estimator = estimator_of(kte.tf1.model_fn(model_fn), tmp_path, batch=BATCH)
    with pytest.raises(ValueError, match="in the loop counting, made at .*py"):
        estimator.train(fed(data()), steps=1)


def squared_in_branch(y, labels):
    """A loss that is made only in a branch, and collected."""
    tf.cond(
        tf.reduce_max(y) < 1e9,
        lambda: tf.losses.mean_squared_error(labels, y),
        lambda: tf.constant(0.0),
    )
    return tf.losses.get_total_loss()


def added_in_branch(y, labels):
    """A loss that is added in a branch, in addition to another one."""
    tf.losses.mean_squared_error(labels, y)

    def add():
        tf.losses.add_loss(tf.reduce_mean(y))
        return y

    tf.cond(tf.reduce_max(y) < 1e9, add, lambda: y)
    return tf.add_n(tf.get_collection(tf.GraphKeys.LOSSES))


def regularized_in_branch(y, labels):
    """A regularization loss that is made in a branch."""
    kind = tf.GraphKeys.REGULARIZATION_LOSSES

    def add():
        tf.add_to_collection(kind, tf.nn.l2_loss(y))
        return y

    tf.cond(tf.reduce_max(y) < 1e9, add, lambda: y)
    tf.losses.mean_squared_error(labels, y)
    return tf.losses.get_total_loss()


def squared_in_loop(y, labels):
    """A loss that is made in a loop, and collected."""

    def body(i):
        tf.losses.mean_squared_error(labels, y * i)
        return i + 1.0

    tf.while_loop(lambda i: i < 3.0, body, [0.0], maximum_iterations=3)
    return tf.losses.get_total_loss()


@pytest.mark.parametrize(
    "loss_of",
    [
        squared_in_branch,
        added_in_branch,
        regularized_in_branch,
        squared_in_loop,
    ],
)
def test_losses_of_branches_are_refused_by_name(loss_of):
    with building(0):
        y = tf.matmul(tf.ones([4, 2]), tf.get_variable("w", [2, 1]))
        match = f"must be returned from it.*made at .*{__file__[-20:]}:"
        with pytest.raises(ValueError, match=match):
            loss_of(y, tf.ones([4, 1]))


def test_regularizer_of_a_variable_in_a_branch_is_included():
    with building(0):

        def scale():
            return tf.get_variable("s", [], regularizer=tf.nn.l2_loss)

        y = tf.cond(tf.constant(True), scale, lambda: 1.0)
        tf.losses.mean_squared_error(tf.ones([]), y)
        total = tf.losses.get_total_loss()
        kinds = [tensor.op.type for tensor in total.op.inputs]
    assert kinds == ["DivNoNan", "L2Loss"]


class Fetching(tf.train.SessionRunHook):
    """Fetches an operation of a branch."""

    def before_run(self, run_context):
        (update,) = tf.get_collection(tf.GraphKeys.UPDATE_OPS)
        return tf.train.SessionRunArgs(update)


def test_operations_inside_a_branch_cannot_be_fetched(tmp_path):
    estimator = estimator_of(
        kte.tf1.model_fn(model_fn_of("taken")), tmp_path, batch=BATCH
    )
    with pytest.raises(ValueError, match="outside of branches and loops"):
        estimator.train(fed(data()), steps=1, hooks=[Fetching()])


@pytest.mark.parametrize("is_taken", [True, False])
def test_branch_with_a_constant_condition_is_part_of_the_graph(tmp_path, is_taken):
    # TensorFlow 1.15 allows uses of a taken branch's tensors outside it.
    made = []

    def taken(w):
        tf.losses.add_loss(3.0 * w)
        tf.summary.scalar("inner", w)
        made.append(tf.assign_add(tf.get_variable("count", []), 1.0))
        return made[0].op

    def untaken(w):
        return tf.assign(tf.get_variable("other", []), 7.0).op

    def model_fn(features, labels, mode, params):
        zeros = tf.zeros_initializer()
        with tf.variable_scope("", initializer=zeros, use_resource=True):
            w = tf.get_variable("w", [])
            is_training = tf.logical_and(True, tf.constant(mode == "train"))
            branches = [lambda: taken(w), lambda: untaken(w)]
            pred = is_training if is_taken else tf.logical_not(is_training)
            tf.cond(pred, *branches[:: 1 if is_taken else -1], name="inside")
        loss = tf.losses.get_total_loss()
        optimizer = tf.train.GradientDescentOptimizer(0.5)
        train_op = optimizer.minimize(loss, tf.train.get_global_step())
        with tf.control_dependencies([train_op]):
            train_op = tf.group(made[0])
        assert made[0].op.name.startswith("inside/")
        return kte.tf1.TPUEstimatorSpec(mode, loss=loss, train_op=train_op)

    converted = kte.tf1.model_fn(model_fn)
    estimator = estimator_of(converted, tmp_path, batch=BATCH, save_summary_steps=1)
    estimator.train(fed(data()), steps=2)
    values = values_of(estimator)
    assert (values["w"], values["count"], values["other"]) == (-3.0, 2.0, 0.0)
    assert summaries_in(tmp_path)["inside/inner", 2] == -1.5


@pytest.mark.parametrize("kind", ["cond", "case", "group"])
def test_branch_that_does_not_suit_a_batch_is_not_taken(kind, tmp_path):
    def model_fn(features, labels, mode, params):
        w = tf.get_variable("w", [2], initializer=tf.zeros_initializer())
        counted = tf.get_variable("n", [], initializer=tf.zeros_initializer())
        is_one = tf.equal(tf.shape(features)[0], 1)

        def of_one():
            return tf.squeeze(features, axis=0)

        def of_many():
            return tf.reduce_mean(features, 0)

        if kind == "cond":
            mean = tf.cond(is_one, of_one, of_many)
        elif kind == "case":
            many = tf.not_equal(tf.shape(features)[0], 1)
            mean = tf.case([(many, of_many), (is_one, of_one)], exclusive=True)
        else:
            added = tf.cond(
                is_one,
                lambda: tf.group(tf.assign_add(counted, of_one()[0])),
                lambda: tf.group(tf.assign_add(counted, of_many()[0])),
            )
            with tf.control_dependencies([added]):
                mean = of_many()
        loss = tf.reduce_mean(tf.square(mean - w))
        optimizer = tf.train.GradientDescentOptimizer(0.5)
        train_op = optimizer.minimize(loss, tf.train.get_global_step())
        return kte.tf1.EstimatorSpec(mode, loss=loss, train_op=train_op)

    x = np.array([[1.0, 2.0], [3.0, 4.0]], "float32")
    made = estimator_of(kte.tf1.model_fn(model_fn), tmp_path, batch=2)
    made.train(fed([x]), steps=1)
    values = values_of(made)
    np.testing.assert_allclose(values["w"], x.mean(0) / 2)
    assert values["n"] == (x.mean(0)[0] if kind == "group" else 0)


def test_train_op_inside_a_branch_is_refused():
    with tf.Graph().as_default():
        inner = []
        tf.cond(
            tf.random.uniform([]) < 2.0,
            lambda: inner.append(tf.no_op()),
            lambda: None,
        )
        with pytest.raises(ValueError, match="`train_op` must be outside of"):
            kte.tf1.EstimatorSpec("train", loss=tf.constant(1.0), train_op=inner[0])


def doubling(rounds, while_condition, start=0, step=1):
    """A loop that multiplies and counts in each iteration."""

    def multiply(factor):
        def body(i, product):
            return i + step, product * factor

        return tf.while_loop(while_condition, body, (start, tf.ones([])))[1]

    return rounds, multiply


LOOPS = {
    "constant": doubling(3, lambda i, _: i < 3),
    "from_shape": doubling(4, lambda i, _: i < tf.shape(tf.zeros([4]))[0]),
    "down": doubling(3, lambda i, _: i >= 1, start=3, step=-1),
    "steps": doubling(3, lambda i, _: 5 >= i, step=2),
    "unequal": doubling(3, lambda i, _: tf.not_equal(i, 6), step=2),
    "least": doubling(
        3,
        lambda i, product: i < tf.minimum(3, tf.cast(product, tf.int32) + 9),
    ),
    "both": doubling(2, lambda i, product: tf.logical_and(i < 9, product < 3.0)),
}


def looped(multiply):
    """A model whose loss is computed from a weight by a loop."""

    def model_fn(features, labels, mode, params):
        w = tf.get_variable("w", [], initializer=tf.constant_initializer(2.0))
        loss = multiply(w) + 0.0 * tf.reduce_sum(features)
        train_op = tf.train.GradientDescentOptimizer(0.01).minimize(
            loss, tf.train.get_global_step()
        )
        return kte.tf1.TPUEstimatorSpec(mode, loss=loss, train_op=train_op)

    return model_fn


@pytest.mark.rows(5)
@pytest.mark.parametrize("kind", LOOPS)
def test_loop_with_a_counter_has_a_gradient(tmp_path, kind):
    rounds, multiply = LOOPS[kind]
    estimator = estimator_of(kte.tf1.model_fn(looped(multiply)), tmp_path, batch=BATCH)
    estimator.train(fed(data()), steps=1)
    expected = 2.0 - 0.01 * rounds * 2.0 ** (rounds - 1)
    assert values_of(estimator)["w"] == pytest.approx(expected)


def test_a_loop_without_a_bound_is_refused_by_name(tmp_path):
    def multiply(factor):
        return tf.while_loop(
            lambda product: product < 10.0,
            lambda product: product * factor,
            [tf.ones([])],
            name="growing",
        )

    estimator = estimator_of(kte.tf1.model_fn(looped(multiply)), tmp_path, batch=BATCH)
    match = "growing, made at .*maximum_iterations="
    with pytest.raises(ValueError, match=match):
        estimator.train(fed(data()), steps=1)


def test_a_loop_whose_tensors_grow_is_refused_by_name(tmp_path):
    def multiply(factor):
        _, rows = tf.while_loop(
            lambda i, _: i < 3,
            lambda i, rows: (i + 1, tf.concat([rows, rows[-1:] * factor], 0)),
            (0, tf.ones([1])),
            shape_invariants=(tf.TensorShape([]), tf.TensorShape([None])),
            name="growing",
            back_prop=False,
        )
        return factor + tf.reduce_sum(rows)

    estimator = estimator_of(kte.tf1.model_fn(looped(multiply)), tmp_path, batch=BATCH)
    match = "keep their shapes. Received: growing, made at .*. Pad them"
    with pytest.raises(ValueError, match=match):
        estimator.train(fed(data()), steps=1)
