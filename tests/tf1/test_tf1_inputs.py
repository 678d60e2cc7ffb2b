"""Tests the input_fns of TF1 scripts."""

import keras_tpu_estimator as kte  # isort: skip

import itertools

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from tf1_programs import (
    assert_same,
    classes_data,
    dense,
    estimator,
    fed,
    model_fn_of,
    values_of,
)

from keras_tpu_estimator.engine.inputs.batch_source import Arrays
from keras_tpu_estimator.engine.inputs.deployment import undivided
from keras_tpu_estimator.engine.inputs.pipeline import Pipeline
from keras_tpu_estimator.engine.inputs.request import InputRequest
from keras_tpu_estimator.engine.inputs.stacking import StackSize
from keras_tpu_estimator.tf1.host.input_graph import source_in_graph

X = np.arange(24, dtype="int64").reshape(12, 2)


def source_of(input_fn, number=0, seed=3):
    """The source for the result of a function in a graph."""
    return source_in_graph(input_fn, number, seed)


def items_of(input_fn, count=None, **kwargs):
    """The first items of the source, as NumPy arrays."""
    items = itertools.islice(source_of(input_fn, **kwargs).items(), count)
    return [np.asarray(item) for item in items]


def dataset(size=4):
    return tf.data.Dataset.from_tensor_slices(X).batch(size)


def one_shot():
    return tf.data.make_one_shot_iterator(dataset()).get_next()


def initializable():
    iterator = tf.data.make_initializable_iterator(dataset())
    tf.add_to_collection(tf.GraphKeys.TABLE_INITIALIZERS, iterator.initializer)
    return iterator.get_next()


def with_a_table():
    keys = tf.constant([str(i) for i in range(24)])
    values = tf.constant(np.arange(24))
    table = tf.lookup.StaticHashTable(
        tf.lookup.KeyValueTensorInitializer(keys, values), -1
    )
    lines = tf.data.Dataset.from_tensor_slices(X.astype(str))
    return lines.map(table.lookup).batch(4)


def of_python():
    return tf.data.Dataset.from_generator(lambda: iter(X), tf.int64, [2]).batch(4)


@pytest.fixture(params=[False, True])
def is_disabled(request):
    """Whether the program called tf.disable_v2_behavior()."""
    if not request.param:
        yield False
        return
    tf.disable_v2_behavior()
    yield True
    # Otherwise it reports that graphs have been used.
    tf.reset_default_graph()
    tf.enable_v2_behavior()


@pytest.fixture(scope="module")
def records(tmp_path_factory):
    """A file of `tf.train.Example`s."""
    path = str(tmp_path_factory.mktemp("records") / "x.tfrecord")
    with tf.io.TFRecordWriter(path) as writer:
        for row in X:
            values = tf.train.Feature(int64_list=tf.train.Int64List(value=row))
            features = tf.train.Features(feature={"x": values})
            example = tf.train.Example(features=features)
            writer.write(example.SerializeToString())
    return path


def test_pipeline_of_bert(records, is_disabled):
    def input_fn():
        data = tf.data.Dataset.from_tensor_slices([records]).repeat(2)
        data = data.apply(
            tf.data.experimental.parallel_interleave(
                tf.data.TFRecordDataset, sloppy=True, cycle_length=2
            )
        )
        return data.shuffle(100).apply(
            tf.data.experimental.map_and_batch(
                lambda record: tf.parse_single_example(
                    record, {"x": tf.FixedLenFeature([2], tf.int64)}
                )["x"],
                batch_size=8,
                num_parallel_batches=2,
                drop_remainder=True,
            )
        )

    items = items_of(input_fn)
    assert [item.shape for item in items] == [(8, 2)] * 3
    read = sorted(map(tuple, np.concatenate(items)))
    assert read == sorted(map(tuple, np.concatenate([X, X])))


def from_a_variable():
    # No dataset contains its value.
    offset = tf.get_variable("offset", initializer=tf.constant(0, tf.int64))
    return dataset().map(lambda x: x + offset)


def from_a_queue():
    queue = tf.train.input_producer(X, num_epochs=1, shuffle=False)
    return queue.dequeue_many(4)


def a_generator():
    # This body cannot run in a graph.
    yield from (batch.numpy() for batch in dataset())


def as_numpy():
    return dataset().as_numpy_iterator()


@pytest.mark.parametrize(
    "input_fn",
    [
        dataset,
        one_shot,
        initializable,
        with_a_table,
        of_python,
        from_a_variable,
        from_a_queue,
    ],
)
def test_inputs_of_graphs_are_read(is_disabled, input_fn):
    items = items_of(input_fn)
    assert [item.dtype for item in items] == [np.int64] * 3
    assert np.array_equal(np.concatenate(items), X)


