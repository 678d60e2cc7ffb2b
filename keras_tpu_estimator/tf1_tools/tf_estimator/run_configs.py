"""The two `RunConfig`s of TensorFlow."""

from typing import Any

from keras_tpu_estimator.ground.base.warned import warn_once
from keras_tpu_estimator.spec.config import run_config
from keras_tpu_estimator.spec.config.tpu_config import TPUConfig

_REFUSED = ("train_distribute", "eval_distribute", "experimental_distribute")


class TPURunConfig(run_config.RunConfig):
    """The counterpart of `tf.estimator.tpu.RunConfig`.

    Programs of the time set much that has no effect here, such as sessions and
    masters, in each configuration. One log line names it, once in a process.

    Args:
        tpu_config: As in `keras_tpu_estimator.RunConfig`, like all others.
        evaluation_master: See there.
        master: See there.
        cluster: See there.
        **kwargs: See there.

    Raises:
        ValueError: There is a `tf.distribute` strategy.

    Example:

    >>> TPURunConfig(master="grpc://10.0.0.2:8470", model_dir="/tmp/run").master
    'grpc://10.0.0.2:8470'
    """

    def __init__(
        self,
        tpu_config: TPUConfig | None = None,
        evaluation_master: str | None = None,
        master: str | None = None,
        cluster: Any = None,
        **kwargs: Any,
    ):
        _refuse_strategies(kwargs)
        super().__init__(
            tpu_config or TPUConfig(),
            evaluation_master,
            # The resolver's, which has none here.
            None if cluster is not None else master,
            cluster,
            **kwargs,
        )

    @property
    def cluster_spec(self) -> Any:
        """Addresses of all processes by type, as a `tf.train.ClusterSpec`."""
        import tensorflow as tf

        return tf.train.ClusterSpec(self._task.addresses())

    def replace(self, **kwargs: Any) -> run_config.RunConfig:
        """A copy with other values of some fields, as there."""
        _refuse_strategies(kwargs)
        return super().replace(**kwargs)

    def _warn_of(self, without_effect: list[str], stacklevel: int) -> None:
        """Logs it, since warnings would show it for each configuration."""
        del stacklevel
        if without_effect:
            warn_once(
                "These fields of RunConfig have no effect with JAX: "
                f"{', '.join(without_effect)}. Leave them out."
            )


class RunConfig(TPURunConfig):
    """The counterpart of `tf.estimator.RunConfig`.

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


def _refuse_strategies(kwargs: dict[str, Any]) -> None:
    for name in _REFUSED:
        if kwargs.get(name) is not None:
            raise ValueError(
                f"`{name}` should be None: the batch is split over all cores "
                "that JAX has without a tf.distribute strategy. Received: "
                f"{kwargs[name]!r}. Use tf.estimator.tpu.TPUEstimator with "
                "use_tpu=True for several cores."
            )
