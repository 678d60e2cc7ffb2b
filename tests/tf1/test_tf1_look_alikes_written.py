"""Reimplemented names of `tf.contrib` agree with NumPy."""

import keras_tpu_estimator as kte  # isort: skip

import itertools

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from keras_tpu_estimator.tf1.shims.resolving import resolve

# Warnings of TensorFlow and tf-keras that recommend Keras.
pytestmark = pytest.mark.filterwarnings("ignore:.* is deprecated and will be")

RNG = np.random.default_rng(0)


@pytest.fixture(scope="module", autouse=True)
def installed():
    kte.tf1.install()


@pytest.fixture
def session():
    """A session of a new graph for the test."""
    with tf.Graph().as_default():
        tf.set_random_seed(0)
        with tf.Session() as session:
            yield session


def floats(*shape):
    return RNG.normal(size=shape).astype("float32")


def run(session, fetches):
    session.run([tf.global_variables_initializer(), tf.tables_initializer()])
    return session.run(fetches)


def names():
    return sorted(v.op.name for v in tf.global_variables())


# Optimizers.


def steps(session, optimizer, gradients, **kwargs):
    """A variable after steps with these gradients, and its initial value."""
    start = floats(*gradients[0].shape)
    variable = tf.get_variable(
        "x", initializer=start, use_resource=True, dtype=tf.float32
    )
    fed = tf.placeholder(tf.float32, start.shape)
    step = tf.train.create_global_step()
    op = optimizer.apply_gradients([(fed, variable)], step, **kwargs)
    session.run(tf.global_variables_initializer())
    for gradient in gradients:
        session.run(op, {fed: gradient})
    assert session.run(step) == len(gradients)
    return session.run(variable), start


def adam(x, gradients, rate=0.1, decay=0.0, nesterov=False, largest=False):
    m = v = np.zeros_like(x)
    for t, g in enumerate(gradients, 1):
        x = x - decay * x
        m = 0.9 * m + 0.1 * g
        if largest:
            v = np.maximum(0.999 * v, np.abs(g))
            x = x - rate / (1 - 0.9**t) * m / (v + 1e-8)
            continue
        v = 0.999 * v + 0.001 * g * g
        scaled = rate * np.sqrt(1 - 0.999**t) / (1 - 0.9**t)
        ahead = 0.9 * m + 0.1 * g if nesterov else m
        x = x - scaled * ahead / (np.sqrt(v) + 1e-8)
    return x


@pytest.mark.parametrize(
    ("make", "settings"),
    [
        (lambda: tf.contrib.opt.LazyAdamOptimizer(0.1), {}),
        (lambda: tf.contrib.opt.NadamOptimizer(0.1), {"nesterov": True}),
        (lambda: tf.contrib.opt.AdaMaxOptimizer(0.1), {"largest": True}),
        (lambda: tf.contrib.opt.AdamWOptimizer(0.01, 0.1), {"decay": 0.01}),
    ],
)
def test_relatives_of_adam(session, make, settings):
    gradients = [floats(3, 2) for _ in range(3)]
    optimizer = make()
    value, start = steps(session, optimizer, gradients)
    expected = adam(start, gradients, **settings)
    np.testing.assert_allclose(value, expected, rtol=1e-5)
    name = optimizer.get_name()
    assert {f"x/{name}", f"x/{name}_1"} < {*names()}


def test_lazy_adam_leaves_other_rows(session):
    table = tf.get_variable("x", initializer=floats(4, 2), use_resource=True)
    loss = tf.reduce_sum(tf.gather(table, [2, 0]) * [[1.0], [3.0]])
    optimizer = tf.contrib.opt.LazyAdamOptimizer(0.1)
    op = optimizer.minimize(loss)
    before = run(session, table)
    for _ in range(2):
        session.run(op)
    after, m = session.run([table, optimizer.get_slot(table, "m")])
    np.testing.assert_array_equal(after[[1, 3]], before[[1, 3]])
    np.testing.assert_array_equal(m[[1, 3]], 0)
    gradients = [np.array([[1.0, 1.0], [3.0, 3.0]])] * 2
    expected = adam(before[[2, 0]], gradients)
    np.testing.assert_allclose(after[[2, 0]], expected, rtol=1e-5)


