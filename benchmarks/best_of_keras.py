"""Keras at its best setting of `steps_per_execution`.

Since 3.16, Keras runs several steps as one program. Which setting is the fastest
depends on the release, the method and the model, so that each comparison tries all.
"""

from collections.abc import Callable, Mapping

import keras

from benchmarks.models import Classifier

SETTINGS = (1, 20, 100)


def models(
    network: Classifier, settings: tuple[int, ...] = SETTINGS, **arguments: object
) -> dict[str, keras.Model]:
    """Returns a compiled Keras model for each setting, by the name of the setting."""
    return {
        f"Keras, {steps} step{'s' if steps > 1 else ''}": network.keras_model(
            steps, **arguments
        )
        for steps in settings
    }


def calls(
    models: Mapping[str, keras.Model], call: Callable[[keras.Model], object]
) -> dict[str, Callable[[], object]]:
    """Returns a function without arguments for each model, by its name."""
    return {name: lambda model=model: call(model) for name, model in models.items()}


def fastest(seconds: Mapping[str, float]) -> tuple[str, float]:
    """Returns the name and the time of the fastest contestant of Keras."""
    of_keras = {name: time for name, time in seconds.items() if "Keras" in name}
    name = min(of_keras, key=of_keras.__getitem__)
    return name, of_keras[name]
