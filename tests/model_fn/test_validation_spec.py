"""Tests of the errors of both specs, their order, and normalized values."""

import dataclasses
import functools

import jax.numpy as jnp
import keras
import numpy as np
import pytest
from helpers import estimator_of
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


def of_two_or_three(labels, outputs, weights=None):
    del labels, outputs, weights
    return {}


def of_any(*tensors):
    del tensors
    return {}


class Hook(kte.hooks.SessionRunHook):
    pass


# By name: the invalid fields, the exception, and its message about the field NAME.
# The order is that of the checks in TRAIN.
HOST_FUNCTIONS = {
    "neither tuple nor list": (
        of_two,
        ValueError,
        "`NAME` must be a tuple or list of a function and its tensors. "
        "Received: <function of_two.* of type function",
    ),
    "a dict": (
        {"function": of_two},
        ValueError,
        "`NAME` must be a tuple or list .* of type dict",
    ),
    "one element": (
        (of_two,),
        ValueError,
        "`NAME` must have two elements, a function and its tensors. Received 1:",
    ),
    "three elements": (
        [of_two, [], []],
        ValueError,
        "`NAME` must have two elements, .* Received 3: .* Put all tensors "
        "into one list",
    ),
    "not callable": (
        ([LOSS], of_two),
        TypeError,
        "The first element of `NAME` must be callable. Received: .* of type list",
    ),
    "a bare tensor": (
        (of_two, np.ones(2)),
        ValueError,
        "The tensors of `NAME` must be a tuple, list or dict. Received: "
        "ndarray. Put a single tensor into a list",
    ),
    "a tensor too few": (
        (of_two, [LOSS]),
        RuntimeError,
        r"`NAME` takes 2 arguments \['labels', 'outputs'\], but there are 1 "
        "tensors. Pass one tensor for each argument",
    ),
    "a tensor too many": (
        (of_two, (LOSS, LOSS, LOSS)),
        RuntimeError,
        "`NAME` takes 2 arguments .*, but there are 3 tensors",
    ),
    "none for an argument with a default": (
        (of_two_or_three, [LOSS, LOSS]),
        RuntimeError,
        "`NAME` takes 3 arguments .* including arguments with defaults",
    ),
}
COMMON = {
    **{
        f"{name} of wrong type": (
            {name: [Hook(), "hook"]},
            TypeError,
            "must be SessionRunHook instances. Received: 'hook' of type str. "
            r"Derive it from keras_tpu_estimator\.hooks\.SessionRunHook",
        )
        for name in HOOKS
    },
    "no train_op": (
        {"train_op": None},
        ValueError,
        r"Missing train_op: in mode 'train' .* the result of kte\.minimize\("
        r"optimizer, loss\). Received: train_op=None",
    ),
    "train_op is a function": (
        {"train_op": of_two},
        TypeError,
        r"`train_op` must be the result of kte\.minimize\(optimizer, loss\) "
        "or .* "
        "Received: <function of_two.* of type function",
    ),
    "train_op holds a string": (
        {"train_op": [TRAIN_OP, "minimize"]},
        TypeError,
        "or a sequence of these. Received: 'minimize' of type str",
    ),
    "no loss": (
        {"loss": None},
        ValueError,
        "Missing loss: in mode 'train' .* a scalar tensor as its loss. "
        "Received: loss=None",
    ),
    "loss is a number": (
        {"loss": 0.5},
        TypeError,
        "`loss` must be a tensor. Received: 0.5 of type float. Compute it "
        "with keras.ops",
    ),
    "loss is not a scalar": (
        {"loss": np.ones((4, 1))},
        ValueError,
        r"`loss` must be a scalar. Received a tensor of shape \(4, 1\). "
        "Take its mean or its sum",
    ),
    "predictions are a list": (
        {"predictions": [np.ones(2)]},
        TypeError,
        "`predictions` must be a tensor or a dict of tensors. Received for "
        r"'predictions': \[.* of type list",
    ),
    "a prediction is a number": (
        {"predictions": {"y": np.ones(2), "z": 3}},
        TypeError,
        "a tensor or a dict of tensors. Received for 'z': 3 of type int. "
        "Convert it with keras.ops.convert_to_tensor",
    ),
    "export_outputs are a list": (
        {"export_outputs": []},
        TypeError,
        r"must be a dict from signature names to export outputs. Received: "
        r"\[\] of type list",
    ),
}
OF_TPU = {
    f"{field} {name}": (
        {field: pair},
        exception,
        message.replace("NAME", field),
    )
    for field in ("eval_metrics", "host_call")
    for name, (pair, exception, message) in HOST_FUNCTIONS.items()
}
OF_ONE_CORE = {
    "training_chief_hooks of wrong type": (
        {"training_chief_hooks": [print]},
        TypeError,
        "must be SessionRunHook instances. Received: .*print",
    ),
    **COMMON,
    "eval_metric_ops are a list": (
        {"eval_metric_ops": [keras.metrics.Mean()]},
        TypeError,
        "must be a dict from names to Keras metrics or .* Received: .* of type list",
    ),
    "a metric is a list": (
        {"eval_metric_ops": {"m": [LOSS, LOSS]}},
        TypeError,
        r"'m' must be a keras.metrics.Metric or a \(value, update\) tuple. "
        "Received: .* of type list",
    ),
    "a metric is a tuple of three": (
        {"eval_metric_ops": {"m": (LOSS, LOSS, LOSS)}},
        TypeError,
        "'m' must be .* of type tuple",
    ),
    "a metric is a number": (
        {"eval_metric_ops": {"m": 0.5}},
        TypeError,
        "'m' must be .* Received: 0.5 of type float",
    ),
    "a metric is called by a number": (
        {"eval_metric_ops": {3: (LOSS, LOSS)}},
        TypeError,
        "The name of a metric must be a string. Received: 3 of type int. Pass '3'",
    ),
}
SPECS = {
    kte.TPUEstimatorSpec: {**OF_TPU, **COMMON},
    kte.EstimatorSpec: OF_ONE_CORE,
}