def test_weights_decay_of_chosen_variables(session):
    chosen = tf.get_variable("chosen", initializer=floats(2))
    other = tf.get_variable("other", initializer=floats(2))
    optimizer = tf.contrib.opt.MomentumWOptimizer(0.5, 0.0, 0.9)
    loss = tf.reduce_sum(chosen + other)
    op = optimizer.minimize(loss, decay_var_list=[chosen])
    before = run(session, [chosen, other])
    session.run(op)
    after = session.run([chosen, other])
    np.testing.assert_allclose(after[0], before[0] / 2)
    np.testing.assert_array_equal(after[1], before[1])


@pytest.mark.parametrize("skipped", [None, ["x"]])
def test_lars(session, skipped):
    gradients = [floats(3, 2) for _ in range(3)]
    optimizer = tf.contrib.opt.LARSOptimizer(
        0.5, weight_decay=0.01, eeta=0.1, skip_list=skipped
    )
    value, x = steps(session, optimizer, gradients)
    momentum = 0.0
    for g in gradients:
        rate = 0.5
        if not skipped:
            norm, slope = np.linalg.norm(x), np.linalg.norm(g)
            rate *= 0.1 * norm / (slope + 0.01 * norm)
            g = g + 0.01 * x
        momentum = 0.9 * momentum + rate * g
        x = x - momentum
    np.testing.assert_allclose(value, x, rtol=1e-5)
    assert "x/LARSOptimizer" in names()


def test_averages_are_saved_under_the_names_of_variables(session, tmp_path):
    gradients = [floats(2) for _ in range(2)]
    inner = tf.train.GradientDescentOptimizer(1.0)
    optimizer = tf.contrib.opt.MovingAverageOptimizer(inner, 0.75)
    with pytest.raises(RuntimeError, match="before `swapping_saver`"):
        optimizer.swapping_saver()
    value, x = steps(session, optimizer, gradients)
    average = x
    for g in gradients:
        x = x - g
        average = 0.75 * average + 0.25 * x
    np.testing.assert_allclose(value, x, rtol=1e-5)
    path = optimizer.swapping_saver().save(session, str(tmp_path / "saved"))
    saved = tf.train.load_checkpoint(path).get_tensor
    np.testing.assert_allclose(saved("x"), average, rtol=1e-5)
    np.testing.assert_allclose(saved("x/ExponentialMovingAverage"), x)


def test_averages_of_some_variables_are_saved():
    with tf.Graph().as_default():
        a, b = (tf.get_variable(name, initializer=[1.0]) for name in "ab")
        inner = tf.train.GradientDescentOptimizer(1.0)
        optimizer = tf.contrib.opt.MovingAverageOptimizer(inner, 0.75)
        optimizer.minimize(tf.reduce_sum(a + b))
        average = next(v for v in tf.global_variables() if v.op.name[:2] == "a/")
        saver = optimizer.swapping_saver([a, average])
        assert saver._var_list == {"a": average, average.op.name: a}
        for one in ([a], [average], {"x": a}):
            with pytest.raises(ValueError, match="Received only one of 'a' and 'a/"):
                optimizer.swapping_saver(one)


def test_gradients_are_clipped_by_their_global_norm(session):
    optimizer = tf.contrib.estimator.clip_gradients_by_norm(
        tf.train.GradientDescentOptimizer(1.0), 1.0
    )
    value, start = steps(session, optimizer, [np.array([3.0, 4.0])])
    np.testing.assert_allclose(value, start - [0.6, 0.8], rtol=1e-5)


# Sequences.


def all_scores(potentials, transitions):
    """The score of each sequence of tags."""
    time, tags = potentials.shape
    return {
        path: sum(potentials[t, tag] for t, tag in enumerate(path))
        + sum(transitions[pair] for pair in itertools.pairwise(path))
        for path in itertools.product(range(tags), repeat=time)
    }


