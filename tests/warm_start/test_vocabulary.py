import keras
import numpy as np
import pytest
import tensorflow as tf  # noqa: TID253 - the original

import keras_tpu_estimator as kte

OLD = b"a\nb\nc\n"


@pytest.fixture
def info(tmp_path):
    """Makes a VocabInfo of the contents of files."""

    def make(new, size, buckets=0, old=OLD, **more):
        (tmp_path / "new.txt").write_bytes(new)
        (tmp_path / "old.txt").write_bytes(old)
        return kte.VocabInfo(
            tmp_path / "new.txt", size, buckets, tmp_path / "old.txt", **more
        )

    return make


def rows(count, width=1):
    start = np.arange(1, count + 1, dtype="float32")[:, None]
    return start * 10.0 ** np.arange(width, dtype="float32")


@pytest.mark.parametrize(
    ("new", "size", "more", "expected"),
    [
        (b"c\nz\na\n", 3, {"buckets": 1}, [3, 0, 1, 0]),
        (b"c\nz\na\n", 3, {"buckets": 1, "old_vocab_size": 2}, [0, 0, 1, 0]),
        (b"c\nz\na\n", 2, {}, [3, 0]),
        (b"c\r\na\r\n", 2, {}, [3, 1]),
        (b"c\na", 2, {}, [3, 1]),
        (b"c \nA\n", 2, {}, [0, 0]),
        (b"c\nc\n", 2, {}, [3, 3]),
        (b"\xff\na\n", 2, {"old": b"a\nb\n\xff\n"}, [3, 1]),
        (b"x\ny\n", 2, {}, [0, 0]),
        (b"c\n\n", 1, {}, [3]),
        (b"b\n", 1, {"old": b"a\nb\na\n", "old_vocab_size": 2}, [2]),
    ],
)
def test_rows_follow_their_words(info, new, size, more, expected):
    remapped = info(new, size, **more).remap(rows(3), (len(expected), 1), "float32")
    assert remapped.dtype == np.float32
    assert remapped[:, 0].tolist() == expected


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("seed", range(3))
def test_rows_match_tensorflow(info, axis, seed, tmp_path):
    rng = np.random.default_rng(seed)
    words = [b"%d" % n for n in rng.permutation(40)]
    new, old = (b"\n".join(rng.permutation(words)[:30]) for _ in range(2))
    size, old_size = 25, (20 if axis == 0 else -1)
    made = info(new, size, 0, old, old_vocab_size=old_size, axis=axis)
    shape = (30, 4) if axis == 0 else (4, 30)
    matrix = rng.normal(size=shape).astype("float32")

    checkpoint = tf.train.Checkpoint(m=tf.Variable(matrix))
    remapping, present = tf.raw_ops.GenerateVocabRemapping(
        new_vocab_file=str(made.new_vocab),
        old_vocab_file=str(made.old_vocab),
        new_vocab_offset=0,
        num_new_vocab=size,
        old_vocab_size=old_size,
    )
    straight = tf.range(4, dtype=tf.int64)
    expected = tf.raw_ops.LoadAndRemapMatrix(
        ckpt_path=checkpoint.save(str(tmp_path / "ckpt")),
        old_tensor_name="m/.ATTRIBUTES/VARIABLE_VALUE",
        row_remapping=remapping if axis == 0 else straight,
        col_remapping=[] if axis == 0 else remapping,
        initializing_values=[0.0] * ((size - int(present)) * 4),
        num_rows=size if axis == 0 else 4,
        num_cols=4 if axis == 0 else size,
    )
    np.testing.assert_array_equal(
        made.remap(matrix, tuple(expected.shape), "float32"), expected
    )
    assert 0 < int(present) < size


def test_columns_follow_their_words(info):
    made = info(b"c\nz\na\n", 3, 1, axis=1)
    old = np.array([[1, 2, 3], [10, 20, 30]], "float32")
    assert made.remap(old, (2, 4), "float32").tolist() == [
        [3, 0, 1, 0],
        [30, 0, 10, 0],
    ]


@pytest.mark.parametrize("shape", [(3,), (3, 2), (3, 2, 2)])
def test_any_rank(info, shape):
    old = np.arange(np.prod(shape), dtype="float32").reshape(shape)
    remapped = info(b"c\nb\na\n", 3).remap(old, shape, "float32")
    np.testing.assert_array_equal(remapped, old[::-1])


@pytest.mark.parametrize(
    "initializer",
    [
        keras.initializers.Constant(7.0),
        lambda shape, dtype: np.full(shape, 7),
        tf.constant_initializer(7.0),
        tf.compat.v1.random_uniform_initializer(7, 7),
        lambda shape, dtype: tf.fill(shape, tf.cast(7, dtype)),
    ],
)
def test_backup_initializer_fills_new_and_other_words(info, initializer):
    made = info(b"c\nz\na\n", 3, 1, backup_initializer=initializer)
    remapped = made.remap(rows(3, 2), (4, 2), "float32")
    assert remapped.tolist() == [[3, 30], [7, 7], [1, 10], [7, 7]]


