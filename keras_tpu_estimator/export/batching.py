"""Small requests to a server, run together as one batch."""

import contextlib
import contextvars
import copy
import dataclasses
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias

from keras_tpu_estimator.engine.program.bound_model_fn import BoundModelFn
from keras_tpu_estimator.ground.base.modes import ModeKeys
from keras_tpu_estimator.ground.base.types import Features, Labels, Nest
from keras_tpu_estimator.spec.config.run_config import RunConfig
from keras_tpu_estimator.spec.model_fn.spec import Spec

_requested: contextvars.ContextVar[list["BatchConfig"] | None] = contextvars.ContextVar(
    "batch_configs", default=None
)


@dataclasses.dataclass(frozen=True)
class BatchConfig:
    """How a server puts requests together.

    Args:
        num_batch_threads: Batches that are run at the same time.
        max_batch_size: Examples in a request, and in a batch, at most.
        batch_timeout_micros: Microseconds that a request waits for others.
        allowed_batch_sizes: Sizes that batches are padded to, increasing, the
            last one `max_batch_size`. Defaults to any size.
        max_enqueued_batches: Batches that may wait. Defaults to 100.

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
                    f"`{name}` should be an int of at least {least}. "
                    f"Received: {value!r}"
                )
        if self.allowed_batch_sizes is None:
            return
        sizes = tuple(self.allowed_batch_sizes)
        object.__setattr__(self, "allowed_batch_sizes", sizes)
        if list(sizes) != sorted({*sizes}) or sizes[-1:] != (self.max_batch_size,):
            raise ValueError(
                "`allowed_batch_sizes` should increase and end with "
                f"max_batch_size={self.max_batch_size}. Received: {sizes}"
            )

    def batched(self, function: Callable[..., Nest]) -> Callable[..., Nest]:
        """A function of TensorFlow's tensors, run on batches of requests."""
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


CallInGraph: TypeAlias = Callable[[BatchConfig, Callable[..., Nest], list[Nest]], Nest]

# Set while a graph of TensorFlow 1 is built for a server.
_call_in_graph: contextvars.ContextVar[CallInGraph | None] = contextvars.ContextVar(
    "call_in_graph", default=None
)


def inference_on_tpu(
    computation: Callable[..., Nest],
    inputs_to_tpu: Sequence[Nest],
    num_batch_threads: int,
    max_batch_size: int | None,
    batch_timeout_micros: int,
    allowed_batch_sizes: Sequence[int] | None = None,
    max_enqueued_batches: int = 100,
) -> Nest:
    """Runs a computation, and has the exported model batch its requests.

    For use in a `model_fn`. The whole of `model_fn` is compiled anyway, and it
    is the whole of it whose requests are put together. In a graph of TensorFlow
    1 that is exported, it is those of `computation`. Outside an export this is
    a call of `computation`.

    The counterpart of the function of this name in TensorFlow's TPU estimator.

    Args:
        computation: Function of tensors.
        inputs_to_tpu: Its arguments, in a list.
        num_batch_threads: As in `BatchConfig`.
        max_batch_size: As in `BatchConfig`; without it nothing is batched.
        batch_timeout_micros: As in `BatchConfig`.
        allowed_batch_sizes: As in `BatchConfig`. Defaults to any size.
        max_enqueued_batches: As in `BatchConfig`. Defaults to 100.

    Returns:
        What `computation` returns.

    Raises:
        ValueError: The numbers do not fit, or inputs are no list.

    Example:

    >>> import keras_tpu_estimator as kte
    >>> kte.export.inference_on_tpu(lambda x: 2 * x, [3], 1, 8, 1000)
    6
    """
    if not isinstance(inputs_to_tpu, list | tuple):
        raise ValueError(
            "`inputs_to_tpu` should be a list of tensors. Received: "
            f"{type(inputs_to_tpu).__name__}. Put a single one into a list."
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
    """Calls a whole `model_fn` to predict, as `inference_on_tpu` does a part.

    For use in another `model_fn`, which an estimator exports.

    The counterpart of the function of this name in TensorFlow's TPU estimator.

    Args:
        model_fn: As in `TPUEstimator`.
        features: What it is given.
        labels: What it is given, if it takes labels. Defaults to `None`.
        config: What it is given, if it takes a `config`. Defaults to `None`.
        params: Dict that it is given with `use_tpu`, if it takes `params`.
            Defaults to an empty one.
        batch_config: How the exported model puts requests together. Defaults
            to `None`, for not at all.

    Returns:
        The spec that `model_fn` returned.

    Raises:
        ValueError: It returned no spec.

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
    batched: Callable[[Callable[..., Nest], list[Nest]], Nest],
) -> Spec:
    """Returns the spec of a function, with tensors that run on batches."""
    specs: list[Spec] = []

    def computation(features: Features) -> Nest:
        spec = call(features)
        specs.append(spec)
        outputs = (spec.export_outputs or {}).items()
        tensors = {name: output.tensors for name, output in outputs}
        return {"predictions": spec.predictions, "outputs": tensors}

    made = batched(computation, [features])
    spec = specs[-1]
    outputs = {
        name: copy.copy(output) for name, output in (spec.export_outputs or {}).items()
    }
    for name, output in outputs.items():
        output.tensors = made["outputs"][name]
    # Nothing else of it leaves the function.
    return spec._replace(
        predictions=made["predictions"],
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
    """Collects the configurations that a `model_fn` asks for in a block."""
    requested: list[BatchConfig] = []
    token = _requested.set(requested)
    try:
        yield requested
    finally:
        _requested.reset(token)


@contextlib.contextmanager
def batching_in_graph(call: CallInGraph) -> Iterator[None]:
    """Puts batch functions into the graph that a `with` block builds.

    Args:
        call: Calls a function of nests of tensors on batches of requests.
    """
    token = _call_in_graph.set(call)
    try:
        yield
    finally:
        _call_in_graph.reset(token)
