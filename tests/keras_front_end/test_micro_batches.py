"""Tests that accumulated gradients of micro-batches equal those of the batch."""

import functools

import jax
import jax.numpy as jnp
import keras
import numpy as np
import pytest
from helpers import estimator_of, regression_data, repeated, slow
from jax.extend import core as jex
from keras import ops

import keras_tpu_estimator as kte
from keras_tpu_estimator import EstimatorModel
from keras_tpu_estimator.base.mesh.all_cores import all_cores
from keras_tpu_estimator.base.mesh.cores import ONE_CORE

X, Y = regression_data()
RATE = 0.1


def train(model_fn, model_dir, micro_batches, use_tpu):
    """Trains an estimator for one step with all examples."""
    estimator = estimator_of(
        model_fn,
        model_dir,
        use_tpu,
        batch=64,
        config={"micro_batches": micro_batches},
    )
    estimator.train(repeated(X, Y), steps=1)


def prepared(model_fn, micro_batches, x=X, y=Y, use_tpu=False):
    """A model's training step and initial values."""
    model = EstimatorModel.from_model_fn(
        model_fn,
        {"use_tpu": use_tpu},
        kte.RunConfig(micro_batches=micro_batches),
        all_cores() if use_tpu else ONE_CORE,
        seed=1,
    )
    step = model.prepare("train", x, y)
    return step.function, model.program.store.initial_values


@functools.partial(jax.jit, static_argnames=("step", "steps"))
def stepped(step, values, x=X, y=Y, steps=1):
    """The values after several steps with all examples, and the losses."""

    def one(values, _):
        changed, outputs = step(values, x, y)
        return values | changed, outputs["loss"]

    return jax.lax.scan(one, values, length=steps)


def at_once_and_in_parts(model_fn, use_tpu=False, steps=1):
    """The results of steps on full batches, and on four micro-batches."""
    at_once, initial_values = prepared(model_fn, 1, use_tpu=use_tpu)
    in_parts, _ = prepared(model_fn, 4, use_tpu=use_tpu)

    @jax.jit
    def both(values):
        return [stepped(s, values, steps=steps) for s in (at_once, in_parts)]

    return both(initial_values())


def assert_close(values, expected, rtol=1e-5):
    assert values.keys() == expected.keys()
    for path, value in values.items():
        np.testing.assert_allclose(
            value, expected[path], rtol=rtol, atol=1e-6, err_msg=path
        )


def network(features):
    x = keras.layers.Dense(4, activation="tanh")(features)
    return keras.layers.Dense(1)(x)


def error_of(features, labels):
    return (network(features) - labels) ** 2


def optimizer_of(**kwargs):
    return kte.CrossShardOptimizer(keras.optimizers.Adam(RATE), **kwargs)


def spec_of(mode, loss, train_op, **kwargs):
    return kte.TPUEstimatorSpec(mode, loss=loss, train_op=train_op, **kwargs)


def minimizing(features, labels, mode, params):
    loss = ops.mean(error_of(features, labels))
    return spec_of(mode, loss, optimizer_of().minimize(loss))


def minimizing_a_sum(features, labels, mode, params):
    loss = ops.sum(error_of(features, labels))
    return spec_of(mode, loss, optimizer_of(reduction="sum").minimize(loss))


def computing(features, labels, mode, params):
    loss = ops.mean(error_of(features, labels))
    optimizer = optimizer_of()
    pairs = optimizer.compute_gradients(loss)
    return spec_of(mode, loss, optimizer.apply_gradients(pairs))


def computing_a_sum(features, labels, mode, params):
    loss = ops.sum(error_of(features, labels))
    optimizer = optimizer_of(reduction="sum")
    pairs = optimizer.compute_gradients(loss)
    return spec_of(mode, loss, optimizer.apply_gradients(pairs))


