"""The measurements of a trial, and their limits."""


class ViolationError(AssertionError):
    """A guarantee about durability was violated."""


def expect(holds: bool, promise: str) -> None:
    """Raises a `ViolationError` unless a guarantee holds."""
    if not holds:
        raise ViolationError(promise)


def table(figures: dict[str, object]) -> str:
    """Formats measurements, one per line."""
    width = max(map(len, figures))
    return "\n".join(f"{what:<{width}}  {n}" for what, n in figures.items())
