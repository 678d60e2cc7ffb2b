"""The data, initial weights and settings of the golden programs.

It only uses NumPy, so that the original and this package start from the same numbers.
Streams of `np.random.RandomState` never change, so seeds define the arrays.
"""

import dataclasses

import numpy as np

NUM_FEATURES = 8
NUM_CLASSES = 3

_HIDDEN = {"hidden/kernel": (NUM_FEATURES, 16), "hidden/bias": (16,)}
_LOGITS = {"logits/kernel": (16, NUM_CLASSES), "logits/bias": (NUM_CLASSES,)}
_SHAPES = {
    "linear": {"output/kernel": (NUM_FEATURES, 1), "output/bias": (1,)},
    "mlp": _HIDDEN | _LOGITS,
    "batch_norm": _HIDDEN | _LOGITS,
}


@dataclasses.dataclass(frozen=True)
class Program:
    """A training of the original that this package must reproduce.

    Attributes:
        model: `"linear"`, `"mlp"` or `"batch_norm"`.
        optimizer: `"name"` (`"sgd"`, `"momentum"` or `"adam"`) and its
            settings.
        steps: The number of training steps, each with another batch.
        batch_size: The number of examples in a batch, in every mode.
        eval_examples: The number of held-out examples, not a multiple of `batch_size`.
        train_seed: The seed of the training data.
        eval_seed: The seed of the held-out data. With 2, no prediction is within 7e-6
            of an AUC threshold, so rounding does not matter.
        weights_seed: The seed of the first initial weight. Each next one adds 1.
    """

    model: str
    optimizer: dict
    steps: int = 50
    batch_size: int = 32
    eval_examples: int = 106
    train_seed: int = 1
    eval_seed: int = 2
    weights_seed: int = 10

    @property
    def is_regression(self) -> bool:
        """Whether the labels are numbers rather than classes."""
        return self.model == "linear"

    def train_data(self) -> tuple[dict[str, np.ndarray], np.ndarray]:
        """Features and labels of all steps, in order."""
        return self._data(self.train_seed, self.steps * self.batch_size)

    def eval_data(self) -> tuple[dict[str, np.ndarray], np.ndarray]:
        """Features and labels of the held-out set."""
        return self._data(self.eval_seed, self.eval_examples)

    def initial_weights(self) -> dict[str, np.ndarray]:
        """Every kernel and bias by name, before the first step."""
        shapes = _SHAPES[self.model]
        return {
            name: _normal(self.weights_seed + i, shape) * 0.3
            for i, (name, shape) in enumerate(shapes.items())
        }

    def _data(self, seed: int, count: int) -> tuple[dict[str, np.ndarray], np.ndarray]:
        random = np.random.RandomState(seed)
        x = random.normal(size=(count, NUM_FEATURES))
        noise = random.normal(size=(count, NUM_CLASSES))
        weight = random.uniform(0.5, 2.0, size=count)
        # A fixed seed, so that training and held-out data have the same distribution.
        law = np.random.RandomState(0).normal(size=(NUM_FEATURES, NUM_CLASSES))
        signal = x @ law + noise
        features = {"x": x, "weight": weight}
        features = {k: v.astype(np.float32) for k, v in features.items()}
        if self.is_regression:
            return features, signal[:, :1].astype(np.float32)
        return features, np.argmax(signal, axis=1).astype(np.int32)


def _normal(seed: int, shape: tuple[int, ...]) -> np.ndarray:
    return np.random.RandomState(seed).normal(size=shape).astype(np.float32)


_ADAM = {"name": "adam", "learning_rate": 0.01, "beta_1": 0.9, "epsilon": 1e-7}

PROGRAMS = {
    "linear": Program("linear", {"name": "sgd", "learning_rate": 0.05}),
    "mlp_momentum": Program(
        "mlp", {"name": "momentum", "learning_rate": 0.05, "momentum": 0.9}
    ),
    "mlp_adam": Program("mlp", _ADAM | {"beta_2": 0.999}),
    # With this beta_2, 1 - beta_2 is exact in float32, so all Adam versions agree.
    "mlp_adam_exact": Program("mlp", _ADAM | {"beta_2": 1 - 2**-10}),
    "batch_norm": Program("batch_norm", {"name": "sgd", "learning_rate": 0.05}),
}
