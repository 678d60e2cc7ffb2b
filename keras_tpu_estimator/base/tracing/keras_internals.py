"""All private parts of Keras that this package uses, one function each.

`tests/tracing/test_keras_internals.py` fails when Keras changes any of them.
"""

import contextlib
import contextvars
import functools
import inspect
import random
import sys
import types
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax.numpy as jnp
import keras
from keras.src import api_export
from keras.src.backend.common import global_state, masking
from keras.src.backend.common.name_scope import current_path
from keras.src.backend.jax import image, nn
from keras.src.backend.jax import numpy as keras_numpy
from keras.src.backend.jax import random as keras_random
from keras.src.optimizers import base_optimizer
from keras.src.random import seed_generator
from keras.src.saving import object_registration, serialization_lib
from keras.src.saving.serialization_lib import ObjectSharingScope
from keras.src.trainers import compile_utils
from keras.src.tree import tree_api
from keras.src.utils import jax_layer, jax_utils

from keras_tpu_estimator.base.common.machine import Machine


class _CountsByScope(dict[Any, int]):
    """The number of taken names of each kind in each name scope; Keras counts only by
    name.

    Args:
        taken: The counts outside all scopes.
    """

    def __init__(self, taken: Mapping[str, int]):
        super().__init__({("", name): n for name, n in taken.items()})

    def __contains__(self, name: object) -> bool:
        return super().__contains__((current_path(), name))

    def __getitem__(self, name: str) -> int:
        return self.get((current_path(), name), 0)

    def __setitem__(self, name: str, count: int) -> None:
        super().__setitem__((current_path(), name), count)

    def begin_anew(self) -> None:
        """Forgets the counts in and below the current scope."""
        path = current_path()
        for scope, name in list(self):
            if scope == path or scope.startswith(f"{path}/"):
                del self[scope, name]


def begin_names_anew() -> None:
    """Restarts automatic names in the current name scope, if they are counted
    by scope.
    """
    counts = global_state.get_global_attribute("object_name_uids")
    if isinstance(counts, _CountsByScope):
        counts.begin_anew()


@contextlib.contextmanager
def fresh_names(taken: Mapping[str, int] | None = None) -> Iterator[None]:
    """Restarts Keras's automatic names in a `with` block.

    The first `Dense` of each name scope is called `dense` again, whatever the process
    built before. Uninitialized variables are forgotten at the end.

    Args:
        taken: The numbers of automatic names that are taken outside all scopes.
            Defaults to none.
    """
    saved = {
        name: global_state.get_global_attribute(name)
        for name in ("object_name_uids", "uninitialized_variables")
    }
    global_state.set_global_attribute("object_name_uids", _CountsByScope(taken or {}))
    global_state.set_global_attribute("uninitialized_variables", [])
    try:
        yield
    finally:
        for name, value in saved.items():
            global_state.set_global_attribute(name, value)


def name_path() -> str:
    """Returns the path of the current name scopes."""
    path: str = current_path()
    return path


def default_seed() -> int:
    """Returns a seed as Keras chooses it."""
    seed: int = seed_generator.make_default_seed()
    return seed


class _DefaultSeeds:
    """The replacement of Python's `random` in Keras, with a generator for each
    context.
    """

    current: contextvars.ContextVar[Any] = contextvars.ContextVar(
        "default_seeds", default=random
    )

    def __getattr__(self, name: str) -> Any:
        return getattr(self.current.get(), name)


@contextlib.contextmanager
def default_seeds(generator: random.Random) -> Iterator[None]:
    """Makes Keras draw its default seeds from a generator in a `with` block.

    Other threads and Python's `random` are unaffected.
    """
    seed_generator.python_random = _DefaultSeeds()
    token = _DefaultSeeds.current.set(generator)
    try:
        yield
    finally:
        _DefaultSeeds.current.reset(token)


def register_node(cls: type) -> None:
    """Registers a class with `tree_flatten` and its inverse as a node of pytrees."""
    tree_api.register_tree_node_class(cls)


def stored_dtype(variable: keras.Variable) -> str:
    """Returns the dtype in which a variable is stored, regardless of autocast
    scopes.
    """
    return variable._dtype


def hold(variable: keras.Variable, value: Any) -> None:
    """Sets the array of a variable, which may have any shape."""
    variable._value = value


def has_value(variable: keras.Variable) -> bool:
    """Returns whether a variable has an array, which Keras's `fit` removes."""
    return variable._value is not None


def set_path(variable: keras.Variable, path: str) -> None:
    """Sets the path of a variable."""
    variable._path = path


def updated_variables(
    optimizer: keras.optimizers.Optimizer,
) -> list[keras.Variable]:
    """Returns the variables that an optimizer was last built for."""
    return list(optimizer._trainable_variables)


