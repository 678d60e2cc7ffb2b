"""The cores of a Keras distribution, or of the machine."""

import collections
import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import jax
import keras
import numpy as np

from keras_tpu_estimator.base.common.machine import Machine
from keras_tpu_estimator.base.common.topology import Topology
from keras_tpu_estimator.base.mesh.cores import ONE_CORE, Cores, hosts_of
from keras_tpu_estimator.base.mesh.variable_layout import (
    MODEL_AXIS,
    Rules,
    VariableLayout,
    rules_of,
)

_SLICE, _BATCH = "slice", "batch"


def all_cores(
    per_replica: int = 1,
    layout_map: Mapping[str, Any] | None = None,
    shard_optimizer: bool = False,
    machine: Machine | None = None,
    fsdp: bool = False,
) -> Cores:
    """Returns the cores of the current Keras distribution, or of the machine.

    Args:
        per_replica: The number of cores that a model is sharded over, without a
            distribution.
        layout_map: The sharding of variables, by patterns of their paths. `None` splits
            large variables. It must be `None` for replicas of one core.
        shard_optimizer: Whether the optimizer state is sharded over replicas.
        machine: The devices. Defaults to JAX's devices.
        fsdp: Whether variables are sharded over replicas.
    """
    used_machine = machine or Machine.from_jax()
    distribution = keras.distribution.distribution()
    batch_axes: tuple[str, ...] = (_BATCH,)
    sizes = None
    if distribution is None and len({*used_machine.slices}) > 1:
        batch_axes = (_SLICE, _BATCH)
    if distribution is None and (per_replica > 1 or len(batch_axes) > 1):
        mesh = _mesh(per_replica, used_machine, batch_axes)
        sizes = {MODEL_AXIS: per_replica} if per_replica > 1 else {}
    else:
        distribution = distribution or keras.distribution.DataParallel(
            devices=[*used_machine.devices], auto_shard_dataset=False
        )
        _check_kind(distribution)
        batch_axes = (distribution.batch_dim_name,)
        device_mesh = distribution.device_mesh
        mesh = (
            device_mesh.backend_mesh if machine is None else _on(machine, device_mesh)
        )
    rules = None if layout_map is None else rules_of(layout_map)
    return _of_mesh(mesh, batch_axes, sizes, rules, shard_optimizer, fsdp, used_machine)


def _on(
    machine: Machine, device_mesh: keras.distribution.DeviceMesh
) -> jax.sharding.Mesh:
    """Returns the mesh of a distribution, on the devices of a machine."""
    devices_by_name: dict[Any, jax.Device] = {
        device: device for device in machine.devices
    }
    devices_by_name |= {f"{d.platform}:{d.id}": d for d in machine.devices}
    named = [devices_by_name.get(name) for name in device_mesh.devices.flat]
    if None in named:
        if len(named) != len(machine.devices):
            raise ValueError(
                "The keras.distribution that is set must have all "
                f"{len(machine.devices)} devices of the machine. Received: "
                f"{len(named)}. Set one of that size, or unset it."
            )
        named = [*machine.devices]
    devices = np.array(named).reshape(device_mesh.devices.shape)
    return jax.sharding.Mesh(devices, device_mesh.axis_names)


def _check_kind(distribution: object) -> None:
    kinds = (keras.distribution.DataParallel, keras.distribution.ModelParallel)
    if not isinstance(distribution, kinds):
        raise ValueError(
            "The distribution of a TPUEstimator must be a DataParallel or a "
            f"ModelParallel of keras.distribution. Received: {distribution}. Set "
            "another with keras.distribution.set_distribution(...), or set "
            "None to use every device."
        )


