import os

import pytest

from keras_tpu_estimator import checkpoints
from keras_tpu_estimator.checkpoints import Retention

_HOUR = 3600.0


def _save_hourly(directory, hours, retention):
    for hour in hours:
        checkpoints.save(directory, hour, {}, retention=retention, now=hour * _HOUR)


def _steps(directory):
    return sorted(
        int(name.removeprefix("model.ckpt-").removesuffix(".h5"))
        for name in os.listdir(directory)
        if name.endswith(".h5")
    )


@pytest.mark.parametrize(
    ("retention", "expected"),
    [
        (Retention(), [5, 6, 7, 8, 9]),
        (Retention(max_to_keep=1), [9]),
        (Retention(max_to_keep=3), [7, 8, 9]),
        (Retention(max_to_keep=None), list(range(10))),
        (Retention(max_to_keep=0), list(range(10))),
        # The first save starts the clock; this is three hours later.
        (Retention(2, keep_every_n_hours=3), [3, 6, 8, 9]),
        (Retention(2, keep_every_n_hours=2.5), [3, 6, 8, 9]),
        (Retention(2, keep_every_n_hours=1e-9), list(range(1, 10))),
    ],
)
def test_retained_checkpoints_of_ten_hourly_ones(tmp_path, retention, expected):
    _save_hourly(tmp_path, range(10), retention)
    assert _steps(tmp_path) == expected
    assert checkpoints.step_of(tmp_path) == 9


@pytest.mark.parametrize("split", range(1, 10))
def test_limits_span_processes(tmp_path, split):
    # The state is read from the directory, because no object remains.
    first = Retention(2, keep_every_n_hours=3)
    _save_hourly(tmp_path, range(split), first)
    again = Retention(2, keep_every_n_hours=3)
    _save_hourly(tmp_path, range(split, 10), again)
    assert _steps(tmp_path) == [3, 6, 8, 9]


def test_lower_limit_applies_at_once(tmp_path):
    _save_hourly(tmp_path, range(5), Retention())
    _save_hourly(tmp_path, [5], Retention(max_to_keep=2))
    assert _steps(tmp_path) == [4, 5]


def test_repeated_step_counts_once(tmp_path):
    _save_hourly(tmp_path, [1, 2, 2, 1], Retention(max_to_keep=2))
    assert _steps(tmp_path) == [1, 2]
    assert checkpoints.step_of(tmp_path) == 1


def test_checkpoint_deleted_by_the_user_does_not_count(tmp_path):
    _save_hourly(tmp_path, range(3), Retention(max_to_keep=3))
    os.remove(tmp_path / "model.ckpt-1.h5")
    _save_hourly(tmp_path, [3], Retention(max_to_keep=3))
    assert _steps(tmp_path) == [0, 2, 3]


def test_checkpoint_elsewhere_is_never_deleted(tmp_path, tmp_path_factory):
    other = checkpoints.save(tmp_path_factory.mktemp("other"), 5, {})
    (tmp_path / "checkpoint").write_text(f'model_checkpoint_path: "{other}"\n')

    _save_hourly(tmp_path, range(3), Retention(max_to_keep=1))

    assert checkpoints.step_of(other) == 5
    assert _steps(tmp_path) == [2]


def test_absolute_paths_of_a_saver_count(tmp_path):
    written = [checkpoints.save(tmp_path, step, {}) for step in (1, 2)]
    (tmp_path / "checkpoint").write_text(
        f'model_checkpoint_path: "{written[1]}"\n'
        f'all_model_checkpoint_paths: "{written[0]}"\n'
        f'all_model_checkpoint_paths: "{written[1]}"\n'
    )
    assert checkpoints.step_of(tmp_path) == 2

    checkpoints.save(tmp_path, 3, {}, retention=Retention(max_to_keep=2))

    assert _steps(tmp_path) == [2, 3]
    assert str(tmp_path) not in (tmp_path / "checkpoint").read_text()


def test_state_never_names_a_deleted_checkpoint(tmp_path, monkeypatch):
    _save_hourly(tmp_path, range(2), Retention(max_to_keep=2))
    remove = os.remove
    seen = []

    def removing(path):
        name, end = os.path.splitext(os.path.basename(path))
        if end == ".h5":
            seen.append(checkpoints.latest(tmp_path))
            assert name not in (tmp_path / "checkpoint").read_text()
        remove(path)

    monkeypatch.setattr(os, "remove", removing)
    _save_hourly(tmp_path, [2], Retention(max_to_keep=1))
    assert seen == [str(tmp_path / "model.ckpt-2")] * 2


@pytest.mark.parametrize("value", [-1, 2.0, True, "5"])
def test_max_to_keep_is_checked(value):
    with pytest.raises(ValueError, match=f"`max_to_keep` .*Received: {value!r}"):
        Retention(max_to_keep=value)


@pytest.mark.parametrize("value", [0, -1.0, float("nan"), True, None, "5"])
def test_keep_every_n_hours_is_checked(value):
    with pytest.raises(ValueError, match=f"`keep_every.*Received: {value!r}"):
        Retention(keep_every_n_hours=value)
