"""The measurements of a trial, and their limits."""


class ViolationError(AssertionError):
    """A promise about durability was broken."""


def expect(holds: bool, promise: str) -> None:
    """Raises a `ViolationError` unless a promise was kept."""
    if not holds:
        raise ViolationError(promise)


def table(figures: dict[str, object]) -> str:
    """Figures by what they count, one a line."""
    width = max(map(len, figures))
    return "\n".join(f"{what:<{width}}  {n}" for what, n in figures.items())