def _of_mesh(
    mesh: jax.sharding.Mesh,
    batch_axes: tuple[str, ...],
    sizes: Mapping[str, int] | None,
    rules: Rules | None,
    shard_optimizer: bool,
    fsdp: bool,
    machine: Machine,
) -> Cores:
    """Returns the cores of a mesh.

    Args:
        batch_axes: The axes of replicas. Variables are sharded over the last one.
        sizes: The other axes by the names of layouts, and their sizes. Defaults to
            those of the mesh.
    """
    replicas = math.prod(mesh.shape[axis] for axis in batch_axes)
    topology = Topology(
        num_replicas=replicas,
        num_hosts=machine.num_hosts,
        host_index=machine.host,
        cores_per_replica=mesh.size // replicas,
        hosts_per_replica=_hosts_per_replica(mesh, batch_axes, machine.num_hosts),
    )
    if rules and topology.cores_per_replica == 1 and not fsdp:
        raise ValueError(
            "With `layout_map` a replica must have several cores, over which "
            f"variables are sharded. Received: {dict(rules)} for single cores. "
            "Set TPUConfig.num_cores_per_replica or RunConfig(fsdp=True), or "
            "omit `layout_map`."
        )
    if mesh.size == 1:
        device = mesh.devices.flat[0]
        return dataclasses.replace(ONE_CORE, topology=topology, device=device)
    model_axes = tuple(axis for axis in mesh.axis_names if axis not in batch_axes)
    layout = None
    if model_axes or shard_optimizer or fsdp:
        if sizes is None:
            sizes = {axis: mesh.shape[axis] for axis in model_axes}
        layout = VariableLayout(
            tuple(sizes.items()),
            (batch_axes[-1], mesh.shape[batch_axes[-1]]),
            rules,
            shard_optimizer,
            fsdp,
        )
    axes = batch_axes if replicas > 1 else ()
    return Cores(
        topology,
        mesh,
        axes=axes,
        model_axes=model_axes,
        layout=layout,
        substitutes=tuple(zip(machine.host_devices, machine.substitutes, strict=False)),
    )


def _mesh(
    per_replica: int, machine: Machine, batch_axes: tuple[str, ...]
) -> jax.sharding.Mesh:
    """Returns a mesh of replicas with several cores each, or on several slices.

    The cores of a replica have axes of size two, because each dimension of an input may
    be split over some of them.
    """
    sizes = collections.Counter(machine.slices)
    per_slice = machine.slices.count(machine.slices[0])
    is_even = {*sizes.values()} == {per_slice} and per_slice % per_replica == 0
    is_sorted = list(machine.slices) == sorted(machine.slices)
    if len(sizes) > 1 and not (is_even and is_sorted):
        raise ValueError(
            "The slices of a job must have equal numbers of devices, in their order, "
            f"and complete replicas of {per_replica} cores. Received slices of "
            f"{[*sizes.values()]} devices. Use slices of one topology, or change "
            "num_cores_per_replica."
        )
    # JAX creates this attribute on import.
    if per_replica > 1 and not jax.config.jax_use_shardy_partitioner:  # type: ignore[attr-defined]
        raise ValueError(
            "Models are sharded over several cores by JAX's Shardy "
            "partitioner. Received: jax_use_shardy_partitioner=False. Leave it "
            "on, or set num_cores_per_replica=None."
        )
    twos = per_replica.bit_length() - 1
    outer = (len(sizes),) if len(batch_axes) > 1 else ()
    devices = np.array(machine.devices).reshape(*outer, -1, *[2] * twos)
    return jax.sharding.Mesh(
        devices,
        (*batch_axes, *map(_part, range(twos))),
        axis_types=(jax.sharding.AxisType.Auto,) * devices.ndim,
    )


def _hosts_per_replica(
    mesh: jax.sharding.Mesh, batch_axes: tuple[str, ...], num_hosts: int
) -> int:
    """Returns the number of hosts of each replica, or raises a `ValueError`.

    Each host must have complete replicas, or be one of the hosts of a single replica.
    """
    if len(hosts_of(mesh)) == 1:
        return 1
    numbers = [mesh.axis_names.index(axis) for axis in batch_axes]
    devices = np.moveaxis(mesh.devices, numbers, range(len(numbers)))
    replicas = devices.reshape(math.prod(devices.shape[: len(numbers)]), -1)
    hosts = [sorted({d.process_index for d in replica}) for replica in replicas]
    count = len(hosts[0])
    per_host = max(1, len(hosts) * count // num_hosts)
    # Hosts read the parts of the input in this order.
    expected = [
        [number // per_host * count + k for k in range(count)]
        for number in range(len(hosts))
    ]
    if hosts != expected:
        raise ValueError(
            "Each host must have complete replicas, or each replica must have "
            "complete hosts, in their order. Received replicas on the hosts "
            f"{hosts}. Use another number of cores per replica."
        )
    return count


def _part(number: int) -> str:
    return f"{MODEL_AXIS}_{number}"
