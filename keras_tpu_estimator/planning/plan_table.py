"""A table of plans with one column for each topology."""

from collections.abc import Iterable, Iterator, Sequence

from keras_tpu_estimator.planning.costs import StepCost
from keras_tpu_estimator.planning.memory import Memory, shown_bytes
from keras_tpu_estimator.planning.plans import Plan, Refusal

_UNKNOWN = "not known"


_MINUTE = 60


def shown_seconds(seconds: float) -> str:
    """Returns a time in suitable units.

    >>> shown_seconds(2.5e-7), shown_seconds(0.0042), shown_seconds(3.21)
    ('250 ns', '4.2 ms', '3.21 s')
    >>> shown_seconds(59.97), shown_seconds(3599.6), shown_seconds(100_000)
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


def as_text(plans: Sequence[Plan | Refusal]) -> str:
    """Returns a table with a column for each topology, followed by remarks."""
    columns = [dict(_rows(plan)) for plan in plans]
    names = _in_order(columns)
    lines = [
        (f"Plan of mode {plans[0].mode!r}", *(p.topology.name for p in plans)),
        *((name, *(c.get(name, "") for c in columns)) for name in names),
    ]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    table = ["   ".join(map(str.ljust, line, widths)).rstrip() for line in lines]
    return "\n".join([*table, *_remarks(plans)])


def _in_order(columns: Iterable[Iterable[str]]) -> list[str]:
    """Returns the rows of all columns in an order that matches each column."""
    names: list[str] = []
    for column in columns:
        after = -1
        for name in column:
            if name not in names:
                names.insert(after + 1, name)
            after = names.index(name)
    return names


def _rows(plan: Plan | Refusal) -> Iterator[tuple[str, str]]:
    topology = plan.topology
    hosts = _counted(topology.num_hosts, "host")
    yield "cores", f"{topology.num_cores} on {hosts}"
    if isinstance(plan, Refusal):
        yield "compiles", "no, see below"
        return
    yield "compiles", f"yes, in {plan.compiling_secs:.1f} s"
    yield "steps of a program", f"{plan.steps:,}"
    yield "examples of a step", f"{plan.examples:,}"
    if plan.weights:
        yield "weights", f"{plan.weights:,}"
    yield "", ""
    yield from _memory(plan.cost.memory)
    yield " ", ""
    yield from _step(plan.cost)
    yield from _times(plan)


def _memory(memory: Memory) -> Iterator[tuple[str, str]]:
    peak = _UNKNOWN
    if memory.peak is not None and memory.share is not None:
        peak = (
            f"{shown_bytes(memory.peak)} of {shown_bytes(memory.limit)} "
            f"({memory.share:.0%})"
        )
    yield "memory of a core", peak
    kinds = {kind: size.real for kind, size in memory.arrays.items()}
    for kind, size in (
        *kinds.items(),
        ("results", memory.results),
        ("temporary", memory.temporary),
    ):
        if size:
            yield f"  {kind}", shown_bytes(size)


def _step(cost: StepCost) -> Iterator[tuple[str, str]]:
    yield "a step on a core computes", _flops(cost.flops)
    if cost.attentions:
        yield "  attentions without scores", f"{cost.attentions:,g}"
    if cost.bytes is not None:
        yield "  moves in its memory", shown_bytes(cost.bytes)
    for collective in cost.collectives:
        parts = " and ".join(
            f"{shown_bytes(size)} of {dtype}"
            for dtype, size in collective.bytes.items()
        )
        yield f"  {collective.kind}", f"{collective.count:,g} of {parts}"
    if cost.cycles is not None:
        yield "  cycles, by the compiler", f"{cost.cycles:,.0f}"
    roofline = cost.roofline
    if roofline is None:
        # A quick plan has no roofline.
        if cost.bytes is not None:
            yield "  is limited by", _UNKNOWN
        return
    yield "  is limited by", roofline.by
    for name in ("compute", "memory", "network"):
        yield f"  {name}, at least", shown_seconds(getattr(roofline, name))
    if roofline.by == "operations" and roofline.compiler is not None:
        yield "  operations, about", shown_seconds(roofline.compiler)


def _times(plan: Plan) -> Iterator[tuple[str, str]]:
    """Yields the throughput and the duration of the call at the roofline."""
    if plan.examples_per_second is not None:
        yield "  ", ""
        yield "examples/s, at best", f"{plan.examples_per_second:,.0f}"
    if plan.call_seconds is not None:
        steps = _counted(plan.call_steps or 0, "step")
        yield f"{steps}, at best", shown_seconds(plan.call_seconds)


def _remarks(plans: Iterable[Plan | Refusal]) -> Iterator[str]:
    for plan in plans:
        if isinstance(plan, Refusal):
            yield f"\n{plan.topology.name}: {plan.error}"
            continue
        if plan.saved is not None:
            yield f"\n{plan.topology.name}: stored as {plan.saved}"
        cost, name = plan.cost, plan.topology.name
        if cost.kernels:
            yield (
                f"\n{name}: the cost excludes these kernels: "
                f"{', '.join(sorted(set(cost.kernels)))}."
            )
        if cost.callbacks:
            yield (
                f"\n{name}: each step waits for Python on the host, called by: "
                f"{', '.join(cost.callbacks)}."
            )
        if cost.state_copies:
            listed = "".join(f"\n  {allocation}" for allocation in cost.state_copies)
            yield f"\n{name}: each step copies state:{listed}"
        if cost.has_unknown_loops:
            yield (
                f"\n{name}: some loops have an unknown number of rounds. One round "
                "of each is counted."
            )


def _counted(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def _flops(number: float | None) -> str:
    if number is None:
        return _UNKNOWN
    for unit, size in (("T", 1e12), ("G", 1e9), ("M", 1e6)):
        if number >= size:
            return f"{number / size:.3g} {unit}FLOP"
    return f"{number:,.0f} FLOP"
