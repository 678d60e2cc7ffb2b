"""Tests checkpoints of TF1 scripts, in TensorFlow's format and names.

`golden/make_checkpoint.py` made `golden/checkpoint` with TensorFlow 2.15 and
`golden/checkpoint_1_15` with TensorFlow 1.15, which also continued
`golden/checkpoint_ours`.
"""

import keras_tpu_estimator as kte  # isort: skip

import importlib.util
import json
import os
import pathlib
import shutil

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
    plain_session,
    trained,
    values_of,
)

from keras_tpu_estimator import checkpoints

GOLDEN = pathlib.Path(__file__).parent / "golden"
LOSSES = json.loads((GOLDEN / "checkpoint" / "losses.json").read_text())


def _program():
    path = GOLDEN / "checkpoint_program.py"
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


program = _program()


class Losses(kte.hooks.SessionRunHook):
    """Records the loss of each step."""

    def __init__(self):
        self.losses = []

    def before_run(self, run_context):
        return kte.hooks.SessionRunArgs("loss")

    def after_run(self, run_context, run_values):
        self.losses.append(float(run_values.results))


def golden_estimator(model_dir, use_tpu=False, **config):
    return kte.TPUEstimator(
        kte.tf1.model_fn(program.model_fn_of(kte.tf1.TPUEstimatorSpec)),
        config=kte.RunConfig(
            model_dir=str(model_dir),
            tpu_config=kte.TPUConfig(iterations_per_loop=1),
            save_summary_steps=None,
            **config,
        ),
        use_tpu=use_tpu,
        train_batch_size=program.BATCH,
        eval_batch_size=program.BATCH,
        predict_batch_size=program.BATCH,
    )


@pytest.fixture(params=["checkpoint", "checkpoint_1_15"])
def original(tmp_path, request):
    """A copy of the original's model_dir."""
    shutil.copytree(GOLDEN / request.param, tmp_path / "original")
    return tmp_path / "original"


def described(prefix):
    reader = tf.train.NewCheckpointReader(str(prefix))
    dtypes = reader.get_variable_to_dtype_map()
    shapes = reader.get_variable_to_shape_map()
    return {name: (shapes[name], dtypes[name]) for name in sorted(shapes)}


@pytest.mark.parametrize("use_tpu", [False, True])
def test_checkpoint_of_the_original_is_continued(original, use_tpu):
    hook = Losses()
    made = golden_estimator(original, use_tpu)
    made.train(program.input_fn_from(5), [hook], steps=6)
    np.testing.assert_allclose(hook.losses, LOSSES["after"], rtol=1e-5)
    assert made.get_variable_value("tower/count") == 11
    newest = original / "model.ckpt-11"
    assert described(newest) == described(original / "model.ckpt-5")
    assert kte.latest_checkpoint(original) == str(newest)
    state = tf.train.get_checkpoint_state(str(original))
    names = [os.path.basename(p) for p in state.all_model_checkpoint_paths]
    # The checkpoint of step 0 was not copied.
    assert names == ["model.ckpt-5", "model.ckpt-11"]


@pytest.fixture(scope="module")
def ours(tmp_path_factory):
    """A model that was trained from the start, and its losses."""
    hook = Losses()
    made = golden_estimator(tmp_path_factory.mktemp("ours"))
    made.train(program.input_fn_from(0), [hook], steps=5)
    return made, hook.losses


def test_training_from_the_start_matches_the_original(ours):
    made, losses = ours
    np.testing.assert_allclose(losses, LOSSES["before"], rtol=1e-5)
    original = GOLDEN / "checkpoint" / "model.ckpt-5"
    assert_same(values_of(made), checkpoints.read(original))
    assert described(made.latest_checkpoint()) == described(original)


def test_tensorflow_1_15_continues_our_checkpoint(ours):
    made, _ = ours
    continued = GOLDEN / "checkpoint_ours" / "model.ckpt-5"
    assert_same(values_of(made), checkpoints.read(continued))
    assert described(made.latest_checkpoint()) == described(continued)
    losses = json.loads(continued.with_name("losses.json").read_text())
    assert losses["after_in_1_15"] == LOSSES["after"]


def test_checkpoint_of_the_original_is_read(original):
    made = golden_estimator(original)
    assert made.latest_checkpoint() == str(original / "model.ckpt-5")
    assert "tower/hidden/kernel/Adam_1" in made.get_variable_names()
    assert made.get_variable_value("tower/count:0") == 5
    result = made.evaluate(program.input_fn_from(5), steps=1)
    assert result["global_step"] == 5
    np.testing.assert_allclose(result["loss"], LOSSES["after"][0], rtol=1e-5)
    first = next(made.predict(program.input_fn_from(0)))
    assert first["logits"].shape == (1,)


