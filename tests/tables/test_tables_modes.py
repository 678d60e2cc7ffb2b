"""Tests of other features of an estimator together with tables."""

import shutil

import numpy as np
import pytest
from dense_tables import (
    BATCH,
    at_once,
    by_gradients,
    ids_of,
    in_checkpoint,
    input_of,
    model_fn_of,
    tables,
    tables_estimator,
)
from helpers import estimator_of, slow
from stored_programs import lines, ran, store

import keras_tpu_estimator as kte

pytestmark = pytest.mark.usefixtures("forked_trials")

EXAMPLES = BATCH * 2 + 5
SIZE = 5


def two_tables(**settings):
    settings.setdefault("optimization_parameters", tables.AdagradParameters(0.1))
    return tables.EmbeddingConfigSpec(
        table_to_config_dict={
            "words": tables.TableConfig(37, 3),
            "users": tables.TableConfig(13, 2, combiner=None),
        },
        feature_to_config_dict={
            "title": tables.FeatureConfig("words"),
            "user": tables.FeatureConfig("users"),
        },
        **settings,
    )


def data_of(examples=EXAMPLES):
    rng = np.random.default_rng(5)
    features = {
        "title": ids_of(rng, 37, examples),
        "user": rng.integers(0, 13, examples).astype("int32"),
    }
    return features, rng.normal(size=examples).astype("float32")


def once(params):
    """All examples in order, with a smaller last batch."""
    features, labels = data_of()
    for start in range(0, EXAMPLES, params["batch_size"]):
        rows = slice(start, start + params["batch_size"])
        yield {k: v[rows] for k, v in features.items()}, labels[rows]


def features_once(params):
    for features, _ in once(params):
        yield features


def trained(model_dir, use_tpu=True, steps=3, spec=None, **settings):
    estimator = tables_estimator(
        spec or two_tables(), SIZE, model_dir, use_tpu, **settings
    )
    return estimator.train(input_of(*data_of()), steps=steps)


def expected(values):
    """The activations and outputs of all examples with a checkpoint's values."""
    features, labels = data_of()
    ids = features["title"]
    there = (ids >= 0)[..., None]
    rows = values["words"][np.maximum(ids, 0)] * there
    title = rows.sum(1) / np.maximum(there.sum(1), 1)
    user = values["users"][features["user"]]
    both = np.concatenate([title, user], axis=1)
    y = np.tanh(both * values["kernel"]).sum(1)
    return {"title": title, "user": user, "y": y}, np.mean((y - labels) ** 2)


@pytest.fixture(scope="module")
def after_training(tmp_path_factory):
    """The estimator after three steps over all cores."""
    return trained(tmp_path_factory.mktemp("tables"))


@pytest.fixture(scope="module")
def model_dir(after_training):
    return after_training.model_dir


@pytest.fixture(scope="module")
def values(after_training):
    """The values of its checkpoint."""
    return in_checkpoint(after_training)


def assert_equal(estimator, values):
    got = in_checkpoint(estimator)
    assert got.keys() == values.keys()
    for name, value in values.items():
        np.testing.assert_allclose(got[name], value, atol=1e-6, err_msg=name)


@pytest.mark.rows(3)
@pytest.mark.parametrize(
    ("use_tpu", "eval_on_tpu"), [(True, True), (True, False), (False, False)]
)
def test_evaluation_and_prediction(model_dir, values, use_tpu, eval_on_tpu):
    estimator = tables_estimator(
        two_tables(), SIZE, model_dir, use_tpu, eval_on_tpu=eval_on_tpu
    )
    want, loss = expected(values)
    assert estimator.evaluate(once)["loss"] == pytest.approx(loss, rel=1e-5)
    predictions = list(estimator.predict(features_once))
    assert len(predictions) == EXAMPLES
    for name, value in want.items():
        got = np.stack([each[name] for each in predictions])
        np.testing.assert_allclose(got, value, rtol=1e-5, atol=1e-6)


def test_checkpoints_have_names_and_sizes_of_the_original(values):
    shapes = {n: v.shape for n, v in values.items() if v.ndim == 2}
    assert shapes == {
        "words": (37, 3),
        "words/Adagrad": (37, 3),
        "users": (13, 2),
        "users/Adagrad": (13, 2),
    }