def clipping_by_hand(features, labels, mode, params):
    loss = ops.mean(error_of(features, labels))
    variables = kte.trainable_variables()
    gradients = kte.cross_replica_mean(kte.gradients(loss, variables))
    norm = ops.sqrt(sum(ops.sum(g**2) for g in gradients))
    replicas = 8 if params["use_tpu"] else 1
    optimizer = kte.CrossShardOptimizer(keras.optimizers.SGD(RATE))
    pairs = [
        (0.1 * g / norm / replicas, v)
        for g, v in zip(gradients, variables, strict=True)
    ]
    return spec_of(mode, loss, optimizer.apply_gradients(pairs))


def penalizing(features, labels, mode, params):
    """A train op that differentiates a gradient."""
    variable = keras.Variable([[1.0], [-1.0], [0.5]], name="w")
    loss = ops.mean((features @ variable.value) ** 3 - labels)
    (first,) = kte.gradients(loss, variable)
    (second,) = kte.gradients(loss * ops.sum(first**2), variable)
    loss = loss + 0.01 * ops.sum(first**2) + 1e-4 * ops.sum(second**2)
    optimizer = kte.CrossShardOptimizer(keras.optimizers.SGD(1e-3))
    return spec_of(mode, loss, optimizer.minimize(loss))


def two_optimizers(features, labels, mode, params):
    """Two optimizers: one minimizes, the other applies gradients."""
    x = keras.layers.Dense(4, activation="tanh", name="slow")(features)
    loss = ops.mean((keras.layers.Dense(1, name="fast")(x) - labels) ** 2)
    slow, fast = (
        [v for v in kte.trainable_variables() if v.path.startswith(name)]
        for name in ("slow", "fast")
    )
    optimizer = kte.CrossShardOptimizer(keras.optimizers.SGD(RATE))
    pairs = optimizer.compute_gradients(2 * loss, slow)
    return spec_of(
        mode,
        loss,
        [
            optimizer_of().minimize(loss, var_list=fast),
            optimizer.apply_gradients(pairs),
        ],
    )


MODELS = [
    minimizing,
    minimizing_a_sum,
    computing,
    computing_a_sum,
    clipping_by_hand,
    two_optimizers,
]


@pytest.mark.rows(4)
@pytest.mark.parametrize(
    ("model_fn", "use_tpu"),
    [
        *((model_fn, True) for model_fn in MODELS),
        *((model_fn, False) for model_fn in MODELS[:2]),
        *(slow(model_fn, False) for model_fn in MODELS[2:]),
    ],
)
def test_micro_batches_equal_the_full_batch(model_fn, use_tpu):
    (whole, losses), (parts, same_losses) = at_once_and_in_parts(
        model_fn, use_tpu, steps=2
    )
    assert_close(parts, whole)
    np.testing.assert_allclose(losses, same_losses, rtol=1e-6)


def test_second_derivatives_equal_the_full_batch():
    (whole, _), (parts, _) = at_once_and_in_parts(penalizing)
    moved = np.asarray(whole["w"]) - [[1.0], [-1.0], [0.5]]
    assert np.abs(moved).max() > 1e-3
    assert_close(parts, whole)


def numpy_step(reduce):
    w = np.zeros((3, 1), "float32")
    return -RATE * reduce(2 * X[:, :, None] * (X @ w - Y)[:, None], 0)


@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("use_tpu", [False, True])
def test_step_equals_numpy(reduction, use_tpu):
    def model_fn(features, labels, mode, params):
        weight = keras.Variable("zeros", (3, 1), name="w")
        error = (features @ weight.value - labels) ** 2
        loss = ops.mean(error) if reduction == "mean" else ops.sum(error)
        optimizer = kte.CrossShardOptimizer(
            keras.optimizers.SGD(RATE), reduction=reduction
        )
        return spec_of(mode, loss, optimizer.minimize(loss))

    step, initial_values = prepared(model_fn, 4, use_tpu=use_tpu)
    values, _ = stepped(step, initial_values())
    reduce = np.mean if reduction == "mean" else np.sum
    np.testing.assert_allclose(values["w"], numpy_step(reduce), rtol=1e-5)


def test_model_fn_sees_a_micro_batch(tmp_path):
    seen = []

    def model_fn(features, labels, mode, params):
        seen.append((params["batch_size"], features.shape, labels.shape))
        return minimizing(features, labels, mode, params)

    train(model_fn, tmp_path, 4, use_tpu=True)
    assert seen == [(2, (2, 3), (2, 1))]


