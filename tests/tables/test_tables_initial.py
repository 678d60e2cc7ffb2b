"""Tests that tables have equal initial rows on any number of cores."""

import keras
import numpy as np
import pytest
from dense_tables import BATCH, in_checkpoint, input_of, model_fn_of, tables
from helpers import each_once, estimator_of, slow

import keras_tpu_estimator as kte
from keras_tpu_estimator.base.mesh.all_cores import all_cores
from keras_tpu_estimator.base.mesh.cores import ONE_CORE
from keras_tpu_estimator.engine.device.restoring import initial_values
from keras_tpu_estimator.engine.device.variable_shardings import VariableShardings
from keras_tpu_estimator.engine.program.store import VariableStore
from keras_tpu_estimator.front_ends.tables.variables import TableVariables

# Eight cores share the first table evenly; the last has fewer rows than cores.
ROWS = {"even": 16, "odd": 13, "few": 3}
SPEC = tables.EmbeddingConfigSpec(
    optimization_parameters=tables.AdagradParameters(0.1),
    table_to_config_dict={
        name: tables.TableConfig(rows, 2, combiner="sum") for name, rows in ROWS.items()
    },
    feature_to_config_dict={f"of {name}": tables.FeatureConfig(name) for name in ROWS},
)
SLOTS = [f"{name}/Adagrad" for name in ROWS]
on_cores = pytest.mark.parametrize("use_tpu", [True, False])
on_one_slow = pytest.mark.parametrize("use_tpu", [True, slow(False)])


def estimator_with(model_dir, use_tpu, scaffold_fn=None, **settings):
    """An estimator of a model of the tables, with a scaffold."""
    model_fn = model_fn_of(SPEC, 2 * len(ROWS))

    def with_scaffold(features, labels, mode, params):
        spec = model_fn(features, labels, mode, params)
        return spec._replace(scaffold_fn=scaffold_fn)

    return estimator_of(
        with_scaffold,
        model_dir,
        use_tpu,
        BATCH,
        embedding_config_spec=SPEC,
        **settings,
    )


def data_of():
    rng = np.random.default_rng(0)
    features = {
        f"of {name}": rng.integers(-1, rows, (BATCH, 3)) for name, rows in ROWS.items()
    }
    return features, np.ones(BATCH, "float32")


def train(estimator, steps=1, **settings):
    return estimator.train(input_of(*data_of()), steps=steps, **settings)


def values_of(scale=1.0):
    """The values of all tables and their slots."""
    values = {}
    for number, (name, rows) in enumerate(ROWS.items()):
        table = np.arange(rows * 2, dtype="float32").reshape(rows, 2)
        values[name] = scale * (table + number + 1) / 10
        values[f"{name}/Adagrad"] = scale * (table + 1)
    return values


@pytest.fixture(scope="module")
def start(tmp_path_factory):
    """Writes a checkpoint with these values under other names."""
    directory = tmp_path_factory.mktemp("start")
    values = {f"old/{name}": value for name, value in values_of().items()}
    return kte.checkpoints.save(str(directory), 3, values)


def assert_rows(got, want):
    for name in (*ROWS, *SLOTS):
        assert got[name].shape == want[name].shape
        np.testing.assert_allclose(got[name], want[name], atol=1e-6, err_msg=name)


class Reads(kte.hooks.SessionRunHook):
    """Reads all tables and their slots at the start and end of a loop."""

    def after_create_session(self, session, coord):
        self.before = session.run({name: name for name in (*ROWS, *SLOTS)})

    def end(self, session):
        self.after = session.run({name: name for name in (*ROWS, *SLOTS)})


def first_values(estimator):
    """The initial values of training."""
    looks = Reads()
    train(estimator, hooks=[looks])
    assert_rows(looks.after, in_checkpoint(estimator))
    return looks.before


def predicted(estimator):
    """The activations of each table, which are sums of its rows."""
    features, _ = data_of()
    got = list(estimator.predict(lambda params: iter([features])))
    return {name: np.stack([each[f"of {name}"] for each in got]) for name in ROWS}


def assert_activations(got, values):
    features, _ = data_of()
    for name in ROWS:
        ids = features[f"of {name}"]
        rows = values[name][np.maximum(ids, 0)] * (ids >= 0)[..., None]
        np.testing.assert_allclose(got[name], rows.sum(1), rtol=1e-5, atol=1e-6)


