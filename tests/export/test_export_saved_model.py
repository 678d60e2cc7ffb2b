"""Tests the folder of an export: its name, files and metagraphs."""

import os
import pathlib
import runpy
import shutil
import subprocess
import sys

import export_helpers
import keras
import numpy as np
import pytest
from export_helpers import classifier, data, input_fn
from helpers import estimator_of
from keras import ops
from served_helpers import serve

import keras_tpu_estimator as kte
from keras_tpu_estimator.export.folders import export_folder

pytestmark = pytest.mark.usefixtures("forked_trials")

X, Y = data()
RAW = kte.export.build_raw_serving_input_receiver_fn(X)
SUPERVISED = kte.export.build_raw_supervised_input_receiver_fn(X, Y)
LIKE_INPUT_FN = kte.export.build_supervised_input_receiver_fn_from_input_fn(
    input_fn, params={}
)


def metagraphs(folder):
    """The metagraphs of a SavedModel by their tags."""
    from tensorflow.core.protobuf import saved_model_pb2

    saved = saved_model_pb2.SavedModel.FromString(
        pathlib.Path(folder, "saved_model.pb").read_bytes()
    )
    return {
        tuple(sorted(graph.meta_info_def.tags)): graph for graph in saved.meta_graphs
    }


def files(folder):
    return sorted(
        path.relative_to(folder).as_posix()
        for path in pathlib.Path(folder).rglob("*")
        if path.is_file()
    )


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize(
    ("settings", "tags"),
    [
        ({}, [("serve",), ("serve", "tpu")]),
        ({"export_to_tpu": False}, [("serve",)]),
        ({"export_to_cpu": False}, [("serve", "tpu")]),
    ],
)
def test_metagraphs(settings, tags, version, model_dir, tmp_path, untried):
    estimator = estimator_of(
        classifier,
        model_dir,
        export_saved_model_api_version=version,
        **settings,
    )
    folder = estimator.export_saved_model(tmp_path, RAW)
    assert sorted(metagraphs(folder)) == tags


def test_signatures(estimator, tmp_path, untried):
    folder = estimator.export_saved_model(tmp_path, RAW)
    for graph in metagraphs(folder).values():
        # Classification and regression need examples, which this receiver lacks.
        (signature,) = graph.signature_def.values()
        assert signature.method_name == "tensorflow/serving/predict"
        assert set(signature.inputs) == {"x"}
        assert set(signature.outputs) == {"logits", "names"}
        sizes = [d.size for d in signature.inputs["x"].tensor_shape.dim]
        assert sizes == [-1, 4]


def test_version_two_calls_model_fn_for_each_metagraph(model_dir, tmp_path, untried):
    seen = set()

    def model_fn(features, labels, mode, params):
        seen.add((params["use_tpu"], "batch_size" in params))
        return classifier(features, labels, mode, params)

    def exported(version):
        seen.clear()
        estimator_of(
            model_fn, model_dir, export_saved_model_api_version=version
        ).export_saved_model(tmp_path, RAW)
        return seen.copy()

    assert exported(1) == {(False, False)}
    assert exported(2) == {(False, False), (True, False)}


def test_files(estimator, tmp_path, untried):
    note = tmp_path / "note.txt"
    note.write_text("of this model")
    base = tmp_path / "exports" / "new"
    folder = estimator.export_saved_model(
        str(base), RAW, assets_extra={"a/b.txt": note}
    )
    assert isinstance(folder, str)
    assert os.path.dirname(folder) == str(base)
    assert os.listdir(base) == [os.path.basename(folder)]
    assert os.path.basename(folder).isdigit()
    assert files(folder) == [
        "assets.extra/a/b.txt",
        "saved_model.pb",
        "variables/variables.data-00000-of-00001",
        "variables/variables.index",
    ]
    copied = pathlib.Path(folder, "assets.extra", "a", "b.txt")
    assert copied.read_text() == "of this model"


def test_text_and_the_older_name(estimator, tmp_path, untried):
    with pytest.warns(DeprecationWarning, match="of `export_saved_model`"):
        folder = estimator.export_savedmodel(
            tmp_path, RAW, as_text=True, strip_default_attrs=True
        )
    assert files(folder)[0] == "saved_model.pbtxt"
    assert "serving_default" in pathlib.Path(folder, "saved_model.pbtxt").read_text(
        "latin-1"
    )


