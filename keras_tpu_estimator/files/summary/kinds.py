"""The kinds of summaries: their data, and their encoding for TensorBoard.

A summary's data pass three steps. `tensors` checks and selects them, in NumPy
or in a trace of `model_fn`. `reduced` makes them small on their device.
`serialized` encodes them as TensorBoard's record on the host.
"""

import abc
import dataclasses
import functools
import io
import struct
import wave
import zlib
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import keras
import numpy as np

from keras_tpu_estimator.base.common.shown import shown
from keras_tpu_estimator.files.summary.event_file import varint

if TYPE_CHECKING:
    from tensorboard.compat.proto.summary_pb2 import SummaryMetadata


class Buckets(NamedTuple):
    """Counts in buckets of equal width; the last one includes its upper edge.

    The buckets are between the smallest and the largest value.
    """

    low: Any
    high: Any
    counts: Any

    def table(self) -> np.ndarray:
        """Returns rows of left edge, right edge and count, for TensorBoard."""
        counts = np.asarray(self.counts, np.float64)
        edges = np.linspace(
            np.float64(self.low), np.float64(self.high), len(counts) + 1
        )
        return np.stack([edges[:-1], edges[1:], counts], axis=1)


def count_values(values: Any, buckets: int) -> Buckets:
    """Counts floats of shape `[values]`; those that are not finite are ignored.

    Equal values all count in the last bucket, whose edges are then equal.

    >>> count_values(np.array([0.0, 1.0, 1.5, 4.0]), buckets=2).table()
    array([[0., 2., 3.],
           [2., 4., 1.]])
    """
    if isinstance(values, jax.Array):
        return _count_on_devices(values, buckets)
    values = values[np.isfinite(values)]
    if not values.size:
        return Buckets(0.0, 0.0, np.zeros(buckets, np.int64))
    low, high = values.min(), values.max()
    numbers = _bucket_numbers(values, low, high, buckets, np)
    return Buckets(low, high, np.bincount(numbers, minlength=buckets))


def _count_on_devices(values: jax.Array, buckets: int) -> Buckets:
    finite = jnp.isfinite(values)
    low = jnp.min(values, initial=jnp.inf, where=finite)
    high = jnp.max(values, initial=-jnp.inf, where=finite)
    is_empty = low > high
    low, high = jnp.where(is_empty, 0, low), jnp.where(is_empty, 0, high)
    numbers = _bucket_numbers(jnp.where(finite, values, low), low, high, buckets, jnp)
    # Values past the end are dropped.
    numbers = jnp.where(finite, numbers, buckets)
    return Buckets(low, high, jnp.bincount(numbers, length=buckets))


def _bucket_numbers(values: Any, low: Any, high: Any, buckets: int, xp: Any) -> Any:
    """Returns the number of each value's bucket."""
    width = high - low
    is_one = width == 0
    share = (values - low) / xp.where(is_one, 1, width)
    number = xp.where(is_one, buckets, xp.floor(share * buckets))
    return xp.clip(number, 0, buckets - 1).astype(xp.int32)


_FLOAT = struct.Struct("<f")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Summary(abc.ABC):
    """One summary without its data.

    Attributes:
        tag: Its name in TensorBoard.
        description: A Markdown text, or `None`.
        is_averaged: Whether tensors are averaged over devices. Other tensors are
            concatenated along their first axis.
    """

    tag: str
    description: str | None = None
    is_averaged: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if not isinstance(self.tag, str) or not self.tag:
            raise ValueError(
                "The name of a summary must be a string that is not empty. "
                f"Received: {self.tag!r}"
            )

    @abc.abstractmethod
    def tensors(self, data: Any, xp: Any) -> Any:
        """Checks data and selects the part to record.

        Args:
            data: The user's data.
            xp: `numpy` or `jax.numpy`, which determines the type of the result.

        Raises:
            ValueError: The data are not of this kind.
        """

    def reduced(self, tensors: Any) -> Any:
        """Reduces the tensors of all devices as far as possible."""
        return tensors

    @abc.abstractmethod
    def serialized(self, reduced: Any) -> bytes:
        """Encodes the result of `reduced` as TensorBoard's `Summary`."""

    def _record(self, array: Any, metadata: "SummaryMetadata") -> bytes:
        from tensorboard.compat.proto import summary_pb2
        from tensorboard.util import tensor_util

        value = summary_pb2.Summary.Value(
            tag=self.tag,
            tensor=tensor_util.make_tensor_proto(array),
            metadata=metadata,
        )
        return summary_pb2.Summary(value=[value]).SerializeToString()

    def _numbers(self, data: Any, xp: Any) -> Any:
        """Returns the data as an array of real numbers."""
        if isinstance(data, keras.Variable):
            data = data.value
        array = xp.asarray(data)
        if not _is_real(array.dtype):
            raise ValueError(
                f"The summary {self.tag!r} must have real numbers. Received "
                f"data of dtype {array.dtype}. Take the real part, or convert "
                "the data."
            )
        return array