def test_conditional_random_fields(session):
    potentials, transitions = floats(3, 4, 3), floats(3, 3)
    tags, lengths = RNG.integers(0, 3, (3, 4)), np.array([4, 2, 1])
    crf = tf.contrib.crf
    tags[:, -1] = 0
    likelihood, made = crf.crf_log_likelihood(
        tf.constant(potentials), tf.constant(tags), tf.constant(lengths)
    )
    assert made.op.name == "transitions"
    session.run(tf.global_variables_initializer())
    made.load(transitions, session)
    decoded = crf.crf_decode(
        tf.constant(potentials), tf.constant(transitions), tf.constant(lengths)
    )
    found, (paths, best) = session.run([likelihood, decoded])
    for row, length in enumerate(lengths):
        scores = all_scores(potentials[row, :length], transitions)
        norm = np.log(np.sum(np.exp([*scores.values()])))
        expected = scores[tuple(tags[row, :length])] - norm
        np.testing.assert_allclose(found[row], expected, rtol=1e-4)
        path = max(scores, key=scores.get)
        assert tuple(paths[row]) == path + (0,) * (4 - length)
        np.testing.assert_allclose(best[row], scores[path], rtol=1e-5)
        own = crf.viterbi_decode(potentials[row, :length], transitions)
        assert tuple(own[0]) == path


def test_loss_of_sequences(session):
    logits, targets = floats(2, 3, 4), RNG.integers(0, 4, (2, 3))
    weights = np.array([[1, 1, 0], [1, 0, 0]], "float32")
    log = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    losses = -np.take_along_axis(log, targets[..., None], -1)[..., 0] * weights
    loss = tf.contrib.seq2seq.sequence_loss
    arguments = (tf.constant(logits), tf.constant(targets), weights)
    whole, each, none = session.run(
        [
            loss(*arguments),
            loss(*arguments, average_across_batch=False),
            loss(*arguments, False, False),
        ]
    )
    np.testing.assert_allclose(whole, losses.sum() / 3, rtol=1e-5)
    np.testing.assert_allclose(each, losses.sum(1) / [2, 1], rtol=1e-5)
    np.testing.assert_allclose(none, losses, rtol=1e-5)


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def normed(x):
    return (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1) + 1e-12)[:, None]


def test_lstm_with_normalized_gates(session):
    x = floats(2, 3, 4)
    cell = tf.contrib.rnn.LayerNormBasicLSTMCell(5)
    outputs, state = tf.nn.dynamic_rnn(cell, tf.constant(x), dtype=tf.float32)
    outputs, state = run(session, [outputs, state])
    cell_name = "rnn/layer_norm_basic_lstm_cell"
    gates = ("forget", "input", "output", "state", "transform")
    assert names() == [
        *(f"{cell_name}/{g}/{v}" for g in gates[:2] for v in ("beta", "gamma")),
        f"{cell_name}/kernel",
        *(f"{cell_name}/{g}/{v}" for g in gates[2:] for v in ("beta", "gamma")),
    ]
    kernel = session.run(tf.global_variables()[0])
    c = h = np.zeros((2, 5))
    for t in range(3):
        i, j, f, o = (
            normed(gate)
            for gate in np.split(np.concatenate([x[:, t], h], 1) @ kernel, 4, 1)
        )
        c = normed(c * sigmoid(f + 1) + sigmoid(i) * np.tanh(j))
        h = np.tanh(c) * sigmoid(o)
        np.testing.assert_allclose(outputs[:, t], h, atol=1e-4)
    np.testing.assert_allclose(state.c, c, atol=1e-4)


@pytest.mark.parametrize("dtype", [tf.float32, tf.float64])
def test_scope_initializes_the_bias_of_a_cell_without_normalized_gates(session, dtype):
    with tf.variable_scope("root", initializer=tf.constant_initializer(0.5)):
        cell = tf.contrib.rnn.LayerNormBasicLSTMCell(2, layer_norm=False)
        state = tf.unstack(tf.constant([[[0.0, 0.1]], [[0.1, 0.1]]], dtype))
        output, _ = cell(tf.ones([1, 2], dtype), tf.nn.rnn_cell.LSTMStateTuple(*state))
    # The result of TensorFlow 1.15.
    np.testing.assert_allclose(run(session, output), [[0.53673, 0.57927]], atol=1e-5)
    assert {v.dtype.base_dtype for v in tf.global_variables()} == {dtype}


