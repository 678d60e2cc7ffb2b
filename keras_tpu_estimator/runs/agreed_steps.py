"""Agreement of hosts: on settings, values, and the next steps of a divided input.

Hosts agree on the number of the next steps without using the devices. While all
have the same number of examples, no examples are sent. Otherwise, as at the end of
an evaluation, each host pads its part of the step, and the devices exchange the
examples. They then run one batch of the exact size, without padding.
"""

import dataclasses
import logging
import secrets
import tempfile
import zlib
from collections.abc import Mapping, Sequence
from typing import Any, Self

import jax
import numpy as np

from keras_tpu_estimator.base.common.modes import ModeKeys
from keras_tpu_estimator.base.common.topology import Topology
from keras_tpu_estimator.base.common.types import PyTree
from keras_tpu_estimator.base.hosts.agreement import Hosts
from keras_tpu_estimator.base.hosts.host_exchange import HostExchange
from keras_tpu_estimator.engine.device.run_state import RunState
from keras_tpu_estimator.engine.inputs import packing
from keras_tpu_estimator.engine.inputs.input_shapes import ElementSpec, mismatch_error
from keras_tpu_estimator.engine.inputs.pipeline import Pipeline
from keras_tpu_estimator.engine.inputs.stacking import Stack
from keras_tpu_estimator.engine.inputs.unbatched import joined_of_hosts, map_batched

_logger = logging.getLogger("keras_tpu_estimator")


def agreed(
    hosts: Hosts, model_dir: str | None, seed: int | None
) -> tuple[str, int | None]:
    """Returns the user's directory and seed, or the chief's, equal on all hosts."""
    with hosts.call("a TPUEstimator") as call:
        directory = model_dir or call.from_chief(_temporary_dir)
        if seed is None and hosts.are_several:
            seed = call.from_chief(lambda: secrets.randbits(31))
    return directory, seed


def _temporary_dir() -> str:
    directory = tempfile.mkdtemp()
    _logger.warning("Using temporary folder as model_dir: %s", directory)
    return directory


class SameEdits:
    """Checksums of the values assigned since the last comparison of hosts.

    `subject` is the call, as a verb.
    """

    def __init__(self, subject: str):
        self._subject = subject
        # Checksums of all values that were assigned to each path.
        self._checksums: dict[str, int] = {}

    def note(self, assigned: Mapping[str, Any]) -> None:
        """Adds the values that user code assigns, before they are on the cores."""
        for path, value in assigned.items():
            before = self._checksums.get(path, 0)
            self._checksums[path] = zlib.crc32(_content(value), before)

    def digest(self) -> int:
        """Returns a checksum that is equal for equal assigned values."""
        if not self._checksums:
            return 0
        return zlib.crc32(repr(sorted(self._checksums.items())).encode())

    def facts(self) -> dict[str, int]:
        """Returns the checksums by path."""
        return self._checksums

    def is_equal(self) -> None:
        """Resets the checksums after a successful comparison."""
        self._checksums = {}

    def error(self, facts: Sequence[Mapping[str, Any]]) -> ValueError:
        """Returns the error for different values, given the checksums of each host."""
        paths = sorted({path for checksums in facts for path in checksums})
        unlike = [p for p in paths if len({sums.get(p) for sums in facts}) > 1]
        received = "; ".join(
            f"for {path!r}, " + ", ".join(_assigned(path, facts)) for path in unlike
        )
        return ValueError(
            "Callbacks and hooks must assign the same values to variables on "
            f"all hosts, which {self._subject} one model together. Received: "
            f"{received}. Compute them from values that are equal on all hosts, "
            "such as the loss and the step, and seed random numbers; or compute "
            "them on one host, with session.by_chief(...) in a hook."
        )


def compare_edits(call: HostExchange, values: RunState, subject: str) -> None:
    """Makes hosts compare, at each exchange, the values that user code assigns."""
    if call.is_with_others:
        edits = SameEdits(subject)
        values.on_edit = edits.note
        call.compared = edits


def _assigned(path: str, facts: Sequence[Mapping[str, int]]) -> list[str]:
    return [
        f"host {host} has assigned "
        + (f"values of checksum {sums[path]:08x}" if path in sums else "none")
        for host, sums in enumerate(facts)
    ]