def test_one_core_makes_all_initial_rows():
    store = VariableStore()
    TableVariables(SPEC, all_cores()).enter_into(store)
    # A host with one core predicts, although the estimator uses all hosts' cores.
    places = VariableShardings(store, ONE_CORE)
    paths = {*ROWS, *SLOTS}
    made = places.put(initial_values(store, places, paths, {}, None))
    for path, value in made.items():
        assert value.shape == store.variables[path].shape
        assert len(value.devices()) == 1


@on_cores
def test_init_from_checkpoint(tmp_path, start, use_tpu):
    def scaffold_fn():
        names = {f"old/{name}": name for name in values_of()}
        kte.init_from_checkpoint(start, names)
        return kte.Scaffold()

    estimator = estimator_with(tmp_path, use_tpu, scaffold_fn)
    assert_activations(predicted(estimator), values_of())
    assert_rows(first_values(estimator), values_of())


@on_one_slow
def test_init_from_checkpoint_of_all_variables(tmp_path, use_tpu):
    old = train(estimator_with(tmp_path / "old", not use_tpu), steps=2)

    def scaffold_fn():
        kte.init_from_checkpoint(old.model_dir, {"/": "/"})
        return kte.Scaffold()

    estimator = estimator_with(tmp_path / "new", use_tpu, scaffold_fn)
    assert_rows(first_values(estimator), in_checkpoint(old))


@on_one_slow
def test_init_from_checkpoint_of_other_rows(tmp_path, start, use_tpu):
    def scaffold_fn():
        kte.init_from_checkpoint(start, {"old/odd": "few"})
        return kte.Scaffold()

    estimator = estimator_with(tmp_path, use_tpu, scaffold_fn)
    with pytest.raises(ValueError, match=r"'few' of shape \(3, 2\) from .*13"):
        train(estimator)


@on_cores
def test_init_fn(tmp_path, use_tpu):
    seen = {}

    def init_fn(scaffold, session):
        seen["shapes"] = {name: session.run(name).shape for name in ROWS}
        session.assign(values_of())
        seen["odd"] = session.run("odd")

    estimator = estimator_with(tmp_path, use_tpu, lambda: kte.Scaffold(init_fn=init_fn))
    assert_rows(first_values(estimator), values_of())
    assert seen["shapes"] == {name: (rows, 2) for name, rows in ROWS.items()}
    np.testing.assert_array_equal(seen["odd"], values_of()["odd"])


@pytest.mark.parametrize(("use_tpu", "rows"), each_once([True, False], [16, 12]))
def test_init_fn_with_other_rows(tmp_path, use_tpu, rows):
    def init_fn(scaffold, session):
        session.assign({"odd": np.zeros((rows, 2), "float32")})

    estimator = estimator_with(tmp_path, use_tpu, lambda: kte.Scaffold(init_fn=init_fn))
    with pytest.raises(ValueError, match=r"shape \(13, 2\). Received shape"):
        train(estimator)


@on_one_slow
def test_variables_to_restore(tmp_path, use_tpu):
    train(estimator_with(tmp_path, use_tpu), steps=2)
    sources = {f"{name}/Adagrad": name for name in ROWS}
    estimator = estimator_with(
        tmp_path,
        use_tpu,
        lambda: kte.Scaffold(variables_to_restore=sources),
    )
    values = in_checkpoint(estimator)
    replaced = {name: values[f"{name}/Adagrad"] for name in ROWS}
    # First from the checkpoint, then from the values in memory.
    for _ in range(2):
        assert_activations(predicted(estimator), replaced)
        estimator.train(input_of(*data_of()), max_steps=2)


@on_one_slow
def test_warm_start_of_reordered_words(tmp_path, start, use_tpu):
    words = [f"word {number}" for number in range(13)]
    (tmp_path / "old.txt").write_text("\n".join(words) + "\n")
    (tmp_path / "new.txt").write_text("\n".join(words[::-1][:11]) + "\n")
    info = kte.VocabInfo(
        tmp_path / "new.txt",
        11,
        2,
        tmp_path / "old.txt",
        backup_initializer=keras.initializers.Constant(7.0),
    )
    settings = kte.WarmStartSettings(
        start,
        vars_to_warm_start="odd|few",
        var_name_to_vocab_info={"odd": info},
        var_name_to_prev_var_name={n: f"old/{n}" for n in ("odd", "few")},
    )
    estimator = estimator_with(tmp_path, use_tpu, warm_start_from=settings)
    got = first_values(estimator)
    want = values_of()
    np.testing.assert_array_equal(got["odd"][:11], want["odd"][::-1][:11])
    np.testing.assert_array_equal(got["odd"][11:], np.full((2, 2), 7.0))
    np.testing.assert_array_equal(got["few"], want["few"])