def test_session_continues_our_checkpoint(ours):
    made, _ = ours
    with tf.Graph().as_default(), plain_session() as session:
        tf.train.create_global_step()
        data = program.input_fn_from(5)({"batch_size": program.BATCH})
        features, labels = tf.data.make_one_shot_iterator(data).get_next()
        spec = program.model_fn_of(kte.tf1.TPUEstimatorSpec)(
            features, labels, "train", {"use_tpu": False}
        )
        tf.train.Saver().restore(session, tf.train.latest_checkpoint(made.model_dir))
        losses = [session.run([spec.loss, spec.train_op])[0] for _ in range(6)]
    np.testing.assert_allclose(losses, LOSSES["after"], rtol=1e-5)


def test_partitioned_variables_are_continued(tmp_path):
    def network(features, is_training):
        parts = tf.fixed_size_partitioner(3)
        with tf.variable_scope("parts", partitioner=parts):
            table = tf.get_variable("table", [4, 5])
            kernel = tf.get_variable("kernel", [5, 4])
        rows = tf.nn.embedding_lookup(table, [0, 1, 2, 3] * 4, partition_strategy="div")
        return tf.matmul(features + rows, kernel)

    model_fn = model_fn_of(network, lambda step: tf.train.AdamOptimizer(0.1))
    data = batches(*classes_data(5), steps=3)
    path = str(tmp_path / "model.ckpt")
    with tf.Graph().as_default(), plain_session() as session:
        step = tf.train.create_global_step()
        fed_to = [tf.placeholder(a.dtype, a.shape) for a in data[0]]
        spec = model_fn(*fed_to, kte.ModeKeys.TRAIN, {"use_tpu": False})
        saver = tf.train.Saver()
        session.run(tf.global_variables_initializer())
        for x, y in data:
            saver.save(session, path, step)
            session.run(spec.train_op, dict(zip(fed_to, [x, y], strict=True)))
        saver.save(session, path, step)
    reader = tf.train.load_checkpoint(f"{path}-3")
    expected = {n: reader.get_tensor(n) for n in reader.get_variable_to_shape_map()}
    (tmp_path / "checkpoint").write_text('model_checkpoint_path: "model.ckpt-2"')
    assert_same(trained(model_fn, tmp_path, data[2:]), expected, 1e-6, 1e-6)


def test_our_format_is_written_on_request(tmp_path):
    made = golden_estimator(tmp_path, checkpoint_format="hdf5")
    made.train(program.input_fn_from(0), steps=5)
    names = os.listdir(tmp_path)
    assert "model.ckpt-5.h5" in names
    assert not [name for name in names if name.endswith(".index")]
    hook = Losses()
    # Both formats are continued, independently of the format that is written.
    made = golden_estimator(tmp_path)
    made.train(program.input_fn_from(5), [hook], steps=6)
    np.testing.assert_allclose(hook.losses, LOSSES["after"], rtol=1e-5)
    assert (tmp_path / "model.ckpt-11.index").exists()
    assert made.get_variable_value("tower/count") == 11


def test_keras_script_may_write_tensorflow_format(tmp_path):
    def model_fn(features, labels, mode, params):
        import keras

        loss = keras.ops.mean(keras.layers.Dense(1)(features) ** 2)
        optimizer = kte.CrossShardOptimizer(keras.optimizers.Adam(0.1))
        return kte.TPUEstimatorSpec(mode, loss=loss, train_op=optimizer.minimize(loss))

    def made():
        return kte.TPUEstimator(
            model_fn,
            config=kte.RunConfig(
                model_dir=str(tmp_path), checkpoint_format="tensorflow"
            ),
            train_batch_size=8,
            use_tpu=False,
        )

    x = np.ones((8, 2), "float32")
    made().train(fed([x] * 2), steps=2)
    made().train(fed([x] * 2), steps=2)
    assert (tmp_path / "model.ckpt-4.index").exists()
    assert checkpoints.step_of(tmp_path) == 4


class Stopping(kte.hooks.SessionRunHook):
    """Raises an error after a number of steps."""

    def __init__(self, step):
        self._step = step

    def before_run(self, run_context):
        return kte.hooks.SessionRunArgs("global_step")

    def after_run(self, run_context, run_values):
        if run_values.results >= self._step:
            raise RuntimeError("cut")


@pytest.mark.parametrize("as_tensors", [False, True])
def test_interrupted_training_resumes_bit_for_bit(tmp_path, as_tensors):
    def input_fn(params):
        data = program.input_fn_from(0)(params).shuffle(20)
        if as_tensors:
            return tf.data.make_one_shot_iterator(data).get_next()
        return data

    def made(name):
        return golden_estimator(
            tmp_path / name, save_checkpoints_steps=2, tf_random_seed=5
        )

    made("whole").train(input_fn, max_steps=8)
    with pytest.raises(RuntimeError, match="cut"):
        made("cut").train(input_fn, [Stopping(5)], max_steps=8)
    assert [*(tmp_path / "cut").glob("model.ckpt-4.input.*.zip")]
    made("cut").train(input_fn, max_steps=8)
    expected, values = (checkpoints.read(tmp_path / n) for n in ("whole", "cut"))
    assert expected.keys() == values.keys()
    for name, value in expected.items():
        assert np.array_equal(values[name], value), name


