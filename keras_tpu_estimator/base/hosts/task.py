"""The task of this process in the environment variable TF_CONFIG."""

import copy
import dataclasses
import json
import os
import re
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from keras_tpu_estimator.base.common.field_checks import directory_string
from keras_tpu_estimator.base.hosts.cluster import Cluster

# TF_CONFIG, or a part of it.
_Json: TypeAlias = Mapping[str, Any]
# The order in which processes are numbered.
_TRAINING = ("chief", "master", "worker")
_MEMBERS = (*_TRAINING, "ps")
_ALONE = Cluster()


@dataclasses.dataclass(frozen=True)
class Task:
    """The task of this process in its cluster, from TF_CONFIG.

    Args:
        task_type: `'chief'`, `'master'`, `'worker'`, `'ps'` or `'evaluator'`.
        task_id: Its number among the processes of its type.
        num_processes: The number of processes that train together, if no addresses
            are known.
        cluster_spec: Addresses by type. It is empty for a single process and for
            evaluators.
        master: The `session_master` of TF_CONFIG.
        evaluation_master: Its `eval_session_master`.
    """

    task_type: str = "worker"
    task_id: int = 0
    num_processes: int = 1
    cluster_spec: _Json = dataclasses.field(default_factory=dict)
    service: _Json | None = None
    master: str = ""
    evaluation_master: str = ""
    model_dir: str | None = None

    @classmethod
    def from_environment(cls, cluster: Cluster = _ALONE) -> "Task":
        """Reads TF_CONFIG; without processes in it, this is a worker of `cluster`."""
        config = _parsed(os.environ.get("TF_CONFIG"))
        addresses = _mapping(config, "cluster") or {}
        task = _mapping(config, "task") or {}
        if addresses:
            task_type, task_id = _cluster_task(addresses, task)
        else:
            _check_local_task(task)
            task_type, task_id = "worker", cluster.process_id
        return cls(
            task_type=task_type,
            task_id=task_id,
            num_processes=cluster.num_processes,
            cluster_spec={} if task_type == "evaluator" else addresses,
            service=_mapping(config, "service"),
            master=config.get("session_master") or "",
            evaluation_master=config.get("eval_session_master") or "",
            model_dir=_model_dir(config),
        )

    def in_cluster(self, cluster: Cluster) -> "Task":
        """Returns the task of this process in the cluster that it joined."""
        if cluster.is_alone or self.cluster_spec:
            return self
        return dataclasses.replace(
            self,
            task_id=cluster.process_id,
            num_processes=cluster.num_processes,
        )

    @property
    def is_chief(self) -> bool:
        """Whether this process writes files such as checkpoints."""
        return self.global_id_in_cluster == 0

    @property
    def num_ps_replicas(self) -> int:
        """The number of parameter servers."""
        return self._count(("ps",))

    @property
    def num_worker_replicas(self) -> int:
        """The number of processes that train."""
        if not self.cluster_spec:
            return 0 if self.task_type == "evaluator" else self.num_processes
        return self._count(_TRAINING)

    @property
    def global_id_in_cluster(self) -> int | None:
        """The number of this process; `None` for an evaluator."""
        if self.task_type == "evaluator":
            return None
        before = _MEMBERS[: _MEMBERS.index(self.task_type)]
        return self._count(before) + self.task_id

    @property
    def tpu_job_name(self) -> str | None:
        """The name of the TPU job in the `service` of TF_CONFIG."""
        return (self.service or {}).get("tpu_worker_job_name")

    @property
    def chief_address(self) -> Any:
        """The address of the chief in TF_CONFIG."""
        (address,) = _chief_addresses(self.cluster_spec)
        return address

    def addresses(self) -> dict[str, Any]:
        """Returns a copy of the addresses by type."""
        return copy.deepcopy(dict(self.cluster_spec))

    def _count(self, types: tuple[str, ...]) -> int:
        return sum(len(self.cluster_spec.get(task_type, ())) for task_type in types)


