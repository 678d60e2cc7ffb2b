"""The cluster resolver that scripts pass to a `RunConfig`."""

import logging
from typing import Any

_logger = logging.getLogger("keras_tpu_estimator")


class TPUClusterResolver:
    """Accepts the name of a TPU, and resolves it to the devices of JAX.

    The counterpart of `tf.contrib.cluster_resolver.TPUClusterResolver`, which requested
    addresses from Google Cloud.

    Args:
        *args: Accepted; have no effect.
        **kwargs: Accepted; have no effect.

    Example:

    >>> TPUClusterResolver("my-tpu", zone="us-central1-b").master()
    ''
    """

    def __init__(self, *args: Any, **kwargs: Any):
        del args, kwargs

    def master(self, *args: Any, **kwargs: Any) -> str:
        """Returns the address of a session's master, which is empty."""
        del args, kwargs
        return ""

    def get_master(self) -> str:
        """Returns the same as `master`, under its older name."""
        return self.master()

    def get_job_name(self) -> None:
        """Returns the name of the job, which is `None`."""

    def cluster_spec(self) -> Any:
        """Returns the processes of the cluster, which is empty."""
        import tensorflow as tf

        return tf.train.ClusterSpec({})

    def num_accelerators(self, *args: Any, **kwargs: Any) -> dict[str, int]:
        """Returns the number of devices of this process."""
        del args, kwargs
        import jax

        return {"TPU": jax.local_device_count()}


def experimental_connect_to_cluster(
    cluster_spec_or_resolver: Any, *args: Any, **kwargs: Any
) -> None:
    """Logs that there is no cluster to connect to.

    Args:
        cluster_spec_or_resolver: Accepted; has no effect.
        *args: Accepted; have no effect.
        **kwargs: Accepted; have no effect.
    """
    del cluster_spec_or_resolver, args, kwargs
    _logger.info("The devices are those of JAX. No cluster needs a connection.")


def initialize_tpu_system(cluster_resolver: Any = None) -> None:
    """Logs that JAX starts the TPU when it is first used.

    Args:
        cluster_resolver: Accepted; has no effect.
    """
    del cluster_resolver
    _logger.info("JAX starts the TPU when it is first used.")
