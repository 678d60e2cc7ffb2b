"""Tests of the errors of both specs, their order, and normalized values."""

import dataclasses
import functools

import jax.numpy as jnp
import keras
import numpy as np
import pytest
from helpers import estimator_of, refused
from keras import ops

import keras_tpu_estimator as kte

LOSS = np.float32(0.5)
TRAIN_OP = kte.TrainOp(keras.optimizers.SGD(), variables=(), loss=LOSS)
TRAIN, EVAL, PREDICT = "train", "eval", "infer"
HOOKS = ("training_hooks", "evaluation_hooks", "prediction_hooks")
# The required fields in each mode.
ENOUGH = {
    TRAIN: {"loss": LOSS, "train_op": TRAIN_OP},
    EVAL: {"loss": LOSS},
    PREDICT: {"predictions": {"y": np.ones(2)}},
}


def of_two(labels, outputs):
    del labels, outputs
    return {}


def of_defaults(labels, outputs, weights=None):
    del labels, outputs, weights
    return {}


def of_any(*tensors):
    del tensors
    return {}


class Hook(kte.hooks.SessionRunHook):
    pass


# By name: the invalid fields, the exception, and words of its message; NAME is the
# field. The order is that of the checks in TRAIN.
HOST_FUNCTIONS = {
    "function": (of_two, ValueError, "`NAME` tuple or list <function of_two"),
    "dict": ({"function": of_two}, ValueError, "`NAME` tuple or list dict"),
    "one element": ((of_two,), ValueError, "`NAME` two elements 1:"),
    "three": ([of_two, [], []], ValueError, "`NAME` two elements 3: one list"),
    "not callable": (([LOSS], of_two), TypeError, "first `NAME` callable list"),
    "tensor": (
        (of_two, np.ones(2)),
        ValueError,
        "`NAME` list dict ndarray a list",
    ),
    "too few": ((of_two, [LOSS]), RuntimeError, "`NAME` 2 ['labels', 'outputs'] 1"),
    "too many": ((of_two, (LOSS, LOSS, LOSS)), RuntimeError, "`NAME` 2 3 tensors"),
    "default": ((of_defaults, [LOSS, LOSS]), RuntimeError, "`NAME` 3 with defaults"),
}
COMMON = {
    **{
        name: (
            {name: [Hook(), "hook"]},
            TypeError,
            "SessionRunHook 'hook' str keras_tpu_estimator.hooks.SessionRunHook",
        )
        for name in HOOKS
    },
    "no train_op": (
        {"train_op": None},
        ValueError,
        "train_op 'train' kte.minimize(optimizer, loss) train_op=None",
    ),
    "train_op is a function": (
        {"train_op": of_two},
        TypeError,
        "`train_op` kte.minimize(optimizer, loss) <function of_two function",
    ),
    "train_op holds a string": (
        {"train_op": [TRAIN_OP, "minimize"]},
        TypeError,
        "sequence 'minimize' str",
    ),
    "no loss": ({"loss": None}, ValueError, "loss 'train' scalar loss=None"),
    "loss is a number": ({"loss": 0.5}, TypeError, "`loss` 0.5 float keras.ops"),
    "not a scalar": (
        {"loss": np.ones((4, 1))},
        ValueError,
        "`loss` scalar (4, 1)",
    ),
    "predictions are a list": (
        {"predictions": [np.ones(2)]},
        TypeError,
        "`predictions` tensor dict 'predictions': list",
    ),
    "a prediction is a number": (
        {"predictions": {"y": np.ones(2), "z": 3}},
        TypeError,
        "tensor 'z': 3 int keras.ops.convert_to_tensor",
    ),
    "export_outputs": ({"export_outputs": []}, TypeError, "dict signature [] list"),
}
OF_TPU = {
    f"{field} {name}": ({field: pair}, exception, words.replace("NAME", field))
    for field in ("eval_metrics", "host_call")
    for name, (pair, exception, words) in HOST_FUNCTIONS.items()
}
OF_ONE_CORE = {
    "training_chief_hooks": (
        {"training_chief_hooks": [print]},
        TypeError,
        "SessionRunHook print",
    ),
    **COMMON,
    **{
        f"metrics {n}": ({"eval_metric_ops": metrics}, TypeError, words)
        for n, (metrics, words) in enumerate(
            [
                ([keras.metrics.Mean()], "dict Keras metrics list"),
                ({"m": [LOSS, LOSS]}, "'m' keras.metrics.Metric (value, update) list"),
                ({"m": (LOSS, LOSS, LOSS)}, "'m' tuple"),
                ({"m": 0.5}, "'m' 0.5 float"),
                ({3: (LOSS, LOSS)}, "name string 3 int '3'"),
            ]
        )
    },
}
SPECS = {
    kte.TPUEstimatorSpec: {**OF_TPU, **COMMON},
    kte.EstimatorSpec: OF_ONE_CORE,
}


