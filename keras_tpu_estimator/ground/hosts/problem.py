"""Why a host has to end because of another one."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Problem:
    """Why this process has to end.

    Attributes:
        text: What has happened, in sentences.
        host: The host that it has happened to; `None` if that is not known.
        code: The exit code that belongs to it. Defaults to 1.
        hears: Whether that host is there, and hears what others say. Defaults
            to `False`.
        is_end: Whether its program has come to its end by itself. Defaults to
            `False`.
    """

    text: str
    host: int | None
    code: int = 1
    hears: bool = False
    is_end: bool = False