class Assigns(keras.callbacks.Callback):
    """Assigns other values to tables at the start of a loop."""

    def begin(self, logs=None):
        variables = {v.path: v for v in self.model.variables}
        self.shapes = {
            name: (variables[name].shape, variables[name].numpy().shape)
            for name in ROWS
        }
        for name, value in values_of().items():
            if name in variables:
                variables[name].assign(value)
        self.read = {name: variables[name].numpy() for name in ROWS}

    on_train_begin = on_test_begin = on_predict_begin = begin

    def check(self):
        assert self.shapes == {n: ((r, 2), (r, 2)) for n, r in ROWS.items()}
        for name, value in self.read.items():
            np.testing.assert_array_equal(value, values_of()[name])


@pytest.mark.rows(1)
@on_cores
def test_callbacks_that_assign(tmp_path, use_tpu):
    features, labels = data_of()
    estimator = train(estimator_with(tmp_path, use_tpu))
    before = in_checkpoint(estimator)
    assigns = Assigns()
    got = list(estimator.predict(lambda params: iter([features]), hooks=[assigns]))
    assigns.check()
    assert_activations(
        {n: np.stack([each[f"of {n}"] for each in got]) for n in ROWS},
        values_of(),
    )
    own = estimator.evaluate(input_of(features, labels), steps=1)["loss"]
    assigns = Assigns()
    other = estimator.evaluate(input_of(features, labels), steps=1, hooks=[assigns])[
        "loss"
    ]
    assigns.check()
    assert other != own
    # Both values last only for the call.
    assert_activations(predicted(estimator), before)
    assigns, looks = Assigns(), Reads()
    train(estimator, hooks=[assigns, looks])
    assigns.check()
    after = in_checkpoint(estimator)
    for name, value in values_of().items():
        assert after[name].shape == value.shape
    used = np.unique(features["of odd"])
    unused = np.setdiff1d(np.arange(13), used)
    assert len(unused) == 0
    for name in ROWS:
        # With these sums, Adagrad makes a small step.
        np.testing.assert_allclose(after[name], values_of()[name], atol=0.11)


class RunsKeras(keras.callbacks.Callback):
    """Runs Keras's own loops, and reads and sets the weights."""

    def on_train_end(self, logs=None):
        features, labels = data_of()
        model = self.model
        before = {v.path: v.numpy() for v in model.variables}
        self.loss = model.evaluate(features, labels, batch_size=BATCH, verbose=0)
        self.predicted = model.predict(features, batch_size=BATCH, verbose=0)
        model.set_weights(model.get_weights())
        model.save_weights(self.path)
        for name in ROWS:
            (variable,) = (v for v in model.variables if v.path == name)
            variable.assign(np.zeros(variable.shape, "float32"))
        model.load_weights(self.path)
        for variable in model.variables:
            np.testing.assert_array_equal(
                variable.numpy(), before[variable.path], err_msg=variable.path
            )
        if self.fits:
            model.fit(features, labels, batch_size=BATCH, verbose=0)


@pytest.mark.rows(1)
@pytest.mark.parametrize(
    ("use_tpu", "fits"),
    [
        *((False, False), (True, True)),
        *(slow(False, True), slow(True, False)),
    ],
)
def test_loops_of_keras(tmp_path, use_tpu, fits):
    features, labels = data_of()
    callback = RunsKeras()
    callback.path = str(tmp_path / "a.weights.h5")
    callback.fits = fits
    estimator = estimator_with(tmp_path / "model", use_tpu)
    train(estimator, hooks=[callback])
    if fits:
        # This is a second step, with the same examples.
        other = estimator_with(tmp_path / "other", use_tpu)
        want = in_checkpoint(train(other, steps=2))
        assert_rows(in_checkpoint(estimator), want)
        return
    loss = estimator.evaluate(input_of(features, labels), steps=1)["loss"]
    assert callback.loss == pytest.approx(loss, rel=1e-6)
    for name, value in predicted(estimator).items():
        np.testing.assert_allclose(callback.predicted[f"of {name}"], value, atol=1e-6)