def current_layout_map() -> keras.distribution.LayoutMap | None:
    """Returns the layout map of the current distribution, if it has one."""
    distribution = keras.distribution.distribution()
    if not isinstance(distribution, keras.distribution.ModelParallel):
        return None
    return distribution._layout_map


@contextlib.contextmanager
def without_distribution() -> Iterator[None]:
    """Disables Keras's distribution in a `with` block.

    A distribution would put new variables on devices, and shard outputs of layers by
    the rules for variables.
    """
    before = keras.distribution.distribution()
    keras.distribution.set_distribution(None)
    try:
        yield
    finally:
        keras.distribution.set_distribution(before)


_platform: contextvars.ContextVar[str | None] = contextvars.ContextVar(
    "platform", default=None
)


@contextlib.contextmanager
def on_platform(platform: str) -> Iterator[None]:
    """Makes Keras build operations for a kind of device in a `with` block.

    By default, Keras builds them for JAX's devices, which may differ from those of the
    traced program.

    Args:
        platform: The kind, such as "cpu".
    """
    _ask_for_platform()
    token = _platform.set(platform)
    try:
        yield
    finally:
        _platform.reset(token)


def platform() -> str | None:
    """Returns the kind of device of `on_platform`, or `None` outside."""
    return _platform.get()


@functools.cache
def _ask_for_platform() -> None:
    """Patches Keras's decisions about devices once, so that they use `on_platform`."""
    # A function of the package hides the module of the same name.
    rnn: Any = sys.modules["keras.src.backend.jax.rnn"]
    uses_cpu = keras_numpy._uses_cpu
    attention = nn.dot_product_attention

    def is_on_cpu(x: Any) -> bool:
        platform = _platform.get()
        return uses_cpu(x) if platform is None else platform == "cpu"

    def is_on_gpu() -> bool:
        # Without a GPU, cuDNN cannot report how much memory it needs. In a plan, JAX
        # reports the backend of the topology.
        return _platform.get() in (None, "gpu") and Machine.here().platform == "gpu"

    @functools.wraps(attention)
    def attend(*args: Any, **kwargs: Any) -> Any:
        if _platform.get() == "tpu":
            kwargs = _without_flash(attention, args, kwargs)
            args = ()
        return attention(*args, **kwargs)

    keras_numpy._uses_cpu, rnn._is_gpu_available = is_on_cpu, is_on_gpu
    nn.dot_product_attention = attend


