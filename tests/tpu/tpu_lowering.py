"""Programs of an estimator, lowered for TPUs that are not there."""

import dataclasses
import functools

import jax
import numpy as np
from jax.experimental import topologies

from keras_tpu_estimator.base.machine import Machine
from keras_tpu_estimator.base.modes import ModeKeys
from keras_tpu_estimator.device import shapes

MODES = (ModeKeys.TRAIN, ModeKeys.EVAL, ModeKeys.PREDICT)


@functools.cache
def devices_of(topology):
    """The devices of a topology such as "v5e:2x2"."""
    megacore = {"chip_config_name": "megacore"}
    options = megacore if topology.startswith("v4:") else {}
    made = topologies.get_topology_desc(topology, platform="tpu", **options)
    return tuple(made.devices)


@functools.cache
def machine_of(topology, host=0):
    """A topology as a host sees it, whose board is one of its own."""
    machine = Machine(devices_of(topology), host)
    if machine.num_hosts == 1:
        return machine
    kind, _, sizes = topology.partition(":")
    corners = np.array([device.coords for device in machine.own])
    sides = (np.ptp(corners, 0) + 1)[: 1 + sizes.count("x")]
    board = devices_of(f"{kind}:{'x'.join(map(str, sides))}")
    return dataclasses.replace(machine, board=board)


def job_on(estimator, topology="v5e:2x2", host=0):
    """What an estimator would be on a topology.

    Args:
        estimator: The estimator, which stays as it is.
        topology: The topology.
        host: The number of the host that this is.
    """
    job = estimator._job
    machine = machine_of(topology, host)
    placement = dataclasses.replace(job.placement, machine=machine)
    return dataclasses.replace(job, placement=placement)


# A number that no other dimension has.
STEPS = 7


def lowered(job, mode, input_fn, steps=STEPS):
    """The loop of a mode.

    Args:
        job: What `job_on` has returned.
        mode: A value of `ModeKeys`.
        input_fn: Of which one batch is read.
        steps: How many steps the loop has.
    """
    job.placement.check(mode)
    with job.pipeline(mode, input_fn, None, 1) as pipeline:
        batch, is_whole = pipeline.take(1), pipeline.is_whole
    layout, loop = job.runtime.model.layout(mode), job.runtime.loop
    features = of_shapes(lambda a: a.shape[1:], batch.features)
    if mode == ModeKeys.PREDICT:
        is_padding = jax.ShapeDtypeStruct([batch.examples], bool)
        one = shapes.of_steps(layout, mode, features, is_padding)
        return loop.trace(job.runtime.prepare(mode, *one), one).lower()
    nest = of_shapes(
        lambda a: (steps, *a.shape[1:]), (batch.features, batch.labels)
    )
    is_part = job.placement.cores.are_on_hosts and not is_whole
    stacked = shapes.of_steps(layout, mode, *nest, is_part)
    one = of_shapes(lambda a: a.shape[1:], stacked)
    return loop.trace(job.runtime.prepare(mode, *one), stacked).lower()


def of_shapes(shape_of, nest):
    """Shapes in place of arrays, from which a function makes them."""
    return jax.tree.map(
        lambda a: jax.ShapeDtypeStruct(shape_of(a), a.dtype), nest
    )
