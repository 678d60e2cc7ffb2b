"""Programs of an estimator, compiled for TPUs that are not there."""

import dataclasses
import functools
import os

import jax
import numpy as np
from jax.experimental import topologies

from keras_tpu_estimator.base.machine import Machine
from keras_tpu_estimator.base.modes import ModeKeys
from keras_tpu_estimator.device import shapes

# Else libtpu asks the network where it is, and lets one process have it.
os.environ["TPU_SKIP_MDS_QUERY"] = "1"
os.environ["ALLOW_MULTIPLE_LIBTPU_LOAD"] = "1"
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


def lowered(estimator, input_fn, mode, topology="v5e:2x2", steps=2, host=0):
    """The loop of a mode, as a host lowers it.

    Args:
        estimator: The estimator, which has not run yet.
        input_fn: Of which one batch is read.
        mode: A value of `ModeKeys`.
        topology: What it is lowered for.
        steps: How many steps the loop has.
        host: The number of the host.
    """
    job = estimator._job
    placement = dataclasses.replace(
        job.placement, machine=machine_of(topology, host)
    )
    job = dataclasses.replace(job, placement=placement)
    placement.check(mode)
    with job.pipeline(mode, input_fn, None, 1) as pipeline:
        batch, is_whole = pipeline.take(1), pipeline.is_whole
    layout = job.runtime.model.layout(mode)
    nest = batch.features, batch.labels
    if mode == ModeKeys.PREDICT:
        features = _shapes(lambda a: a.shape[1:], batch.features)
        is_padding = jax.ShapeDtypeStruct([batch.examples], bool)
        stacked = one = shapes.of_steps(layout, mode, features, is_padding)
    else:
        nest = _shapes(lambda a: (steps, *a.shape[1:]), nest)
        is_part = placement.cores.are_on_hosts and not is_whole
        stacked = shapes.of_steps(layout, mode, *nest, is_part)
        one = _shapes(lambda a: a.shape[1:], stacked)
    step = job.runtime.prepare(mode, *one)
    return job.runtime.loop.lower(step, stacked)


def _shapes(shape_of, nest):
    return jax.tree.map(
        lambda a: jax.ShapeDtypeStruct(shape_of(a), a.dtype), nest
    )