@dataclasses.dataclass(frozen=True, kw_only=True)
class Scalar(Summary):
    """One number."""

    is_averaged: ClassVar[bool] = True

    def tensors(self, data: Any, xp: Any) -> Any:
        """Returns a float32 scalar."""
        if type(data) is np.float32:  # The usual type in a `host_call`.
            return data
        number = self._numbers(data, xp)
        if number.ndim:
            raise ValueError(
                f"The scalar {self.tag!r} must be one number. Received data "
                f"of shape {tuple(number.shape)}. Reduce them first, for "
                "example to their mean, or record a histogram."
            )
        return number.astype("float32")

    def serialized(self, reduced: Any) -> bytes:
        """Returns a tensor that TensorBoard plots."""
        # The number is encoded here for speed, because a run may write many thousand
        # scalars a second.
        return _before_number(self.tag, self.description) + _FLOAT.pack(reduced)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Histogram(Summary):
    """The distribution of numbers, in `buckets` buckets of equal width."""

    buckets: int = 30

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_positive("buckets", self.buckets)

    def tensors(self, data: Any, xp: Any) -> Any:
        """Returns floats of shape `[values]`."""
        numbers = self._numbers(data, xp)
        # JAX has no float64 by default.
        return numbers.astype("float32" if xp is jnp else "float64").ravel()

    def reduced(self, tensors: Any) -> Buckets:
        """Returns the counts."""
        return count_values(tensors, self.buckets)

    def serialized(self, reduced: Buckets) -> bytes:
        """Returns a table of edges and counts."""
        from tensorboard.plugins.histogram import metadata

        return self._record(
            reduced.table(),
            metadata.create_summary_metadata(None, self.description),
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Image(Summary):
    """The first images of a batch."""

    max_outputs: int = 3

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_positive("max_outputs", self.max_outputs, or_zero=True)

    def tensors(self, data: Any, xp: Any) -> Any:
        """Returns bytes of shape `[images, height, width, channels]`."""
        images = self._numbers(data, xp)
        if images.ndim != 4 or images.shape[-1] not in PNG_CHANNELS:
            raise ValueError(
                f"The images {self.tag!r} must have the shape [images, "
                "height, width, channels] with 1 to 4 channels. Received: "
                f"{tuple(images.shape)}. Grey images need an axis of 1."
            )
        images = images[: self.max_outputs]
        if images.dtype == np.uint8:
            return images
        if not jnp.issubdtype(images.dtype, jnp.floating):
            raise ValueError(
                f"The images {self.tag!r} must be uint8, or floats from 0 to "
                f"1. Received: {images.dtype}. Convert them to one of these."
            )
        share = _clipped(images, 0, 1, xp)
        # The half makes the ranges of all bytes equally wide.
        return xp.minimum(share * 255.5, 255).astype("uint8")

    def reduced(self, tensors: Any) -> Any:
        """Returns the first images of the first devices."""
        return tensors[: self.max_outputs]

    def serialized(self, reduced: Any) -> bytes:
        """Returns width, height and PNG files."""
        from tensorboard.plugins.image import metadata

        height, width = reduced.shape[1:3]
        size = [str(width).encode(), str(height).encode()]
        files = [encode_png(image) for image in reduced]
        return self._record(
            size + files,
            metadata.create_summary_metadata(None, self.description),
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Audio(Summary):
    """The first `max_outputs` sounds of a batch, at `sample_rate` frames per second."""

    sample_rate: int
    max_outputs: int = 3

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_positive("sample_rate", self.sample_rate)
        _check_positive("max_outputs", self.max_outputs, or_zero=True)

    def tensors(self, data: Any, xp: Any) -> Any:
        """Returns 16-bit samples of shape `[sounds, frames, channels]`."""
        sounds = self._numbers(data, xp)
        is_float = jnp.issubdtype(sounds.dtype, jnp.floating)
        if sounds.ndim != 3 or not sounds.shape[-1] or not is_float:
            raise ValueError(
                f"The sounds {self.tag!r} must be floats from -1 to 1 of the "
                f"shape [sounds, frames, channels]. Received: {sounds.dtype} "
                f"of shape {tuple(sounds.shape)}. Sounds of one channel need "
                "an axis of 1."
            )
        share = _clipped(sounds[: self.max_outputs], -1, 1, xp)
        return xp.minimum(xp.round(share * 32768), 32767).astype("int16")

    def reduced(self, tensors: Any) -> Any:
        """Returns the first sounds of the first devices."""
        return tensors[: self.max_outputs]

    def serialized(self, reduced: Any) -> bytes:
        """Returns rows of a WAV file and its label, which is empty."""
        from tensorboard.plugins.audio import metadata

        files = [encode_wav(clip, self.sample_rate) for clip in reduced]
        rows = np.array([[file, b""] for file in files], object)
        return self._record(
            rows.reshape(-1, 2),
            metadata.create_summary_metadata(
                None, self.description, metadata.Encoding.Value("WAV")
            ),
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Text(Summary):
    """UTF-8 texts, row by row, which must be Python values; one text has shape ()."""

    strings: tuple[bytes, ...]
    shape: tuple[int, ...] = ()

    @classmethod
    def from_data(cls, name: str, data: Any, description: str | None) -> "Text":
        """Returns a summary of a string, of bytes, or of an array of these."""
        try:
            array = np.asarray(data, object)
        except jax.errors.TracerArrayConversionError:
            raise ValueError(
                f"The text {name!r} must be a string or an array of strings "
                "that is known while model_fn is traced. Received a tensor: "
                f"{shown(data)}. To record a text about its values, use "
                "`host_call`."
            ) from None
        if not all(isinstance(text, str | bytes) for text in array.flat):
            raise ValueError(
                f"The text {name!r} must be a string or an array of strings. "
                f"Received: {shown(data)}. Format it first."
            )
        strings = tuple(
            text.encode() if isinstance(text, str) else text for text in array.flat
        )
        return cls(
            tag=name,
            description=description,
            strings=strings,
            shape=array.shape,
        )

    def tensors(self, data: Any, xp: Any) -> Any:
        """Returns nothing, because devices do not support strings."""
        del data, xp
        return ()

    def serialized(self, reduced: Any) -> bytes:
        """Returns a tensor of strings for TensorBoard."""
        del reduced
        from tensorboard.plugins.text import metadata

        return self._record(
            np.array(self.strings, object).reshape(self.shape),
            metadata.create_summary_metadata(None, self.description),
        )


def _clipped(array: Any, low: float, high: float, xp: Any) -> Any:
    """Clips floats to a range, and replaces NaN by 0."""
    return xp.nan_to_num(xp.clip(array.astype("float32"), low, high))


def _check_positive(name: str, value: Any, or_zero: bool = False) -> None:
    is_int = isinstance(value, int | np.integer) and value is not True
    if not is_int or value < (0 if or_zero else 1):
        least = "0 or a positive" if or_zero else "a positive"
        raise ValueError(f"`{name}` must be {least} integer. Received: {shown(value)}")


@functools.cache
def _is_real(dtype: np.dtype) -> bool:
    """Returns whether a dtype is real or boolean."""
    # NumPy does not classify bfloat16 as a real number, but JAX does.
    if jnp.issubdtype(dtype, jnp.complexfloating):
        return False
    return dtype.kind == "b" or jnp.issubdtype(dtype, jnp.number)


@functools.lru_cache(maxsize=1024)
def _before_number(tag: str, description: str | None) -> bytes:
    """Returns a scalar's `Summary` up to its last four bytes, the number."""
    from tensorboard.compat.proto import summary_pb2
    from tensorboard.plugins.scalar import metadata
    from tensorboard.util import tensor_util

    tensor = tensor_util.make_tensor_proto(np.float32(0)).SerializeToString()
    value = summary_pb2.Summary.Value(
        tag=tag, metadata=metadata.create_summary_metadata(None, description)
    )
    # The keys of the fields `tensor` and `value`, each before its length.
    fields = value.SerializeToString() + b"\x42" + varint(len(tensor)) + tensor
    return (b"\x0a" + varint(len(fields)) + fields)[: -_FLOAT.size]


def encode_wav(clip: np.ndarray, sample_rate: int) -> bytes:
    """Encodes int16 samples of shape `[frames, channels]` as a WAV file."""
    file = io.BytesIO()
    with wave.open(file, "wb") as writer:
        writer.setnchannels(clip.shape[1])
        writer.setsampwidth(2)
        writer.setframerate(sample_rate)
        writer.writeframes(clip.astype("<i2").tobytes())
    return file.getvalue()


_SIGNATURE = b"\x89PNG\r\n\x1a\n"
# PNG's numbers of grey, grey with alpha, RGB and RGBA.
_COLOR_TYPES = {1: 0, 2: 4, 3: 2, 4: 6}
PNG_CHANNELS = tuple(_COLOR_TYPES)


def encode_png(image: np.ndarray) -> bytes:
    """Encodes uint8 values of shape `[height, width, channels]` as a PNG file.

    Reference: https://www.w3.org/TR/png-3/
    """
    height, width, channels = image.shape
    eight_bits = 8
    header = struct.pack(
        ">IIBBBBB", width, height, eight_bits, _COLOR_TYPES[channels], 0, 0, 0
    )
    rows = image.reshape(height, width * channels)
    # Each row begins with its filter; 0 means none.
    filtered = np.pad(rows, ((0, 0), (1, 0)))
    return (
        _SIGNATURE
        + _png_chunk(b"IHDR", header)
        + _png_chunk(b"IDAT", zlib.compress(filtered.tobytes()))
        + _png_chunk(b"IEND", b"")
    )


def _png_chunk(name: bytes, data: bytes) -> bytes:
    checksum = zlib.crc32(name + data)
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", checksum)