def refused(spec_class, name, mode=TRAIN, **more):
    changes, exception, message = SPECS[spec_class][name]
    with pytest.raises(exception, match=message):
        spec_class(mode, **ENOUGH[mode] | more | changes)


@pytest.mark.parametrize(
    ("spec_class", "name"),
    [(each, name) for each, cases in SPECS.items() for name in cases],
)
def test_invalid_arguments_are_refused_by_name(spec_class, name):
    refused(spec_class, name)


@pytest.mark.parametrize("name", ["loss", "global_step"])
def test_names_of_metrics_are_checked_when_returned(name):
    metric_ops = {name: (LOSS, LOSS)}
    spec = kte.EstimatorSpec(TRAIN, **ENOUGH[TRAIN], eval_metric_ops=metric_ops)
    assert list(spec.eval_metric_ops) == [name]
    with pytest.raises(ValueError, match=f"cannot be named '{name}', because .*Give"):
        kte.EstimatorSpec(EVAL, **ENOUGH[EVAL], eval_metric_ops=metric_ops)


@pytest.mark.parametrize("spec_class", SPECS)
def test_first_mistake_is_reported(spec_class):
    cases = SPECS[spec_class]
    names = list(cases)
    for index, name in enumerate(names):
        for other in names[index + 1 :]:
            refused(spec_class, name, **cases[other][0])


@pytest.mark.parametrize("spec_class", SPECS)
@pytest.mark.parametrize(
    ("mode", "missing", "message"),
    [
        (EVAL, "loss", "Missing loss: in mode 'eval'"),
        (
            PREDICT,
            "predictions",
            "Missing predictions: in mode 'infer' a spec must have a dict of "
            "tensors. Received: predictions=None",
        ),
    ],
)
def test_missing_fields_are_refused_in_other_modes(mode, missing, message, spec_class):
    with pytest.raises(ValueError, match=message):
        spec_class(mode, **ENOUGH[mode] | {missing: None})


@pytest.mark.parametrize("spec_class", SPECS)
@pytest.mark.parametrize(
    ("mode", "name"),
    [
        (EVAL, "train_op is a function"),
        (PREDICT, "loss is a number"),
        (EVAL, "a prediction is a number"),
        (PREDICT, "evaluation_hooks of wrong type"),
    ],
)
def test_fields_that_a_mode_does_not_need_are_checked(mode, name, spec_class):
    refused(spec_class, name, mode)


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
        (of_two_or_three, [LOSS, LOSS, LOSS]),
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
    ("changes", "exception", "message"),
    [
        (
            {"mode": TRAIN},
            ValueError,
            "cannot be replaced. Expected mode='eval'. Received: 'train'. Make "
            "a new EstimatorSpec",
        ),
        ({"loss": None}, ValueError, "Missing loss: in mode 'eval'"),
        ({"loss": 3}, TypeError, "`loss` must be a tensor. Received: 3"),
        ({"eval_metric_ops": 3}, TypeError, "must be a dict .* type int"),
    ],
)
def test_replace_validates_fields(changes, exception, message):
    spec = kte.EstimatorSpec(EVAL, loss=LOSS)
    with pytest.raises(exception, match=message):
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
    name = type(record).__name__
    with pytest.raises(
        ValueError, match=rf"of {name} must exist.*: \['los'\].*some of \['"
    ):
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
