"""The search for options, with plans that the test computes instead of the compiler."""

import dataclasses
import itertools
import os
import types

import keras
import numpy as np
import pytest

import keras_tpu_estimator as kte
from keras_tpu_estimator.__main__ import main
from keras_tpu_estimator.errors import CompileError, DoesNotFitError
from keras_tpu_estimator.planning import search_table
from keras_tpu_estimator.planning.calls import Call
from keras_tpu_estimator.planning.kept_plans import KeptPlans
from keras_tpu_estimator.planning.search import Candidate, SearchOptions, search
from keras_tpu_estimator.planning.topologies import parse
from keras_tpu_estimator.typing import Plan

V5E, V6E = parse("v5e:2x2"), parse("v6e:2x2")
# The memory that options leave, and the time that they cost.
MEMORY = {"shard_optimizer": 0.7, "fsdp": 0.3, "num_cores_per_replica": 0.6}
TIME = {"shard_optimizer": 1.1, "fsdp": 1.3, "num_cores_per_replica": 1.4}
SAVED = {("micro_batches", 2): (0.8, 1.1), ("remat", "activations"): (0.7, 1.2)}
SAVED |= {("micro_batches", 4): (0.6, 1.3), ("remat", "full"): (0.4, 1.5)}


class Compiler:
    """Plans calls by rules, and records them.

    Args:
        needed: The memory that a program needs without any option.
        broken: A name of an option that fails.
        error: The error with which it fails.
    """

    def __init__(self, needed, broken=None, error=None):
        self.needed = needed
        self.error = error
        self.broken = broken
        self.calls = []

    def __call__(self, call, topology, options):
        config = call.context.config
        fields = {**vars(config.tpu_config), **vars(config)}
        self.calls.append((topology.name, options.quick))
        if self.broken and fields[self.broken]:
            raise self.error
        memory, secs = self.needed, 1.0
        for name in MEMORY:
            if fields[name]:
                memory, secs = memory * MEMORY[name], secs * TIME[name]
        for (name, value), (share, slower) in SAVED.items():
            if fields[name] == value:
                memory, secs = memory * share, secs * slower
        if config.dtype_policy == "mixed_bfloat16":
            secs /= 2
        memory = memory * call.batch_size / 8 + sum(call.resident.values())
        if memory > 1:
            raise DoesNotFitError(topology.name, int(memory * 100), 100)
        speed = None if options.quick else call.batch_size / secs
        if speed and topology is V6E:
            speed *= 3
        cost = types.SimpleNamespace(
            memory=types.SimpleNamespace(peak=int(100 * memory), share=memory),
            cycles=None,
            sent=0,
        )
        plan = Plan(topology, "train", 1, call.batch_size, 0.0, 0.0, cost)
        return _Timed(**vars(plan), speed=speed)


@dataclasses.dataclass(frozen=True)
class _Timed(Plan):
    """A plan with a speed that the test sets."""

    speed: float | None = None

    @property
    def examples_per_second(self):
        return self.speed


@pytest.fixture
def call(tmp_path):
    def make(tpu_config=None, **config):
        config = kte.RunConfig(
            model_dir=str(tmp_path), tpu_config=tpu_config or kte.TPUConfig(), **config
        )
        estimator = kte.TPUEstimator(
            lambda features, labels, mode, params: None,
            config=config,
            train_batch_size=8,
        )
        return Call(estimator._context, lambda params: None, "train")

    return make


def found(call, compiler, topologies=(V5E,), **options):
    clock = options.pop("clock", lambda: 0.0)
    lines = []
    resident = options.pop("resident", {})
    result = search(
        call,
        topologies,
        SearchOptions(**options),
        lines.append,
        resident,
        compiler,
        clock,
    )
    return result, lines


@pytest.mark.parametrize(
    ("needed", "best"),
    [
        (0.9, {}),
        (1.2, {"shard_optimizer": True}),
        (3.0, {"fsdp": True}),
        (5.0, {"fsdp": True, "micro_batches": 4}),
        (
            20.0,
            {
                "fsdp": True,
                "num_cores_per_replica": 2,
                "micro_batches": 4,
                "remat": "full",
            },
        ),
    ],
)
def test_fastest_options_that_fit_are_found(needed, best, call):
    result, _ = found(call(), Compiler(needed))
    options = dict(result.best.candidate.options)
    defaults = {"fsdp": False, "shard_optimizer": False}
    defaults |= {"micro_batches": 1, "remat": None}
    assert {k: v for k, v in options.items() if v != defaults.get(k)} == best