def test_lstm_over_sequences(session):
    x = floats(3, 2, 4)
    fused = tf.contrib.rnn.LSTMBlockFusedCell(5)
    outputs, state = fused(tf.constant(x), dtype=tf.float32)
    cell = tf.contrib.rnn.LSTMBlockCell(5)
    other, _ = tf.nn.dynamic_rnn(
        cell, tf.constant(x), dtype=tf.float32, time_major=True
    )
    assert names() == [
        "lstm_fused_cell/bias",
        "lstm_fused_cell/kernel",
        "rnn/lstm_cell/bias",
        "rnn/lstm_cell/kernel",
    ]
    variables = {v.op.name: v for v in tf.global_variables()}
    same = tf.assign(
        variables["rnn/lstm_cell/kernel"], variables["lstm_fused_cell/kernel"]
    )
    run(session, [])
    session.run(same)
    outputs, other, state = session.run([outputs, other, state])
    np.testing.assert_allclose(outputs, other, rtol=1e-5)
    np.testing.assert_array_equal(state.h, outputs[-1])


def test_layers_in_both_directions(session):
    cells = [[tf.nn.rnn_cell.GRUCell(3) for _ in range(2)] for _ in range(2)]
    outputs, forward, backward = tf.contrib.rnn.stack_bidirectional_dynamic_rnn(
        *cells, tf.constant(floats(2, 4, 5)), dtype=tf.float32
    )
    outputs, forward, backward = run(session, [outputs, forward, backward])
    assert "stack_bidirectional_rnn/cell_1/bidirectional_rnn/bw/gru_cell/" in (
        "\n".join(names())
    )
    np.testing.assert_array_equal(outputs[:, -1, :3], forward[1])
    np.testing.assert_array_equal(outputs[:, 0, 3:], backward[1])
    with pytest.raises(ValueError, match="Received 2 and 1"):
        tf.contrib.rnn.stack_bidirectional_dynamic_rnn(
            cells[0], cells[1][:1], tf.constant(floats(2, 4, 5))
        )


# Inputs.


def test_images_are_warped(session):
    image = floats(2, 5, 5, 3)
    contrib = tf.contrib.image
    turned, moved, both = session.run(
        [
            contrib.rotate(image, np.pi / 2),
            contrib.translate(image[0], [1, 2]),
            contrib.transform(
                image[0, :, :, 0],
                contrib.compose_transforms(
                    contrib.translations_to_projective_transforms([1, 0]),
                    contrib.translations_to_projective_transforms([0, 2]),
                ),
                "BILINEAR",
            ),
        ]
    )
    np.testing.assert_allclose(turned, np.rot90(image, axes=(1, 2)), atol=1e-5)
    expected = np.zeros_like(image[0])
    expected[2:, 1:] = image[0, :-2, :-1]
    np.testing.assert_allclose(moved, expected, atol=1e-5)
    np.testing.assert_allclose(both, expected[..., 0], atol=1e-5)


def test_names_of_data_are_those_of_tf_data(session):
    contrib = tf.contrib.data
    data = tf.data.Dataset.range(7).apply(
        contrib.map_and_batch(lambda x: x * 2, 3, drop_remainder=True)
    )
    batch = tf.data.make_one_shot_iterator(data).get_next()
    assert session.run(batch).tolist() == [0, 2, 4]
    assert session.run(batch).tolist() == [6, 8, 10]


def test_shapes_of_elements_are_asserted(session):
    data = tf.data.Dataset.from_generator(
        lambda: iter([({"b": [1], "a": 2}, 3)]),
        ({"b": tf.int32, "a": tf.int32}, tf.int32),
    )
    data = data.apply(tf.contrib.data.assert_element_shape(({"a": [], "b": [1]}, [])))
    features, labels = tf.data.get_output_shapes(data)
    assert (features["a"].rank, features["b"].as_list()) == (0, [1])
    element = tf.data.make_one_shot_iterator(data).get_next()
    assert session.run(element)[0]["b"].tolist() == [1]


def test_shapes_of_unknown_rank_are_not_asserted():
    data = tf.data.Dataset.from_tensors((floats(2), floats(3, 4)))
    shapes = tf.TensorShape(None), tf.TensorShape([None, 4])
    data = data.apply(tf.contrib.data.assert_element_shape(shapes))
    assert [each.as_list() for each in tf.data.get_output_shapes(data)] == [[2], [3, 4]]


