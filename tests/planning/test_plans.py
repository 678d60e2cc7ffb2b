"""Tests of `TPUEstimator.plan`."""

import dataclasses

import jax
import keras
import numpy as np
import pytest
from helpers import batches_of, estimator_of, linear, model_fn_of, regression_data

from keras_tpu_estimator.errors import CompileError, DoesNotFitError
from keras_tpu_estimator.planning import topologies
from keras_tpu_estimator.typing import Plan, Refusal

X, Y = regression_data(examples=64, size=128)
BATCHES = batches_of(X, Y)


def wide(features, is_training):
    """A network whose kernels are larger than a batch."""
    del is_training
    x = keras.layers.Dense(256, activation="relu")(features)
    return keras.layers.Dense(1)(x)


def estimator(tmp_path, network=wide, **settings):
    optimizer = settings.pop("optimizer", lambda: keras.optimizers.Adam(0.1))
    model_fn = model_fn_of(network, optimizer)
    return estimator_of(model_fn, tmp_path, True, **settings)


def test_training(tmp_path):
    shown = []
    plan = estimator(tmp_path).plan(
        BATCHES, "v5litepod-4", print_fn=shown.append, steps=10_000
    )
    assert (plan.mode, plan.steps, plan.examples) == ("train", 4, 16)
    assert (plan.topology.name, plan.predictions) == ("v5e:2x2", None)
    cost, numbers = plan.cost, 128 * 256 + 256 + 256 + 1
    held = cost.memory.arguments
    assert held.keys() == {"variables", "slots", "metrics", "input"}
    # The scalars are the step, and the optimizer's iterations and learning rate.
    assert held["variables"].logical == pytest.approx(4 * numbers, abs=16)
    assert held["slots"].logical == pytest.approx(2 * 4 * numbers, abs=16)
    # Four steps of four examples on each core.
    assert held["input"].logical == 4 * 4 * (128 + 1) * 4
    (reduced,) = cost.collectives
    assert reduced.kind == "all-reduce"
    assert reduced.total == pytest.approx(4 * numbers, rel=0.01)
    assert cost.aliases.are_complete
    (table,) = shown
    lines = dict(line.split("   ", 1) for line in table.splitlines() if line)
    lines = {name.strip(): value.strip() for name, value in lines.items()}
    assert lines["Plan of mode 'train'"] == "v5e:2x2"
    assert lines["cores"] == "4 on 1 host"
    assert lines["examples of a step"] == "16"
    assert lines["all-reduce"].startswith("1 of 130.")
    assert lines["is limited by"] == cost.roofline.by
    # The number of trained weights, and the time by the largest estimate.
    assert (plan.weights, plan.call_steps) == (numbers, 10_000)
    assert lines["weights"] == f"{numbers:,}"
    seconds = cost.roofline.at_best
    assert seconds >= max(cost.roofline.network, cost.roofline.compiler)
    assert plan.call_seconds == pytest.approx(10_000 * seconds)
    assert plan.examples_per_second == pytest.approx(16 / seconds)
    assert lines["examples/s, at best"] == f"{16 / seconds:,.0f}"
    assert lines["10,000 steps, at best"].endswith("s")


def test_plan_is_printed(tmp_path, capsys):
    estimator(tmp_path).plan(BATCHES, "v5e:2x2")
    assert capsys.readouterr().out.startswith("Plan of mode 'train'   ")


def test_evaluation_and_prediction(tmp_path):
    own = estimator(tmp_path)
    evaluation = own.plan(BATCHES, "v5e:4x4", "eval", print_fn=None)
    assert (evaluation.topology.num_hosts, evaluation.examples) == (4, 16)
    assert "slots" not in evaluation.cost.memory.arguments or not (
        evaluation.cost.memory.arguments["slots"].real
    )
    prediction = own.plan(batches_of(X), "v5e:4x4", "infer", print_fn=None)
    # Each host predicts its share of the batch.
    assert (prediction.topology.name, prediction.examples) == ("v5e:2x2", 4)
    assert prediction.predictions["y"].shape == (4, 1)
    assert not prediction.cost.collectives


@pytest.mark.parametrize(("mode", "most"), [("train", 4), ("eval", 32)])
def test_calls_of_few_steps(tmp_path, mode, most):
    own = estimator(tmp_path)
    for steps in (3, most, 100, None):
        plan = own.plan(BATCHES, "v5e:1x1", mode, print_fn=None, steps=steps)
        assert plan.steps == most
    for steps, error in ((0, ValueError), (1.5, TypeError)):
        with pytest.raises(error, match="steps"):
            own.plan(BATCHES, "v5e:1x1", mode, steps=steps)


