"""Why the TPU's compiler has refused a program, in terms of its author."""

import linecache
from collections.abc import Mapping
from collections.abc import Sequence

from keras_tpu_estimator.planning.allocations import Allocation
from keras_tpu_estimator.planning.allocations import shown_bytes
from keras_tpu_estimator.planning.memory import Held


class CompileError(RuntimeError):
    """The compiler takes an operation of the program amiss.

    Args:
        said: What the compiler says.
        operation: The operation, if it names one.
        file: The file of the line that the operation comes from, or "".
        line: The number of that line, or 0.

    Example:

    >>> from keras_tpu_estimator.planning.errors import CompileError
    >>> print(CompileError("It is illegal.", "mhlo.copy", "model.py", 7))
    The TPU's compiler refuses the operation 'mhlo.copy' at model.py:7. ...
    """

    def __init__(
        self,
        said: str,
        operation: str | None = None,
        file: str = "",
        line: int = 0,
    ):
        self.said = said
        self.operation = operation
        self.file = file
        self.line = line
        what = f"the operation {operation!r}" if operation else "the program"
        where = f" at {file}:{line}" if file else ""
        code = linecache.getline(file, line).strip()
        super().__init__(
            f"The TPU's compiler refuses {what}{where}. "
            + (f"The line is: {code}\n" if code else "")
            + "Expected operations that it knows: write it in another way. "
            f"It says: {said}"
        )


class DoesNotFitError(RuntimeError):
    """A program needs more memory than a core has.

    Args:
        board: The name of the board.
        used: Bytes that it needs on a core.
        limit: Bytes that it can have.
        arguments: What of them is given to it, by kind.
        largest: The largest arrays that it makes.
        batch_size: One that would fit; 0 if none would, and `None` if that is
            not known.

    Example:

    >>> from keras_tpu_estimator.planning.errors import DoesNotFitError
    >>> print(DoesNotFitError("v5e:2x2", 24 * 2**30, 16 * 2**30))
    The program does not fit: a core of v5e:2x2 has 16.00 GiB for programs, and
    this one needs 24.00 GiB. ...
    """

    def __init__(
        self,
        board: str,
        used: int,
        limit: int,
        arguments: Mapping[str, Held] | None = None,
        largest: Sequence[Allocation] = (),
        batch_size: int | None = None,
    ):
        self.board = board
        self.used = used
        self.limit = limit
        self.arguments = dict(arguments or {})
        self.largest = tuple(largest)
        self.batch_size = batch_size
        super().__init__(
            f"The program does not fit: a core of {board} has "
            f"{shown_bytes(limit)} for programs, and this one needs "
            f"{shown_bytes(used)}."
            + self._given()
            + self._made()
            + f"\n{self._to_change()}"
        )

    def _given(self) -> str:
        if not self.arguments:
            return ""
        kinds = ", ".join(
            f"{shown_bytes(held.real)} of {kind}"
            for kind, held in self.arguments.items()
        )
        return f" It is given {kinds}."

    def _made(self) -> str:
        if not self.largest:
            return ""
        listed = "".join(f"\n  {each}" for each in self.largest)
        return f" The largest that it makes are{listed}"

    def _to_change(self) -> str:
        spread = (
            "spread the model over several cores (`TPUConfig("
            "num_cores_per_replica=...)` with a layout), the optimizer's slots "
            "over all (`shard_optimizer=True`), or keep fewer activations "
            "(`RunConfig(remat=..., micro_batches=...)`)."
        )
        if self.batch_size:
            return (
                f"A batch size of {self.batch_size} would fit by its shares: "
                f"choose a smaller batch, or {spread}"
            )
        if self.batch_size == 0:
            return (
                "What does not depend on the batch is too large by itself: "
                f"choose a larger kind of TPU, or {spread}"
            )
        return f"Choose a smaller batch, or {spread}"
