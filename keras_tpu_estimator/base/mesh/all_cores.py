"""The cores of a Keras distribution, or of the machine."""

import dataclasses
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

_BATCH = "batch"


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
    batch_axis = _BATCH
    sizes = None
    if distribution is None and per_replica > 1:
        mesh, sizes = _mesh(per_replica, used_machine), {MODEL_AXIS: per_replica}
    else:
        distribution = distribution or keras.distribution.DataParallel(
            devices=[*used_machine.devices], auto_shard_dataset=False
        )
        _check_kind(distribution)
        batch_axis = distribution.batch_dim_name
        device_mesh = distribution.device_mesh
        mesh = (
            device_mesh.backend_mesh if machine is None else _on(machine, device_mesh)
        )
    rules = None if layout_map is None else rules_of(layout_map)
    return _of_mesh(mesh, batch_axis, sizes, rules, shard_optimizer, fsdp, used_machine)


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
    batch_axis: str,
    sizes: Mapping[str, int] | None,
    rules: Rules | None,
    shard_optimizer: bool,
    fsdp: bool,
    machine: Machine,
) -> Cores:
    """Returns the cores of a mesh that has one axis of replicas.

    Args:
        sizes: The other axes by the names of layouts, and their sizes. Defaults to
            those of the mesh.
    """
    replicas = mesh.shape[batch_axis]
    topology = Topology(
        num_replicas=replicas,
        num_hosts=machine.num_hosts,
        host_index=machine.host,
        cores_per_replica=mesh.size // replicas,
        hosts_per_replica=_hosts_per_replica(mesh, batch_axis, machine.num_hosts),
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
    model_axes = tuple(axis for axis in mesh.axis_names if axis != batch_axis)
    layout = None
    if model_axes or shard_optimizer or fsdp:
        if sizes is None:
            sizes = {axis: mesh.shape[axis] for axis in model_axes}
        layout = VariableLayout(
            tuple(sizes.items()),
            (batch_axis, replicas),
            rules,
            shard_optimizer,
            fsdp,
        )
    axes = (batch_axis,) if replicas > 1 else ()
    return Cores(
        topology,
        mesh,
        axes=axes,
        model_axes=model_axes,
        layout=layout,
        substitutes=tuple(zip(machine.host_devices, machine.substitutes, strict=False)),
    )


def _mesh(per_replica: int, machine: Machine) -> jax.sharding.Mesh:
    """Returns a mesh of replicas with several cores each.

    The cores of a replica have axes of size two, because each dimension of an input may
    be split over some of them.
    """
    # JAX creates this attribute on import.
    if not jax.config.jax_use_shardy_partitioner:  # type: ignore[attr-defined]
        raise ValueError(
            "Models are sharded over several cores by JAX's Shardy "
            "partitioner. Received: jax_use_shardy_partitioner=False. Leave it "
            "on, or set num_cores_per_replica=None."
        )
    twos = per_replica.bit_length() - 1
    devices = np.array(machine.devices).reshape(-1, *[2] * twos)
    return jax.sharding.Mesh(
        devices,
        (_BATCH, *map(_part, range(twos))),
        axis_types=(jax.sharding.AxisType.Auto,) * (twos + 1),
    )


def _hosts_per_replica(mesh: jax.sharding.Mesh, batch_axis: str, num_hosts: int) -> int:
    """Returns the number of hosts of each replica, or raises a `ValueError`.

    Each host must have complete replicas, or be one of the hosts of a single replica.
    """
    if len(hosts_of(mesh)) == 1:
        return 1
    axis = mesh.axis_names.index(batch_axis)
    replicas = np.moveaxis(mesh.devices, axis, 0).reshape(mesh.shape[batch_axis], -1)
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
