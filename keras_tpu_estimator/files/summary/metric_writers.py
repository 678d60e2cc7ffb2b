"""The metric writers by name, and several of them as one."""

from collections.abc import Iterable

from keras_tpu_estimator.files.summary.json_lines import JsonLines
from keras_tpu_estimator.files.summary.metric_writer import Foreign
from keras_tpu_estimator.files.summary.metric_writer import MetricWriter
from keras_tpu_estimator.files.summary.metric_writer import SeveralWriters
from keras_tpu_estimator.files.summary.mlflow import Mlflow
from keras_tpu_estimator.files.summary.mlflow import warn_of_autolog
from keras_tpu_estimator.files.summary.tensorboard import TensorBoard
from keras_tpu_estimator.files.summary.wandb import Wandb

_BY_NAME: dict[str, MetricWriter] = {
    "tensorboard": TensorBoard(),
    "jsonl": JsonLines(),
    "wandb": Wandb(),
    "mlflow": Mlflow(),
}


def opened(
    chosen: Iterable[object], directory: str, prefix: str
) -> SeveralWriters:
    """The writers of what comes from one place.

    Args:
        chosen: Their names, or writers.
        directory: As in `MetricWriter.at`, like the next one.
        prefix: See there.
    """
    return SeveralWriters(
        [_writer(each).at(directory, prefix) for each in chosen]
    )


def warn_if_autologging(chosen: Iterable[object]) -> None:
    """Warns if MLflow is expected to log what nobody gives to it.

    Args:
        chosen: As in `opened`.
    """
    if not any(isinstance(_writer(each), Mlflow) for each in chosen):
        warn_of_autolog()


def _writer(chosen: object) -> MetricWriter:
    if isinstance(chosen, str):
        return _BY_NAME[chosen]
    return chosen if isinstance(chosen, MetricWriter) else Foreign(chosen)
