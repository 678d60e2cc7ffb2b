"""Tests that random ops depend only on the seed, the core and the step."""

import keras_tpu_estimator as kte  # isort: skip

import shutil

import jax
import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from helpers import slow
from tf1_programs import (
    STEPS,
    assert_same,
    batches,
    classes_data,
    dense,
    estimator,
    fed,
    model_fn_of,
    trained,
)

SHUFFLED = 6


def with_dropout(features, is_training):
    """A layer with dropout that records the numbers of each step."""
    hidden = dense(features, 6, "hidden", tf.nn.relu, seed=1)
    if is_training:
        hidden = tf.nn.dropout(hidden, rate=0.5)
        record = tf.get_variable(
            "record",
            [STEPS, 3 + SHUFFLED],
            initializer=tf.zeros_initializer,
            trainable=False,
        )
        step = tf.train.get_global_step()
        order = tf.cast(tf.random_shuffle(tf.range(SHUFFLED)), tf.float32)
        drawn = tf.concat([tf.random_uniform([3]), order], 0)
        update = tf.scatter_update(record, step, drawn)
        tf.add_to_collection(tf.GraphKeys.UPDATE_OPS, update)
    return dense(hidden, 4, "logits", seed=2)


def sgd(step):
    """Gradient descent."""
    del step
    return tf.train.GradientDescentOptimizer(0.1)


@pytest.mark.parametrize("use_tpu", [False, True])
def test_restart_continues_bit_for_bit(tmp_path, use_tpu):
    data = batches(*classes_data(5))
    model_fn = model_fn_of(with_dropout, sgd)
    whole, part = tmp_path / "whole", tmp_path / "part"
    saving = {"config": {"save_checkpoints_steps": 4}}
    expected = trained(model_fn, whole, data, use_tpu=use_tpu, **saving)
    # Training is interrupted after four steps.
    shutil.copytree(whole, part, ignore=shutil.ignore_patterns("*.input.*.zip"))
    (part / "checkpoint").write_text('model_checkpoint_path: "model.ckpt-4"')
    restarted = trained(model_fn, part, data[4:], use_tpu=use_tpu)
    assert_same(restarted, expected, rtol=0, atol=0)
    # No two steps draw the same.
    numbers, orders = np.split(expected["record"], [3], axis=1)
    assert len({tuple(row) for row in numbers}) == STEPS
    assert len({tuple(row) for row in orders}) > STEPS // 2
    if not use_tpu:  # The numbers of the cores are averaged.
        whole = [range(SHUFFLED)] * STEPS
        np.testing.assert_array_equal(np.sort(orders), whole)


@pytest.mark.rows(1)
@pytest.mark.parametrize("use_tpu", [False, True])
@pytest.mark.parametrize("name", ["rbg", slow("unsafe_rbg")])
def test_generator_of_the_devices(tmp_path, name, use_tpu):
    data = batches(*classes_data(5))
    model_fn = model_fn_of(with_dropout, sgd)
    kinds = {
        "own": {"random_bits": name},
        "again": {"random_bits": name},
        "philox": {},
    }
    own, again, philox = (
        trained(model_fn, tmp_path / kind, data, use_tpu=use_tpu, config=config)
        for kind, config in kinds.items()
    )
    assert_same(again, own, rtol=0, atol=0)
    drawn = own["record"][:, :3]
    assert np.abs(drawn - philox["record"][:, :3]).min() > 0
    assert len(np.unique(drawn)) == drawn.size
    assert 0 <= drawn.min() < 0.5 < drawn.max() < 1


def test_other_seed_draws_other_numbers(tmp_path):
    data = batches(*classes_data(5), steps=2)
    model_fn = model_fn_of(with_dropout, sgd)
    values = [
        trained(model_fn, tmp_path / str(seed), data, seed=seed) for seed in (1, 2)
    ]
    assert not np.array_equal(values[0]["record"], values[1]["record"])


def test_compiled_program_does_not_depend_on_the_seed():
    # Restarting a script without a seed then finds its program in the cache.
    x, y = classes_data(5)
    texts = []
    for seed in (1, 2):
        model = kte.EstimatorModel.from_model_fn(
            kte.tf1.model_fn(model_fn_of(with_dropout, sgd)), seed=seed
        )
        step = model.prepare(kte.ModeKeys.TRAIN, x, y)
        values = model.program.store.initial_values()
        lowered = jax.jit(step.function).lower(values, x, y)
        texts.append(lowered.as_text())
    assert texts[0] == texts[1]