def check(spec_class, name, mode=TRAIN, **more):
    changes, exception, words = SPECS[spec_class][name]
    with refused(exception, words):
        spec_class(mode, **ENOUGH[mode] | more | changes)


@pytest.mark.parametrize(
    ("spec_class", "name"),
    [(each, name) for each, cases in SPECS.items() for name in cases],
)
def test_invalid_arguments_are_refused_by_name(spec_class, name):
    check(spec_class, name)


@pytest.mark.parametrize("name", ["loss", "global_step"])
def test_names_of_metrics_are_checked_when_returned(name):
    metric_ops = {name: (LOSS, LOSS)}
    spec = kte.EstimatorSpec(TRAIN, **ENOUGH[TRAIN], eval_metric_ops=metric_ops)
    assert list(spec.eval_metric_ops) == [name]
    with pytest.raises(ValueError, match=f"cannot be named '{name}'"):
        kte.EstimatorSpec(EVAL, **ENOUGH[EVAL], eval_metric_ops=metric_ops)


@pytest.mark.parametrize("spec_class", SPECS)
def test_first_mistake_is_reported(spec_class):
    cases = SPECS[spec_class]
    names = list(cases)
    for index, name in enumerate(names):
        for other in names[index + 1 :]:
            check(spec_class, name, **cases[other][0])


@pytest.mark.parametrize("spec_class", SPECS)
@pytest.mark.parametrize(("mode", "name"), [(EVAL, "loss"), (PREDICT, "predictions")])
def test_missing_fields_are_refused_in_other_modes(mode, name, spec_class):
    with refused(ValueError, f"Missing {name} '{mode}' {name}=None"):
        spec_class(mode, **ENOUGH[mode] | {name: None})


@pytest.mark.parametrize("spec_class", SPECS)
@pytest.mark.parametrize(
    ("mode", "name"),
    [
        (EVAL, "train_op is a function"),
        (PREDICT, "loss is a number"),
        (EVAL, "a prediction is a number"),
        (PREDICT, "evaluation_hooks"),
    ],
)
def test_fields_that_a_mode_does_not_need_are_checked(mode, name, spec_class):
    check(spec_class, name, mode)


@pytest.mark.parametrize("spec_class", SPECS)
@pytest.mark.parametrize("mode", ENOUGH)
def test_required_fields_are_enough(mode, spec_class):
    spec = spec_class(mode, **ENOUGH[mode])
    assert spec.mode == mode
    assert (spec.predictions == {}) == (mode != PREDICT)
    assert spec.hooks == spec.training_hooks == ()


@pytest.mark.parametrize("spec_class", SPECS)
@pytest.mark.parametrize("mode", [None, "whatever"])
def test_mode_is_not_checked(mode, spec_class):
    assert spec_class(mode).mode == mode
    assert spec_class(mode, **ENOUGH[TRAIN]).train_op == (TRAIN_OP,)


@pytest.mark.parametrize("spec_class", SPECS)
@pytest.mark.parametrize(
    "loss", [np.full((1,), 0.5), jnp.full((1, 1), 0.5), jnp.float32(0.5), LOSS]
)
def test_loss_becomes_a_scalar(loss, spec_class):
    spec = spec_class(EVAL, loss=loss)
    assert (spec.loss.shape, float(spec.loss)) == ((), 0.5)


@pytest.mark.parametrize("spec_class", SPECS)
def test_variables_are_tensors(spec_class):
    variable = keras.Variable(0.5)
    spec = spec_class(TRAIN, {"y": variable}, variable, variable)
    assert float(spec.loss) == 0.5 and spec.train_op == (variable,)


@pytest.mark.parametrize(
    ("mode", "name"),
    [
        (TRAIN, "training_hooks"),
        (EVAL, "evaluation_hooks"),
        (PREDICT, "prediction_hooks"),
    ],
)
@pytest.mark.parametrize("spec_class", SPECS)
def test_hooks_of_the_mode(mode, name, spec_class):
    hooks = {each: [Hook()] for each in HOOKS}
    spec = spec_class(mode, **ENOUGH[mode], **hooks)
    assert spec.hooks == getattr(spec, name) == tuple(hooks[name])


@pytest.mark.parametrize(
    "pair",
    [
        (of_two, [LOSS, LOSS]),
        [of_two, (LOSS, LOSS)],
        (of_two, {"labels": LOSS, "outputs": LOSS}),
        (of_two, {"wrong": LOSS}),
        (of_defaults, [LOSS, LOSS, LOSS]),
        (of_any, [LOSS] * 5),
        (lambda: {}, []),
    ],
)
def test_host_functions(pair):
    spec = kte.TPUEstimatorSpec(EVAL, loss=LOSS, eval_metrics=pair, host_call=pair)
    assert spec.eval_metrics == spec.host_call == tuple(pair)


