"""How long something takes, as tables show it."""

_MINUTE = 60


def shown(seconds: float) -> str:
    """Returns a time with the units that suit it.

    Example:

    >>> shown(2.5e-7), shown(0.0042), shown(3.21)
    ('250 ns', '4.2 ms', '3.21 s')
    >>> shown(59.97), shown(3599.6), shown(100_000)
    ('1 min', '1 h', '1 d 3 h 47 min')
    """
    for unit, size in (("ns", 1e-9), ("µs", 1e-6), ("ms", 1e-3), ("s", 1.0)):
        # A number of three digits must stay below the next unit.
        limit = _MINUTE if unit == "s" else 1000
        if float(f"{seconds / size:.3g}") < limit:
            return f"{seconds / size:.3g} {unit}"
    minutes = round(seconds / _MINUTE)
    parts = (
        (minutes // (24 * 60), "d"),
        (minutes // 60 % 24, "h"),
        (minutes % 60, "min"),
    )
    return " ".join(f"{number} {unit}" for number, unit in parts if number)
