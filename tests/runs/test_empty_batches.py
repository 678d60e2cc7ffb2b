"""Tests inputs that contain batches without examples."""

import queue

import keras
import numpy as np
import pytest
import tensorflow as tf  # noqa: TID253 - one of the kinds of input
from helpers import (
    batches_of,
    each_once,
    estimator_of,
    linear,
    model_fn_of,
    regression_data,
    squared_error,
)

import keras_tpu_estimator as kte
from keras_tpu_estimator.base.common.topology import Topology
from keras_tpu_estimator.engine.inputs.deployment import input_plan
from keras_tpu_estimator.engine.inputs.pipeline import Pipeline
from keras_tpu_estimator.engine.inputs.request import InputRequest
from keras_tpu_estimator.runs.agreed_steps import AgreedSteps

X, Y = regression_data(examples=40)
SIZES = (0, 16, 0, 16, 8, 0)


def with_empty(x=X, y=Y, sizes=SIZES):
    """Batches of 16, a smaller batch, and batches without examples."""

    def input_fn(params):
        start = 0
        for size in sizes:
            rows = slice(start, start + size)
            yield x[rows], y[rows]
            start += size

    return input_fn


def features_of(input_fn):
    return lambda params: (features for features, _ in input_fn(params))


def as_dataset(input_fn):
    return lambda params: tf.data.Dataset.from_generator(
        lambda: input_fn(params),
        output_signature=(
            tf.TensorSpec((None, 3), tf.float32),
            tf.TensorSpec((None, 1), tf.float32),
        ),
    )


def counting_model_fn(seen):
    """A linear model whose host functions record batch sizes."""

    def metric_fn(labels, outputs):
        seen.append(len(labels))
        return {"error": kte.metrics.mean_absolute_error(labels, outputs)}

    def host_call(step, outputs):
        seen.append(len(outputs))

    def model_fn(features, labels, mode, params):
        outputs = keras.layers.Dense(1)(features)
        loss = squared_error(outputs, labels)
        optimizer = kte.CrossShardOptimizer(keras.optimizers.SGD(0.1))
        is_training = mode == kte.ModeKeys.TRAIN
        return kte.TPUEstimatorSpec(
            mode,
            loss=loss,
            train_op=optimizer.minimize(loss) if is_training else None,
            eval_metrics=(metric_fn, [labels, outputs]),
            host_call=(host_call, [kte.get_global_step()[None], outputs]),
        )

    return model_fn


FORMS = [lambda input_fn: input_fn, as_dataset]


@pytest.mark.parametrize(("use_tpu", "form"), each_once([False, True], FORMS))
def test_evaluation_ignores_empty_batches(use_tpu, form, tmp_path):
    seen = []
    estimator = estimator_of(counting_model_fn(seen), tmp_path, use_tpu)
    expected = estimator.evaluate(batches_of(X, Y))
    result = estimator.evaluate(form(with_empty()))
    assert result == expected and np.isfinite(result["loss"])
    assert 0 not in seen


@pytest.mark.parametrize(
    ("use_tpu", "micro_batches", "form"),
    [
        *each_once([False], [1, 2], FORMS),
        *each_once([True], [2, 1], FORMS),
    ],
)
def test_empty_batches_are_not_training_steps(use_tpu, micro_batches, form, tmp_path):
    sizes = (0, 16, 0, 16, 0)
    seen = []
    estimators = [
        estimator_of(
            counting_model_fn(seen),
            tmp_path / name,
            use_tpu,
            config={"micro_batches": micro_batches},
        )
        for name in ("with", "without")
    ]
    estimators[0].train(form(with_empty(sizes=sizes)), max_steps=5)
    estimators[1].train(form(with_empty(sizes=(16, 16))), max_steps=5)
    for name in ("global_step", "dense/kernel", "dense/bias"):
        np.testing.assert_array_equal(
            *(each.get_variable_value(name) for each in estimators)
        )
    assert estimators[0].get_variable_value("global_step") == 2
    assert 0 not in seen