def _content(value: Any) -> bytes:
    """Returns the bytes of a value to compare."""
    head = f"{value.shape} {value.dtype}".encode()
    if (
        isinstance(value, jax.Array)
        and not value.is_fully_replicated
        and not value.is_fully_addressable
    ):
        # All hosts have computed it together, and each has other shards.
        return head
    return head + np.asarray(value).tobytes()


def check_same_model(
    call: HostExchange, values: Mapping[str, jax.Array], is_new: bool
) -> None:
    """Checks that variables, and new values of them, are equal on all hosts."""
    if not call.is_with_others:
        return
    shapes = {path: (v.shape, str(v.dtype)) for path, v in values.items()}
    facts = {
        "variables (of model_fn)": f"{len(shapes)} variables of "
        f"{sum(value.size for value in values.values())} numbers, "
        f"checksum {zlib.crc32(repr(sorted(shapes.items())).encode()):08x}"
    }
    if is_new:
        facts["initial values"] = f"checksum {_checksum(values):08x}"
    call.check_same(facts)


def _checksum(values: Mapping[str, jax.Array]) -> int:
    checksum = 0
    for path in sorted(values):
        if not values[path].is_fully_replicated:
            # All hosts have computed it together.
            continue
        array = np.asarray(values[path])
        checksum = zlib.crc32(array.tobytes(), checksum)
    return checksum