def test_callbacks_are_reported(tmp_path, capsys):
    def network(features, is_training):
        del is_training
        outputs = keras.layers.Dense(1)(features)
        jax.debug.print("{}", outputs[0, 0])
        return outputs

    plan = estimator(tmp_path, network).plan(BATCHES, "v5e:2x2", "eval")
    (name,) = plan.cost.callbacks
    line = f"waits for Python on the host, called by: {name}."
    assert line in capsys.readouterr().out


def test_topologies_are_printed_side_by_side(tmp_path, capsys):
    plans = estimator(tmp_path).plan(BATCHES, ["v5e:2x2", "v4:2x2x1"])
    assert [plan.topology.name for plan in plans] == ["v5e:2x2", "v4:2x2x1"]
    assert all(isinstance(plan, Plan) for plan in plans)
    table = capsys.readouterr().out
    assert "v5e:2x2      " in table.splitlines()[0]
    assert table.splitlines()[0].endswith("v4:2x2x1")


def test_rows_of_one_column_keep_their_position(tmp_path, capsys):
    # One core does not communicate.
    estimator(tmp_path).plan(BATCHES, ["v5e:1x1", "v5e:2x2"])
    rows = [line.split("   ")[0] for line in capsys.readouterr().out.split("\n")]
    names = [row.strip() for row in rows]
    position = names.index("moves in its memory")
    assert names[position + 1] == "all-reduce"


def very_wide(features, is_training):
    """A network whose activations need the most memory."""
    del is_training
    x = keras.layers.Dense(2**14, activation="relu")(features)
    return keras.layers.Dense(1)(x)


def test_program_that_does_not_fit_is_refused(tmp_path):
    batch = 2**20
    own = estimator(tmp_path, very_wide, batch=batch)

    def input_fn(params):
        return np.zeros((batch, 8), "float32"), np.zeros((batch, 1), "float32")

    # With several topologies, the error is a column.
    refusal, plan = own.plan(input_fn, ["v5e:2x2", "v4:2x2x1"], print_fn=None)
    assert isinstance(refusal, Refusal)
    error = refusal.error
    assert isinstance(error, DoesNotFitError)
    assert error.topology == "v5e:2x2"
    assert 0 < error.batch_size < batch
    assert error.options == {"micro_batches": 4}
    assert "may fit" in str(error)
    assert "It fits with micro_batches=4: this was compiled." in str(error)
    assert plan.cost.memory.share < 1


@pytest.mark.slow
def test_fsdp_is_suggested_if_weights_do_not_fit(tmp_path):
    def deep(features, is_training):
        del is_training
        x = features
        for _ in range(16):
            x = keras.layers.Dense(2**14, use_bias=False)(x)
        return keras.layers.Dense(1)(x[:, :8])

    own = estimator(tmp_path, deep, batch=16)

    def input_fn(params):
        rows = params["batch_size"]
        return np.zeros((rows, 2**14), "float32"), np.zeros((rows, 1), "float32")

    with pytest.raises(DoesNotFitError) as raised:
        own.plan(input_fn, "v5e:4x4")
    assert raised.value.options["fsdp"] is True


def test_suggested_batch_size_fits(tmp_path):
    def input_fn(params):
        rows = params["batch_size"]
        return np.zeros((rows, 8), "float32"), np.zeros((rows, 1), "float32")

    with pytest.raises(DoesNotFitError, match="fits: it was compiled") as error:
        estimator(tmp_path, very_wide, batch=2**20).plan(
            input_fn, "v5e:2x2", quick=True
        )
    size = error.value.batch_size
    assert 2**17 < size < 2**20
    assert size % 8 == 0
    followed = estimator(tmp_path, very_wide, batch=size)
    plan = followed.plan(input_fn, "v5e:2x2", print_fn=None, quick=True)
    assert plan.examples == size
    assert plan.cost.memory.share < 1