def _parsed(text: str | None) -> _Json:
    if not text:
        return {}
    try:
        config = json.loads(text)
    except json.JSONDecodeError as error:
        raise ValueError(
            f"TF_CONFIG must be JSON. Received: {text!r} ({error}). Unset it "
            "to run a single process."
        ) from error
    if not isinstance(config, Mapping):
        raise TypeError(
            f"TF_CONFIG must be a JSON object. Received: {text!r}. Unset it "
            "to run a single process."
        )
    return config


def _mapping(config: _Json, name: str) -> _Json | None:
    value = config.get(name)
    if value is not None and not isinstance(value, Mapping):
        raise TypeError(
            f"`{name}` in TF_CONFIG must be a dict. Received: {value!r} of "
            f"type {type(value).__name__}. Write a JSON object, or omit it."
        )
    return value


def _model_dir(config: _Json) -> str | None:
    value = config.get("model_dir")
    if value is None:
        return None
    return directory_string("`model_dir` in TF_CONFIG", value)


def _check_local_task(task: _Json) -> None:
    """Checks the task of a process without a cluster."""
    task_type = task.get("type", "worker")
    index = _index(task) if "index" in task else 0
    if task_type != "worker" or index != 0:
        raise ValueError(
            "Without a cluster, the task in TF_CONFIG must have the type "
            f"'worker' and the index 0. Received: {dict(task)}. Add the "
            "cluster, or omit the task."
        )


def _cluster_task(cluster: _Json, task: _Json) -> tuple[str, int]:
    """Returns the checked type and index of a process in a cluster."""
    _check_chief(cluster)
    task_type = task.get("type")
    if not task_type or task.get("index") is None:
        raise ValueError(
            "With a cluster, the task in TF_CONFIG must have a type and an "
            f"index. Received: {dict(task)}. Write, for instance, "
            '{"type": "worker", "index": 0}.'
        )
    index = _index(task)
    if task_type == "evaluator":
        _check_evaluator(cluster, index)
        return task_type, index
    members = [member for member in _MEMBERS if cluster.get(member)]
    if task_type not in members:
        raise ValueError(
            "The task type in TF_CONFIG must be 'evaluator' or in the "
            f"cluster, one of {members}. Received: {task_type!r}. Change it, "
            "or add addresses for it to the cluster."
        )
    size = len(cluster[task_type])
    if not 0 <= index < size:
        raise ValueError(
            f"The task index in TF_CONFIG must be from 0 to {size - 1}, "
            f"because the cluster has {size} of type {task_type!r}. Received: "
            f"{index}. Change it, or add the address to the cluster."
        )
    return task_type, index


def _index(task: _Json) -> int:
    raw = task["index"]
    # Launchers often write the number as a string.
    if not re.fullmatch(r"-?[0-9]+", str(raw)):
        raise ValueError(
            f"The task index in TF_CONFIG must be an int. Received: {raw!r}. "
            "Write a number such as 0."
        )
    return int(raw)


def _check_chief(cluster: _Json) -> None:
    if "chief" in cluster and "master" in cluster:
        raise ValueError(
            "The cluster in TF_CONFIG must have either a chief or a master. "
            f"Received both: {dict(cluster)}. Remove the master."
        )
    if len(_chief_addresses(cluster)) != 1:
        raise ValueError(
            "The cluster in TF_CONFIG must have exactly one chief (or "
            f"master). Received: {dict(cluster)}. Write one address under "
            "'chief', and the others under 'worker'."
        )


def _chief_addresses(cluster: _Json) -> Sequence[object]:
    return cluster.get("chief") or cluster.get("master") or ()


def _check_evaluator(cluster: _Json, index: int) -> None:
    if "master" in cluster:
        raise ValueError(
            "The cluster of an evaluator in TF_CONFIG must have a chief. "
            f"Received a master: {dict(cluster)}. Rename it to 'chief'."
        )
    if index < 0:
        raise ValueError(
            "The task index in TF_CONFIG must be at least 0. Received: "
            f"{index}. Number evaluators from 0."
        )
