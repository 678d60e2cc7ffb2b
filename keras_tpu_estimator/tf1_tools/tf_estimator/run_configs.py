"""The `RunConfig` classes of `tf.estimator` and `tf.estimator.tpu`."""

import dataclasses
import os
import pathlib
import sys
from types import FrameType
from typing import Any

from keras_tpu_estimator.api.config import run_config
from keras_tpu_estimator.api.config import tpu_config as core_config
from keras_tpu_estimator.base.common.logs import warn_once
from keras_tpu_estimator.tf1_tools.tf_estimator.tpu_config import TPUConfig

# The folder of this package.
_PACKAGE = str(pathlib.Path(__file__).parents[2]) + os.sep
# The files of code that dataclasses generate, and of the code that it calls.
_RECORDS = ("<string>", dataclasses.__file__)
_STRATEGIES = ("train_distribute", "eval_distribute", "experimental_distribute")


class _OfTF1(run_config.RunConfig):
    """A configuration made by a TF1 script.

    Such scripts set many fields that have no effect here, such as sessions and masters.
    One log line per process names them.
    """

    def __init__(
        self,
        tpu_config: core_config.TPUConfig | None = None,
        evaluation_master: str | None = None,
        master: str | None = None,
        cluster: Any = None,
        **kwargs: Any,
    ):
        _check_strategies(kwargs)
        super().__init__(
            tpu_config or TPUConfig(),
            evaluation_master,
            # With a resolver, the master comes from the resolver, which has none here.
            None if cluster is not None else master,
            cluster,
            **kwargs,
        )

    @property
    def cluster_spec(self) -> Any:
        """The addresses of all processes by type, as a `tf.train.ClusterSpec`."""
        import tensorflow as tf

        return tf.train.ClusterSpec(self._task.addresses())

    def replace(self, **kwargs: Any) -> run_config.RunConfig:
        """Returns a copy with other values of some fields."""
        _check_strategies(kwargs)
        return super().replace(**kwargs)

    def _warn_of(self, without_effect: list[str], stacklevel: int) -> None:
        """Logs the fields once. A warning would repeat for each configuration."""
        del stacklevel
        unused = [name for name in without_effect if name not in _STRATEGIES]
        if unused:
            warn_once(
                "These fields of RunConfig have no effect with JAX: "
                f"{', '.join(unused)}. Leave them out."
            )


class TPURunConfig(_OfTF1):
    """The counterpart of `tf.estimator.tpu.RunConfig`.

    Args:
        tpu_config: As in `keras_tpu_estimator.RunConfig`, like all others.
        evaluation_master: See there.
        master: See there.
        cluster: See there.
        **kwargs: See there.

    Raises:
        ValueError: A `tf.distribute` strategy has several replicas.

    Example:

    >>> TPURunConfig(master="grpc://10.0.0.2:8470", model_dir="/tmp/run").master
    'grpc://10.0.0.2:8470'
    """


class RunConfig(_OfTF1):
    """The counterpart of `tf.estimator.RunConfig`.

    Scripts recognize the RunConfig for TPUs by `hasattr(config, "tpu_config")`, so this
    one hides that field from code outside this package.

    Args:
        model_dir: As in `keras_tpu_estimator.RunConfig`, like all others.
        tf_random_seed: See there.
        save_summary_steps: See there.
        **kwargs: See there.

    Example:

    >>> RunConfig("/tmp/run", save_checkpoints_steps=100).model_dir
    '/tmp/run'
    """

    def __init__(
        self,
        model_dir: str | None = None,
        tf_random_seed: int | None = None,
        save_summary_steps: int | None = 100,
        **kwargs: Any,
    ):
        super().__init__(
            model_dir=model_dir,
            tf_random_seed=tf_random_seed,
            save_summary_steps=save_summary_steps,
            **kwargs,
        )

    def _set_masters(self) -> None:
        """Sets the masters; only those for TPUs also evaluate on `master`."""
        if self.evaluation_master is None:
            self._set("evaluation_master", self._task.evaluation_master)
        super()._set_masters()

    def __getattribute__(self, name: str) -> Any:
        if name == "tpu_config" and not _is_own(sys._getframe(1)):
            raise AttributeError(
                "A plain RunConfig has no `tpu_config`. Make a "
                "tf.estimator.tpu.RunConfig to set it."
            )
        return super().__getattribute__(name)


def _is_own(frame: FrameType) -> bool:
    """Returns whether a frame runs code of this package or of a generated record."""
    file = frame.f_code.co_filename
    return file.startswith(_PACKAGE) or file in _RECORDS


def _check_strategies(kwargs: dict[str, Any]) -> None:
    """Refuses strategies with several replicas, and warns of others.

    With one replica, TensorFlow computes the same with a strategy as without.
    """
    for name in _STRATEGIES:
        strategy = kwargs.get(name)
        if strategy is None:
            continue
        replicas = getattr(strategy, "num_replicas_in_sync", None)
        if replicas != 1:
            raise ValueError(
                f"`{name}` must be None or a strategy with one replica, because the "
                "batch is split over all devices that JAX has without a tf.distribute "
                f"strategy. Received: {strategy!r}"
                f"{f' with {replicas} replicas' if replicas else ''}. Use "
                "tf.estimator.tpu.TPUEstimator with use_tpu=True for several cores."
            )
        warn_once(
            f"`{name}` has no effect, because its {type(strategy).__name__} has one "
            "replica. Use tf.estimator.tpu.TPUEstimator with use_tpu=True for several "
            "cores."
        )