def test_each_core_has_its_shard(after_training):
    values = after_training._context.runtime.values._cached._values
    for path in ("words", "words/Adagrad"):
        # The next multiple of eight cores.
        assert values[path].shape == (40, 3)
        assert values[path].addressable_shards[0].data.shape == (5, 3)


def test_training_continues_on_other_cores(tmp_path, after_training):
    shutil.copytree(after_training.model_dir, tmp_path / "of eight")
    trained(tmp_path / "of one", use_tpu=False)
    for name in ("of eight", "of one"):
        shutil.copytree(tmp_path / name, tmp_path / f"{name}, moved")
    want = in_checkpoint(trained(tmp_path / "of eight"))
    for name, use_tpu in (
        ("of eight, moved", False),
        ("of one", False),
        ("of one, moved", True),
    ):
        assert_equal(trained(tmp_path / name, use_tpu), want)


def test_initial_rows_do_not_depend_on_cores(tmp_path):
    def first_rows(use_tpu):
        estimator = tables_estimator(
            two_tables(
                optimization_parameters=(
                    tables.StochasticGradientDescentParameters(0.0)
                )
            ),
            SIZE,
            tmp_path / str(use_tpu),
            use_tpu,
        )
        estimator.train(input_of(*data_of()), steps=1)
        return in_checkpoint(estimator)["words"]

    rows = first_rows(use_tpu=True)
    np.testing.assert_array_equal(rows, first_rows(use_tpu=False))
    # A truncated normal distribution.
    assert 0.3 < rows.std() < 0.7
    assert np.abs(rows).max() < 2.01 / np.sqrt(3)


def test_learning_rates_and_functions_of_the_step(tmp_path):
    def one_step(name, **settings):
        table = {
            key: settings.pop(key)
            for key in ("learning_rate", "learning_rate_fn")
            if key in settings
        }
        spec = tables.EmbeddingConfigSpec(
            optimization_parameters=(tables.StochasticGradientDescentParameters(0.25)),
            table_to_config_dict={"words": tables.TableConfig(37, 3, **table)},
            feature_to_config_dict={"title": tables.FeatureConfig("words")},
            **settings,
        )
        estimator = tables_estimator(spec, 3, tmp_path / name)
        features, labels = data_of()
        del features["user"]
        before = trained_rows(estimator, features, labels)
        return trained_rows(estimator, features, labels) - before

    def trained_rows(estimator, features, labels):
        estimator.train(input_of(features, labels), steps=1)
        return in_checkpoint(estimator)["words"]

    own = one_step("own", learning_rate=0.0)
    assert not own.any()
    # The second step has the number 1.
    of_step = one_step("step", learning_rate_fn=lambda step: 0.5 * step)
    times = one_step(
        "times",
        learning_rate_fn=lambda step: 0.25 * step,
        experimental_gradient_multiplier_fn=lambda step: 2.0 * step,
    )
    assert np.abs(of_step).max() > 1e-3
    np.testing.assert_allclose(times, of_step, atol=1e-7)


def test_several_cores_per_replica(tmp_path, values):
    tpu_config = kte.TPUConfig(
        num_cores_per_replica=4,
        iterations_per_loop=4,
        per_host_input_for_training=kte.InputPipelineConfig.PER_HOST_V2,
    )
    config = kte.RunConfig(
        tpu_config=tpu_config,
        model_dir=str(tmp_path),
        tf_random_seed=7,
        shard_optimizer=True,
    )
    estimator = kte.TPUEstimator(
        model_fn_of(two_tables(), SIZE),
        config=config,
        train_batch_size=BATCH,
        eval_batch_size=BATCH,
        predict_batch_size=BATCH,
        embedding_config_spec=two_tables(),
    )
    estimator.train(input_of(*data_of()), steps=3)
    assert_equal(estimator, values)
    kept = estimator._context.runtime.values._cached._values
    assert kept["words"].addressable_shards[0].data.shape == (5, 3)
    loss = expected(values)[1]
    assert estimator.evaluate(once)["loss"] == pytest.approx(loss, rel=1e-5)
    assert len(list(estimator.predict(features_once))) == EXAMPLES