@pytest.mark.parametrize("use_tpu", [False, True])
def test_host_call_receives_every_example_in_order(use_tpu, tmp_path):
    calls = []

    def model_fn(features, labels, mode, params):
        spec = minimizing(features, labels, mode, params)
        batch = ops.full((1,), params["batch_size"])
        return spec_of(
            mode,
            spec.loss,
            spec.train_op,
            host_call=(lambda *a: calls.append(a), [labels, batch]),
        )

    train(model_fn, tmp_path, 4, use_tpu)
    ((labels, sizes),) = calls
    np.testing.assert_array_equal(labels, Y)
    assert list(sizes) == ([2] * 32 if use_tpu else [16] * 4)


def test_scalar_for_host_call_is_refused(tmp_path):
    def model_fn(features, labels, mode, params):
        spec = minimizing(features, labels, mode, params)
        host_call = (lambda loss: None, [spec.loss])
        return spec_of(mode, spec.loss, spec.train_op, host_call=host_call)

    with pytest.raises(RuntimeError, match=r"micro-batches .* to \[1\]"):
        train(model_fn, tmp_path, 2, use_tpu=False)


@pytest.mark.parametrize("use_tpu", [False, True])
def test_next_micro_batch_sees_assigned_values(use_tpu):
    def model_fn(features, labels, mode, params):
        norm = keras.layers.BatchNormalization(momentum=0.5)
        outputs = keras.layers.Dense(1)(norm(features, training=True))
        loss = ops.mean((outputs - labels) ** 2)
        return spec_of(mode, loss, optimizer_of().minimize(loss))

    step, initial_values = prepared(model_fn, 4, use_tpu=use_tpu)
    values, _ = stepped(step, initial_values())
    mean = np.zeros(3)
    # The dimensions are core, micro-batch and row.
    for part in np.swapaxes(X.reshape(8 if use_tpu else 1, 4, -1, 3), 0, 1):
        mean = 0.5 * mean + 0.5 * part.mean((0, 1))
    np.testing.assert_allclose(
        values["batch_normalization/moving_mean"], mean, rtol=1e-5, atol=1e-6
    )


def test_micro_batches_draw_different_numbers(tmp_path):
    masks = []

    def model_fn(features, labels, mode, params):
        ones = keras.layers.Dropout(0.5)(ops.ones_like(features), training=True)
        loss = ops.mean(error_of(features * ones, labels))
        return spec_of(
            mode,
            loss,
            optimizer_of().minimize(loss),
            host_call=(masks.append, [ones]),
        )

    train(model_fn, tmp_path, 4, use_tpu=True)
    parts = {mask.tobytes() for mask in masks[0].reshape(32, -1)}
    assert len(parts) > 16  # There are 64 patterns, so some may occur twice.


def test_keras_accumulation_spans_steps(tmp_path):
    """Both are combined: micro-batches in a step, and an update every 2 steps."""
    seen = []

    class Fetch(kte.hooks.SessionRunHook):
        def before_run(self, run_context):
            return kte.hooks.SessionRunArgs("w")

        def after_run(self, run_context, run_values):
            seen.append(run_values.results)

    def model_fn(features, labels, mode, params):
        weight = keras.Variable("zeros", (3, 1), name="w")
        loss = ops.mean((features @ weight.value - labels) ** 2)
        optimizer = keras.optimizers.SGD(RATE, gradient_accumulation_steps=2)
        optimizer = kte.CrossShardOptimizer(optimizer)
        return spec_of(mode, loss, optimizer.minimize(loss))

    config = {"micro_batches": 2}
    estimator = estimator_of(
        model_fn, tmp_path, True, batch=32, iterations=1, config=config
    )
    estimator.train(repeated(X, Y), steps=4, hooks=[Fetch()])
    w = np.zeros((3, 1))
    for one, other in zip(seen[::2], seen[1::2], strict=True):
        np.testing.assert_allclose(one, w, rtol=1e-5, atol=1e-7)
        w = w - RATE * 2 * X.T @ (X @ w - Y) / len(X)
        np.testing.assert_allclose(other, w, rtol=1e-5, atol=1e-7)
    assert len(seen) == 4


