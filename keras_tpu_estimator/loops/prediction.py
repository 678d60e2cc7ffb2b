"""One call of `predict`: a stream of batches in, a stream of rows out."""

import dataclasses
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from keras_tpu_estimator.hooks.session_run_hook import HookList
from keras_tpu_estimator.hooks.session_run_hook import Session
from keras_tpu_estimator.hooks.session_run_hook import SessionRunHook
from keras_tpu_estimator.inputs.infeed import Infeed
from keras_tpu_estimator.inputs.padding import pad
from keras_tpu_estimator.inputs.pipeline import Pipeline
from keras_tpu_estimator.loops.feeding import first_step
from keras_tpu_estimator.loops.progress import Progress
from keras_tpu_estimator.program.store import Values
from keras_tpu_estimator.runtime import Runtime


@dataclasses.dataclass(frozen=True)
class Padded:
    """One step to predict for, on the host and on the devices.

    Attributes:
        features: Nest of NumPy arrays, padded to the batch size.
        is_padding: Booleans of shape `[batch]`.
        examples: How many rows are no padding.
        data: Features and `is_padding` on the devices.
    """

    features: Any
    is_padding: np.ndarray
    examples: int
    data: Any


def padded_ahead(
    runtime: Runtime, pipeline: Pipeline, size: int | None
) -> Infeed[Padded]:
    """Pads single steps and copies them to the devices, ahead of time.

    Args:
        runtime: The model.
        pipeline: The input.
        size: The batch size to pad to; by default that of the first batch.
    """
    sizes = [size] if size else []

    def produce() -> Padded | None:
        batch = pipeline.take(1)
        if batch is None:
            return None
        features, _ = first_step(batch)
        if not sizes:
            sizes.append(batch.examples)
        padded = pad(features, max(sizes[0], batch.examples))
        return Padded(*padded, batch.examples, runtime.loop.put_one(*padded))

    return Infeed(produce)


class PredictionLoop:
    """Feeds, runs and accompanies the devices in one `predict`.

    Args:
        runtime: The model and its values.
        infeed: The steps, on the devices.
    """

    def __init__(self, runtime: Runtime, infeed: Infeed[Padded]):
        self._runtime = runtime
        self._infeed = infeed

    def run(
        self, first: Padded, values: Values, hooks: Iterable[SessionRunHook]
    ) -> Iterator[Any]:
        """Yields the predictions of each batch, padding cut off.

        Args:
            first: The first step.
            values: The variables' values by path.
            hooks: Called around each batch.
        """
        progress = Progress(values)
        hook_list = HookList(hooks, Session(progress.fetch))
        hook_list.begin()
        hook_list.after_create_session()
        state = self._runtime.model.state(values, slots=False)
        fed: Padded | None = first
        while True:
            hooked = hook_list.before_run()
            if fed is None:
                break
            predictions = self._predict(state, fed)
            stops = hooked.after_run()
            yield predictions
            if stops:
                break
            fed = next(self._infeed, None)
        hook_list.end()

    def _predict(self, state: Any, fed: Padded) -> Any:
        predictions = self._runtime.loop.predict(state, fed.data)
        return jax.tree_util.tree_map_with_path(
            lambda path, leaf: _cut(path, leaf, fed),
            jax.device_get(predictions),
        )


def select(predictions: Any, keys: Any) -> Any:
    """The predictions under some keys; all of them for no keys.

    Raises:
        ValueError: Predictions are no dict, or have none of the keys.
    """
    if not keys:
        return predictions
    keys = [keys] if isinstance(keys, str) else list(keys)
    if not isinstance(predictions, Mapping):
        raise ValueError(
            "`predict_keys` need predictions in a dict. Received keys "
            f"{keys} and predictions of type {type(predictions).__name__}."
        )
    selected = {k: v for k, v in predictions.items() if k in keys}
    if not selected:
        raise ValueError(
            f"Expected `predict_keys` among {sorted(predictions)}. Received: "
            f"{keys}"
        )
    return selected


def rows(predictions: Any) -> Iterator[Any]:
    """The predictions of single examples."""
    if not isinstance(predictions, Mapping):
        yield from predictions
        return
    names = tuple(predictions)
    for values in zip(*predictions.values(), strict=True):
        yield dict(zip(names, values, strict=True))


def _cut(path: Any, leaf: np.ndarray, fed: Padded) -> np.ndarray:
    if leaf.ndim == 0 or leaf.shape[0] != len(fed.is_padding):
        raise ValueError(
            f"The prediction {jax.tree_util.keystr(path)} should have one row "
            f"for each of {len(fed.is_padding)} examples. Received shape "
            f"{leaf.shape}. Keep the batch as its first axis."
        )
    return leaf[: fed.examples]
