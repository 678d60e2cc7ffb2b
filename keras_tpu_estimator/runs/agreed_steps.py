"""The next steps of an input that all hosts read, each its own part.

Hosts agree on how many steps come next, out of band, ahead of the devices. As
long as all have as many examples, no host sends any to another. Otherwise, as
at the end of an evaluation, the examples of a step travel to all, who then
have one batch of its true size: nothing is padded, and nothing is lost.
"""

import dataclasses
import logging
import zlib
from typing import Any, Self

import jax
import numpy as np

from keras_tpu_estimator.engine.inputs import batch_bytes
from keras_tpu_estimator.engine.inputs.batch import StackedSteps
from keras_tpu_estimator.engine.inputs.batch_form import BatchForm, error_of_unlike
from keras_tpu_estimator.engine.inputs.pipeline import Pipeline
from keras_tpu_estimator.engine.inputs.unbatched import joined_of_hosts
from keras_tpu_estimator.ground.base.modes import ModeKeys
from keras_tpu_estimator.ground.base.topology import Topology
from keras_tpu_estimator.ground.hosts.agreement import Hosts

_logger = logging.getLogger("keras_tpu_estimator")


@dataclasses.dataclass(frozen=True)
class AgreedBatch:
    """Steps that come next on all hosts.

    Attributes:
        is_part: Whether other hosts have other parts of the same steps.
        room: How many steps like these a program usually makes at once.
    """

    stacked: StackedSteps
    is_part: bool
    room: int