def primitives(jaxpr, place=""):
    """The operations of a trace, and whether they are in a scan."""
    for equation in jaxpr.eqns:
        name = equation.primitive.name
        yield place, name
        inner = "scan" if name == "scan" else place
        for part in jex.jaxprs_in_params(equation.params):
            yield from primitives(part, inner)


def test_gradients_are_reduced_over_the_cores_once():
    step, initial_values = prepared(minimizing, 4, use_tpu=True)
    traced = jax.make_jaxpr(step)(initial_values(), X, Y).jaxpr
    found = list(primitives(traced))
    assert {("scan", "dot_general"), ("", "psum")} <= set(found)
    assert not [name for place, name in found if place and "psum" in name]


def compiled_step(model_fn, micro_batches, x, y):
    step, initial_values = prepared(model_fn, micro_batches, x, y)
    return jax.jit(step).lower(initial_values(), x, y).compile()


def test_memory_depends_on_the_micro_batch():
    x, y = np.ones((4096, 64), "float32"), np.ones((4096, 1), "float32")

    def model_fn(features, labels, mode, params):
        for _ in range(4):
            features = keras.layers.Dense(64, activation="tanh")(features)
        loss = ops.mean(error_of(features, labels))
        return spec_of(mode, loss, optimizer_of().minimize(loss))

    def peak(micro_batches):
        compiled = compiled_step(model_fn, micro_batches, x, y)
        return compiled.memory_analysis().temp_size_in_bytes

    assert peak(16) < peak(1) / 4


def test_micro_batch_needs_one_forward_and_backward_pass():
    dots = [compiled_step(minimizing, k, X, Y).as_text().count(" dot(") for k in (1, 4)]
    assert dots[0] == dots[1] > 0


def test_small_gradients_are_summed_in_float32():
    def model_fn(features, labels, mode, params):
        weight = keras.Variable("zeros", (), dtype="bfloat16", name="w")
        # 256 + 1 is 256 in bfloat16.
        loss = ops.sum(features.astype("bfloat16") * weight.value)
        optimizer = kte.CrossShardOptimizer(keras.optimizers.SGD(1.0), reduction="sum")
        return spec_of(mode, loss, optimizer.minimize(loss))

    x = np.float32([256, 1, 1, 1, 1, 1, 1, 1])
    step, initial_values = prepared(model_fn, 8, x, None)
    values, _ = stepped(step, initial_values(), x, None)
    assert values["w"].dtype == jnp.bfloat16
    assert float(values["w"]) == -264.0


def test_indivisible_batch_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"8 examples.*=3.*drop_remainder"):
        train(minimizing, tmp_path, 3, use_tpu=True)


def test_evaluation_and_prediction_have_full_batches(tmp_path):
    sizes = []

    def model_fn(features, labels, mode, params):
        sizes.append((mode, params["batch_size"], len(features)))
        outputs = network(features)
        if mode == kte.ModeKeys.PREDICT:
            return kte.TPUEstimatorSpec(mode, predictions={"y": outputs})
        return kte.TPUEstimatorSpec(mode, loss=ops.mean(outputs - labels))

    estimator = estimator_of(model_fn, tmp_path, batch=10, config={"micro_batches": 4})
    estimator.evaluate(repeated(X, Y), steps=1)
    next(estimator.predict(repeated(X, Y)))
    assert sizes == [("eval", 10, 10), ("infer", 10, 10)]


def test_update_in_model_fn_is_refused(tmp_path):
    def model_fn(features, labels, mode, params):
        loss = ops.mean(error_of(features, labels))
        variables = kte.trainable_variables()
        gradients = kte.gradients(loss, variables)
        pairs = zip(gradients, variables, strict=True)
        train_op = keras.optimizers.SGD(RATE).apply_gradients(pairs)
        return spec_of(mode, loss, train_op)

    with pytest.raises(ValueError, match="dense/kernel.*CrossShardOptimizer"):
        train(model_fn, tmp_path, 2, use_tpu=False)


