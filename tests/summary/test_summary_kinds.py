"""Tests every kind of summary with TensorBoard's own reader."""

import io
import pathlib
import wave
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import keras
import numpy as np
import pytest
import tensorflow as tf  # noqa: TID253 - the reference for summaries

from keras_tpu_estimator import summary
from keras_tpu_estimator.files.summary import kinds
from keras_tpu_estimator.files.summary.kinds import encode_png

RNG = np.random.default_rng(0)


def written(logdir: pathlib.Path, record: Callable[[], bool]) -> Any:
    """The only value that a function records, as the dashboards read it."""
    from tensorboard.backend.event_processing import event_file_loader

    with summary.create_file_writer(logdir).as_default(step=3):
        assert record() is True
    (path,) = logdir.iterdir()
    _, event = event_file_loader.EventFileLoader(str(path)).Load()
    assert event.step == 3
    (value,) = event.summary.value
    return value


def array_of(value: Any) -> np.ndarray:
    """The tensor of a value."""
    from tensorboard.util import tensor_util

    return tensor_util.make_ndarray(value.tensor)


@pytest.mark.parametrize(
    "data",
    [
        2,
        True,
        np.float64(2),
        np.array(2, np.uint8),
        jnp.bfloat16(2),
        keras.Variable(2.0),
    ],
)
def test_scalar(tmp_path: pathlib.Path, data: Any) -> None:
    value = written(tmp_path, lambda: summary.scalar("loss", data))
    assert value.tag == "loss"
    assert value.metadata.plugin_data.plugin_name == "scalars"
    number = array_of(value)
    assert (number.shape, number.dtype) == ((), np.float32)
    assert number == float(np.asarray(data))


@pytest.mark.parametrize(
    "data",
    [
        RNG.normal(size=(20, 30)),
        RNG.integers(-5, 5, size=100),
        RNG.random(1000) < 0.3,
        np.array(RNG.normal(size=50), "float16"),
        [1.0, 2.0, 4.0],
    ],
)
def test_histogram(tmp_path: pathlib.Path, data: Any) -> None:
    value = written(tmp_path, lambda: summary.histogram("weights", data, buckets=7))
    assert value.metadata.plugin_data.plugin_name == "histograms"
    counts, edges = np.histogram(np.asarray(data, "float64"), bins=7)
    table = array_of(value)
    assert table.dtype == np.float64
    np.testing.assert_allclose(table[:, 0], edges[:-1], atol=1e-12)
    np.testing.assert_allclose(table[:, 1], edges[1:], atol=1e-12)
    np.testing.assert_array_equal(table[:, 2], counts)


@pytest.mark.parametrize("convert", [np.asarray, jnp.asarray])
@pytest.mark.parametrize(
    ("values", "table"),
    [
        ([], [[0, 0, 0], [0, 0, 0]]),
        ([np.nan, np.inf], [[0, 0, 0], [0, 0, 0]]),
        ([5, 5, 5], [[5, 5, 0], [5, 5, 3]]),
        ([-1, np.nan, 0, 3, -np.inf], [[-1, 1, 2], [1, 3, 1]]),
        ([-1e30, 0, 1e30], [[-1e30, 0, 1], [0, 1e30, 2]]),
    ],
)
def test_buckets_of_odd_values(
    convert: Callable[..., Any], values: list[float], table: list[list[float]]
) -> None:
    counted = kinds.count_values(convert(np.array(values, "float32")), 2)
    np.testing.assert_allclose(counted.table(), table, rtol=1e-6)


def test_buckets_on_devices_match_the_host() -> None:
    values = RNG.normal(size=10_000).astype("float32")
    on_host = kinds.count_values(values, 30).table()
    on_device = kinds.count_values(jnp.asarray(values), 30).table()
    np.testing.assert_allclose(on_device[:, :2], on_host[:, :2], rtol=1e-6)
    # In float32, a value at an edge may be in either bucket.
    np.testing.assert_allclose(on_device[:, 2], on_host[:, 2], atol=1)
    assert on_device[:, 2].sum() == 10_000


@pytest.mark.parametrize("channels", [1, 2, 3, 4])
def test_images(tmp_path: pathlib.Path, channels: int) -> None:
    data = RNG.integers(0, 256, size=(5, 7, 6, channels), dtype=np.uint8)
    value = written(tmp_path, lambda: summary.image("view", data, max_outputs=2))
    assert value.metadata.plugin_data.plugin_name == "images"
    width, height, *files = array_of(value)
    assert (width, height) == (b"6", b"7")
    for file, image in zip(files, data[:2], strict=True):
        np.testing.assert_array_equal(tf.io.decode_png(file), image)