# Layers.


def test_sequences_are_embedded(session):
    ids = np.array([[0, 2], [1, 1]])
    embed = tf.contrib.layers.embed_sequence
    rows = embed(ids, 4, 3, scope="words")
    again = embed(ids, 4, 3, scope="words", reuse=True, unique=True)
    mean = tf.contrib.layers.bow_encoder(
        ids, 4, 3, sparse_lookup=False, scope="words", reuse=True
    )
    assert names() == ["words/embeddings"]
    rows, again, mean, table = run(
        session, [rows, again, mean, tf.global_variables()[0]]
    )
    np.testing.assert_array_equal(rows, table[ids])
    np.testing.assert_array_equal(again, rows)
    np.testing.assert_allclose(mean, rows.mean(1), rtol=1e-6)
    with pytest.raises(ValueError, match="`vocab_size` and `embed_dim`"):
        embed(ids, 4)


def test_slim_has_its_names_and_normalizes(session):
    slim = tf.contrib.slim
    with slim.arg_scope([slim.conv2d], normalizer_fn=slim.batch_norm):
        net = slim.conv2d(tf.constant(floats(2, 6, 6, 3)), 4, [3, 3])
    net = tf.contrib.layers.fully_connected(slim.flatten(net), 2)
    net = tf.contrib.layers.layer_norm(net)
    assert names() == [
        "Conv/BatchNorm/beta",
        "Conv/BatchNorm/moving_mean",
        "Conv/BatchNorm/moving_variance",
        "Conv/weights",
        "LayerNorm/beta",
        "LayerNorm/gamma",
        "fully_connected/biases",
        "fully_connected/weights",
    ]
    assert len(tf.get_collection(tf.GraphKeys.UPDATE_OPS)) == 2
    assert run(session, net).shape == (2, 2)


def test_constant_condition_is_evaluated_at_once(session):
    cond = tf.contrib.framework.smart_cond
    assert cond(False, lambda: 1, lambda: 2) == 2
    assert cond(tf.constant(1) > 0, lambda: 1, lambda: 2) is not None
    unknown = tf.placeholder(tf.bool, ())
    chosen = cond(unknown, lambda: tf.constant(1), lambda: tf.constant(2))
    assert session.run(chosen, {unknown: True}) == 1


# Hyperparameters.


def hparams():
    return tf.contrib.training.HParams(
        rate=0.1, layers=[8, 8], name="net", is_on=False, none=None
    )


def test_hyperparameters_are_read_from_text():
    own = hparams().parse("rate=1,layers=[4,2],is_on=true").parse("layers[1]=3")
    assert own.values() == {
        "rate": 1.0,
        "layers": [4, 3],
        "name": "net",
        "is_on": True,
        "none": None,
    }
    assert hparams().parse("name=a b,rate=1e-3").name == "a b"
    assert hparams().parse("").values() == hparams().values()
    assert own.get("rate") == 1.0 and own.get("other", 2) == 2
    assert "rate" in own and "other" not in own
    copy = hparams().parse_json(own.to_json())
    assert copy.values() == own.values()
    own.del_hparam("rate")
    assert "rate" not in own


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("other=1", "must be one of .* Received: 'other'"),
        ("rate=fast", "'rate' must be of type float. Received: 'fast'"),
        ("is_on=maybe", "'is_on' must be of type bool"),
        ("layers=4", "'layers' must be a list"),
        ("name=[a]", "'name' must be a single value"),
        ("nothing", "must be 'name=value'"),
        ("rate=1,rate=2", "must have one value. Received several of 'rate'"),
        ("layers[1]=1,layers[1]=2", "Received several of 1"),
        ("layers=[1,2],layers[1]=2", "Received several of 'layers'"),
        ("layers[1]=[1,2]", r"must be a single value. Received: 'layers\[1\]"),
    ],
)
def test_hyperparameters_that_cannot_be_read_are_named(text, message):
    with pytest.raises(ValueError, match=message):
        hparams().parse(text)