def network(x, training):
    return dense(x, 4, "logits")


def adam(step):
    return tf.train.AdamOptimizer(0.1)


@pytest.fixture(scope="module")
def other_dir(tmp_path_factory):
    """The directory of a trained classifier."""
    folder = tmp_path_factory.mktemp("other")
    data = batches(*classes_data(3), steps=3)
    trained(model_fn_of(network, adam), folder, data)
    return folder


@pytest.mark.parametrize("as_path", [True, False])
def test_path_warm_starts_trainable_variables(tmp_path, other_dir, as_path):
    warm = str(other_dir)
    if not as_path:
        warm = kte.WarmStartSettings(warm, vars_to_warm_start="logits/k")
    made = estimator(model_fn_of(network, adam), tmp_path / "new", warm_start_from=warm)
    made.evaluate(fed(batches(*classes_data(3), steps=1)), steps=1)
    made.train(fed(batches(*classes_data(3), steps=1)), steps=1)
    first = checkpoints.read(tmp_path / "new" / "model.ckpt-0")
    old = checkpoints.read(other_dir)
    assert np.array_equal(first["logits/kernel"], old["logits/kernel"])
    is_warm = np.array_equal(first["logits/bias"], old["logits/bias"])
    assert is_warm == as_path
    assert not first["logits/kernel/Adam"].any()
    assert first["global_step"] == 0


def test_list_warm_starts_slots_and_the_step(tmp_path, other_dir):
    made = estimator(
        model_fn_of(network, adam),
        tmp_path / "new",
        warm_start_from=kte.WarmStartSettings(
            str(other_dir), vars_to_warm_start=[".*"]
        ),
    )
    made.train(fed(batches(*classes_data(3), steps=1)), steps=1)
    assert_same(
        checkpoints.read(tmp_path / "new" / "model.ckpt-3"),
        checkpoints.read(other_dir),
        rtol=0,
        atol=0,
    )
    assert made.get_variable_value("global_step") == 4


@pytest.mark.parametrize("owner", [kte, tf.train])
def test_vocabulary_warm_starts_rows(tmp_path, other_dir, owner):
    (tmp_path / "old.txt").write_text("a\nb\nc\n")
    (tmp_path / "new.txt").write_text("c\nz\na\n")
    info = owner.VocabInfo(
        str(tmp_path / "new.txt"),
        3,
        0,
        str(tmp_path / "old.txt"),
        # Each training has its own initializers.
        backup_initializer=(tf.ones_initializer() if owner is tf.train else np.ones),
    )
    made = estimator(
        model_fn_of(network, adam),
        tmp_path / "new",
        warm_start_from=kte.WarmStartSettings(
            str(other_dir), ".*kernel", {"logits/kernel": info}
        ),
    )
    made.train(fed(batches(*classes_data(3), steps=1)), steps=1)
    first = checkpoints.read(tmp_path / "new" / "model.ckpt-0")
    old = checkpoints.read(other_dir)["logits/kernel"]
    expected = np.stack([old[2], np.ones(4), old[0]])
    assert np.array_equal(first["logits/kernel"], expected)


def test_meta_file_has_the_collections_of_the_graph(tmp_path):
    def model_fn(features, labels, mode, params):
        kernel = tf.get_variable("a/kernel", [2, 1])
        frozen = tf.get_variable("frozen", [], trainable=False)
        tf.add_to_collection("mine", frozen)
        bias = tf.get_variable("a/bias", [1])
        loss = tf.reduce_mean((features @ kernel + bias + frozen - labels) ** 2)
        train_op = tf.train.AdamOptimizer(0.1).minimize(
            loss, tf.train.get_global_step()
        )
        return kte.tf1.EstimatorSpec(mode, loss=loss, train_op=train_op)

    ours = estimator(model_fn, tmp_path)
    data = np.ones((BATCH, 2), "float32"), np.ones((BATCH, 1), "float32")
    ours.train(fed([data] * 2), steps=2)
    prefix = ours.latest_checkpoint()
    with tf.Graph().as_default() as graph, tf.Session() as session:
        tf.train.import_meta_graph(prefix + ".meta").restore(session, prefix)
        names = {
            key: [variable.op.name for variable in graph.get_collection(key)]
            for key in ("trainable_variables", "mine", "global_step")
        }
        assert names == {
            "trainable_variables": ["a/kernel", "a/bias"],
            "mine": ["frozen"],
            "global_step": ["global_step"],
        }
        assert session.run(tf.train.get_global_step()) == 2
        kernel = session.run("a/kernel:0")
    assert np.array_equal(kernel, ours.get_variable_value("a/kernel"))