def test_no_candidate_is_faster_than_the_best(call):
    """All combinations of options are planned, as the search would not do."""
    compiler, made = Compiler(2.0), call()
    result, _ = found(made, compiler)
    speeds = []
    for values in itertools.product(
        (False, True), (False, True), (None, 2), (1, 2, 4), (None, "full")
    ):
        names = "shard_optimizer fsdp num_cores_per_replica micro_batches remat"
        try:
            options = dict(zip(names.split(), values, strict=True))
            changed = made.with_options(options)
            plan = compiler(changed, V5E, types.SimpleNamespace(quick=False))
        except (DoesNotFitError, ValueError):
            continue
        speeds.append(plan.examples_per_second)
    assert result.best.speed >= max(speeds)


def test_options_of_the_script_may_be_the_best(call):
    result, lines = found(call(), Compiler(0.9))
    assert result.best in result.as_written
    assert "script's own options are the best" in search_table.as_text(result)
    assert lines[0] == "Compiling for v5e:2x2: as written"


def test_options_of_the_script_may_be_too_careful(call):
    made = call(fsdp=True, remat="full")
    result, _ = found(made, Compiler(0.9))
    assert result.best.speed > result.as_written[0].speed
    text = search_table.as_text(result)
    assert "kte.RunConfig(shard_optimizer=False, fsdp=False, micro_batches=1, " in text


def test_layout_of_the_script_is_kept(call):
    made = call(tpu_config=kte.TPUConfig(num_cores_per_replica=4))
    result, _ = found(made, Compiler(3.0))
    assert all(
        "num_cores_per_replica" not in dict(trial.candidate.options)
        for trial in result.trials
    )


def test_topologies_are_compared(call):
    result, _ = found(call(), Compiler(1.2), (V5E, V6E))
    assert result.best.candidate.topology is V6E
    assert len(result.as_written) == 2
    assert "The best, on v6e:2x2: kte.RunConfig(" in search_table.as_text(result)


@pytest.mark.parametrize(
    "error", [CompileError("rejected"), NotImplementedError("remat"), TypeError("x")]
)
def test_rejected_options_are_left_out(error, call):
    result, _ = found(call(), Compiler(3.0, "fsdp", error))
    assert not any(dict(t.candidate.options).get("fsdp") for t in result.trials)
    assert result.best is not None


def test_errors_of_the_script_are_raised(call):
    with pytest.raises(TypeError, match="of model_fn"):
        found(call(fsdp=True), Compiler(0.5, "fsdp", TypeError("of model_fn")))


def test_arrays_of_other_calls_take_memory(call):
    alone, _ = found(call(), Compiler(0.9))
    beside, _ = found(call(), Compiler(0.9), resident={"v5e:2x2": {"slots": 0.4}})
    assert alone.best in alone.as_written
    assert beside.best not in beside.as_written


def test_each_topology_shows_its_best(call):
    compiler = Compiler(1.2)
    result, _ = found(call(), compiler, (V5E, V6E))
    assert [plan.topology for plan in result.by_topology] == [V5E, V6E]
    assert result.best.result in result.by_topology


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--keep", "x"), "--keep and --vary must follow --search"),
        (("--budget", "3"), "must follow --search"),
        (("--search", "--quick"), "must not be combined with --save or --quick"),
        (("--search", "--budget", "0"), "must be a positive number of minutes"),
        (("--search", "--budget", "nan"), "must be a positive number of minutes"),
        (("--search", "--keep", "gs://x"), "must be a local folder"),
    ],
)
def test_options_are_checked(options, message, tmp_path, capfd):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    with pytest.raises(SystemExit):
        main(["plan", str(script), "--topology", "v5e:2x2", *options])
    assert message in capfd.readouterr().err


def test_results_change_only_if_requested(call):
    plain, _ = found(call(), Compiler(0.9))
    varied, _ = found(call(), Compiler(0.2), varies_batch=True, varies_dtype=True)
    assert {t.candidate.batch_factor for t in plain.trials} == {1}
    best = varied.best.candidate
    assert best.batch_factor == 4
    assert dict(best.options)["dtype_policy"] == "mixed_bfloat16"
    dtypes = [dict(t.candidate.options).get("reduce_dtype") for t in varied.trials]
    assert "bfloat16" in dtypes
    assert None in dtypes
    assert "with 4 times the batch" in search_table.as_text(varied)


def test_most_candidates_are_only_compiled_quickly(call):
    compiler = Compiler(3.0)
    found(call(), compiler)
    complete = [quick for _, quick in compiler.calls if not quick]
    # The script's options, and one finalist for each sharding that fits.
    assert len(complete) <= 6 < len(compiler.calls)


def test_time_is_limited(call):
    times = itertools.count()
    result, _ = found(
        call(), Compiler(1.2), budget_secs=4.0, clock=lambda: float(next(times))
    )
    assert result.untried > 0
    assert "Increase --budget" in search_table.as_text(result)


