"""The content and the settings of an export, and the plans of its graphs."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Protocol, Self

from keras_tpu_estimator.api.config.run_config import RunConfig
from keras_tpu_estimator.base.common.modes import ModeKeys
from keras_tpu_estimator.base.common.shown import shown
from keras_tpu_estimator.base.common.types import PathLike
from keras_tpu_estimator.engine.program.bound_model_fn import TraceOptions
from keras_tpu_estimator.export import folders
from keras_tpu_estimator.export.receivers import (
    Receiver,
    ReceiverFn,
    ServingInputReceiver,
    SupervisedInputReceiver,
    TensorServingInputReceiver,
    UnsupervisedInputReceiver,
)
from keras_tpu_estimator.export.serving_graph import ServingGraph

TAGS = {
    ModeKeys.TRAIN: "train",
    ModeKeys.EVAL: "eval",
    ModeKeys.PREDICT: "serve",
}
SERVING = (ServingInputReceiver, TensorServingInputReceiver)
SUPERVISED = (SupervisedInputReceiver, UnsupervisedInputReceiver)


@dataclasses.dataclass(frozen=True)
class ExportSettings:
    """The settings of an estimator's exports.

    Attributes:
        to_cpu: Whether to write a metagraph with only the tag 'serve'.
        to_tpu: Whether to write a metagraph with the tags 'serve' and 'tpu'.
        api_version: 1 if both metagraphs contain the same model, or 2 if `model_fn` is
            called for each, for TPU with `params["use_tpu"]`.
        backend: The form of Keras layers: "jax" for one operation with an XLA module,
            or "tensorflow" for TensorFlow operations, in mode 'infer'.
        timeout_secs: The maximum seconds of each of its processes: the test of the
            export, and the rebuilding. `None` means no limit.
    """

    to_cpu: bool
    to_tpu: bool
    api_version: int
    seed: int | None
    options: TraceOptions | None = None
    backend: str = "jax"
    timeout_secs: float | None = None

    @classmethod
    def from_config(
        cls, config: RunConfig, to_cpu: bool, to_tpu: bool, api_version: int
    ) -> Self:
        """Returns the settings of an estimator."""
        return cls(
            to_cpu,
            to_tpu,
            api_version,
            config.tf_random_seed,
            dataclasses.replace(TraceOptions.of(config), records=False),
            config.export_backend,
            config.export_timeout_secs,
        )


@dataclasses.dataclass(frozen=True)
class Export:
    """The content of an export below the folder `base`, and its format.

    `assets_extra` are files by their paths below `assets.extra`.
    """

    base: PathLike
    receiver_fns: Mapping[str, ReceiverFn]
    assets_extra: Mapping[str, PathLike] | None = None
    as_text: bool = False
    strip_default_attrs: bool = True

    def __post_init__(self) -> None:
        if not self.receiver_fns:
            raise ValueError(
                "An export must have a receiver function for at least one mode. "
                "Received: an empty map. Pass {ModeKeys.PREDICT: receiver_fn}."
            )
        for mode, receiver_fn in self.receiver_fns.items():
            _check_receiver_fn(mode, receiver_fn)
        assets = folders.check_assets_extra(self.assets_extra)
        object.__setattr__(self, "assets_extra", assets)


@dataclasses.dataclass(frozen=True)
class GraphPlan:
    """One graph for one or several sets of tags, and the arguments of `model_fn` in it.

    The receiver function may return the types `kinds`.
    """

    mode: str
    tag_sets: Sequence[tuple[str, ...]]
    use_tpu: bool
    receiver_fn: ReceiverFn
    kinds: tuple[type[Receiver], ...]


class GraphBuilder(Protocol):
    """A builder of the graphs of an export; each front end has an implementation.

    If `is_tried`, the graphs are other programs than the model's own, and are tested.
    """

    is_tried: bool

    def build(self, plan: GraphPlan, checkpoint: str) -> ServingGraph:
        """Builds one graph from the checkpoint at a prefix."""


def _check_receiver_fn(mode: str, receiver_fn: object) -> None:
    if mode not in TAGS:
        raise ValueError(
            f"The modes of an export must be {sorted(TAGS)}. Received: {mode!r}. "
            "Use the values of ModeKeys."
        )
    if receiver_fn is None:
        raise ValueError(
            "The serving input receiver function must not be None. Received: "
            "None. Make one with export.build_raw_serving_input_receiver_fn."
        )
    if isinstance(receiver_fn, SERVING + SUPERVISED):
        raise TypeError(
            "The serving input receiver must be a function. Received: its "
            f"result, a {type(receiver_fn).__name__}. Omit the parentheses after "
            "the function's name."
        )
    if not callable(receiver_fn):
        raise TypeError(
            "The serving input receiver must be a function without "
            f"arguments. Received: {shown(receiver_fn)}. Pass a function."
        )