def drawn_by(draw, tmp_path, use_tpu=False):
    """The predictions by name of a model_fn that draws for its shard of 16 examples.

    Args:
        draw: Returns tensors by name, given the number of examples.
        tmp_path: The directory of the estimator.
        use_tpu: Whether it runs on all cores.
    """

    def model_fn(features, labels, mode, params):
        assert mode == kte.ModeKeys.PREDICT
        predictions = draw(int(features.shape[0]))
        return kte.tf1.TPUEstimatorSpec(mode, predictions=predictions)

    made = estimator(model_fn, tmp_path, use_tpu=use_tpu)
    x = np.zeros((16, 1), "float32")
    rows = list(made.predict(fed([x])))
    return {name: np.stack([row[name] for row in rows]) for name in rows[0]}


def test_cores_draw_different_numbers(tmp_path):
    drawn = drawn_by(lambda size: {"x": tf.random_normal([size, 3])}, tmp_path, True)
    assert len({tuple(row) for row in drawn["x"]}) == 16


def test_two_ops_and_two_iterations_draw_different_numbers(tmp_path):
    def body(step, drawn):
        pick = tf.cond(
            step > 1,
            lambda: tf.random_uniform([1, 2]),
            lambda: tf.random_uniform([1, 2]),
        )
        _, inner = tf.while_loop(
            lambda i, _: i < 2,
            lambda i, all: (
                i + 1,
                tf.concat([all[1:], tf.random_uniform([1, 2])], 0),
            ),
            (0, tf.zeros([2, 2])),
        )
        return step + 1, tf.concat([drawn[3:], pick, inner], 0)

    def draw(size):
        _, drawn = tf.while_loop(lambda step, _: step < 4, body, (0, tf.zeros([12, 2])))
        rest = [tf.random_uniform([2, 2]), tf.random_uniform([size - 14, 2])]
        return {"x": tf.concat([drawn, *rest], 0)}

    drawn = drawn_by(draw, tmp_path)["x"]
    assert len(np.unique(drawn)) == 32
    assert (0 < drawn).all() and (drawn < 1).all()


def test_rows_are_shuffled_in_a_loop_and_without_rows(tmp_path):
    rows = np.arange(10).reshape(5, 2)

    def draw(size):
        _, drawn = tf.while_loop(
            lambda step, _: step < 4,
            lambda step, all: (
                step + 1,
                tf.concat([all[5:], tf.random_shuffle(rows)], 0),
            ),
            (0, tf.zeros([20, 2], tf.int64)),
        )
        empty = tf.random_shuffle(tf.zeros([0, 2], tf.int64))
        drawn = tf.concat([drawn, empty], 0)
        return {"x": tf.tile(drawn[None], [size, 1, 1])}

    drawn = drawn_by(draw, tmp_path)["x"][0].reshape(4, 5, 2)
    assert len({tuple(each[:, 0]) for each in drawn}) == 4
    for each in drawn:
        np.testing.assert_array_equal(each[np.argsort(each[:, 0])], rows)


DRAWN = {
    "uniform": (
        lambda shape: tf.random_uniform(shape, 1.0, 3.0),
        (2, 12**-0.5 * 2),
    ),
    "integers": (
        lambda shape: tf.random_uniform(shape, 0, 10, tf.int32),
        (4.5, 2.87),
    ),
    "normal": (lambda shape: tf.random_normal(shape, 1.0, 2.0), (1, 2)),
    "truncated": (
        lambda shape: tf.truncated_normal(shape, 1.0, 2.0),
        (1, 1.76),
    ),
    "categorical": (
        lambda shape: tf.random.categorical(
            tf.log([[0.2, 0.3, 0.5]] * shape[0]), shape[1]
        ),
        (1.3, 0.78),
    ),
}


def test_numbers_have_the_right_distribution(tmp_path):
    def draw(size):
        return {name: each([size, 500]) for name, (each, _) in DRAWN.items()}

    drawn = drawn_by(draw, tmp_path)
    for name, (_, (mean, deviation)) in DRAWN.items():
        assert drawn[name].mean() == pytest.approx(mean, abs=0.1), name
        assert drawn[name].std() == pytest.approx(deviation, abs=0.1), name