def test_reductions_of_requests_are_validated():
    with pytest.raises(ValueError, match="'mean' or 'sum'"):
        kte.gradients(1.0, [], reduction="max")


@pytest.mark.parametrize("use_tpu", [False, True])
def test_summaries_and_named_tensors_cover_the_full_batch(tmp_path, use_tpu):
    from tensorboard.backend.event_processing import event_accumulator
    from tensorboard.util import tensor_util

    seen = []

    class Fetch(kte.hooks.SessionRunHook):
        def before_run(self, run_context):
            return kte.hooks.SessionRunArgs(["mean", "rows"])

        def after_run(self, run_context, run_values):
            seen.append(run_values.results)

    def model_fn(features, labels, mode, params):
        weight = keras.Variable(1.0, name="weight")
        loss = keras.ops.mean(features * weight)
        kte.identity(keras.ops.mean(features), name="mean")
        kte.identity(features, name="rows")
        kte.summary.scalar("mean", keras.ops.mean(features))
        kte.summary.histogram("rows", features)
        optimizer = kte.CrossShardOptimizer(keras.optimizers.SGD(0.1))
        return kte.TPUEstimatorSpec(mode, loss=loss, train_op=optimizer.minimize(loss))

    x = np.arange(32, dtype="float32").reshape(32, 1)
    events = []
    for micro_batches in (1, 2):
        directory = str(tmp_path / str(micro_batches))
        estimator = estimator_of(
            model_fn,
            directory,
            use_tpu,
            batch=32,
            save_summary_steps=1,
            config={"micro_batches": micro_batches},
        )
        estimator.train(lambda params: x, steps=1, hooks=[Fetch()])
        reader = event_accumulator.EventAccumulator(directory).Reload()
        events.append(
            [
                tensor_util.make_ndarray(reader.Tensors(tag)[0].tensor_proto)
                for tag in ("mean", "rows")
            ]
        )
    for mean, rows in seen:
        np.testing.assert_allclose(mean, x.mean())
        np.testing.assert_array_equal(rows, x)
    for one, two in zip(*events, strict=True):
        np.testing.assert_allclose(one, two)


class Fetches(kte.hooks.SessionRunHook):
    """Records the values of several names after each run."""

    def __init__(self, names):
        self.names, self.results = names, []

    def before_run(self, run_context):
        return kte.hooks.SessionRunArgs(self.names)

    def after_run(self, run_context, run_values):
        self.results.append(run_values.results)


@pytest.mark.parametrize("use_tpu", [False, True])
@pytest.mark.parametrize("micro_batches", [1, 4])
def test_named_scalars_are_means_over_the_batch(tmp_path, micro_batches, use_tpu):
    names = ("large", "unsigned", "count", "small", "any", "complex")

    def model_fn(features, labels, mode, params):
        y = keras.layers.Dense(1)(features)
        loss = ops.mean((y - labels) ** 2)
        step = kte.get_global_step()
        is_seen = features[:, 0] == X[3, 0]
        mean = jnp.mean(features[:, 0])
        values = (
            jnp.int32(123_456_789) + jnp.asarray(step),
            jnp.uint32(4_000_000_001),
            jnp.sum(features > 0),
            jnp.sum(is_seen).astype("int8"),
            jnp.any(is_seen),
            mean + 2j * mean,
        )
        for name, value in zip(names, values, strict=True):
            kte.identity(value, name=name)
        optimizer = kte.CrossShardOptimizer(keras.optimizers.SGD(RATE))
        return kte.TPUEstimatorSpec(mode, loss=loss, train_op=optimizer.minimize(loss))

    hook = Fetches(names)
    estimator = estimator_of(
        model_fn,
        tmp_path,
        use_tpu,
        batch=64,
        config={"micro_batches": micro_batches},
    )
    estimator.train(repeated(X, Y), steps=1, hooks=[hook])
    (results,) = hook.results
    mean = X[:, 0].mean()
    expected = (123_456_789, 4_000_000_001, (X > 0).sum(), 1, True)
    assert tuple(results[:-1]) == expected
    np.testing.assert_allclose(results[-1], mean + 2j * mean, rtol=1e-4)