@pytest.mark.parametrize("per_replica", [slow(None), 4])
def test_stored_programs(tmp_path, per_replica):
    inputs = {
        "train": input_of(*data_of()),
        "eval": input_of(*data_of()),
        "infer": features_once,
    }

    def estimator(name, executables=None):
        return kte.TPUEstimator(
            model_fn_of(two_tables(), SIZE),
            config=kte.RunConfig(
                tpu_config=kte.TPUConfig(
                    num_cores_per_replica=per_replica, iterations_per_loop=3
                ),
                model_dir=str(tmp_path / name),
                tf_random_seed=7,
                executables=executables,
            ),
            train_batch_size=BATCH,
            eval_batch_size=BATCH,
            predict_batch_size=BATCH,
            embedding_config_spec=two_tables(),
        )

    folder = tmp_path / "compiled"
    files = [
        store(estimator("planned"), input_fn, folder, mode)
        for mode, input_fn in inputs.items()
    ]
    results = []
    for own in (estimator("jit"), estimator("stored", folder)):
        with lines() as records:
            own.train(inputs["train"], steps=6)
            results.append(own.evaluate(inputs["eval"], steps=32))
            rows = list(own.predict(inputs["infer"]))
        results[-1]["rows"] = np.concatenate([row["title"] for row in rows])
        results[-1] |= in_checkpoint(own)
    assert ran(records) == files
    assert results[0].keys() == results[1].keys()
    for name, value in results[0].items():
        np.testing.assert_array_equal(results[1][name], value, name)


def test_cores_with_the_same_batch(tmp_path, values):
    broadcast = kte.InputPipelineConfig.BROADCAST
    config = kte.RunConfig(
        tpu_config=kte.TPUConfig(per_host_input_for_training=broadcast),
        model_dir=str(tmp_path),
        tf_random_seed=7,
    )
    estimator = kte.TPUEstimator(
        model_fn_of(two_tables(), SIZE),
        config=config,
        train_batch_size=BATCH,
        eval_batch_size=BATCH,
        embedding_config_spec=two_tables(),
    )
    estimator.train(input_of(*data_of()), steps=3)
    assert_equal(estimator, values)


@pytest.mark.parametrize(
    ("minimize", "micro_batches"),
    # The expected results have one batch and no gradients of model_fn.
    [(at_once, 2), slow(by_gradients, None), (by_gradients, 2)],
)
def test_gradients_and_micro_batches(tmp_path, values, minimize, micro_batches):
    estimator = estimator_of(
        model_fn_of(two_tables(), SIZE, minimize=minimize),
        tmp_path,
        True,
        BATCH,
        config={"micro_batches": micro_batches},
        embedding_config_spec=two_tables(),
    )
    estimator.train(input_of(*data_of()), steps=3)
    assert_equal(estimator, values)


def test_warm_start(tmp_path, model_dir, values):
    estimator = tables_estimator(
        two_tables(), SIZE, tmp_path, warm_start_from=str(model_dir)
    )
    want, loss = expected(values)
    first = next(iter(estimator.predict(features_once)))
    np.testing.assert_allclose(first["title"], want["title"][0], atol=1e-6)
    assert estimator.evaluate(once)["loss"] == pytest.approx(loss, rel=1e-5)


def test_export(tmp_path, model_dir):
    import tensorflow as tf

    estimator = tables_estimator(two_tables(), SIZE, model_dir)
    features, _ = data_of()
    receiver_fn = kte.export.build_raw_serving_input_receiver_fn(features)
    folder = estimator.export_saved_model(str(tmp_path), receiver_fn)
    signature = tf.saved_model.load(folder, ["serve"]).signatures["serving_default"]
    got = signature(**{k: tf.constant(v) for k, v in features.items()})
    want, _ = expected(in_checkpoint(estimator))
    for name, values in want.items():
        np.testing.assert_allclose(got[name], values, rtol=1e-5, atol=1e-6)