@pytest.mark.parametrize("input_fn", [a_generator, as_numpy])
def test_inputs_that_need_values_are_read_eagerly(input_fn):
    assert np.array_equal(np.concatenate(items_of(input_fn)), X)


def test_dataset_without_a_graph_is_read():
    made = dataset()
    assert np.array_equal(np.concatenate(items_of(lambda: made)), X)


def test_input_fn_is_not_called_again_after_an_error():
    calls = []

    def input_fn():
        calls.append(tf.get_default_graph())
        raise RuntimeError("no such file")

    with pytest.raises(RuntimeError, match="no such file"):
        source_of(input_fn)
    assert len(calls) == 1


def test_arrays_are_read_unchanged():
    assert isinstance(source_of(lambda: (X, X)), Arrays)


def test_constants_are_one_batch():
    form = source_of(lambda: ({"x": tf.constant(X)}, np.ones(12)))
    assert isinstance(form, Arrays)
    ((features, labels),) = form.items()
    assert np.array_equal(features["x"], X)
    assert labels.shape == (12,)


def test_random_tensors_are_new_for_each_batch():
    def random():
        return tf.random_uniform([4])

    first, second = items_of(random, 2)
    assert not np.array_equal(first, second)
    again = items_of(random, 2)
    assert np.array_equal([first, second], again)
    assert not np.array_equal(first, items_of(random, 1, number=1)[0])
    assert not np.array_equal(first, items_of(random, 1, seed=None)[0])


def test_shuffling_is_repeated_with_a_seed_and_differs_between_calls():
    def shuffled():
        return tf.data.Dataset.range(100).shuffle(100).batch(100)

    (first,), (again,), (other,) = (
        items_of(shuffled, number=number) for number in (0, 0, 1)
    )
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)


def test_dataset_continues_from_its_state(is_disabled):
    def shuffled():
        return tf.data.Dataset.range(40).shuffle(40).batch(4)

    expected = items_of(shuffled)
    form = source_of(shuffled)
    items = form.items()
    for _ in range(3):
        next(items)
    state = form.state_of(items)
    rest = [np.asarray(each) for each in source_of(shuffled).items(state)]
    assert np.array_equal(rest, expected[3:])


def test_long_datasets_are_stacked(is_disabled):
    def repeated():
        data = tf.data.Dataset.from_tensor_slices(X).repeat()
        return data.batch(4, drop_remainder=True)

    form = source_of(repeated)
    stacked = form.in_stacks(form.stacked_for(6, 4, StackSize()))
    assert stacked.stacked == 6
    assert next(stacked.items()).shape[:2] == (6, 4)


@pytest.mark.parametrize(
    "ragged",
    [
        lambda: tf.RaggedTensor.from_tensor(X),
        lambda: tf.data.Dataset.from_tensors(tf.RaggedTensor.from_tensor(X)),
    ],
)
def test_ragged_tensors_are_an_error(ragged):
    with pytest.raises(TypeError, match="must be dense|dense tensor"):
        source_of(lambda: {"x": ragged()}).check(undivided(4))
        source_of(ragged).check(undivided(4))


def pipeline_of(input_fn):
    return Pipeline(
        input_fn,
        InputRequest(
            kte.ModeKeys.TRAIN,
            undivided(4),
            lambda additional: additional,
            source_of=lambda call, number: source_in_graph(call, number, None),
        ),
    )


def test_strings_are_an_error_by_name():
    def input_fn(params):
        x = tf.data.Dataset.from_tensor_slices({"name": ["a", "b"]})
        return tf.data.make_one_shot_iterator(x.batch(2)).get_next()

    with pytest.raises(ValueError, match=r"'name'.* must contain numbers"):
        pipeline_of(input_fn).take(1)


def test_errors_of_a_session_are_raised_unchanged():
    def input_fn(params):
        return one_shot() + tf.placeholder(tf.int64, [])

    with pytest.raises(tf.errors.InvalidArgumentError) as raised:
        pipeline_of(input_fn).take(1)
    assert "reading input_fn" in raised.value.__notes__[0]


def test_iterator_without_a_hook_is_an_error():
    def input_fn(params):
        return tf.data.make_initializable_iterator(dataset()).get_next()

    with pytest.raises(ValueError, match="must be initialized before") as had:
        pipeline_of(input_fn).take(1)
    assert "reading input_fn" in had.value.__notes__[0]