def test_backup_initializer_receives_the_complete_shape(info):
    seen = []

    def initializer(shape, dtype=None):
        seen.append((shape, dtype))
        return np.arange(4.0).reshape(shape)

    made = info(b"c\nz\na\n", 3, 1, backup_initializer=initializer)
    remapped = made.remap(rows(3).astype("bfloat16"), (4, 1), "bfloat16")
    assert remapped[:, 0].tolist() == [3, 1, 1, 3]
    assert seen == [((4, 1), "bfloat16")]


def test_old_value_is_unchanged(info):
    old = rows(3)
    info(b"c\nz\na\n", 3).remap(old, (3, 1), "float32")
    np.testing.assert_array_equal(old, rows(3))


@pytest.mark.parametrize(
    ("new", "size", "more", "message"),
    [
        (b"c\n", 2, {}, r"new.txt' must have 2 lines or more. Received 1\."),
        (b"", 1, {}, r"new.txt' must have 1 lines or more. Received 0\."),
        (b"c\nb\n", 2, {"old_vocab_size": 4}, "old.txt' must have 4 lines"),
        (b"c\n\nb\n", 3, {}, "vocabulary '.*new.txt' must .*empty line 2"),
        (b"c\nb\n", 2, {"old": b"a\n\nc\n"}, "old.txt' must .*empty line 2"),
        (b"c\nb\n", 2, {"old": b"a\nb\na\n"}, "Received 'a' twice"),
        (
            b"c\nb\n",
            2,
            {"old": b"a\nb\nx\nc\n"},
            "for line 4 of the old vocabular",
        ),
        (b"c\nb\na\n", 3, {}, "must have 3 entries .* shape .2, 1."),
        (b"c\n", 1, {}, "must have 1 entries .* 0 for other words"),
        (b"c\nb\n", 2, {"axis": 1}, "Axis 1 .* must have 2 entries"),
        (
            b"c\nb\n",
            2,
            {"backup_initializer": lambda shape, dtype: np.zeros(3)},
            r"must return the shape \(2, 1\), .* Received: \(3,\)",
        ),
    ],
)
def test_numbers_that_do_not_fit_are_refused(info, new, size, more, message):
    with pytest.raises(ValueError, match=message):
        info(new, size, **more).remap(rows(3), (2, 1), "float32")


def test_other_axes_must_be_equal(info):
    with pytest.raises(
        ValueError, match=r"\(3, 2\) in the checkpoint and \(2, 1\) in the"
    ):
        info(b"c\nb\n", 2).remap(rows(3, 2), (2, 1), "float32")
    with pytest.raises(ValueError, match="Axis 1 .* must have 2 entries"):
        info(b"c\nb\n", 2, axis=1).remap(np.zeros(3), (2,), "float32")


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"axis": 2}, ValueError, "`axis` must be 0 or 1. Received: 2"),
        ({"axis": -1}, ValueError, "`axis` must be 0 or 1. Received: -1"),
        ({"axis": True}, ValueError, "`axis` must be 0 or 1. Received: True"),
        ({"new_vocab": ""}, ValueError, "`new_vocab` must be the path"),
        ({"old_vocab": None}, ValueError, "`old_vocab` must be the path"),
        ({"new_vocab_size": 0}, ValueError, "`new_vocab_size` must be an in"),
        ({"new_vocab_size": 2.0}, ValueError, "of at least 1. Received: 2.0"),
        ({"num_oov_buckets": -1}, ValueError, "`num_oov_buckets` must be an"),
        ({"num_oov_buckets": True}, ValueError, "at least 0. Received: True"),
        ({"old_vocab_size": 0}, ValueError, "1 or -1, for the whole file. Rec"),
        ({"backup_initializer": "zeros"}, TypeError, "Pass a Keras initialize"),
    ],
)
def test_fields_are_validated(arguments, error, message):
    right = {
        "new_vocab": "new.txt",
        "new_vocab_size": 2,
        "num_oov_buckets": 0,
        "old_vocab": "old.txt",
    }
    with pytest.raises(error, match=message):
        kte.VocabInfo(**right | arguments)


def test_arguments_have_the_order_of_the_original():
    info = kte.VocabInfo("new", 2, 1, "old", 3, np.zeros, 1)
    original = tf.compat.v1.train.VocabInfo("new", 2, 1, "old", 3, np.zeros, 1)
    for field, value in original._asdict().items():
        assert getattr(info, field) == value