def test_steps_count_only_batches_with_examples(tmp_path):
    estimator = estimator_of(model_fn_of(linear), tmp_path)
    result = estimator.evaluate(with_empty(), steps=2)
    expected = estimator.evaluate(batches_of(X, Y), steps=2)
    assert result == expected


@pytest.mark.parametrize("form", [lambda input_fn: input_fn, as_dataset])
def test_input_of_empty_batches_is_empty(form, tmp_path, caplog):
    input_fn = form(with_empty(sizes=(0, 0)))
    estimator = estimator_of(model_fn_of(linear), tmp_path)
    estimator.train(input_fn)
    assert "the input is empty" in caplog.text
    with pytest.raises(ValueError, match="at least one batch with examples"):
        estimator.evaluate(input_fn)
    assert list(estimator.predict(lambda params: X[:0])) == []


@pytest.mark.parametrize("use_tpu", [False, True])
def test_prediction_has_no_rows_for_empty_batches(use_tpu, tmp_path):
    estimator = estimator_of(model_fn_of(linear), tmp_path, use_tpu)
    input_fn = features_of(with_empty())
    rows = list(estimator.predict(input_fn))
    assert len(rows) == len(X)
    batches = list(estimator.predict(input_fn, yield_single_examples=False))
    assert [len(batch["y"]) for batch in batches] == list(SIZES)


def test_empty_batches_need_no_batch_size_in_prediction(tmp_path):
    def network(x, is_training):
        # The other axis is unknown without an example.
        return linear(x.reshape(len(x), -1), is_training)

    estimator = kte.TPUEstimator(
        model_fn_of(network),
        config=kte.RunConfig(model_dir=str(tmp_path)),
        use_tpu=False,
    )
    input_fn = features_of(with_empty())
    batches = list(estimator.predict(input_fn, yield_single_examples=False))
    assert [batch["y"].shape for batch in batches] == [(s, 1) for s in SIZES]


def test_input_that_waits_for_an_empty_result_receives_it(tmp_path):
    answered = queue.SimpleQueue()

    def asking():
        for size in SIZES:
            yield X[:size]
            assert answered.get() == size

    estimator = estimator_of(model_fn_of(linear), tmp_path)
    for answer in estimator.predict(
        lambda params: asking(), yield_single_examples=False
    ):
        answered.put(len(answer["y"]))
    assert answered.empty()


@pytest.mark.parametrize(
    "sizes",
    [
        [(8, 0, 3), (8, 8)],
        [(0, 0, 0), (8, 5)],
        [(8, 5), (8, 0)],
        [(0, 8), (8, 0)],
        [(0,), (0, 0)],
    ],
)
def test_hosts_without_examples_contribute_nothing_to_a_step(sizes, on_each, hosts_of):
    cores = Topology(num_replicas=4, num_hosts=2)
    plan = input_plan("eval", kte.InputPipelineConfig.PER_HOST_V1, cores, batch_size=16)

    def read(host):
        input_fn = with_empty(100.0 * host + X, sizes=sizes[host])
        request = InputRequest("eval", plan, lambda additional: additional)
        hosts = hosts_of(host, 2)
        with Pipeline(input_fn, request) as pipeline:
            steps = AgreedSteps("eval", pipeline, hosts, cores)
            return list(iter(lambda: steps.take(4), None))

    of_hosts = on_each(read)
    numbers = [[(each.is_part, each.steps) for each in taken] for taken in of_hosts]
    assert numbers[0] == numbers[1]
    seen = []
    for host, of_host in enumerate(of_hosts):
        for taken in of_host:
            features = taken.features
            assert sum(taken.part_sizes) or features.size
            padded = taken.part_sizes[host] if taken.part_sizes else None
            seen.append(features[:, :padded].reshape(-1, 3))
    expected = [100.0 * h + X[: sum(own)] for h, own in enumerate(sizes)]
    np.testing.assert_array_equal(
        sorted(map(tuple, np.concatenate([X[:0], *seen]))),
        sorted(map(tuple, np.concatenate(expected))),
    )