def test_nothing_may_fit(call):
    result, _ = found(call(), Compiler(1000.0))
    assert result.best is None
    assert "None of the candidates fits." in search_table.as_text(result)


def test_dominated_candidates_are_not_shown(call):
    result, _ = found(call(), Compiler(0.9))
    for trial in result.front:
        assert not any(trial.is_dominated_by(other) for other in result.trials)
    assert len(result.front) < len(result.trials)


SCRIPT = """\
import keras, numpy as np
import keras_tpu_estimator as kte

def model_fn(features, labels, mode, params):
    y = keras.layers.Dense(1)(features)
    loss = keras.ops.mean((y - labels) ** 2)
    optimizer = kte.CrossShardOptimizer(keras.optimizers.SGD(0.1))
    return kte.TPUEstimatorSpec(mode, loss=loss, train_op=optimizer.minimize(loss))

def input_fn(params):
    size = params["batch_size"]
    return np.ones((size, 2), "float32"), np.ones((size, 1), "float32")

estimator = kte.TPUEstimator(model_fn, config=kte.RunConfig(), train_batch_size=8)
estimator.train(input_fn, steps=10)
"""


@pytest.mark.slow
def test_command_searches_with_the_compiler(tmp_path, capfd):
    (tmp_path / "script.py").write_text(SCRIPT)
    arguments = ["--topology", "v5e:2x2", "--search", "--budget", "5"]
    assert main(["plan", str(tmp_path / "script.py"), *arguments]) == 0
    out, err = capfd.readouterr()
    assert "Compiling quickly for v5e:2x2: shard_optimizer=True" in err
    assert "examples/s, at best" in out


def test_plans_are_kept_for_the_next_search(tmp_path):
    kept, key = KeptPlans.prepared(str(tmp_path / "kept")), _Key("train-1")
    other = _Key("train-2")

    def rejected():
        raise CompileError("rejected")

    assert kept.plan(key, False, lambda: {"plan": 1}) == {"plan": 1}
    with pytest.raises(CompileError, match="rejected"):
        kept.plan(other, False, rejected)
    # The compiler is not called again, except for the quick plan.
    assert kept.plan(key, False, rejected) == {"plan": 1}
    with pytest.raises(CompileError, match="rejected"):
        kept.plan(other, False, lambda: {"plan": 2})
    assert kept.plan(key, True, lambda: {"plan": 3}) == {"plan": 3}
    # A damaged file is written again.
    (path,) = [*(tmp_path / "kept").glob("train-1.plan")]
    path.write_bytes(path.read_bytes()[:-3])
    assert kept.plan(key, False, lambda: {"plan": 4}) == {"plan": 4}
    assert kept.plan(key, False, rejected) == {"plan": 4}
    os.chmod(tmp_path / "kept", 0o777)
    with pytest.raises(PermissionError):
        kept.plan(key, False, rejected)


@dataclasses.dataclass(frozen=True)
class _Key:
    digest: str


DATA = np.random.default_rng(0).normal(size=(16, 4)).astype("float32")


def trained(tmp_path, options):
    """The weights after three steps with the options of a candidate."""

    def model_fn(features, labels, mode, params):
        hidden = keras.layers.Dense(128, "tanh")(features)
        hidden = keras.layers.Dense(128, "tanh")(hidden)
        loss = keras.ops.mean((keras.layers.Dense(1)(hidden) - labels) ** 2)
        optimizer = kte.CrossShardOptimizer(keras.optimizers.Adam(0.01))
        return kte.TPUEstimatorSpec(mode, loss=loss, train_op=optimizer.minimize(loss))

    config = kte.RunConfig(model_dir=str(tmp_path), tf_random_seed=1)
    estimator = kte.TPUEstimator(model_fn, config=config, train_batch_size=16)
    call = Call(estimator._context, lambda params: None, "train")
    changed = Candidate(V5E, tuple(options.items())).call(call).context.config
    estimator = kte.TPUEstimator(model_fn, config=changed, train_batch_size=16)
    estimator.train(lambda params: (DATA, DATA[:, :1]), steps=3)
    return {
        name: estimator.get_variable_value(name)
        for name in estimator.get_variable_names()
    }


@pytest.mark.parametrize(
    "options",
    [
        {"fsdp": True, "num_cores_per_replica": 2},
        {"fsdp": True, "remat": "full", "micro_batches": 2},
        {"shard_optimizer": True, "micro_batches": 2},
        {"num_cores_per_replica": 2, "remat": "activations"},
    ],
)
@pytest.mark.rows(2)
def test_candidates_train_to_equal_weights(options, tmp_path):
    expected = trained(tmp_path / "plain", {})
    for name, value in trained(tmp_path / "changed", options).items():
        np.testing.assert_allclose(value, expected[name], rtol=1e-4, atol=2e-6)
