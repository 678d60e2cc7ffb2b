"""Servers that run several small requests as one batch."""

import contextlib
import contextvars
import copy
import dataclasses
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias

from keras_tpu_estimator.api.config.run_config import RunConfig
from keras_tpu_estimator.api.model_fn.spec import Spec
from keras_tpu_estimator.base.common.modes import ModeKeys
from keras_tpu_estimator.base.common.types import Features, Labels, PyTree
from keras_tpu_estimator.engine.program.bound_model_fn import BoundModelFn

_requested: contextvars.ContextVar[list["BatchConfig"] | None] = contextvars.ContextVar(
    "batch_configs", default=None
)


@dataclasses.dataclass(frozen=True)
class BatchConfig:
    """The batching of requests in a server.

    Args:
        num_batch_threads: The number of batches that run at the same time.
        max_batch_size: The maximum number of examples in a request and in a batch.
        batch_timeout_micros: Microseconds that a request waits for others.
        allowed_batch_sizes: Increasing sizes that batches are padded to; the last one
            is `max_batch_size`. Defaults to any size.
        max_enqueued_batches: The maximum number of waiting batches. Defaults to 100.

    Raises:
        ValueError: A number is not positive, or sizes do not increase.

    Example:

    >>> import keras_tpu_estimator as kte
    >>> kte.export.BatchConfig(2, 8, 1000, [4, 8]).allowed_batch_sizes
    (4, 8)
    """

    num_batch_threads: int
    max_batch_size: int
    batch_timeout_micros: int
    allowed_batch_sizes: Sequence[int] | None = None
    max_enqueued_batches: int = 100

    def __post_init__(self) -> None:
        lowest = {
            "num_batch_threads": 1,
            "max_batch_size": 1,
            "batch_timeout_micros": 0,
            "max_enqueued_batches": 1,
        }
        for name, least in lowest.items():
            value = getattr(self, name)
            is_int = isinstance(value, int) and not isinstance(value, bool)
            if not is_int or value < least:
                raise ValueError(
                    f"`{name}` must be an int of at least {least}. "
                    f"Received: {value!r}. Pass a larger int."
                )
        if self.allowed_batch_sizes is None:
            return
        sizes = tuple(self.allowed_batch_sizes)
        object.__setattr__(self, "allowed_batch_sizes", sizes)
        if list(sizes) != sorted({*sizes}) or sizes[-1:] != (self.max_batch_size,):
            raise ValueError(
                "`allowed_batch_sizes` must increase and end with "
                f"max_batch_size={self.max_batch_size}. Received: {sizes}. Sort "
                "the sizes and add the last one."
            )

    def batched(self, function: Callable[..., PyTree]) -> Callable[..., PyTree]:
        """Returns a function of TensorFlow tensors that runs on batches of requests."""
        import tensorflow as tf

        return tf.nondifferentiable_batch_function(
            num_batch_threads=self.num_batch_threads,
            max_batch_size=self.max_batch_size,
            batch_timeout_micros=self.batch_timeout_micros,
            allowed_batch_sizes=self.allowed_batch_sizes
            and list(self.allowed_batch_sizes),
            max_enqueued_batches=self.max_enqueued_batches,
            autograph=False,
        )(function)


CallInGraph: TypeAlias = Callable[
    [BatchConfig, Callable[..., PyTree], list[PyTree]], PyTree
]

# This is set while the front end builds a TensorFlow graph for a server.
_call_in_graph: contextvars.ContextVar[CallInGraph | None] = contextvars.ContextVar(
    "call_in_graph", default=None
)


def inference_on_tpu(
    computation: Callable[..., PyTree],
    inputs_to_tpu: Sequence[PyTree],
    num_batch_threads: int,
    max_batch_size: int | None,
    batch_timeout_micros: int,
    allowed_batch_sizes: Sequence[int] | None = None,
    max_enqueued_batches: int = 100,
) -> PyTree:
    """Runs a computation; the exported model batches its requests.

    For use in a `model_fn`. If `model_fn` builds a TensorFlow graph, the server batches
    the requests of `computation`. In other exports, it batches those of the complete
    `model_fn`, which is compiled anyway. Outside an export, the function only calls
    `computation`.

    The counterpart of the function of this name in TensorFlow's TPU estimator.

    Args:
        computation: A function of tensors.
        inputs_to_tpu: A list of its arguments.
        num_batch_threads: As in `BatchConfig`.
        max_batch_size: As in `BatchConfig`; if `None` or 0, nothing is batched.
        batch_timeout_micros: As in `BatchConfig`.
        allowed_batch_sizes: As in `BatchConfig`. Defaults to any size.
        max_enqueued_batches: As in `BatchConfig`. Defaults to 100.

    Returns:
        The result of `computation`.

    Raises:
        ValueError: The numbers are invalid, or the inputs are not a list.

    Example:

    >>> import keras_tpu_estimator as kte
    >>> kte.export.inference_on_tpu(lambda x: 2 * x, [3], 1, 8, 1000)
    6
    """
    if not isinstance(inputs_to_tpu, list | tuple):
        raise ValueError(
            "`inputs_to_tpu` must be a list of tensors. Received: "
            f"{type(inputs_to_tpu).__name__}. Put a single tensor into a list."
        )
    if max_batch_size:
        config = BatchConfig(
            num_batch_threads,
            max_batch_size,
            batch_timeout_micros,
            allowed_batch_sizes,
            max_enqueued_batches,
        )
        call = _call_in_graph.get()
        if call is not None:
            return call(config, computation, list(inputs_to_tpu))
        _request(config)
    return computation(*inputs_to_tpu)


