"""Tests that training logs metrics whose variables are no sums, as `fit` does."""

import keras
import numpy as np
import pytest
from keras import layers, ops

import keras_tpu_estimator as kte
from keras_tpu_estimator.front_ends.compiled.compile_arguments import CompileArguments
from keras_tpu_estimator.front_ends.compiled.metric_update import Counted
from keras_tpu_estimator.front_ends.compiled.training_metrics import training_metrics

EXAMPLES, BATCH = 32, 16
RNG = np.random.default_rng(0)
X = RNG.normal(size=(EXAMPLES, 4)).astype("float32")
Y = (X.sum(axis=1, keepdims=True) + RNG.normal(size=(EXAMPLES, 1))).astype("float32")


class OneNumber(keras.metrics.Metric):
    """A metric with one variable; `new` returns its next value."""

    initial = 0.0
    dtype_of_value = "float32"

    def __init__(self, name=None, **kwargs):
        super().__init__(name=name or type(self).__name__.lower(), **kwargs)
        start = keras.initializers.Constant(self.initial)
        self.value = self.add_variable((), start, self.dtype_of_value, name="value")

    def update_state(self, y_true, y_pred, sample_weight=None):
        self.value.assign(self.new(self.value + 0, y_true, y_pred))

    def result(self):
        return ops.cast(self.value + 0, "float32")


class Examples(OneNumber):
    dtype_of_value = "int32"

    def new(self, value, y_true, y_pred):
        return value + ops.shape(y_pred)[0]


class Batches(OneNumber):
    def new(self, value, y_true, y_pred):
        return value + 1


class Largest(OneNumber):
    initial = -1e9

    def new(self, value, y_true, y_pred):
        return ops.maximum(value, ops.max(ops.abs(y_true - y_pred)))


class Smallest(OneNumber):
    """It starts from another value than the initial one, as some in Keras code."""

    def new(self, value, y_true, y_pred):
        return ops.minimum(value, ops.min(ops.abs(y_true - y_pred)))

    def reset_state(self):
        self.value.assign(1e9)


class Last(OneNumber):
    def new(self, value, y_true, y_pred):
        return ops.mean(y_true)


class Decayed(OneNumber):
    def new(self, value, y_true, y_pred):
        return 0.5 * value + 0.5 * ops.mean(ops.abs(y_true))


OTHERS = [Batches, Largest, Smallest, Last, Decayed]


def compiled(metrics):
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.Input((4,)), layers.Dense(1, name="y")])
    model.compile(keras.optimizers.SGD(0.0), "mse", metrics=metrics)
    return model


class LastLogs(keras.callbacks.Callback):
    """The logs of the epochs."""

    def __init__(self):
        super().__init__()
        self.epochs = []

    def on_epoch_end(self, epoch, logs=None):
        self.epochs.append(dict(logs))


@pytest.mark.rows(3)
@pytest.mark.parametrize(
    ("iterations", "settings"),
    [(1, {}), (2, {"use_tpu": True}), (2, {"micro_batches": 2})],
)
def test_any_metrics_match_fit(iterations, settings):
    def make():
        return compiled([*(each() for each in OTHERS), Examples(), "mae"])

    history = make().fit(X, Y, BATCH, 2, shuffle=False, verbose=0).history
    expected = make().evaluate(X, Y, BATCH, verbose=0, return_dict=True)

    config = kte.RunConfig(
        tpu_config=kte.TPUConfig(iterations_per_loop=iterations),
        micro_batches=settings.get("micro_batches", 1),
    )
    estimator = kte.from_keras(
        make(),
        config=config,
        use_tpu=settings.get("use_tpu", False),
        train_batch_size=BATCH,
        eval_batch_size=BATCH,
    )

    def input_fn(params):
        for start in range(0, EXAMPLES, BATCH):
            yield X[start : start + BATCH], Y[start : start + BATCH]

    logs = LastLogs()
    steps = EXAMPLES // BATCH
    hook = kte.hooks.CallbackHook([logs], steps_per_epoch=steps)
    for _ in range(2):
        estimator.train(input_fn, steps=steps, hooks=[hook])
    got = estimator.evaluate(input_fn)
    for name, value in expected.items():
        np.testing.assert_allclose(got[name], value, 1e-5, err_msg=name)
        of_epochs = [epoch[name] for epoch in logs.epochs]
        np.testing.assert_allclose(of_epochs, history[name], 1e-5, err_msg=name)


def counted_on(metrics, labels, outputs):
    """The host's function and its tensors for one step of training."""
    model = compiled(metrics)
    counted = Counted(labels, outputs, None)
    return training_metrics(CompileArguments.from_model(model), counted, {})


CLASSES = RNG.integers(0, 3, EXAMPLES)
ONE_HOT = np.eye(3, dtype="float32")[CLASSES]
OUTPUTS = RNG.dirichlet(np.ones(3), EXAMPLES).astype("float32")
SUMS = {
    "binary": [
        "AUC",
        "BinaryAccuracy",
        "BinaryCrossentropy",
        "BinaryIoU",
        "FalseNegatives",
        "FalsePositives",
        "Hinge",
        "Precision",
        "PrecisionAtRecall",
        "Recall",
        "SensitivityAtSpecificity",
        "TrueNegatives",
    ],
    "classes": [
        "CategoricalAccuracy",
        "CategoricalCrossentropy",
        "ConcordanceCorrelation",
        "CosineSimilarity",
        "F1Score",
        "FBetaScore",
        "KLDivergence",
        "MeanIoU",
        "OneHotMeanIoU",
        "PearsonCorrelation",
        "R2Score",
        "RootMeanSquaredError",
        "TopKCategoricalAccuracy",
    ],
}
ARGUMENTS = {
    "MeanIoU": {"num_classes": 3},
    "OneHotMeanIoU": {"num_classes": 3},
    "PrecisionAtRecall": {"recall": 0.5},
    "SensitivityAtSpecificity": {"specificity": 0.5},
}


# Keras casts to int64.
@pytest.mark.filterwarnings("ignore:Explicitly requested dtype int64")
@pytest.mark.parametrize("kind", SUMS)
def test_metrics_of_keras_are_added_up(kind):
    """The host receives their variables, and not labels and outputs."""
    metrics = [
        getattr(keras.metrics, name)(**ARGUMENTS.get(name, {})) for name in SUMS[kind]
    ]
    labels, outputs = ONE_HOT, OUTPUTS
    if kind == "binary":
        labels, outputs = ONE_HOT[:, :1], OUTPUTS[:, :1]
    _, tensors = counted_on(metrics, labels, outputs)
    variables = sum(len(metric.variables) for metric in metrics)
    assert len(tensors) >= variables


@pytest.mark.parametrize("make", OTHERS)
def test_other_metrics_are_updated_on_the_host(make):
    _, tensors = counted_on(["mae", make()], Y, Y + 1)
    np.testing.assert_array_equal(tensors[:2], [Y, Y + 1])


def test_counts_of_examples_are_added_up():
    _, tensors = counted_on(["mae", Examples()], Y, Y + 1)
    np.testing.assert_array_equal(tensors[-1], [EXAMPLES])