class AgreedSteps:
    """The steps of an input, as many on each host."""

    def __init__(
        self,
        mode: str,
        pipeline: Pipeline,
        hosts: Hosts,
        topology: Topology,
    ):
        self._mode = mode
        self._pipeline = pipeline
        self._are_several = hosts.are_several
        self._topology = topology
        self._exchange = hosts.exchange(f"the input of {mode}")
        # Steps that were read, but could not be used yet.
        self._rest: StackedSteps | None = None
        self._batch: StackedSteps | None = None
        self._used = 0
        # Those of the batches before, by what tells them apart at once.
        self._forms: dict[Any, BatchForm] = {}

    def take(self, steps: int) -> AgreedBatch | None:
        """Up to so many steps; `None` at the end of the input.

        In training it ends with the first host's.

        Args:
            steps: The same on all hosts.

        Raises:
            HostError: Another host has failed, is gone or does not answer.
            ValueError: Hosts have batches that differ in more than their size.
        """
        stacked = self._read(steps)
        if not self._are_several:
            return None if stacked is None else self._agreed(stacked)
        are_readers = self._topology.hosts_per_replica > 1
        form = None if stacked is None else self._form(stacked)
        own = _HostReport.of(stacked, form, are_readers)
        reports = [
            _HostReport(*each)
            for each in self._exchange.gather(dataclasses.astuple(own))
        ]
        if not any(each.steps for each in reports):
            return None
        if self._mode == ModeKeys.TRAIN and not all(e.steps for e in reports):
            self._tell_end(reports)
            return None
        self._check_forms(reports, form)
        self._check_shared(reports)
        is_even = len({each.examples for each in reports}) == 1
        if self._pipeline.is_whole:
            _check_whole(reports)
            return self._agreed(self._use(min(e.steps for e in reports)))
        if is_even and own.examples % self._topology.replicas_per_host == 0:
            part = self._use(min(e.steps for e in reports))
            return self._agreed(part, is_part=True)
        return self._agreed(self._of_all())

    def chiefs_size(self, size: int) -> int:
        """The size that the chief wants the next loop to have.

        Args:
            size: What this host would have.
        """
        chiefs: int = self._exchange.from_chief(lambda: size)
        return chiefs

    def give_up(self) -> None:
        """Ends a `take` that waits for other hosts."""
        self._exchange.close()

    def _agreed(self, stacked: StackedSteps, is_part: bool = False) -> AgreedBatch:
        room = self._pipeline.room(stacked)
        return AgreedBatch(stacked, is_part, room)

    def _read(self, steps: int) -> StackedSteps | None:
        stacked, self._rest = self._rest, None
        if stacked is None:
            stacked = self._pipeline.take(steps)
        if stacked is not None and stacked.steps > steps:
            stacked, self._rest = stacked.split(steps)
        self._batch = stacked
        return stacked

    def _use(self, steps: int) -> StackedSteps:
        """The first steps of those that were read; the others come next."""
        stacked = self._batch
        if stacked is None:
            raise RuntimeError("There are no steps to use.")
        self._used += steps
        if stacked.steps == steps:
            return stacked
        stacked, rest = stacked.split(steps)
        self._rest = StackedSteps.joined([rest, self._rest]) if self._rest else rest
        return stacked

    def _of_all(self) -> StackedSteps:
        """One step with the examples of all hosts, in their order."""
        own = None if self._batch is None else self._use(1)
        nest = None if own is None else (own.features, own.labels)
        reports = self._exchange.gather_bytes(batch_bytes.to_bytes(nest))
        # Of hosts that share a replica, the first one's.
        reports = reports[:: self._topology.hosts_per_replica]
        # Any of those before is nested in the same way.
        known = next((structure for structure, _ in self._forms), None)
        parts = [
            part
            for each in reports
            if (part := batch_bytes.from_bytes(each, known)) is not None
        ]
        return StackedSteps(*joined_of_hosts(parts, self._topology.num_replicas))

    def _form(self, stacked: StackedSteps) -> BatchForm:
        """What a batch is like, looked at once for each kind of batches."""
        leaves, structure = jax.tree.flatten((stacked.features, stacked.labels))
        key = structure, tuple((leaf.shape[2:], leaf.dtype) for leaf in leaves)
        if key not in self._forms:
            self._forms[key] = BatchForm.of(stacked)
        return self._forms[key]

    def _check_forms(
        self, reports: list["_HostReport"], form: BatchForm | None
    ) -> None:
        """Checks that batches differ in nothing but their size and values."""
        if len({each.form for each in reports if each.steps}) > 1:
            facts = None if form is None else dict(form.facts)
            raise error_of_unlike(self._exchange.gather(facts))

    def _check_shared(self, reports: list["_HostReport"]) -> None:
        """Checks that hosts which share a replica have read the same."""
        count = self._topology.hosts_per_replica
        for first in range(0, len(reports), count):
            some = reports[first : first + count]
            if len({(each.examples, each.checksum) for each in some}) > 1:
                raise ValueError(
                    "Hosts that have a replica together should read the same "
                    f"examples. Received others on the hosts {first} to "
                    f"{first + count - 1}. Do not shuffle the input without a "
                    "seed, and shard it by "
                    'params["context"].current_input_fn_deployment().'
                )

    def _tell_end(self, reports: list["_HostReport"]) -> None:
        ended = [host for host, each in enumerate(reports) if not each.steps]
        left = {
            f"host {host}": f"{each.steps} steps of {each.examples} examples"
            for host, each in enumerate(reports)
            if each.steps
        }
        _logger.warning(
            "The input of host %s has ended after %d steps, and so does "
            "training on all hosts. Of what was read already, there is left: "
            "%s.",
            ", ".join(map(str, ended)),
            self._used,
            ", ".join(f"{host} has {what}" for host, what in left.items()),
        )


def _check_whole(reports: list["_HostReport"]) -> None:
    sizes = [each.examples for each in reports]
    if len(set(sizes)) > 1:
        raise ValueError(
            "With BROADCAST or SLICED input, and with eval_on_tpu=False, "
            "input_fn should give the same batches on all hosts. Received "
            f"batches of {sizes} examples. Do not shard such input by host, or "
            "use PER_HOST_V2."
        )


@dataclasses.dataclass(frozen=True)
class _HostReport:
    """How many steps a host has ready, the examples of each, and their form.

    Where others should have the same, also a checksum of the first step.
    """

    steps: int
    examples: int
    form: int = 0
    checksum: int = 0

    @classmethod
    def of(
        cls,
        stacked: StackedSteps | None,
        form: BatchForm | None,
        are_shared: bool,
    ) -> Self:
        if stacked is None or form is None:
            return cls(0, 0)
        checksum = 0
        if are_shared:
            for leaf in jax.tree.leaves((stacked.features, stacked.labels)):
                first = np.ascontiguousarray(leaf[0])
                checksum = zlib.crc32(first.tobytes(), checksum)
        return cls(stacked.steps, stacked.examples, form.digest, checksum)
