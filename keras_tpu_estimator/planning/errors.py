"""The errors of compilers, with the user's source lines."""

import linecache
from collections.abc import Mapping, Sequence
from typing import Self

from keras_tpu_estimator.base.common.pickling import reduce_error
from keras_tpu_estimator.planning.memory import Allocation, ArrayBytes, shown_bytes


class CompileError(RuntimeError):
    """The compiler of a topology rejects an operation.

    Args:
        message: The compiler's message.
        operation: The name of the operation. Defaults to `None`: unknown.
        file: The file with the operation. Defaults to `""`: unknown.
        line: The line number of the operation. Defaults to 0: unknown.

    Example:

    >>> from keras_tpu_estimator.errors import CompileError
    >>> print(CompileError("It is illegal.", "mhlo.copy", "model.py", 7))
    The TPU compiler rejects the operation 'mhlo.copy' at model.py:7. ...
    """

    __reduce__ = reduce_error

    def __init__(
        self,
        message: str,
        operation: str | None = None,
        file: str = "",
        line: int = 0,
    ):
        self.message = message
        self.operation = operation
        self.file = file
        self.line = line
        what = f"the operation {operation!r}" if operation else "the program"
        where = f" at {file}:{line}" if file else ""
        code = linecache.getline(file, line).strip()
        super().__init__(
            f"The TPU compiler rejects {what}{where}. "
            + (f"The line is: {code}\n" if code else "")
            + "Replace it by operations that the compiler supports. "
            f"The compiler's message: {message}"
        )


class DoesNotFitError(RuntimeError):
    """The program needs more memory than a device has.

    Args:
        topology: The name of the topology, such as `"v5e:2x2"`.
        used: The bytes that one device needs.
        limit: The bytes that one device has.
        arguments: The bytes of weights, batches and other inputs by kind.
            Defaults to none.
        largest: The largest arrays that a step creates. Defaults to none.
        batch_size: A batch size that may fit according to an estimate, or 0 if none
            does. Defaults to `None`: unknown.
        is_compiled: Whether that batch size was compiled, and fits. Defaults
            to `False`.

    Example:

    >>> from keras_tpu_estimator.errors import DoesNotFitError
    >>> print(DoesNotFitError("v5e:2x2", 24 * 2**30, 16 * 2**30))
    The program does not fit: a core of v5e:2x2 has 16.00 GiB for programs, and
    this one needs 24.00 GiB. ...
    """

    __reduce__ = reduce_error

    def __init__(
        self,
        topology: str,
        used: int,
        limit: int,
        arguments: Mapping[str, ArrayBytes] | None = None,
        largest: Sequence[Allocation] = (),
        batch_size: int | None = None,
        is_compiled: bool = False,
    ):
        self.topology = topology
        self.used = used
        self.limit = limit
        self.arguments = dict(arguments or {})
        self.largest = tuple(largest)
        self.batch_size = batch_size
        self.is_compiled = is_compiled
        self.options: Mapping[str, object] = {}
        super().__init__(
            f"The program does not fit: a core of {topology} has "
            f"{shown_bytes(limit)} for programs, and this one needs "
            f"{shown_bytes(used)}."
            + self._arguments_text()
            + self._largest_text()
            + f"\n{self._to_change()}"
        )

    def advising(self, batch_size: int | None) -> Self:
        """Returns the same error with a batch size that was compiled."""
        return type(self)(
            self.topology,
            self.used,
            self.limit,
            self.arguments,
            self.largest,
            batch_size,
            is_compiled=True,
        )

    def add_options(self, options: Mapping[str, object]) -> None:
        """Adds fields of `RunConfig` and `TPUConfig` that were compiled and fit."""
        self.options = dict(options)
        settings = ", ".join(f"{name}={value!r}" for name, value in options.items())
        if settings:
            self.args = (f"{self}\nIt fits with {settings}: this was compiled.",)

    def _arguments_text(self) -> str:
        if not self.arguments:
            return ""
        kinds = ", ".join(
            f"{shown_bytes(size.real)} of {kind}"
            for kind, size in self.arguments.items()
        )
        return f" Its arguments take {kinds}."

    def _largest_text(self) -> str:
        if not self.largest:
            return ""
        listed = "".join(f"\n  {allocation}" for allocation in self.largest)
        return f" Its largest arrays are{listed}"

    def _to_change(self) -> str:
        spread = (
            "shard the model over several cores (`TPUConfig("
            "num_cores_per_replica=...)` with a layout), shard variables "
            "(`fsdp=True`) or optimizer state (`shard_optimizer=True`) over all "
            "cores, or store fewer activations "
            "(`RunConfig(remat=..., micro_batches=...)`)."
        )
        if self.batch_size and self.is_compiled:
            return (
                f"A batch size of {self.batch_size} fits: it was compiled. Use "
                f"it, or {spread}"
            )
        if self.batch_size:
            return (
                f"A batch size of {self.batch_size} may fit, according to an "
                f"estimate. Plan again with it, or {spread}"
            )
        if self.batch_size == 0:
            return (
                "Even without the batch, the program is too large: choose a "
                f"kind of TPU with more memory, or {spread}"
            )
        return f"Choose a smaller batch, or {spread}"