@pytest.mark.filterwarnings("ignore:`export_savedmodel`:DeprecationWarning")
def test_default_attributes_are_omitted(estimator, tmp_path, untried):
    stripped, whole = (
        estimator.export_savedmodel(tmp_path, RAW, strip_default_attrs=strip)
        for strip in (None, False)
    )

    def marks(folder):
        return {
            graph.meta_info_def.stripped_default_attrs
            for graph in metagraphs(folder).values()
        }

    assert (marks(stripped), marks(whole)) == ({True}, {False})


@pytest.mark.parametrize("as_text", [False, True])
def test_another_folder_of_sources_makes_the_same_graphs(
    as_text, model_dir, tmp_path, untried
):
    def exported(name):
        sources = tmp_path / name
        sources.mkdir()
        path = shutil.copy(export_helpers.__file__, sources)
        model_fn = runpy.run_path(path)["classifier"]
        folder = estimator_of(model_fn, model_dir).export_saved_model(
            sources, RAW, as_text=as_text
        )
        (file,) = pathlib.Path(folder).glob("saved_model.*")
        return file.read_bytes()

    one = exported("one")
    assert b".py" not in one
    assert exported("two") == one


def test_modes_checkpoints_and_tags_are_served(estimator, model_dir, tmp_path, untried):
    trained = estimator_of(classifier, tmp_path / "model")
    trained.train(input_fn, steps=1)
    first = trained.latest_checkpoint()
    (early,) = trained.predict(input_fn, yield_single_examples=False)
    early_loss = trained.evaluate(input_fn)
    trained.train(input_fn, steps=5)
    everything = trained.experimental_export_all_saved_models(
        tmp_path / "export",
        {
            kte.ModeKeys.PREDICT: RAW,
            kte.ModeKeys.TRAIN: SUPERVISED,
            kte.ModeKeys.EVAL: LIKE_INPUT_FN,
        },
        checkpoint_path=first,
    )
    assert sorted(metagraphs(everything)) == [
        ("eval",),
        ("serve",),
        ("serve", "tpu"),
        ("train",),
    ]
    one = estimator_of(classifier, model_dir, export_to_tpu=False).export_saved_model(
        tmp_path / "export", RAW
    )
    graphs = metagraphs(everything)
    for tags, method in (
        (("train",), "tensorflow/supervised/training"),
        (("eval",), "tensorflow/supervised/eval"),
        (("serve",), "tensorflow/serving/predict"),
    ):
        (signature,) = graphs[tags].signature_def.values()
        assert signature.method_name == method
    labelled = X | {"label": Y}
    predicted, evaluated, in_training, without_tags = serve(
        (everything, ["serve"], "serving_default", X),
        (everything, ["eval"], "eval", labelled),
        (everything, ["train"], "train", labelled),
        (one, None, "serving_default", X),
    )
    np.testing.assert_allclose(predicted["logits"], early["logits"], rtol=1e-4)
    np.testing.assert_allclose(evaluated["loss"], early_loss["loss"], rtol=1e-4)
    np.testing.assert_allclose(
        evaluated["metrics/accuracy/value"], early_loss["accuracy"], rtol=1e-5
    )
    assert in_training.keys() == {"loss", "predictions/logits"}
    (latest,) = estimator.predict(input_fn, yield_single_examples=False)
    np.testing.assert_allclose(without_tags["logits"], latest["logits"], rtol=1e-4)


def test_training_continues_after_an_export(tmp_path, untried):
    def trained(model_dir, exports):
        estimator = estimator_of(classifier, tmp_path / model_dir)
        estimator.train(input_fn, steps=2)
        if exports:
            estimator.export_saved_model(tmp_path / "export", RAW)
        estimator.train(input_fn, steps=2)
        return estimator.get_variable_value("dense/kernel")

    np.testing.assert_array_equal(
        trained("with", exports=True), trained("without", exports=False)
    )


def test_an_existing_name_is_skipped(tmp_path):
    (tmp_path / "70").mkdir()
    (tmp_path / "temp-71").mkdir()
    with export_folder(tmp_path, clock=lambda: 70.5) as (temporary, final):
        assert os.path.basename(temporary).startswith("temp-72.")
    assert final == str(tmp_path / "72")
    assert sorted(os.listdir(tmp_path)) == ["70", "72", "temp-71"]