def test_first_error_is_raised_if_nothing_compiles(tmp_path):
    def eigenvalues(features, is_training):
        del is_training
        square = keras.ops.matmul(features.T, features)
        x = keras.layers.Dense(1)(features)
        found = jax.numpy.linalg.eigvals(square[:4, :4])
        return x + jax.numpy.real(found).sum()

    own = estimator(tmp_path, eigenvalues)
    with pytest.raises(CompileError, match="'eig' at .*test_plans.py:"):
        own.plan(BATCHES, ["v5e:2x2", "v4:2x2x1"], "eval")


def test_batch_size_must_match_the_cores(tmp_path):
    own = estimator(tmp_path, batch=8)
    with pytest.raises(ValueError, match="16"):
        own.plan(BATCHES, "v5e:4x4")
    small, large = own.plan(BATCHES, ["v5e:2x2", "v5e:4x4"], print_fn=None)
    assert isinstance(small, Plan)
    assert isinstance(large, Refusal)


def test_hosts_must_train_together(tmp_path):
    model_fn = model_fn_of(linear)
    own = estimator_of(model_fn, tmp_path, use_tpu=False)
    with pytest.raises(ValueError, match="On 4 hosts, an estimator must"):
        own.plan(BATCHES, "v5e:4x4")
    assert own.plan(batches_of(X), "v5e:4x4", "infer", print_fn=None)


def test_fast_dev_run(tmp_path):
    own = estimator(tmp_path, config={"fast_dev_run": True})
    assert own.plan(BATCHES, "v5e:2x2", print_fn=None).steps == 1


def test_errors_of_user_code_are_raised(tmp_path):
    class OwnError(Exception):
        pass

    def network(features, is_training):
        raise OwnError

    with pytest.raises(OwnError):
        estimator(tmp_path, network).plan(BATCHES, ["v5e:2x2", "v4:2x2x1"])


def test_arguments(tmp_path):
    own = estimator(tmp_path)
    with pytest.raises(ValueError, match="`mode` must be one of"):
        own.plan(BATCHES, "v5e:2x2", "predict")
    with pytest.raises(ValueError, match="empty list"):
        own.plan(BATCHES, [])
    with pytest.raises(TypeError, match="must be a string. Received: 4"):
        own.plan(BATCHES, 4)
    with pytest.raises(ValueError, match="must have at least one batch"):
        own.plan(batches_of(X[:0], Y[:0]), "v5e:2x2")


def test_missing_compiler_is_an_error(tmp_path, monkeypatch):
    monkeypatch.setattr(topologies, "is_libtpu_installed", lambda: False)
    topologies.libtpu_devices.cache_clear()
    with pytest.raises(ModuleNotFoundError, match=r"estimator\[tpu\]"):
        estimator(tmp_path).plan(BATCHES, "v5e:2x4")


def test_plan_does_not_change_training(tmp_path):
    own, other = (estimator(tmp_path / name, linear) for name in "ab")
    own.plan(BATCHES, "v5e:4x4", print_fn=None)
    results = [each.train(BATCHES, steps=4) for each in (own, other)]
    kernels = [e.get_variable_value("dense/kernel") for e in results]
    np.testing.assert_array_equal(*kernels)


def test_memory_matches_the_compiler(tmp_path):
    plan = estimator(tmp_path).plan(BATCHES, "v5e:2x2", print_fn=None)
    memory = plan.cost.memory
    given = sum(held.real for held in memory.arrays.values())
    assert memory.peak == given + memory.results + memory.temporary
    assert "unnamed" not in memory.arguments
    assert dataclasses.replace(memory, limit=memory.peak).share == 1


def test_quick_plan_has_the_costs_of_a_full_plan(tmp_path, capsys):
    own = estimator(tmp_path)
    slow = own.plan(BATCHES, "v5e:2x2", print_fn=None).cost
    quick = own.plan(BATCHES, "v5e:2x2", quick=True).cost
    assert quick.flops == pytest.approx(slow.flops, rel=0.01)
    assert quick.memory.share == pytest.approx(slow.memory.share, abs=0.01)
    assert quick.collectives == slow.collectives
    assert quick.aliases == slow.aliases
    assert (quick.bytes, quick.cycles, quick.roofline) == (None, None, None)
    assert (quick.copied, quick.state_copies) == (None, ())
    table = capsys.readouterr().out
    assert "cycles" not in table
    assert "moves" not in table


def test_quick_programs_are_not_saved(tmp_path):
    with pytest.raises(ValueError, match="must not be combined"):
        estimator(tmp_path).plan(
            BATCHES, "v5e:2x2", save=tmp_path / "stored", quick=True
        )