def linear(features, labels, mode, params):
    """A linear model of integers, with its mean prediction as a metric."""
    x = tf.cast(features["x"], tf.float32)
    w = tf.get_variable("w", [2, 1], initializer=tf.ones_initializer)
    y = tf.matmul(x, w)
    if mode == kte.ModeKeys.PREDICT:
        return kte.tf1.TPUEstimatorSpec(mode, predictions={"y": y})
    loss = tf.reduce_mean((y - labels) ** 2)
    if mode == kte.ModeKeys.EVAL:
        return kte.tf1.TPUEstimatorSpec(
            mode,
            loss=loss,
            eval_metrics=(lambda y: {"y": tf.metrics.mean(y)}, [y]),
        )
    optimizer = tf.train.GradientDescentOptimizer(1e-2)
    if params["use_tpu"]:
        optimizer = tf.tpu.CrossShardOptimizer(optimizer)
    train_op = optimizer.minimize(loss, tf.train.get_global_step())
    return kte.tf1.TPUEstimatorSpec(mode, loss=loss, train_op=train_op)


def rows(params, mode, repeat=True):
    """A dataset of features in a dict, and labels."""
    x = np.arange(32).reshape(16, 2) % 5
    data = tf.data.Dataset.from_tensor_slices(
        ({"x": x}, x.sum(1, keepdims=True).astype("float32") * 2)
    )
    if mode == kte.ModeKeys.TRAIN:
        data = data.repeat()
    return data.batch(params["batch_size"], drop_remainder=True)


def of_an_iterator(params, mode):
    """The same rows as tensors of an iterator."""
    return tf.data.make_one_shot_iterator(rows(params, mode)).get_next()


@pytest.mark.rows(3)
@pytest.mark.parametrize("use_tpu", [False, True])
def test_script_reads_its_input(tmp_path, is_disabled, use_tpu):
    made = estimator(linear, tmp_path, use_tpu=use_tpu)
    losses = []
    for number, input_fn in enumerate((rows, of_an_iterator), start=1):
        made.train(input_fn, steps=20)
        result = made.evaluate(input_fn)
        assert result["global_step"] == 20 * number
        losses.append(result["loss"])
        predicted = [float(each["y"][0]) for each in made.predict(input_fn)]
        assert len(predicted) == 16
        assert np.isclose(np.mean(predicted), result["y"], rtol=1e-5)
    # The weight changes with either input.
    assert losses[1] < losses[0] < 1


@pytest.mark.parametrize("per_host", [False, 3])
def test_per_core_input(tmp_path, per_host):
    contexts = []

    def input_fn(params, mode):
        contexts.append(params["context"].current_input_fn_deployment())
        return (rows if per_host else of_an_iterator)(params, mode)

    config = kte.RunConfig(
        tpu_config=kte.TPUConfig(per_host_input_for_training=per_host)
    )
    made = kte.TPUEstimator(
        kte.tf1.model_fn(linear),
        config=config,
        model_dir=str(tmp_path),
        train_batch_size=16,
    )
    made.train(input_fn, steps=4)
    assert len(contexts) == (1 if per_host else 8)


def test_tensors_instead_of_a_dataset_are_an_error(tmp_path):
    config = kte.RunConfig(tpu_config=kte.TPUConfig(per_host_input_for_training=3))
    made = kte.TPUEstimator(
        kte.tf1.model_fn(linear),
        config=config,
        model_dir=str(tmp_path),
        train_batch_size=16,
    )
    with pytest.raises(TypeError, match="PER_HOST_V2 input_fn must return"):
        made.train(of_an_iterator, steps=4)


@pytest.mark.parametrize("use_tpu", [False, True])
def test_batches_without_examples_are_not_steps(tmp_path, use_tpu):
    x, y = classes_data(3, examples=48)
    full = [(x[i : i + 16], y[i : i + 16]) for i in (0, 16, 32)]
    parts = [(x[:0], y[:0]), full[0], (x[:0], y[:0]), *full[1:]]

    def from_a_graph(params):
        data = tf.data.Dataset.from_generator(
            lambda: iter(parts), (tf.float32, tf.int64), ([None, 3], [None])
        )
        return tf.data.make_one_shot_iterator(data).get_next()

    model_fn = model_fn_of(
        lambda x, training: dense(x, 4, "logits"),
        lambda step: tf.train.GradientDescentOptimizer(0.1),
    )
    want = estimator(model_fn, tmp_path / "without", use_tpu=use_tpu)
    want.train(fed(full), steps=3)
    got = estimator(model_fn, tmp_path / "with", use_tpu=use_tpu)
    got.train(from_a_graph, max_steps=5)
    assert_same(values_of(got), values_of(want), rtol=0, atol=0)
    assert got.evaluate(from_a_graph) == want.evaluate(fed(full))
    features = [part[0] for part in parts]
    answers = got.predict(fed(features), yield_single_examples=False)
    sizes = [len(answer["classes"]) for answer in answers]
    assert sizes == [0, 16, 0, 16, 16]