def test_image_without_pixels_is_a_file() -> None:
    assert tf.io.decode_png(encode_png(np.zeros((1, 1, 1), np.uint8))) == 0


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_floats_become_bytes(tmp_path: pathlib.Path, dtype: str) -> None:
    data = jnp.array([-1, 0, 0.25, 0.5, 1, 2, np.nan, np.inf], "float32")
    data = np.asarray(data, jnp.dtype(dtype)).reshape(1, 1, 8, 1)
    value = written(tmp_path, lambda: summary.image("view", data))
    image = tf.io.decode_png(array_of(value)[2])
    expected = [0, 0, 63, 127, 255, 255, 0, 255]
    np.testing.assert_array_equal(image[0, :, 0], expected)


def test_text(tmp_path: pathlib.Path) -> None:
    value = written(tmp_path, lambda: summary.text("about", "größer"))
    assert value.metadata.plugin_data.plugin_name == "text"
    assert array_of(value).item() == "größer".encode()


@pytest.mark.parametrize(
    "data", [b"x", ["a", "b"], [["a", b"b"], ["c", "d"]], np.array(["a", "ä"])]
)
def test_text_keeps_its_shape(tmp_path: pathlib.Path, data: Any) -> None:
    value = written(tmp_path, lambda: summary.text("about", data))
    table = array_of(value)
    wanted = np.asarray(data, object)
    assert table.shape == wanted.shape
    for found, string in zip(table.flat, wanted.flat, strict=True):
        assert found in (string, getattr(string, "encode", bytes)())


def test_audio(tmp_path: pathlib.Path) -> None:
    data = np.stack([np.sin(np.arange(100) * k)[:, None] for k in (1, 2, 3)])
    data = np.concatenate([data, np.full((3, 100, 1), -2.0)], axis=2)
    value = written(tmp_path, lambda: summary.audio("tone", data, 8000, max_outputs=2))
    assert value.metadata.plugin_data.plugin_name == "audio"
    # The reader omits empty labels.
    files = array_of(value)
    assert files.shape == (2,)
    for file, clip in zip(files, data[:2], strict=True):
        with wave.open(io.BytesIO(file)) as reader:
            assert reader.getparams()[:4] == (2, 2, 8000, 100)
            samples = np.frombuffer(reader.readframes(100), "<i2")
        np.testing.assert_allclose(
            samples.reshape(100, 2) / 32768, np.clip(clip, -1, 1), atol=4e-5
        )


AS_TENSORFLOW = {
    "scalar": lambda s: s.scalar("x", 0.3, 3, "*d*"),
    "histogram": lambda s: s.histogram("x", NUMBERS, 3, 9, "*d*"),
    "constant histogram": lambda s: s.histogram("x", NUMBERS * 0 + 2, 3),
    "image": lambda s: s.image("x", IMAGES, 3, 2, "*d*"),
    "one image": lambda s: s.image("x", IMAGES[:1, ..., :1], 3),
    "text": lambda s: s.text("x", "*t*", 3, "*d*"),
    "table": lambda s: s.text("x", [["a", "b"]], 3),
    "audio": lambda s: s.audio("x", SOUNDS, 8000, 3, 2, "wav", "*d*"),
}
NUMBERS = RNG.normal(size=200).astype("float32")
IMAGES = RNG.normal(0.5, 0.5, size=(4, 5, 6, 3)).astype("float32")
SOUNDS = RNG.normal(0, 0.7, size=(4, 50, 2)).astype("float32")


@pytest.mark.parametrize("name", AS_TENSORFLOW)
def test_summaries_match_tensorflow(tmp_path: pathlib.Path, name: str) -> None:
    from tensorboard.backend.event_processing import event_file_loader

    values = []
    for each in (summary, tf.summary):
        logdir = tmp_path / each.__name__
        with each.create_file_writer(str(logdir)).as_default():
            assert bool(AS_TENSORFLOW[name](each)) is True
        (path,) = logdir.iterdir()
        loader = event_file_loader.EventFileLoader(str(path))
        values += [v for e in loader.Load() for v in e.summary.value]
    ours, theirs = values
    assert (ours.tag, ours.metadata) == (theirs.tag, theirs.metadata)
    arrays = array_of(ours), array_of(theirs)
    assert arrays[0].shape == arrays[1].shape
    if name.endswith("image"):
        arrays = [[tf.io.decode_png(png) for png in a[2:]] for a in arrays]
    if name == "audio":
        arrays = [[tf.audio.decode_wav(wav)[0] for wav in a] for a in arrays]
    if name in ("text", "table"):
        np.testing.assert_array_equal(*arrays)
    else:
        np.testing.assert_allclose(*arrays, rtol=1e-12, atol=1 / 32768)


