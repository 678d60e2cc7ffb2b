"""The pairs of the variables of two programs."""

import pytest

from keras_tpu_estimator.workflow.comparing.pairing import Pair, paired
from keras_tpu_estimator.workflow.comparing.records import VariableFacts


def facts(
    *variables: tuple[str, tuple[int, ...]], **slots: str
) -> dict[str, VariableFacts]:
    """Returns trainable variables, and the owners of optimizer state by its path."""
    known = {
        path: VariableFacts(path, shape, "float32", True, False)
        for path, shape in variables
    }
    known |= {
        path: VariableFacts(path, known[owner].shape, "float32", False, True, owner)
        for path, owner in slots.items()
    }
    return known


def test_names_that_mean_the_same() -> None:
    old = facts(("conv/weights", (3, 4)), ("conv/biases", (4,)))
    new = facts(("conv/kernel", (3, 4)), ("conv/bias", (4,)))
    assert paired(old, new).pairs == (
        Pair("conv/weights", "conv/kernel"),
        Pair("conv/biases", "conv/bias"),
    )


def test_layers_with_unique_names_in_other_scopes() -> None:
    old = facts(("a/a/one/kernel", (3,)), ("b/b/two/kernel", (3,)), ("c/w", (5,)))
    new = facts(("two/kernel", (3,)), ("one/kernel", (3,)), ("d/c/w", (6,)))
    pairing = paired(old, new)
    assert pairing.pairs == (
        Pair("a/a/one/kernel", "one/kernel"),
        Pair("b/b/two/kernel", "two/kernel"),
    )
    # Several layers of a name are no pairs.
    twice = facts(("x/one/kernel", (3,)), ("y/one/kernel", (3,)))
    assert paired(old, twice).guesses


def test_shapes_in_the_same_order_are_guesses() -> None:
    old = facts(("a/w", (3, 4)), ("b/w", (3, 4)), ("c/w", (5,)))
    new = facts(("x/k", (3, 4)), ("y/k", (3, 4)), ("z", (6,)))
    pairing = paired(old, new)
    assert pairing.guesses == (Pair("a/w", "x/k", True), Pair("b/w", "y/k", True))
    assert (pairing.only_old, pairing.only_new) == (("c/w",), ("z",))


def test_mapping_precedes_names() -> None:
    old, new = facts(("a", (2,)), ("b", (2,))), facts(("a", (2,)), ("b", (2,)))
    pairing = paired(old, new, {"a": "b"})
    assert Pair("a", "b") in pairing.pairs
    with pytest.raises(ValueError, match="keys of `mapping`.*unknown"):
        paired(old, new, {"unknown": "b"})


def test_reshaped_variable_is_paired_by_name() -> None:
    old, new = facts(("dense/kernel", (4, 6))), facts(("dense/kernel", (4, 2, 3)))
    assert paired(old, new).pairs == (Pair("dense/kernel", "dense/kernel"),)


def test_optimizer_state_is_paired_by_its_meaning() -> None:
    old = facts(("w", (2,)), **{"w/adam_m": "w", "w/adam_v": "w"})
    new = facts(("w", (2,)), **{"adam/w_momentum": "w", "adam/w_velocity": "w"})
    pairs = {(pair.old, pair.new) for pair in paired(old, new).pairs}
    assert pairs == {
        ("w", "w"),
        ("w/adam_m", "adam/w_momentum"),
        ("w/adam_v", "adam/w_velocity"),
    }


def test_momentum_with_a_learning_rate_has_a_factor() -> None:
    old = facts(("w", (2,)), **{"w/Momentum": "w"})
    new = facts(("w", (2,)), **{"sgd/w_momentum": "w"})
    pair = Pair("w/Momentum", "sgd/w_momentum", factor=-0.1)
    assert paired(old, new, rates={"sgd/learning_rate": 0.1}).pairs[1] == pair
    assert paired(old, new).pairs[1].factor is None
    assert paired(new, old, rates={"sgd/learning_rate": 0.1}).pairs[1].factor == -10
    assert paired(new, new).pairs[1].factor == 1