class AgreedSteps:
    """The steps of an input, of which each host takes the same number."""

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
        # Steps that were read but not used yet.
        self._unused: Stack | None = None
        self._used = 0
        # The specs of earlier batches, by structure, shapes and dtypes.
        self._specs: dict[Any, ElementSpec] = {}

    def take(self, steps: int) -> Stack | None:
        """Returns up to `steps` steps, a number that is equal on all hosts, or `None`.

        Training ends when the input of the first host ends.
        """
        stack = self._read(steps)
        if not self._are_several:
            return stack
        are_readers = self._topology.hosts_per_replica > 1
        spec = None if stack is None else self._spec(stack)
        report = _HostReport.from_stack(stack, spec, are_readers)
        reports = [
            _HostReport(*values)
            for values in self._exchange.gather(dataclasses.astuple(report))
        ]
        if not any(report.steps for report in reports):
            return None
        if self._mode == ModeKeys.TRAIN and not all(r.steps for r in reports):
            self._log_end(reports)
            return None
        self._check_specs(reports, spec)
        self._check_shared(reports)
        is_even = len({report.examples for report in reports}) == 1
        if self._pipeline.is_replicated:
            _check_same_sizes(reports)
            return self._use(stack, min(report.steps for report in reports))
        if is_even and report.examples % self._topology.replicas_per_host == 0:
            stack = self._use(stack, min(report.steps for report in reports))
            return dataclasses.replace(stack, is_part=True)
        sizes = [report.examples for report in reports]
        # Hosts that share a replica have the same examples.
        return self._padded(stack, sizes[:: self._topology.hosts_per_replica])

    def capacity(self, stack: Stack) -> int:
        """Returns the usual number of such steps in one program."""
        return 1 if stack.part_sizes else self._pipeline.capacity(stack)

    def agreed_size(self, size: int) -> int:
        """Returns the chief's size of the next loop in place of this host's."""
        agreed: int = self._exchange.from_chief(lambda: size)
        return agreed

    def give_up(self) -> None:
        """Ends a `take` that waits for other hosts."""
        self._exchange.close()

    def _read(self, steps: int) -> Stack | None:
        stack, self._unused = self._unused, None
        if stack is None:
            stack = self._pipeline.take(steps)
        if stack is not None and stack.steps > steps:
            stack, self._unused = stack.split(steps)
        return stack

    def _use(self, stack: Stack | None, steps: int) -> Stack:
        """Returns the first of the steps that were read, and puts back the others."""
        if stack is None:
            raise RuntimeError("There are no steps to use.")
        self._used += steps
        if stack.steps == steps:
            return stack
        stack, later = stack.split(steps)
        self._unused = Stack.joined([later, self._unused]) if self._unused else later
        return stack

    def _padded(self, stack: Stack | None, sizes: Sequence[int]) -> Stack:
        """Returns one step of which the hosts have parts of these sizes."""
        part = None if stack is None else self._use(stack, 1).tensors
        replicas = self._topology.replicas_per_host
        largest = -(-max(sizes) // replicas) * replicas

        def padded(like: np.ndarray, leaf: np.ndarray) -> np.ndarray:
            rows = np.zeros((1, largest, *like.shape[2:]), like.dtype)
            rows[:, : leaf.shape[1]] = leaf
            return rows

        empty = self._without_examples(part)
        features, labels = map_batched(padded, empty, empty if part is None else part)
        return Stack(features, labels, is_part=True, part_sizes=tuple(sizes))

    def _without_examples(self, part: PyTree) -> PyTree:
        """Returns the structure and shared tensors of all hosts' batches."""
        empty = None if part is None else map_batched(lambda leaf: leaf[:, :0], part)
        reports = self._exchange.gather_bytes(packing.to_bytes(empty))
        # Earlier batches have the same structure.
        structure = next((structure for structure, _ in self._specs), None)
        parts = [
            packing.from_bytes(report, structure) for report in dict.fromkeys(reports)
        ]
        return joined_of_hosts(
            [part for part in parts if part is not None],
            self._topology.replicas_per_host,
        )

    def _spec(self, stack: Stack) -> ElementSpec:
        """Returns the spec of a batch, computed once for each kind of batches."""
        leaves, structure = jax.tree.flatten(stack.tensors)
        key = structure, tuple((leaf.shape[2:], leaf.dtype) for leaf in leaves)
        if key not in self._specs:
            self._specs[key] = ElementSpec.from_stack(stack)
        return self._specs[key]

    def _check_specs(
        self, reports: list["_HostReport"], spec: ElementSpec | None
    ) -> None:
        """Checks that batches differ only in size and values."""
        if len({report.spec for report in reports if report.steps}) > 1:
            facts = None if spec is None else dict(spec.facts)
            raise mismatch_error(self._exchange.gather(facts))

    def _check_shared(self, reports: list["_HostReport"]) -> None:
        """Checks that hosts that share a replica have read the same examples."""
        count = self._topology.hosts_per_replica
        for first in range(0, len(reports), count):
            sharing = reports[first : first + count]
            if len({(report.examples, report.checksum) for report in sharing}) > 1:
                raise ValueError(
                    "Hosts that share a replica must read the same examples. "
                    f"Received different ones on hosts {first} to "
                    f"{first + count - 1}. Shuffle the input only with a seed, "
                    "and shard it by "
                    'params["context"].current_input_fn_deployment().'
                )

    def _log_end(self, reports: list["_HostReport"]) -> None:
        ended = [host for host, report in enumerate(reports) if not report.steps]
        unused = {
            f"host {host}": f"{report.steps} steps of {report.examples} examples"
            for host, report in enumerate(reports)
            if report.steps
        }
        _logger.warning(
            "The input of host %s has ended after %d steps, so that training "
            "ends on all hosts. Unused batches: %s. Make the inputs of all hosts "
            "equally long to use all examples.",
            ", ".join(map(str, ended)),
            self._used,
            ", ".join(f"{host} has {steps}" for host, steps in unused.items()),
        )


def _check_same_sizes(reports: list["_HostReport"]) -> None:
    sizes = [report.examples for report in reports]
    if len(set(sizes)) > 1:
        raise ValueError(
            "With BROADCAST or SLICED input, and with eval_on_tpu=False, "
            "input_fn must return the same batches on all hosts. Received "
            f"batches of {sizes} examples. Do not shard such input by host, or "
            "use PER_HOST_V2."
        )


@dataclasses.dataclass(frozen=True)
class _HostReport:
    """A host's ready steps: their number, examples, and the digest of their spec.

    If other hosts must have the same examples, it also has a checksum of the first
    step.
    """

    steps: int
    examples: int
    spec: int = 0
    checksum: int = 0

    @classmethod
    def from_stack(
        cls,
        stack: Stack | None,
        spec: ElementSpec | None,
        are_shared: bool,
    ) -> Self:
        if stack is None or spec is None:
            return cls(0, 0)
        checksum = 0
        if are_shared:
            for leaf in jax.tree.leaves(stack.tensors):
                first = np.ascontiguousarray(leaf[0])
                checksum = zlib.crc32(first.tobytes(), checksum)
        return cls(stack.steps, stack.examples, spec.digest, checksum)
