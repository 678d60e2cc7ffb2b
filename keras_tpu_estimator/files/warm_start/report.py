"""What a warm start took from a checkpoint, as a table."""

import dataclasses

from keras_tpu_estimator.files.warm_start.pairing import Pairing

_HEADINGS = ("", "variable", "shape", "in the checkpoint", "shape there")


@dataclasses.dataclass(frozen=True)
class WarmStartReport:
    """Which variables were matched with a checkpoint, and which were not.

    Its `str` is a table.

    Attributes:
        checkpoint: The checkpoint.
        matched: Variables that start from it.
        missing: Variables that should, but are not in it.
        mismatched: Variables that should, but have another shape in it.
        unselected: Paths of variables that were not to start from it.
        unused: Names in it that no variable starts from.

    Example:

    >>> from keras_tpu_estimator.checkpoints import WarmStartReport
    >>> from keras_tpu_estimator.typing import Pairing
    >>> print(WarmStartReport(
    ...     "/model.ckpt-20", matched=(Pairing("a", (2,), "b", (2,)),),
    ...     unused=("c",)))
    Warm start from '/model.ckpt-20': 1 matched, 0 missing, 0 mismatched,
    0 unselected, 1 unused
               variable  shape  in the checkpoint  shape there
    matched    a         (2,)   b                  (2,)
    unused                      c
    """

    checkpoint: str
    matched: tuple[Pairing, ...] = ()
    missing: tuple[Pairing, ...] = ()
    mismatched: tuple[Pairing, ...] = ()
    unselected: tuple[str, ...] = ()
    unused: tuple[str, ...] = ()

    @property
    def is_complete(self) -> bool:
        """Whether all that should start from the checkpoint does."""
        return not self.missing and not self.mismatched

    def __str__(self) -> str:
        kinds = ("matched", "missing", "mismatched", "unselected", "unused")
        counts = ", ".join(
            f"{len(getattr(self, kind))} {kind}" for kind in kinds
        )
        rows = [_HEADINGS, *self._rows()]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = (
            "  ".join(map(str.ljust, row, widths)).rstrip() for row in rows
        )
        head = f"Warm start from {self.checkpoint!r}: {counts}"
        return "\n".join([head, *lines])

    def _rows(self) -> list[tuple[str, ...]]:
        # What is wrong comes first.
        kinds = ("missing", "mismatched", "matched")
        rows: list[tuple[str, ...]] = [
            (kind, pair.path, str(pair.shape), pair.name, _text(pair))
            for kind in kinds
            for pair in getattr(self, kind)
        ]
        rows += [("unselected", path, "", "", "") for path in self.unselected]
        rows += [("unused", "", "", name, "") for name in self.unused]
        return rows


def _text(pair: Pairing) -> str:
    return "none" if pair.stored_shape is None else str(pair.stored_shape)