def _without_flash(
    attention: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> dict[str, Any]:
    """Returns the arguments of attention on a TPU, by name, without flash attention.

    On a TPU, the kernel of Keras's flash attention does not scale, and treats attention
    without a mask as causal, and XLA cannot shard it.
    """
    bound = inspect.signature(attention).bind(*args, **kwargs).arguments
    for name in ("flash_attention", "attn_logits_soft_cap"):
        if bound.get(name):
            raise ValueError(
                "Attention on a TPU must not use Keras's flash attention, which "
                f"computes wrong numbers there. Received: {name}={bound[name]}. "
                "Omit it."
            )
    return {**bound, "flash_attention": False}


def rate_function(
    optimizer: keras.optimizers.Optimizer,
) -> Callable[..., Any] | None:
    """Returns the function that computes an optimizer's learning rate, except for
    schedules.
    """
    rate = optimizer._learning_rate
    schedule = keras.optimizers.schedules.LearningRateSchedule
    is_function = callable(rate) and not isinstance(rate, schedule)
    return rate if is_function else None


@contextlib.contextmanager
def at_rate(optimizer: keras.optimizers.Optimizer, rate: Any) -> Iterator[None]:
    """Sets the rate of an optimizer with a `rate_function` in a `with` block."""
    before = optimizer._learning_rate
    optimizer._learning_rate = lambda: rate
    try:
        yield
    finally:
        optimizer._learning_rate = before


def accept_tensors_as_rates(is_tensor: Callable[[object], bool]) -> None:
    """Makes optimizers accept tensors as learning rates from now on.

    Keras accepts functions, so a tensor is wrapped in one.

    Args:
        is_tensor: Whether a learning rate is a tensor.
    """
    construct = base_optimizer.BaseOptimizer.__init__
    if hasattr(construct, "__wrapped__"):
        return

    @functools.wraps(construct)
    def __init__(  # noqa: N807
        self: Any, learning_rate: Any, *args: Any, **kwargs: Any
    ) -> None:
        rate = (lambda: learning_rate) if is_tensor(learning_rate) else None
        construct(self, rate or learning_rate, *args, **kwargs)

    base_optimizer.BaseOptimizer.__init__ = __init__


def compile_arguments(model: keras.Model) -> dict[str, Any]:
    """Returns the arguments of `model.compile` by name.

    `get_compile_config` contains names instead of functions.
    """
    return dict(model._compile_config.config)


def layers_of(model: keras.Model) -> list[keras.layers.Layer]:
    """Returns a model and all layers in it, outer ones first."""
    return list(model._flatten_layers())


def from_own_config(model: keras.Model, functions: Mapping[str, Any]) -> keras.Model:
    """Returns a model with new variables, made from the config of a model.

    As in a file, an object that several layers share remains one object; `clone_model`
    makes several.

    Args:
        functions: Functions by their names in the config; may be filled during the
            call.
    """
    with ObjectSharingScope():
        config = keras.saving.serialize_keras_object(model)
    classes = {type(each).__name__: type(each) for each in layers_of(model)}
    with ObjectSharingScope(), keras.saving.custom_object_scope(functions):
        # This is safe, because the config comes from this process.
        return keras.saving.deserialize_keras_object(
            config, custom_objects=classes, safe_mode=False
        )


def name_functions(name_of: Callable[[Any], str | None]) -> None:
    """Makes Keras write these names of functions into configs from now on.

    Args:
        name_of: Returns the name of a function, or `None` to use Keras's.
    """
    registered_name = object_registration.get_registered_name
    if hasattr(registered_name, "__wrapped__"):
        return
    serialize = serialization_lib.serialize_keras_object

    @functools.wraps(registered_name)
    def named(value: Any) -> Any:
        return name_of(value) or registered_name(value)

    @functools.wraps(serialize)
    def serialized(value: Any) -> Any:
        name = name_of(value)
        if name is None:
            return serialize(value)
        return {
            "module": None,
            "class_name": "function",
            "config": name,
            "registered_name": name,
        }

    to_config = keras.layers.Lambda._serialize_function_to_config

    @functools.wraps(to_config)
    def lambda_serialized(layer: Any, function: Any) -> Any:
        if name_of(function) is None:
            return to_config(layer, function)
        return serialized(function)

    object_registration.get_registered_name = named
    for module in (serialization_lib, keras.saving, keras.utils):
        module.serialize_keras_object = serialized
    keras.layers.Lambda._serialize_function_to_config = lambda_serialized


def is_of_keras(function: Any) -> bool:
    """Returns whether Keras finds a function by its name."""
    if api_export.get_name_from_symbol(function) is not None:
        return True
    module = getattr(function, "__module__", None) or ""
    is_inner = "<" in getattr(function, "__qualname__", "<")
    return module.partition(".")[0] == "keras" and not is_inner


def mask_of(tensor: Any) -> Any:
    """Returns the mask of a tensor, or `None`."""
    return masking.get_keras_mask(tensor)


def with_mask(tensor: Any, mask: Any) -> Any:
    """Returns a copy of a tensor with a mask, or without one for `None`."""
    tensor = keras.ops.copy(tensor)
    if mask is not None:
        masking.set_keras_mask(tensor, mask)
    return tensor


def keep_masks() -> None:
    """Makes attention keep the masks of its inputs from now on.

    Keras deletes them, so that a later layer would not see a mask on these tensors.
    """
    layer: Any = keras.layers.MultiHeadAttention
    call = layer.call
    if hasattr(call, "__wrapped__"):
        return

    @functools.wraps(call)
    def keeping(
        self: Any,
        query: Any,
        value: Any,
        key: Any = None,
        *args: Any,
        **kw: Any,
    ) -> Any:
        inputs = [each for each in (query, value, key) if each is not None]
        masks = [masking.get_keras_mask(each) for each in inputs]
        try:
            return call(self, query, value, key, *args, **kw)
        finally:
            for each, mask in zip(inputs, masks, strict=True):
                masking.set_keras_mask(each, mask)

    layer.call = keeping


def directions_of(metrics: Mapping[str, Any]) -> dict[str, str]:
    """Returns whether metrics should rise ("up") or fall ("down"), if it is known."""
    return {
        name: metric._direction
        for name, metric in metrics.items()
        if hasattr(metric, "_direction")
    }


def metrics_of(model: keras.Model) -> dict[str, keras.metrics.Metric]:
    """Returns the metrics of `compile` by the names that callbacks use."""
    return {
        metric.name: metric
        for each in model.metrics
        if isinstance(each, compile_utils.CompileMetrics)
        for metric in each.metrics
    }


def give_direction(metric: keras.metrics.Metric, direction: str) -> None:
    """Sets whether a metric should rise ("up") or fall ("down"), for callbacks."""
    metric._direction = direction


class _Directed(compile_utils.MetricsList):
    """Metrics with a name and a direction, but without a value."""

    def reset_state(self) -> None:
        """Does nothing, because there is no state."""

    def result(self) -> dict[str, Any]:
        """Returns no values, because the logs of a step contain them."""
        return {}


def directed(directions: Mapping[str, str]) -> keras.metrics.Metric:
    """Returns a metric of a model that provides directions to callbacks.

    Args:
        directions: As returned by `directions_of`.
    """
    named = [
        types.SimpleNamespace(name=name, _direction=direction)
        for name, direction in directions.items()
    ]
    return _Directed(named, name="compile_metrics")


def around_moments(take: Callable[..., tuple[Any, Any]]) -> None:
    """Makes Keras compute means and variances with another function from now on.

    Args:
        take: Receives Keras's function and its arguments.
    """
    moments = nn.moments
    if not hasattr(moments, "__wrapped__"):
        taken = functools.partial(take, moments)
        nn.moments = functools.update_wrapper(taken, moments)


def around_seeds(key_of: Callable[[Any], Any]) -> None:
    """Makes Keras convert its seeds to JAX keys from now on.

    Args:
        key_of: Converts the array of a seed to a key.
    """
    for module, name in ((keras_random, "jax_draw_seed"), (image, "draw_seed")):
        draw = getattr(module, name)
        if not hasattr(draw, "__wrapped__"):
            setattr(module, name, _of_drawn(key_of, draw))


def _of_drawn(
    key_of: Callable[[Any], Any], draw: Callable[[Any], Any]
) -> Callable[[Any], Any]:
    @functools.wraps(draw)
    def drawn(seed: Any) -> Any:
        return key_of(draw(seed))

    return drawn


def around_jax_layers(
    is_traced: Callable[[], bool], name_leaves: Callable[[Any], list[str]]
) -> None:
    """Makes layers of JAX functions work in a trace, with named weights.

    Keras rejects them in a trace, and names each weight `variable` with a number that
    depends on earlier layers.

    Args:
        is_traced: Whether a trace is running in which variables can be made.
        name_leaves: Returns the names of a pytree's leaves, in JAX's order.
    """
    layer: Any = keras.layers.JaxLayer
    create, seed = layer._create_variables, layer._get_init_seed
    if isinstance(jax_layer.jax_utils, types.SimpleNamespace):
        return

    def is_refused(x: Any = None) -> bool:
        return not is_traced() and jax_utils.is_in_jax_tracing_scope(x)

    @functools.wraps(create)
    def create_named(self: Any, values: Any, trainable: bool) -> Any:
        prefix = "" if trainable else "state."
        names = iter(name_leaves(values))
        add = self.add_weight

        def add_named(*args: Any, **kwargs: Any) -> Any:
            return add(*args, name=prefix + next(names), **kwargs)

        vars(self)["add_weight"] = add_named
        try:
            return create(self, values, trainable)
        finally:
            del vars(self)["add_weight"]

    @functools.wraps(seed)
    def init_seed(self: Any) -> Any:
        # The global generator would advance in every step.
        return jnp.uint32([default_seed(), 0]) if is_traced() else seed(self)

    jax_layer.jax_utils = types.SimpleNamespace(is_in_jax_tracing_scope=is_refused)
    layer._create_variables, layer._get_init_seed = create_named, init_seed


def around_assignment(
    fitting: Callable[[keras.Variable, Any], Any],
) -> None:
    """Passes each assigned value through `fitting` from now on.

    Keras truncates 64-bit integers to 32 bits. `fitting` receives the variable and the
    value, and returns the value to assign.
    """
    assign = keras.Variable.assign
    if hasattr(assign, "__wrapped__"):
        return

    @functools.wraps(assign)
    def fitting_assign(self: keras.Variable, value: Any) -> Any:
        return assign(self, fitting(self, value))

    keras.Variable.assign = fitting_assign


def around_creation(
    wrap: Callable[[Callable[..., None], keras.Variable, Any, dict[str, Any]], None],
) -> None:
    """Makes `wrap` construct every `keras.Variable` from now on.

    Keras rejects variables made from arrays in a trace, and does not report new
    variables. `wrap` receives the constructor, the new object, the initializer and the
    other arguments.
    """
    construct = keras.Variable.__init__
    if hasattr(construct, "__wrapped__"):
        return

    @functools.wraps(construct)
    def __init__(  # noqa: N807
        self: keras.Variable, initializer: Any, *args: Any, **kwargs: Any
    ) -> None:
        # `shape`, `dtype` and `trainable` may be given by position.
        kwargs.update(zip(("shape", "dtype", "trainable"), args, strict=False))
        wrap(construct, self, initializer, kwargs)

    keras.Variable.__init__ = __init__
