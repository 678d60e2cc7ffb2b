"""Planted faults: each must be found, with its kind and its place."""

import tempfile
from collections.abc import Iterator

import pytest

from keras_tpu_estimator import ComparisonReport
from keras_tpu_estimator.workflow.comparing.compare import context_of, report_of
from keras_tpu_estimator.workflow.comparing.differences import TrainingComparison
from keras_tpu_estimator.workflow.comparing.programs import NewProgram, OldProgram
from tests.workflow.comparing.networks import Network, input_fn

STEPS = 2


@pytest.fixture(scope="module")
def old() -> Iterator[OldProgram]:
    """The old program, recorded once."""
    with tempfile.TemporaryDirectory() as directory:
        context = context_of(Network().model_fn(), directory)
        program = OldProgram(context, directory)
        program.train(input_fn, STEPS)
        yield program


def compared(old: OldProgram, new: Network) -> ComparisonReport:
    """Returns the report on a new program."""
    with tempfile.TemporaryDirectory() as directory:
        program = NewProgram(context_of(new.model_fn(), directory), directory)
        program.train(input_fn, old.training)
        result = TrainingComparison(
            old.training, program.training, old.copies, program.pairing, 1e-5
        ).run()
    return report_of([result], old.training, program.training, program.pairing)


@pytest.mark.parametrize(
    "new",
    [
        Network(),
        Network(names=("other", "names")),
        Network(mean_axis=(2, 1)),
        Network(dropout=0.2 + 1e-9),
    ],
    ids=["same", "names", "axes", "rate"],
)
def test_equal_programs_are_one(old: OldProgram, new: Network) -> None:
    report = compared(old, new)
    assert report.is_equal, str(report)
    assert "The programs are one" in str(report)


FAULTS = {
    # The forward pass: the last variable before the fault.
    "scale": (Network(scale=1 / 255), "loss", "`conv2d/kernel`"),
    "padding": (Network(padding="torch"), "loss", "`conv2d/kernel`"),
    "batch epsilon": (Network(batch_epsilon=1e-5), "loss", "`conv2d/bias`"),
    "training": (Network(batch_training=False), "loss", "`batch_normalization/"),
    "transposed": (Network(transposed=True), "loss", "`hidden/"),
    "gelu": (Network(approximate=False), "loss", "`hidden/bias`"),
    "relu": (Network(activation="relu"), "loss", "`hidden/bias`"),
    "tanh": (Network(activation="tanh"), "loss", "`hidden/bias`"),
    "residual": (Network(residual=False), "loss", "`hidden/bias`"),
    "layer epsilon": (Network(layer_epsilon=1e-12), "loss", "`hidden/bias`"),
    "softmax axis": (Network(softmax_axis=0), "loss", "`logits/bias`"),
    "smoothing": (Network(smoothing=0.0), "loss", "`logits/bias`"),
    "smoothing more": (Network(smoothing=0.11), "loss", "`logits/bias`"),
    "reduction": (Network(reduction="sum"), "loss", "the loss"),
    "loss scale": (Network(loss_scale=2.0), "loss", "the loss"),
    "penalty": (Network(weight_of_penalty=0.0), "loss", "the loss"),
    "penalty halved": (Network(weight_of_penalty=5e-4), "loss", "the loss"),
    # The backward pass.
    "stopped": (Network(stop_gradient=True), "gradient", "stopped gradients"),
    # What is random.
    "dropout": (Network(dropout=0.1), "dropout", "0.2 and 0.1"),
    "no dropout": (Network(dropout=0.0), "dropout", "0.2 and none"),
    # The optimizer.
    "rate": (Network(rate=2e-2), "learning rate", "schedule"),
    "off by one": (Network(first_step=1), "learning rate", "schedule"),
    "beta 1": (Network(beta_1=0.8), "optimizer state", "decay rates"),
    "beta 2": (Network(beta_2=0.99), "optimizer state", "10 times"),
    "clipping": (Network(clip=0.1), "optimizer state", "clipping"),
    "epsilon": (Network(epsilon=1e-4), "variable", "epsilon"),
    "decay": (Network(decay=0.1), "variable", "weight decay"),
    "no decay": (Network(optimizer="adam"), "variable", "weight decay"),
    "bias decay": (Network(bias_decay=True), "variable", "weight decay"),
    "momentum": (Network(batch_momentum=0.9), "variable", "moving averages"),
    "frozen": (Network(frozen=True), "variable", "trained"),
}


@pytest.mark.rows(10)
@pytest.mark.parametrize("name", FAULTS)
def test_planted_fault_is_found(old: OldProgram, name: str) -> None:
    new, kind, words = FAULTS[name]
    report = compared(old, new)
    assert report.finding is not None, str(report)
    assert report.finding.compared.kind == kind, str(report)
    assert words in report.finding.explanation, str(report)
