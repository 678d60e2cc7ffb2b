"""The layer in which two forward passes begin to differ."""

import numpy as np

from keras_tpu_estimator.workflow.comparing.dataflow import (
    INPUT,
    STATISTICS,
    Dataflow,
    ForwardPass,
    Operation,
)
from keras_tpu_estimator.workflow.comparing.layers import first_difference


def flow(*layers: tuple[str, set[str], float]) -> Dataflow:
    """Returns operations that follow each other, by name, variables and value."""
    operations, variables = [], {INPUT}
    for number, (name, of_layer, _) in enumerate(layers):
        variables = variables | of_layer
        sources = (number - 1,) if number else ()
        operations.append(Operation(name, frozenset(variables), 4, True, sources, None))
    statistics = np.array([np.full(STATISTICS, value) for *_, value in layers])
    return Dataflow(ForwardPass(tuple(operations), (), 1), statistics)


def test_moving_averages_in_one_program_are_no_layers() -> None:
    old = flow(
        ("conv", {"w"}, 1.0), ("fused", {"gamma", "mean"}, 2.0), ("loss", {"b"}, 3)
    )
    new = flow(("conv", {"w"}, 1.0), ("norm", {"gamma"}, 2.0), ("loss", {"b"}, 4))
    trained = frozenset({"w", "gamma", "b"})
    layer = first_difference(old, new, frozenset, trained, 1e-5)
    assert layer is not None
    assert layer.differs.name == "loss"
    assert "equal up to `b`" in str(layer)
    # A trained variable that only one program has is the cause.
    layer = first_difference(old, new, frozenset, trained | {"mean"}, 1e-5)
    assert layer is not None
    assert layer.differs.name == "norm"


def test_many_layers_are_shortened() -> None:
    one = flow(("sum", {*"abcdef"}, 1.0))
    layer = first_difference(
        one, flow(("sum", {*"abcdef"}, 2.0)), frozenset, frozenset(), 0
    )
    assert "`a`, `b`, `c` and 3 more" in str(layer)