def model_fn_inference_on_tpu(
    model_fn: Callable[..., Spec],
    features: Features,
    labels: Labels = None,
    config: RunConfig | None = None,
    params: Any = None,
    batch_config: BatchConfig | None = None,
) -> Spec:
    """Calls a complete `model_fn` to predict, with batched requests in the exported
    model.

    For use in another `model_fn`, which an estimator exports.

    The counterpart of the function of this name in TensorFlow's TPU estimator.

    Args:
        model_fn: As in `TPUEstimator`.
        features: The features for `model_fn`.
        labels: The labels for `model_fn`, if it accepts labels. Defaults to `None`.
        config: The `config` for `model_fn`, if it accepts one. Defaults to `None`.
        params: The dict `params` for `model_fn`, if it accepts one; `use_tpu` is added.
            Defaults to an empty dict.
        batch_config: The batching of requests in the exported model. Defaults to
            `None`: no batching.

    Returns:
        The spec of `model_fn`.

    Raises:
        ValueError: `model_fn` returned no spec.

    Example:

    >>> import numpy as np
    >>> import keras_tpu_estimator as kte
    >>> def model_fn(features, mode, params):
    ...     return kte.TPUEstimatorSpec(mode, {"y": 2 * features["x"]})
    >>> spec = kte.export.model_fn_inference_on_tpu(
    ...     model_fn, {"x": np.ones(2)}, batch_config=kte.export.BatchConfig(
    ...         num_batch_threads=1, max_batch_size=8,
    ...         batch_timeout_micros=1000))
    >>> spec.mode, spec.predictions["y"]
    ('infer', array([2., 2.]))
    """
    bound = BoundModelFn(
        model_fn, {} if params is None else params, config, checks_params=False
    )

    def call(features: Features) -> Spec:
        return bound(features, labels, ModeKeys.PREDICT, {"use_tpu": True})

    in_graph = _call_in_graph.get()
    if batch_config is None:
        return call(features)
    if in_graph is not None:
        batched = functools.partial(in_graph, batch_config)
        return _batched_spec(call, features, batched)
    _request(batch_config)
    return call(features)


def _batched_spec(
    call: Callable[[Features], Spec],
    features: Features,
    batched: Callable[[Callable[..., PyTree], list[PyTree]], PyTree],
) -> Spec:
    """Returns the spec of a function, with tensors that run on batches."""
    specs: list[Spec] = []

    def computation(features: Features) -> PyTree:
        spec = call(features)
        specs.append(spec)
        outputs = (spec.export_outputs or {}).items()
        tensors = {name: output.tensors for name, output in outputs}
        return {"predictions": spec.predictions, "outputs": tensors}

    batch_outputs = batched(computation, [features])
    spec = specs[-1]
    outputs = {
        name: copy.copy(output) for name, output in (spec.export_outputs or {}).items()
    }
    for name, output in outputs.items():
        output.tensors = batch_outputs["outputs"][name]
    # The function returns no other tensors.
    return spec._replace(
        predictions=batch_outputs["predictions"],
        export_outputs=outputs or None,
        loss=None,
        train_op=None,
        host_call=None,
    )


def _request(config: BatchConfig) -> None:
    requested = _requested.get()
    if requested is not None:
        requested.append(config)


@contextlib.contextmanager
def batching_requests() -> Iterator[list[BatchConfig]]:
    """Collects the configurations that a `model_fn` requests in a block."""
    requested: list[BatchConfig] = []
    token = _requested.set(requested)
    try:
        yield requested
    finally:
        _requested.reset(token)


@contextlib.contextmanager
def batching_in_graph(call: CallInGraph) -> Iterator[None]:
    """Makes `call` run functions on batches in the graph that a `with` block builds."""
    token = _call_in_graph.set(call)
    try:
        yield
    finally:
        _call_in_graph.reset(token)