def test_no_images_and_no_sounds(tmp_path: pathlib.Path) -> None:
    none = np.zeros((0, 2, 2, 1), np.uint8)
    value = written(tmp_path / "a", lambda: summary.image("x", none))
    assert array_of(value).tolist() == [b"2", b"2"]
    sounds = np.zeros((2, 9, 1))
    value = written(
        tmp_path / "b", lambda: summary.audio("x", sounds, 8, max_outputs=0)
    )
    assert array_of(value).shape == (0,)


WRONG = [
    (lambda: summary.scalar("x", np.ones(2)), r"shape \(2,\)\. Reduce them"),
    (lambda: summary.scalar("x", [0.5]), "must be one number"),
    (lambda: summary.scalar("x", "0.5"), "real numbers. Received data of dt"),
    (lambda: summary.scalar("x", 1j), "must have real numbers"),
    (lambda: summary.scalar("", 1), "string that is not empty. Received: ''"),
    (lambda: summary.scalar(["x"], 1), "string that is not empty. Received: "),
    (lambda: summary.scalar(None, 1), "Received: None"),
    (lambda: summary.histogram("x", "abc"), "must have real numbers"),
    (lambda: summary.histogram("x", [1], buckets=0), "a positive integer"),
    (lambda: summary.histogram("x", [1], buckets=2.5), "Received: 2.5"),
    (lambda: summary.image("x", np.ones((2, 2, 3))), "need an axis of 1"),
    (lambda: summary.image("x", np.ones((1, 2, 2, 5))), "1 to 4 channels"),
    (
        lambda: summary.image("x", np.ones((1, 2, 2, 1), np.int32)),
        "uint8, or floats from 0 to 1. Received: int32",
    ),
    (
        lambda: summary.image("x", np.ones((1, 2, 2, 1)), max_outputs=-1),
        "`max_outputs` must be 0 or a positive",
    ),
    (lambda: summary.text("x", 5), "a string or an array of strings"),
    (lambda: summary.text("x", ["a", None]), "Format it first"),
    (lambda: summary.audio("x", np.ones((9, 1)), 8), "need an axis of 1"),
    (
        lambda: summary.audio("x", np.ones((1, 9, 1), np.int16), 8),
        "floats from -1 to 1",
    ),
    (lambda: summary.audio("x", np.ones((1, 9, 1)), 0), "`sample_rate`"),
    (
        lambda: summary.audio("x", np.ones((1, 9, 1)), 8, encoding="mp3"),
        "must be 'wav' or None. Received: 'mp3'",
    ),
]


@pytest.mark.parametrize(("record", "message"), WRONG)
def test_invalid_arguments_are_refused(
    tmp_path: pathlib.Path, record: Callable[[], bool], message: str
) -> None:
    with summary.create_file_writer(tmp_path / "run").as_default(step=1):
        with pytest.raises(ValueError, match=message):
            record()
    assert not (tmp_path / "run").exists()


def test_dashboards_find_all_kinds(tmp_path: pathlib.Path) -> None:
    from tensorboard.backend.event_processing import (
        plugin_event_multiplexer as multiplexer,
    )

    with summary.create_file_writer(tmp_path).as_default(step=1):
        summary.scalar("a", 1)
        summary.histogram("b", [1, 2])
        summary.image("c", IMAGES)
        summary.text("d", "t")
        summary.audio("e", SOUNDS, 8000)
    runs = multiplexer.EventMultiplexer().AddRunsFromDirectory(str(tmp_path))
    runs.Reload()
    found = {
        plugin: list(runs.PluginRunToTagToContent(plugin)["."])
        for plugin in ("scalars", "histograms", "images", "text", "audio")
    }
    assert found == {
        "scalars": ["a"],
        "histograms": ["b"],
        "images": ["c"],
        "text": ["d"],
        "audio": ["e"],
    }