def test_hyperparameters_have_types_and_names():
    own = hparams()
    with pytest.raises(ValueError, match="'rate' must be of type float"):
        own.set_hparam("rate", "fast")
    with pytest.raises(ValueError, match="'rate', which is taken"):
        own.add_hparam("rate", 1)
    with pytest.raises(ValueError, match="must not be empty"):
        own.add_hparam("more", [])
    with pytest.raises(KeyError):
        own.set_hparam("other", 1)
    own.set_hparam("rate", 1)
    assert isinstance(own.rate, float)
    own.set_hparam("layers", [np.int64(4)])
    assert own.layers == [4] and type(own.layers[0]) is int
    for name, value in {"layers": [4.0], "is_on": 1, "name": None}.items():
        with pytest.raises(ValueError, match="must be of type"):
            own.set_hparam(name, value)
    assert own.get("rate", 2) == 1.0 and own.get("layers", [1]) == [4]
    for name, value in {"rate": "fast", "layers": 4, "is_on": "yes"}.items():
        with pytest.raises(ValueError, match=f"{name!r} must be "):
            own.get(name, value)


def test_hyperparameters_are_shown_as_text_that_can_be_parsed():
    own = hparams().parse("rate=2, layers=[4, 5],  name=other")
    assert str(own) == "rate=2.0,layers=[4, 5],name=other,is_on=False,none=None"
    assert repr(own).startswith("HParams([('is_on', False), ('layers', [4, 5])")
    own.del_hparam("none")
    copy = hparams()
    copy.del_hparam("none")
    assert copy.parse(str(own)).values() == own.values()


# Exports and summaries.


def test_export_is_called_by_names(session, tmp_path):
    x = tf.placeholder(tf.float32, [None, 2])
    kernel = tf.get_variable("kernel", initializer=floats(2, 3))
    tf_model = tf.saved_model.simple_save
    value = run(session, kernel)
    tf_model(session, str(tmp_path / "saved"), {"x": x}, {"y": x @ kernel})
    predict = tf.contrib.predictor.from_saved_model(str(tmp_path / "saved"))
    array = floats(4, 2)
    found = predict({"x": array})
    np.testing.assert_allclose(found["y"], array @ value, rtol=1e-5)
    with pytest.raises(ValueError, match=r"some of \['x'\]. Received: \['z'\]"):
        predict({"z": array})
    with pytest.raises(ValueError, match="the signature 'other'"):
        tf.contrib.predictor.from_saved_model(
            str(tmp_path / "saved"), signature_def_key="other"
        )
    with pytest.raises(ValueError, match="given by `signature_def_key`"):
        tf.contrib.predictor.from_saved_model(str(tmp_path / "saved"), input_names={})


def test_summaries_are_written_in_a_graph(session, tmp_path):
    summary = tf.contrib.summary
    step = tf.train.create_global_step()
    with (
        summary.create_file_writer(str(tmp_path)).as_default(),
        summary.record_summaries_every_n_global_steps(2, step),
    ):
        summary.scalar("loss", tf.constant(3.0), step=step)
        flush = summary.flush()
    run(session, [])
    session.run(summary.summary_writer_initializer_op())
    for _ in range(4):
        session.run(summary.all_summary_ops())
        session.run(tf.assign_add(step, 1))
    session.run(flush)
    file = next(tmp_path.glob("events*"))
    events = list(tf.train.summary_iterator(str(file)))
    found = [event.step for event in events if event.summary.value]
    assert found == [0, 2]


# Examples.


def test_lists_of_features_accept_the_same_values():
    train = resolve("train")
    assert train.Example is tf.train.Example
    numbers = [1.5, np.float32(2), np.array(3.0, "float32"), True]
    assert [*train.FloatList(value=numbers).value] == [1.5, 2, 3, 1]
    integers = [1, True, np.int64(3), np.array([4]), np.bool_(False)]
    made = train.Int64List(value=integers)
    assert [*made.value] == [1, 1, 3, 4, 0]
    assert train.Int64List.FromString(made.SerializeToString()) == made
    assert not train.Int64List().value
    assert train.Feature(int64_list=made).int64_list == made
    with pytest.raises(TypeError):
        train.Int64List(value=["1"])
    with pytest.raises(TypeError):
        train.Int64List(value=[1.5])
