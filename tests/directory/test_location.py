import os

import pytest

from keras_tpu_estimator import checkpoints
from keras_tpu_estimator.files.directory import location


@pytest.fixture
def saved(tmp_path):
    for step in (0, 10, 20):
        checkpoints.save(tmp_path, step, {})
    return tmp_path


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("model.ckpt-10", "model.ckpt-10"),
        ("model.ckpt-10.h5", "model.ckpt-10"),
        ("", "model.ckpt-20"),
    ],
)
@pytest.mark.parametrize("kind", [str, os.fsencode, os.fspath])
def test_resolve_takes_prefix_file_or_directory(saved, path, expected, kind):
    assert checkpoints.resolve(kind(saved / path if path else saved)) == str(
        saved / expected
    )


def test_resolve_in_the_working_directory(saved, monkeypatch):
    monkeypatch.chdir(saved)
    assert checkpoints.resolve("model.ckpt-10") == "model.ckpt-10"
    with pytest.raises(ValueError, match=r"Checkpoints in '\.': model.ckpt-"):
        checkpoints.resolve("model.ckpt-11")


def test_resolve_prefers_a_checkpoint_to_a_directory_of_its_name(saved):
    (saved / "model.ckpt-10").mkdir()
    assert checkpoints.resolve(saved / "model.ckpt-10") == str(saved / "model.ckpt-10")


def test_resolve_error_lists_the_searched_paths_and_similar_names(saved):
    with pytest.raises(
        ValueError,
        match=(
            r"ckpt-2' is not a valid checkpoint: there is no file "
            r"'.*model.ckpt-2.h5', '.*ckpt-2.index' or '.*ckpt-2.orbax', and "
            r"no directory "
            r".*: model.ckpt-20, "
        ),
    ):
        checkpoints.resolve(saved / "model.ckpt-2")


@pytest.mark.parametrize(
    ("make", "path", "message"),
    [
        ([], "", "no 'checkpoint' file there names one that exists. There is"),
        ([], "sub/model.ckpt-1", r"The directory '.*sub' does not exist\."),
        (["m-5.h5"], "", r"no 'checkpoint' file .* Checkpoints in '.*': m-5\."),
        (["m.index"], "", r"no 'checkpoint' file .* Checkpoints in '.*': m\."),
    ],
)
def test_resolve_errors_have_explanations(tmp_path, make, path, message):
    for name in make:
        (tmp_path / name).touch()
    with pytest.raises(ValueError, match=message):
        checkpoints.resolve(tmp_path / path if path else tmp_path)


def test_latest(saved):
    assert checkpoints.latest(saved) == str(saved / "model.ckpt-20")


@pytest.mark.parametrize("directory", ["missing", "."])
def test_latest_without_a_checkpoint(tmp_path, directory):
    assert checkpoints.latest(tmp_path / directory) is None


@pytest.mark.parametrize(
    ("gone", "found"), [([20], "model.ckpt-10"), ([20, 10], "model.ckpt-0")]
)
def test_latest_falls_back_to_the_newest_existing(saved, caplog, gone, found):
    for step in gone:
        os.remove(saved / f"model.ckpt-{step}.h5")

    assert checkpoints.latest(saved) == str(saved / found)
    assert f"Using '{saved / found}' instead." in caplog.text


def test_file_in_place_of_a_directory_has_no_checkpoint(tmp_path):
    (tmp_path / "file").write_text("")
    assert checkpoints.latest(tmp_path / "file") is None


def test_latest_warns_if_all_are_missing(saved, caplog):
    for step in (0, 10, 20):
        os.remove(saved / f"model.ckpt-{step}.h5")

    assert checkpoints.latest(saved) is None
    assert "The other checkpoints in" in caplog.text


def test_latest_follows_an_edited_state_file(saved, tmp_path_factory, caplog):
    other = checkpoints.save(tmp_path_factory.mktemp("other"), 5, {})
    (saved / "checkpoint").write_text(f'model_checkpoint_path: "{other}"\n')

    assert checkpoints.latest(saved) == other
    assert not caplog.records


def test_moved_directory_keeps_its_checkpoints(saved, tmp_path_factory):
    moved = tmp_path_factory.mktemp("parent") / "moved"
    saved.rename(moved)
    assert checkpoints.latest(moved) == str(moved / "model.ckpt-20")


def test_similar_directory_has_checkpoints(tmp_path, monkeypatch):
    for name in ("mnist_1", "mnist_22", "cifar"):
        checkpoints.save(tmp_path / name, 1, {})
    for name in ("mnist_2", "minst_1x"):
        (tmp_path / name).mkdir()
    similar = location.similar_directory
    assert similar(f"{tmp_path}/minst_1/") == str(tmp_path / "mnist_1")
    assert similar(str(tmp_path / "mnist_2")) == str(tmp_path / "mnist_22")
    assert similar(str(tmp_path / "imagenet")) is None
    assert similar(str(tmp_path / "missing" / "mnist_1")) is None
    monkeypatch.chdir(tmp_path)
    assert similar("mnst_1") == "mnist_1"
