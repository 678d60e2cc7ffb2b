"""The task of this process in its cluster, as properties of a configuration."""

import copy
from collections.abc import Mapping
from typing import Any

from keras_tpu_estimator.base.hosts.task import Task


class TaskProperties:
    """A configuration that shows the task of this process, read from TF_CONFIG."""

    _task: Task

    @property
    def task_type(self) -> str:
        """The type of this process, from TF_CONFIG."""
        return self._task.task_type

    @property
    def task_id(self) -> int:
        """The number of this process among those of its type."""
        return self._task.task_id

    @property
    def is_chief(self) -> bool:
        """Whether this process saves checkpoints."""
        return self._task.is_chief

    @property
    def cluster_spec(self) -> dict[str, Any]:
        """The addresses of all processes by type."""
        return self._task.addresses()

    @property
    def num_ps_replicas(self) -> int:
        """Number of parameter servers."""
        return self._task.num_ps_replicas

    @property
    def num_worker_replicas(self) -> int:
        """Number of processes that train."""
        return self._task.num_worker_replicas

    @property
    def global_id_in_cluster(self) -> int | None:
        """Number of this process in the cluster; `None` for an evaluator."""
        return self._task.global_id_in_cluster

    @property
    def service(self) -> Mapping[str, Any] | None:
        """The `service` of TF_CONFIG."""
        return copy.deepcopy(self._task.service)
