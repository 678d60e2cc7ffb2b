import pytest

from keras_tpu_estimator import checkpoints
from keras_tpu_estimator.files.directory import state_file
from keras_tpu_estimator.typing import CheckpointState, Saved


@pytest.mark.parametrize(
    "state",
    [
        CheckpointState("a"),
        CheckpointState("b", (Saved("a", 1.5), Saved("b", 1e9 + 0.125)), 1.5),
        CheckpointState('q"\\', (Saved('q"\\'),)),
        CheckpointState("größe", (Saved("größe", 3.0),), 0.0),
    ],
)
def test_state_is_restored(tmp_path, state):
    state_file.store(str(tmp_path), state)
    saved = state.saved or (Saved(state.latest),)
    assert state_file.load(str(tmp_path)) == CheckpointState(
        state.latest, saved, state.last_preserved
    )


def test_mismatched_times_are_unknown(tmp_path):
    (tmp_path / "checkpoint").write_text(
        'model_checkpoint_path: "b"\n'
        'all_model_checkpoint_paths: "a"\n'
        'all_model_checkpoint_paths: "b"\n'
        "all_model_checkpoint_timestamps: 5.0\n"
    )
    assert state_file.load(str(tmp_path)).saved == (Saved("a"), Saved("b"))


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\x00\xff\xfe",
        b'all_model_checkpoint_paths: "a"\n',
        b'model_checkpoint_path: ""\n',
        b"model_checkpoint_path: model.ckpt-3\n",
        b'model_checkpoint_path: "model.ck',
        b'model_checkpoint_path: "a"\nlast_preserved_timestamp: soon\n',
    ],
)
@pytest.mark.parametrize(
    "action",
    [checkpoints.latest, lambda directory: checkpoints.save(directory, 9, {})],
    ids=["latest", "save"],
)
def test_error_for_an_unreadable_state_has_advice(tmp_path, content, action):
    (tmp_path / "checkpoint").write_bytes(content)
    with pytest.raises(ValueError, match="Repair it by writing .* or delete"):
        action(tmp_path)
    assert [p.name for p in tmp_path.iterdir()] == ["checkpoint"]


def test_tensorflow_reads_our_state(tmp_path):
    import tensorflow as tf

    for step, now in ((10, 100.5), (20, 200.5)):
        checkpoints.save(tmp_path, step, {}, now=now)

    theirs = tf.train.get_checkpoint_state(str(tmp_path))

    assert theirs.model_checkpoint_path == str(tmp_path / "model.ckpt-20")
    assert list(theirs.all_model_checkpoint_paths) == [
        str(tmp_path / "model.ckpt-10"),
        str(tmp_path / "model.ckpt-20"),
    ]
    assert list(theirs.all_model_checkpoint_timestamps) == [100.5, 200.5]
    assert theirs.last_preserved_timestamp == 100.5


def test_we_read_the_state_of_tensorflow(tmp_path):
    import tensorflow as tf

    names = ["größe\t'\"\\-1", "model.ckpt-2"]
    tf.compat.v1.train.update_checkpoint_state(
        str(tmp_path),
        names[-1],
        all_model_checkpoint_paths=names,
        all_model_checkpoint_timestamps=[1.5, 1.6e9],
        last_preserved_timestamp=1e-9,
    )
    assert state_file.load(str(tmp_path)) == CheckpointState(
        names[-1], (Saved(names[0], 1.5), Saved(names[1], 1.6e9)), 1e-9
    )
