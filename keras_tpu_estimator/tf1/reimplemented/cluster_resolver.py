"""The cluster resolver that programs give a `RunConfig`, and connect to."""

import logging
from typing import Any

_logger = logging.getLogger("keras_tpu_estimator")


class TPUClusterResolver:
    """Accepts the name of a TPU, and resolves it to the cores of JAX.

    The counterpart of `tf.contrib.cluster_resolver.TPUClusterResolver`, which
    asked Google Cloud for addresses.

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
        """The address of a session's master: none."""
        del args, kwargs
        return ""

    def get_master(self) -> str:
        """The same, as it was called before."""
        return self.master()

    def get_job_name(self) -> None:
        """The name of the job: none."""

    def cluster_spec(self) -> Any:
        """The processes of the cluster: this one."""
        import tensorflow as tf

        return tf.train.ClusterSpec({})

    def num_accelerators(self, *args: Any, **kwargs: Any) -> dict[str, int]:
        """How many cores there are."""
        del args, kwargs
        import jax

        return {"TPU": jax.local_device_count()}


def experimental_connect_to_cluster(
    cluster_spec_or_resolver: Any, *args: Any, **kwargs: Any
) -> None:
    """Says in the log that there is nothing to connect to.

    Args:
        cluster_spec_or_resolver: Accepted, like all others.
        *args: See there.
        **kwargs: See there.
    """
    del cluster_spec_or_resolver, args, kwargs
    _logger.info("The cores are those of JAX: there is no cluster to connect to.")


def initialize_tpu_system(cluster_resolver: Any = None) -> None:
    """Says in the log that JAX starts the TPU when it is used.

    Args:
        cluster_resolver: Accepted; has no effect.
    """
    del cluster_resolver
    _logger.info("JAX starts the TPU when it is used.")