@pytest.mark.rows(1)
@pytest.mark.parametrize("longest", [2, 9])
def test_export_of_sequences_of_any_length(tmp_path, longest):
    import tensorflow as tf

    spec = tables.EmbeddingConfigSpec(
        table_to_config_dict={"words": tables.TableConfig(37, 3)},
        feature_to_config_dict={
            "title": tables.FeatureConfig("words", max_sequence_length=longest)
        },
        optimization_parameters=tables.AdagradParameters(0.1),
    )
    features, labels = data_of()
    features = {"title": features["title"]}
    keys = ["title", "title_seq_length_"]
    estimator = tables_estimator(
        spec, 3 * longest, tmp_path / "model", False, keys=keys
    )
    estimator.train(input_of(features, labels), steps=1)
    receiver_fn = kte.export.build_raw_serving_input_receiver_fn(
        {"title": tf.TensorSpec([None, None], tf.int32)}
    )
    folder = estimator.export_saved_model(str(tmp_path / "new"), receiver_fn)
    loaded = tf.saved_model.load(folder, ["serve"])
    # More ids than the sequence length, the same number, and fewer.
    for length in (1, 2, 4, 9, 12):
        rows = np.pad(features["title"], ((0, 0), (0, 12)), constant_values=-1)
        given = {"title": rows[:, :length]}
        predicted = estimator.predict(
            lambda params, given=given: iter([given]),
            yield_single_examples=False,
        )
        got = loaded.signatures["serving_default"](title=tf.constant(given["title"]))
        for name, values in next(predicted).items():
            np.testing.assert_allclose(got[name], values, 1e-5, 1e-6)


def test_exports_of_all_modes(tmp_path, model_dir):
    import tensorflow as tf

    estimator = tables_estimator(two_tables(), SIZE, model_dir)
    features, labels = data_of()
    export = kte.export
    modes = kte.ModeKeys
    supervised = export.build_raw_supervised_input_receiver_fn(features, labels)
    folder = estimator.experimental_export_all_saved_models(
        str(tmp_path),
        {
            modes.TRAIN: supervised,
            modes.EVAL: supervised,
            modes.PREDICT: export.build_raw_serving_input_receiver_fn(features),
        },
    )
    _, loss = expected(in_checkpoint(estimator))
    given = {**features, "label": labels}
    for tag, name in (("train", "train"), ("eval", "eval")):
        signature = tf.saved_model.load(folder, [tag]).signatures[name]
        arguments = {
            key: tf.constant(given[key])
            for key in signature.structured_input_signature[1]
        }
        got = signature(**arguments)["loss"]
        np.testing.assert_allclose(got, loss, rtol=1e-5)


def test_unsupported_exports_are_refused(tmp_path, model_dir):
    estimator = tables_estimator(two_tables(), SIZE, model_dir)
    features, _ = data_of()
    with pytest.raises(NotImplementedError, match="export_saved_model"):
        kte.export_keras(
            estimator,
            str(tmp_path / "model.keras"),
            {k: v[:1] for k, v in features.items()},
        )


def test_sequence_lengths(tmp_path):
    spec = tables.EmbeddingConfigSpec(
        optimization_parameters=tables.AdagradParameters(0.1),
        table_to_config_dict={"words": tables.TableConfig(9, 2)},
        feature_to_config_dict={"title": tables.FeatureConfig("words", 3)},
    )
    estimator = tables_estimator(spec, 6, tmp_path, keys=["title", "title_seq_length_"])
    # The table has no row 9.
    none, late = [9, -1, -5, 9], [1, 9, 10, 2]
    ids = np.array(
        [[-1, 2, -1, -1], [3, -1, 4, 5], none, [1] * 4, [1, 9, 9, -5], late],
        "int32",
    )
    got = list(estimator.predict(lambda params: iter([{"title": ids}])))
    lengths = [each["title_seq_length_"] for each in got]
    assert lengths == [2, 3, 0, 3, 1, 3]
    assert [np.any(each["title"], axis=1).tolist() for each in got] == [
        [False, True, False],
        [True, False, True],
        [False] * 3,
        [True] * 3,
        [True, False, False],
        [True, False, False],
    ]
