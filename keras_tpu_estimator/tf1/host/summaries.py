"""The summaries of `tf.summary` in a TF1 `model_fn`, as tensors of the graph.

The original operations make strings, which no device can.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from keras_tpu_estimator.base.common.logs import warn_once
from keras_tpu_estimator.files.summary.collecting import Collected
from keras_tpu_estimator.files.summary.kinds import (
    Audio,
    Histogram,
    Image,
    Scalar,
    Summary,
    Text,
)
from keras_tpu_estimator.tf1.graph.internals import static_value
from keras_tpu_estimator.tf1.graph.source_lines import line_of


@dataclasses.dataclass(frozen=True, eq=False)
class Recorded:
    """One summary of a graph; `prepare` converts the value of `tensor` to the data."""

    summary: Summary
    tensor: Any
    prepare: Callable[[jax.Array], jax.Array]

    def collected(self, value: Any) -> Collected:
        """Returns the summary of a value."""
        data = self.prepare(value)
        return Collected(self.summary, self.summary.tensors(data, jnp))

    def split(self, is_split: bool) -> Collected:
        """As `Collected.split`."""
        return Collected(self.summary, None).split(is_split)


class SimpleScalar(Scalar):
    """A number in the field `simple_value`, which scripts read from event files."""

    def serialized(self, reduced: Any) -> bytes:
        """Returns the record of TF1."""
        from tensorboard.compat.proto import summary_pb2

        value = summary_pb2.Summary.Value(tag=self.tag, simple_value=float(reduced))
        return summary_pb2.Summary(value=[value]).SerializeToString()


class NumberedImages(Image):
    """Images with the tags of TF1: 'x/image', or 'x/image/0' and so on."""

    def serialized(self, reduced: Any) -> bytes:
        """Returns one record for each image."""
        return _numbered(self, Image.serialized, reduced)


class NumberedSounds(Audio):
    """Sounds with the tags of TF1: 'x/audio', or 'x/audio/0' and so on."""

    def serialized(self, reduced: Any) -> bytes:
        """Returns one record for each sound."""
        return _numbered(self, Audio.serialized, reduced)


def _numbered(
    summary: Image | Audio, serialized: Callable[[Any, Any], bytes], rows: Any
) -> bytes:
    """Returns records, with numbers if several outputs are allowed."""
    if summary.max_outputs == 1:
        return serialized(summary, rows)
    # Concatenated messages are one message with all their values.
    return b"".join(
        serialized(
            dataclasses.replace(summary, tag=f"{summary.tag}/{number}"),
            rows[number : number + 1],
        )
        for number in range(len(rows))
    )


def recorded(graph: Any, summary_op: Any = None) -> list[Recorded]:
    """Returns the summaries of `summary_op` or all; warns about unsupported ones."""
    tensors = _written(graph, summary_op)
    summaries, unsupported = [], []
    for tensor in tensors:
        summary = _recorded(tensor.op) if tensor.graph is graph else None
        if summary is None:
            unsupported.append(f"{tensor.op.name}, made at {line_of(tensor.op)}")
        else:
            summaries.append(summary)
    if unsupported:
        warn_once(
            "Summaries must be outside of branches and loops, their tensors "
            "must have fixed shapes, and texts must be constants. These are "
            f"not written: {'; '.join(unsupported)}."
        )
    return summaries


def _written(graph: Any, summary_op: Any) -> list[Any]:
    import tensorflow as tf

    if summary_op is not None:
        return _merged(summary_op)
    tensors: list[Any] = graph.get_collection(tf.compat.v1.GraphKeys.SUMMARIES)
    return tensors


def operations(graph: Any, summary_op: Any = None) -> list[Any]:
    """Returns the operations of summaries of numbers, with the arguments of `recorded`.

    Their second input is the tensor that they record.
    """
    ops = [tensor.op for tensor in _written(graph, summary_op)]
    return [
        op
        for op in ops
        if op.graph is graph
        and op.type in _KINDS
        and op.inputs[1].shape.is_fully_defined()
    ]


def _merged(summary_op: Any) -> list[Any]:
    """Returns the summaries that an operation merges, each once."""
    import tensorflow as tf

    summaries: dict[str, Any] = {}
    waiting = tf.nest.flatten(summary_op)[::-1]
    while waiting:
        tensor = waiting.pop()
        if tensor.op.type in ("Identity", "MergeSummary"):
            waiting += tensor.op.inputs[::-1]
        else:
            summaries.setdefault(tensor.name, tensor)
    return list(summaries.values())


def _recorded(op: Any) -> Recorded | None:
    if op.type == _TENSOR:
        return _text(op)
    if op.type not in _KINDS:
        return None
    tag = static_value(op.inputs[0])
    tensor = op.inputs[1]
    if tag is None or tag.ndim or not tensor.shape.is_fully_defined():
        return None
    summary, prepare = _KINDS[op.type](tag.item().decode(), op)
    return Recorded(summary, tensor, prepare)


def _text(op: Any) -> Recorded | None:
    """Returns the summary of a constant text."""
    import tensorflow as tf

    tag, value, encoded = map(static_value, op.inputs)
    if tag is None or value is None or encoded is None:
        return None
    metadata = tf.compat.v1.SummaryMetadata.FromString(encoded.item())
    if metadata.plugin_data.plugin_name != "text":
        return None
    with op.graph.as_default(), tf.control_dependencies(None):
        # A number instead of the text, because devices do not support strings.
        tensor = tf.zeros([], name="kte_text")
    return Recorded(Text.from_data(tag.item().decode(), value, None), tensor, _same)


def _same(value: jax.Array) -> jax.Array:
    return value


def _scalar(tag: str, op: Any) -> tuple[Summary, Any]:
    del op
    return SimpleScalar(tag=tag), lambda value: value.reshape(())


def _histogram(tag: str, op: Any) -> tuple[Summary, Any]:
    del op
    return Histogram(tag=tag), _same


def _image(tag: str, op: Any) -> tuple[Summary, Any]:
    count = op.get_attr("max_images")
    return NumberedImages(tag=f"{tag}/image", max_outputs=count), _as_bytes


def _audio(tag: str, op: Any) -> tuple[Summary, Any]:
    rate = static_value(op.inputs[2])
    count = op.get_attr("max_outputs")
    summary = NumberedSounds(
        tag=f"{tag}/audio", sample_rate=int(rate), max_outputs=count
    )
    return summary, _same


def _as_bytes(images: jax.Array) -> jax.Array:
    """Scales images to bytes as TF1 does."""
    if images.dtype == jnp.uint8:
        return images
    images = images.astype("float32")
    low = images.min((1, 2, 3), keepdims=True)
    high = images.max((1, 2, 3), keepdims=True)
    # Zero is in the middle if there are negative values.
    most = jnp.maximum(jnp.maximum(high, -low), 1e-9)
    signed = images / most * 127 + 128
    shown = jnp.where(low < 0, signed, images / most * 255)
    return jnp.clip(shown, 0, 255).astype("uint8")


_TENSOR = "TensorSummaryV2"
_KINDS: dict[str, Callable[[str, Any], tuple[Summary, Any]]] = {
    "AudioSummaryV2": _audio,
    "HistogramSummary": _histogram,
    "ImageSummary": _image,
    "ScalarSummary": _scalar,
}