def test_concurrent_exports_have_separate_names(tmp_path):
    def export():
        return export_folder(tmp_path, clock=lambda: 70)

    with export() as (first, final_first), export() as (second, final_second):
        assert os.path.isdir(first)
        assert os.path.isdir(second)
    assert [final_first, final_second] == [str(tmp_path / n) for n in ("70", "71")]
    assert sorted(os.listdir(tmp_path)) == ["70", "71"]


def test_folder_of_a_killed_export_is_removed(tmp_path):
    script = """
import os, signal, sys
from keras_tpu_estimator.export.folders import export_folder
with export_folder(sys.argv[1], clock=lambda: 70) as (temporary, _):
    open(os.path.join(temporary, "saved_model.pb"), "w").close()
    os.kill(os.getpid(), signal.SIGKILL)
"""
    subprocess.run([sys.executable, "-c", script, str(tmp_path)])
    assert len(os.listdir(tmp_path)) == 2
    with export_folder(tmp_path, clock=lambda: 80) as (temporary, _):
        assert not any(name.startswith("temp-70") for name in os.listdir(tmp_path))
    assert os.listdir(tmp_path) == ["80"]


def test_no_name_is_free(tmp_path):
    for stamp in range(70, 80):
        (tmp_path / str(stamp)).mkdir()
    with (
        pytest.raises(RuntimeError, match="a free name.*from 70 to 79 in "),
        export_folder(tmp_path, clock=lambda: 70),
    ):
        pass


class Refusing(export_helpers.NoRequest):
    """Makes the first request fail."""

    def check(self, folder, graphs):
        assert os.listdir(folder)
        raise KeyboardInterrupt


def test_a_failed_export_leaves_no_files(estimator, tmp_path, monkeypatch):
    monkeypatch.setattr("keras_tpu_estimator.export.exporting.FirstRequest", Refusing)
    with pytest.raises(KeyboardInterrupt):
        estimator.export_saved_model(tmp_path / "new", RAW)
    assert os.listdir(tmp_path) == []
    (tmp_path / "exports").mkdir()
    with pytest.raises(KeyboardInterrupt):
        estimator.export_saved_model(tmp_path / "exports", RAW)
    assert os.listdir(tmp_path / "exports") == []


def test_averages_instead_of_weights(tmp_path, untried):
    def model_fn(features, labels, mode, params):
        outputs = keras.layers.Dense(3)(features["x"])
        averages = kte.ExponentialMovingAverage(0.5)
        if mode == kte.ModeKeys.PREDICT:
            names = averages.variables_to_restore()
            return kte.TPUEstimatorSpec(
                mode,
                {"y": outputs},
                scaffold_fn=lambda: kte.Scaffold(variables_to_restore=names),
            )
        loss = ops.mean((outputs - features["x"][:, :3]) ** 2)
        optimizer = kte.CrossShardOptimizer(keras.optimizers.SGD(1.0))
        train_op = [optimizer.minimize(loss), averages.apply()]
        return kte.TPUEstimatorSpec(mode, loss=loss, train_op=train_op)

    assert_served_as_predicted(estimator_of(model_fn, tmp_path), tmp_path)


def test_layers_made_outside_model_fn(tmp_path, untried):
    layer = keras.layers.Dense(3)

    def model_fn(features, labels, mode, params):
        outputs = layer(features["x"])
        if mode == kte.ModeKeys.PREDICT:
            return kte.TPUEstimatorSpec(mode, {"y": outputs})
        loss = ops.mean((outputs - features["x"][:, :3]) ** 2)
        optimizer = kte.CrossShardOptimizer(keras.optimizers.SGD(1.0))
        return kte.TPUEstimatorSpec(mode, loss=loss, train_op=optimizer.minimize(loss))

    assert_served_as_predicted(estimator_of(model_fn, tmp_path, use_tpu=True), tmp_path)


def assert_served_as_predicted(estimator, path):
    """Trains, exports, and runs the export in this process."""
    import tensorflow as tf

    estimator.train(input_fn, steps=3)
    folder = estimator.export_saved_model(path / "export", RAW)
    predict = tf.saved_model.load(folder, tags=["serve"]).signatures["serving_default"]
    (expected,) = estimator.predict(input_fn, yield_single_examples=False)
    np.testing.assert_allclose(
        predict(x=tf.constant(X["x"]))["y"], expected["y"], rtol=1e-4
    )