def test_dict_with_wrong_keys_is_refused_at_the_call():
    spec = kte.TPUEstimatorSpec(EVAL, loss=LOSS, eval_metrics=(of_two, {"wrong": LOSS}))
    with pytest.raises(TypeError, match="unexpected keyword argument 'wrong'"):
        spec.as_estimator_spec()


@pytest.mark.parametrize("spec_class", SPECS)
def test_specs_are_frozen(spec_class):
    spec = spec_class(EVAL, loss=LOSS)
    with pytest.raises(dataclasses.FrozenInstanceError):
        spec.loss = None


@pytest.mark.parametrize("mode", ENOUGH)
def test_as_estimator_spec(mode):
    def metric_fn(labels, outputs):
        return {"sum": (labels + outputs, None)}

    hook = Hook()
    spec = kte.TPUEstimatorSpec(
        mode,
        **ENOUGH[mode],
        eval_metrics=(metric_fn, [1, 2]),
        evaluation_hooks=[hook],
    ).as_estimator_spec()
    assert isinstance(spec, kte.EstimatorSpec)
    assert spec.mode == mode and spec.evaluation_hooks == (hook,)
    for name, value in ENOUGH[mode].items():
        expected = (value,) if name == "train_op" else value
        assert getattr(spec, name) == expected
    metrics = {"sum": (3, None)} if mode == EVAL else {}
    assert spec.eval_metric_ops == metrics


def test_as_estimator_spec_validates_metrics():
    spec = kte.TPUEstimatorSpec(
        EVAL, loss=LOSS, eval_metrics=(lambda: {"m": [1, 2]}, [])
    )
    with pytest.raises(TypeError, match="The metric 'm' must be .* list"):
        spec.as_estimator_spec()


def test_replace():
    spec = kte.EstimatorSpec(EVAL, loss=LOSS)
    replaced = spec._replace(mode=EVAL, loss=ops.ones((1,)))
    assert float(replaced.loss) == 1 and float(spec.loss) == 0.5


@pytest.mark.parametrize(
    ("changes", "exception", "words"),
    [
        ({"mode": TRAIN}, ValueError, "mode='eval' 'train' new EstimatorSpec"),
        ({"loss": None}, ValueError, "Missing loss 'eval'"),
        ({"loss": 3}, TypeError, "`loss` tensor 3"),
        ({"eval_metric_ops": 3}, TypeError, "dict int"),
    ],
)
def test_replace_validates_fields(changes, exception, words):
    spec = kte.EstimatorSpec(EVAL, loss=LOSS)
    with refused(exception, words):
        spec._replace(**changes)


def test_replace_of_a_tpu_spec():
    pair = (of_any, [LOSS])
    spec = kte.TPUEstimatorSpec(EVAL, loss=LOSS, eval_metrics=pair)
    replaced = spec._replace(mode=TRAIN, train_op=TRAIN_OP)
    assert (replaced.mode, spec.mode) == (TRAIN, EVAL)
    assert replaced.eval_metrics == spec.eval_metrics == pair
    with pytest.raises(ValueError, match="Missing loss: in mode 'eval'"):
        spec._replace(loss=None)


@pytest.mark.parametrize(
    "record",
    [
        kte.EstimatorSpec(EVAL, loss=LOSS),
        kte.TPUEstimatorSpec(EVAL, loss=LOSS),
        kte.TPUConfig(),
    ],
    ids=lambda record: type(record).__name__,
)
def test_replacing_an_unknown_field_is_an_error(record):
    with refused(ValueError, f"{type(record).__name__} ['los'] some of ['"):
        record._replace(los=LOSS)


def test_metric_fn_with_an_argument_bound_by_a_partial():
    def metric_fn(a, b, k):
        return {}

    bound = functools.partial(metric_fn, k=3)
    spec = kte.TPUEstimatorSpec(
        "eval", loss=np.float32(1), eval_metrics=(bound, [1, 2])
    )
    assert spec.eval_metrics.function is bound


def test_empty_list_of_train_ops_is_refused():
    with pytest.raises(ValueError, match="Missing train_op"):
        kte.TPUEstimatorSpec("train", loss=np.float32(1), train_op=[])


def test_metric_without_an_update_is_refused(tmp_path):
    def model_fn(features, labels, mode, params):
        return kte.EstimatorSpec(
            mode,
            loss=keras.ops.mean(features),
            eval_metric_ops={"mean": keras.metrics.Mean()},
        )

    estimator = estimator_of(model_fn, tmp_path)
    with pytest.raises(ValueError, match="must be updated"):
        estimator.evaluate(lambda params: np.ones((4, 1), "float32"))
