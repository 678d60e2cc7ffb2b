"""Summaries for TensorBoard with the functions of `tf.summary`.

They do not need TensorFlow. On the host a summary goes to the default writer:

>>> import tempfile
>>> from keras_tpu_estimator import summary
>>> with summary.create_file_writer(tempfile.mkdtemp()).as_default():
...     summary.scalar("loss", 0.25, step=1)
True

In a `model_fn` a summary needs no writer. It is written to `model_dir` every
`save_summary_steps`, and to `eval_dir` at the end of an evaluation. In a
`host_call` the default step is that of the call.
"""

from keras_tpu_estimator.files.summary.event_writer import EventWriter
from keras_tpu_estimator.files.summary.metric_writer import MetricWriter
from keras_tpu_estimator.files.summary.metric_writers import (
    JsonLines,
    Mlflow,
    TensorBoard,
    Wandb,
)
from keras_tpu_estimator.files.summary.recording import (
    audio,
    histogram,
    image,
    record_if,
    scalar,
    text,
)
from keras_tpu_estimator.files.summary.writer import SummaryWriter, create_file_writer
from keras_tpu_estimator.summary import experimental

__all__ = [
    "EventWriter",
    "JsonLines",
    "MetricWriter",
    "Mlflow",
    "SummaryWriter",
    "TensorBoard",
    "Wandb",
    "audio",
    "create_file_writer",
    "experimental",
    "histogram",
    "image",
    "record_if",
    "scalar",
    "text",
]
