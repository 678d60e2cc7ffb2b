"""Tests exports to URLs."""

import os

import keras
import numpy as np
import pytest
import tensorflow as tf  # noqa: TID253 - loads the exports
from helpers import estimator_of, linear, model_fn_of, regression_data, repeated

import keras_tpu_estimator as kte
from keras_tpu_estimator.base.storage import paths, transfers
from keras_tpu_estimator.export.folders import export_folder
from keras_tpu_estimator.workflow.exporters import exports_in

pytestmark = pytest.mark.usefixtures("forked_trials")

URL = "memory://bucket/run"
BASE = f"{URL}/export"
X, Y = regression_data()


class Writer:
    """Replaces an estimator; its exports are single files."""

    model_dir = URL

    def __init__(self):
        self.exports = 0

    def export_saved_model(self, base, receiver_fn, **arguments):
        """Makes a folder with a number as its name."""
        path = f"{base}/{1_700_000_000 + self.exports}"
        transfers.put_bytes(b"model", f"{path}/saved_model.pb")
        self.exports += 1
        return path


def receiver_fn():
    """A receiver function that is never called."""


def offer(exporter, writer, *losses):
    """Whether each of some results is exported."""
    return [
        exporter.export(
            estimator=writer,
            export_path=BASE,
            checkpoint_path=f"{URL}/model.ckpt-{step}",
            eval_result={"loss": loss, "global_step": np.int64(step)},
            is_the_final_export=False,
        )
        is not None
        for step, loss in enumerate(losses)
    ]


@pytest.fixture
def estimator(memory):
    return estimator_of(model_fn_of(linear), URL).train(repeated(X, Y), steps=4)


def fetch_tree(url, folder):
    """Copies a directory with one level of subdirectories to this machine."""
    for name in paths.names_in(url):
        if paths.is_directory(f"{url}/{name}"):
            fetch_tree(f"{url}/{name}", folder / name)
        else:
            folder.mkdir(exist_ok=True, parents=True)
            transfers.fetch(f"{url}/{name}", str(folder / name))


def test_a_saved_model(estimator, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "words").write_text("a b")
    receiver = kte.export.build_raw_serving_input_receiver_fn(
        {"feature": tf.TensorSpec((None, 3), tf.float32)}
    )

    def features_of():
        made = receiver()
        return kte.export.TensorServingInputReceiver(
            made.features["feature"], made.receiver_tensors
        )

    path = estimator.export_saved_model(
        BASE, features_of, assets_extra={"words": "words"}
    )
    assert os.listdir(tmp_path) == ["words"]
    assert exports_in(BASE) == [path.removeprefix(f"{BASE}/")]
    fetch_tree(path, tmp_path / "fetched")
    assert (tmp_path / "fetched/assets.extra/words").read_text() == "a b"
    loaded = tf.saved_model.load(str(tmp_path / "fetched"), tags="serve")
    serve = loaded.signatures["serving_default"]
    (served,) = serve(feature=tf.constant(X[:2])).values()
    expected = [row["y"] for row in estimator.predict(lambda params: X[:2])]
    np.testing.assert_allclose(served, expected, rtol=1e-5)


def test_a_keras_file(estimator, tmp_path):
    url = f"{URL}/trained.keras"
    assert kte.export_keras(estimator, url, X) == url
    local = transfers.local_copy(url)
    model = keras.models.load_model(local.path)
    (expected,) = estimator.predict(lambda params: X[:1], yield_single_examples=False)
    np.testing.assert_allclose(
        model.predict(X[:1], verbose=0)["y"], expected["y"], rtol=1e-5
    )


def test_export_has_the_next_free_name(memory):
    for expected in (12, 13):
        with export_folder(BASE, clock=lambda: 12.5) as (temporary, final):
            with open(os.path.join(temporary, "saved_model.pb"), "w") as file:
                file.write("model")
        assert final == f"{BASE}/{expected}"
        assert not os.path.exists(temporary)
        assert paths.is_file(f"{final}/saved_model.pb")


def test_failed_export_leaves_nothing(memory):
    with pytest.raises(KeyError):
        with export_folder(BASE) as (temporary, _):
            with open(os.path.join(temporary, "saved_model.pb"), "w") as file:
                file.write("half")
            raise KeyError
    assert not memory.store
    assert not os.path.exists(temporary)


def test_ten_exports_a_second_have_names(memory):
    for stamp in range(12, 22):
        transfers.put_bytes(b"model", f"{BASE}/{stamp}/saved_model.pb")
    with pytest.raises(RuntimeError, match=f"from 12 to 21 in '{BASE}'"):
        with export_folder(BASE, clock=lambda: 12.5):
            pass


def test_old_exports_are_removed(memory):
    exporter = kte.LatestExporter("latest", receiver_fn, exports_to_keep=2)
    transfers.put_bytes(b"mine", f"{BASE}/notes/file")
    offer(exporter, Writer(), 0.5, 0.4, 0.3)
    assert exports_in(BASE) == ["1700000001", "1700000002"]
    assert paths.is_file(f"{BASE}/notes/file")


def test_best_result_is_kept_between_processes(memory):
    writer = Writer()
    first = kte.BestExporter(serving_input_receiver_fn=receiver_fn)
    assert offer(first, writer, 0.5, 0.6, 0.4) == [True, False, True]
    second = kte.BestExporter(serving_input_receiver_fn=receiver_fn)
    assert offer(second, writer, 0.45, 0.3) == [False, True]


def test_best_result_is_found_in_event_files(memory):
    writer = Writer()
    with kte.summary.EventWriter(f"{URL}/eval") as events:
        events.metrics({"loss": 0.4}, step=7)
    writer.export_saved_model(BASE, receiver_fn)
    exporter = kte.BestExporter(serving_input_receiver_fn=receiver_fn)
    assert offer(exporter, writer, 0.5, 0.3) == [False, True]
