"""What the environment variable TF_CONFIG says about this process."""

import dataclasses
import json
import os
from collections.abc import Mapping
from typing import Any

_LOCAL = "worker"
_TYPES = ("chief", "evaluator", "master", "ps", "worker")


@dataclasses.dataclass(frozen=True)
class Task:
    """The part that this process has among others.

    Attributes:
        task_type: `chief`, `master`, `worker`, `ps` or `evaluator`.
        task_id: Its number among those of its type.
        cluster_spec: Addresses by type; empty for a process alone.
        service: The `service` of TF_CONFIG.
        master: Its `session_master`.
        evaluation_master: Its `eval_session_master`.
        model_dir: Its `model_dir`.
    """

    task_type: str = _LOCAL
    task_id: int = 0
    cluster_spec: Mapping[str, list[str]] = dataclasses.field(
        default_factory=dict
    )
    service: Mapping[str, Any] | None = None
    master: str = ""
    evaluation_master: str = ""
    model_dir: str | None = None

    @classmethod
    def from_environment(cls) -> "Task":
        """Reads TF_CONFIG.

        Raises:
            ValueError: It contradicts itself.
            TypeError: A part of it is of a wrong type.
        """
        text = os.environ.get("TF_CONFIG")
        config = json.loads(text) if text else {}
        cluster = config.get("cluster") or {}
        task = config.get("task") or {}
        service = config.get("service")
        if service is not None and not isinstance(service, Mapping):
            raise TypeError(
                "`service` in TF_CONFIG should be a dict. Received: "
                f"{service!r}"
            )
        task_type, task_id = _task(cluster, task)
        master = config.get("session_master", "")
        return cls(
            task_type=task_type,
            task_id=task_id,
            cluster_spec={} if task_type == "evaluator" else cluster,
            service=service,
            master=master,
            evaluation_master=config.get("eval_session_master", ""),
            model_dir=config.get("model_dir"),
        )

    @property
    def is_chief(self) -> bool:
        """Whether this process saves checkpoints."""
        if not self.cluster_spec:
            return self.task_type != "evaluator"
        return self.task_type in ("chief", "master")

    @property
    def num_ps_replicas(self) -> int:
        """Number of parameter servers."""
        return len(self.cluster_spec.get("ps", ()))

    @property
    def num_worker_replicas(self) -> int:
        """Number of processes that train."""
        if not self.cluster_spec:
            return 0 if self.task_type == "evaluator" else 1
        types = ("chief", "master", "worker")
        return sum(len(self.cluster_spec.get(each, ())) for each in types)

    @property
    def global_id_in_cluster(self) -> int | None:
        """Number of this process among all but evaluators."""
        if self.task_type == "evaluator":
            return None
        if not self.cluster_spec:
            return 0
        before = 0
        for each in ("chief", "master", "worker", "ps"):
            if each == self.task_type:
                return before + self.task_id
            before += len(self.cluster_spec.get(each, ()))
        return None


def _task(
    cluster: Mapping[str, Any], task: Mapping[str, Any]
) -> tuple[str, int]:
    """The type and index of this process, checked against the cluster."""
    task_type, index = task.get("type"), task.get("index")
    if not cluster:
        task_type = _LOCAL if task_type is None else task_type
        index = int(index or 0)
        if task_type == "evaluator":
            return task_type, index
        if task_type != _LOCAL or index != 0:
            raise ValueError(
                "Without a cluster, the task in TF_CONFIG should be of type "
                f"'worker' with index 0. Received: {dict(task)}"
            )
        return task_type, index
    _check_cluster(cluster)
    if task_type is None or index is None:
        raise ValueError(
            "With a cluster, the task in TF_CONFIG should have a type and an "
            f"index. Received: {dict(task)}"
        )
    if task_type not in _TYPES:
        raise ValueError(
            f"The task type in TF_CONFIG should be one of {list(_TYPES)}. "
            f"Received: {task_type!r}"
        )
    if task_type == "evaluator":
        if "master" in cluster:
            raise ValueError(
                "A cluster with a master has no evaluators. Received an "
                "evaluator in TF_CONFIG: use a chief instead of the master."
            )
        return task_type, int(index)
    size = len(cluster.get(task_type, ()))
    if not 0 <= int(index) < size:
        raise ValueError(
            f"The task index in TF_CONFIG should be from 0 to {size - 1} for "
            f"type {task_type!r}. Received: {index}"
        )
    return task_type, int(index)


def _check_cluster(cluster: Mapping[str, Any]) -> None:
    if "chief" in cluster and "master" in cluster:
        raise ValueError(
            "The cluster in TF_CONFIG should have a chief or a master. "
            "Received both."
        )
    chiefs = cluster.get("chief") or cluster.get("master") or ()
    if len(chiefs) != 1:
        raise ValueError(
            "The cluster in TF_CONFIG should have exactly one chief (or "
            f"master). Received: {dict(cluster)}"
        )
