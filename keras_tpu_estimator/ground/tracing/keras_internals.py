"""Every private part of Keras that this package touches, one function each.

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

from keras_tpu_estimator.ground.base.machine import Machine


class _CountsByScope(dict[Any, int]):
    """How many names of each kind are taken in each name scope.

    Keras counts by name alone.

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
        """Forgets what was counted in the current scope, and below it."""
        path = current_path()
        for scope, name in list(self):
            if scope == path or scope.startswith(f"{path}/"):
                del self[scope, name]


def begin_names_anew() -> None:
    """Starts automatic names anew in the current name scope, if counted so."""
    counts = global_state.get_global_attribute("object_name_uids")
    if isinstance(counts, _CountsByScope):
        counts.begin_anew()


@contextlib.contextmanager
def fresh_names(taken: Mapping[str, int] | None = None) -> Iterator[None]:
    """Starts Keras's automatic names anew for the time of a `with` block.

    Inside, the first `Dense` of each name scope is called `dense` again,
    whatever the process built before, and variables left uninitialised are
    forgotten at the end.

    Args:
        taken: How many of some automatic names are taken outside all scopes.
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
    """The path of the name scopes that are open."""
    path: str = current_path()
    return path


def default_seed() -> int:
    """A seed such as Keras gives those that have none."""
    seed: int = seed_generator.make_default_seed()
    return seed


class _DefaultSeeds:
    """Python's `random` to Keras: that of this context, or else itself."""

    current: contextvars.ContextVar[Any] = contextvars.ContextVar(
        "default_seeds", default=random
    )

    def __getattr__(self, name: str) -> Any:
        return getattr(self.current.get(), name)


@contextlib.contextmanager
def default_seeds(generator: random.Random) -> Iterator[None]:
    """Has Keras draw its default seeds from a generator in a `with` block.

    On this thread only; Python's `random` goes on as it would have.
    """
    seed_generator.python_random = _DefaultSeeds()
    token = _DefaultSeeds.current.set(generator)
    try:
        yield
    finally:
        _DefaultSeeds.current.reset(token)


def register_node(cls: type) -> None:
    """Makes a node of nests of a class with `tree_flatten` and its inverse."""
    tree_api.register_tree_node_class(cls)


def stored_dtype(variable: keras.Variable) -> str:
    """The dtype a variable is stored in, whatever autocast scope is open."""
    return variable._dtype


def hold(variable: keras.Variable, value: Any) -> None:
    """Gives a variable an array, of whatever shape."""
    variable._value = value


def has_value(variable: keras.Variable) -> bool:
    """Whether a variable has an array, which Keras's `fit` takes from it."""
    return variable._value is not None


def set_path(variable: keras.Variable, path: str) -> None:
    """Gives a variable another path than Keras did."""
    variable._path = path


def updated_variables(
    optimizer: keras.optimizers.Optimizer,
) -> list[keras.Variable]:
    """The variables that an optimizer was last built for."""
    return list(optimizer._trainable_variables)


def current_layout_map() -> keras.distribution.LayoutMap | None:
    """The layout map of the distribution that is set, if it has one."""
    distribution = keras.distribution.distribution()
    if not isinstance(distribution, keras.distribution.ModelParallel):
        return None
    return distribution._layout_map


@contextlib.contextmanager
def without_distribution() -> Iterator[None]:
    """Has Keras know of no distribution in a `with` block.

    It would put new variables on the devices, and have each of their layers'
    outputs lie as rules about variables say.
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
    """Has Keras make what is for a kind of devices in a `with` block.

    Keras asks for the devices that JAX has found, which need not be those that
    a program is traced for.

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
    """The kind of devices that `on_platform` says, or `None` outside."""
    return _platform.get()


@functools.cache
def _ask_for_platform() -> None:
    """Puts `on_platform` before what Keras decides by devices, once."""
    # The package has a function of the module's name.
    rnn: Any = sys.modules["keras.src.backend.jax.rnn"]
    uses_cpu = keras_numpy._uses_cpu
    attention = nn.dot_product_attention

    def is_on_cpu(x: Any) -> bool:
        platform = _platform.get()
        return uses_cpu(x) if platform is None else platform == "cpu"

    def is_on_gpu() -> bool:
        # cuDNN asks a GPU how much memory it needs. A plan has none.
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
    """The arguments of attention on a TPU, by name.

    There, Keras's flash attention has its kernel scale nothing, and take
    attention without a mask for causal; and XLA cannot spread it over cores.
    """
    bound = inspect.signature(attention).bind(*args, **kwargs).arguments
    for name in ("flash_attention", "attn_logits_soft_cap"):
        if bound.get(name):
            raise ValueError(
                "Keras's flash attention gives wrong numbers on a TPU. "
                f"Expected attention without it. Received: {name}="
                f"{bound[name]}. Leave it out."
            )
    return {**bound, "flash_attention": False}


def rate_function(
    optimizer: keras.optimizers.Optimizer,
) -> Callable[..., Any] | None:
    """What computes an optimizer's learning rate, but for Keras's schedules."""
    rate = optimizer._learning_rate
    schedule = keras.optimizers.schedules.LearningRateSchedule
    is_function = callable(rate) and not isinstance(rate, schedule)
    return rate if is_function else None


@contextlib.contextmanager
def at_rate(optimizer: keras.optimizers.Optimizer, rate: Any) -> Iterator[None]:
    """Gives an optimizer with a `rate_function` a rate in a `with` block."""
    before = optimizer._learning_rate
    optimizer._learning_rate = lambda: rate
    try:
        yield
    finally:
        optimizer._learning_rate = before


def accept_tensors_as_rates(is_tensor: Callable[[object], bool]) -> None:
    """Lets optimizers be made with tensors as learning rates from now on.

    Keras takes functions, which say the tensor then.

    Args:
        is_tensor: Which learning rates to take for tensors.
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
    """What `model.compile` was called with, by name.

    `get_compile_config` has it, too, but in place of functions their names.
    """
    return dict(model._compile_config.config)


def layers_of(model: keras.Model) -> list[keras.layers.Layer]:
    """A model and all layers in it, inner ones after those they are in."""
    return list(model._flatten_layers())


def from_own_config(model: keras.Model, functions: Mapping[str, Any]) -> keras.Model:
    """A model with new variables, made of the config of this one.

    As in a file, objects that several layers have stay one object, which
    `clone_model` makes several of.

    Args:
        functions: Functions by their names in the config, which may fill while
            it is made.
    """
    with ObjectSharingScope():
        config = keras.saving.serialize_keras_object(model)
    classes = {type(each).__name__: type(each) for each in layers_of(model)}
    with ObjectSharingScope(), keras.saving.custom_object_scope(functions):
        # Safe, as nothing of it comes from elsewhere.
        return keras.saving.deserialize_keras_object(
            config, custom_objects=classes, safe_mode=False
        )


def name_functions(name_of: Callable[[Any], str | None]) -> None:
    """Has Keras write these names of functions into configs from now on.

    Args:
        name_of: Returns the name of a function, or `None` to leave it to Keras.
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
    """Whether a function is one of Keras, which Keras finds by its name."""
    if api_export.get_name_from_symbol(function) is not None:
        return True
    module = getattr(function, "__module__", None) or ""
    is_inner = "<" in getattr(function, "__qualname__", "<")
    return module.partition(".")[0] == "keras" and not is_inner


def mask_of(tensor: Any) -> Any:
    """The mask that layers have given a tensor, or `None`."""
    return masking.get_keras_mask(tensor)


def with_mask(tensor: Any, mask: Any) -> Any:
    """A tensor with a mask, for losses and metrics; without one for `None`."""
    tensor = keras.ops.copy(tensor)
    if mask is not None:
        masking.set_keras_mask(tensor, mask)
    return tensor


def keep_masks() -> None:
    """Has attention leave the masks of its inputs as they are from now on.

    Keras deletes them, so that a later layer on one of these tensors would see
    no mask.
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
    """Returns which metrics should rise ("up") or fall ("down").

    Args:
        metrics: Values by name. Those that are not Keras metrics have no
            direction, and neither have some that are.
    """
    return {
        name: metric._direction
        for name, metric in metrics.items()
        if hasattr(metric, "_direction")
    }


def metrics_of(model: keras.Model) -> dict[str, keras.metrics.Metric]:
    """Returns the metrics of `compile`, by the names that callbacks look up."""
    return {
        metric.name: metric
        for each in model.metrics
        if isinstance(each, compile_utils.CompileMetrics)
        for metric in each.metrics
    }


def give_direction(metric: keras.metrics.Metric, direction: str) -> None:
    """Tells callbacks whether a metric should rise ("up") or fall ("down")."""
    metric._direction = direction


class _Directed(compile_utils.MetricsList):
    """Metrics that have a name and a direction, but no value."""

    def reset_state(self) -> None:
        """Keeps everything, because nothing is counted."""

    def result(self) -> dict[str, Any]:
        """No values: the logs of a step have them."""
        return {}


def directed(directions: Mapping[str, str]) -> keras.metrics.Metric:
    """Returns one of a model's `metrics`, which tells callbacks directions.

    Args:
        directions: What `directions_of` returned.
    """
    named = [
        types.SimpleNamespace(name=name, _direction=direction)
        for name, direction in directions.items()
    ]
    return _Directed(named, name="compile_metrics")


def around_moments(take: Callable[..., tuple[Any, Any]]) -> None:
    """Has Keras take means and variances by another function from now on.

    Args:
        take: Called with Keras's function, and what that would be.
    """
    moments = nn.moments
    if not hasattr(moments, "__wrapped__"):
        taken = functools.partial(take, moments)
        nn.moments = functools.update_wrapper(taken, moments)


def around_seeds(key_of: Callable[[Any], Any]) -> None:
    """Has Keras give JAX keys made of its seeds from now on.

    Args:
        key_of: Makes a key of the array that Keras would give it.
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
    """Has layers of JAX functions be built in a trace, and name their weights.

    Keras refuses the former, and calls each weight `variable`, with a number
    that shifts with what was made before.

    Args:
        is_traced: Whether a trace is running in which variables can be made.
        name_leaves: Gives the names of a nest's leaves, in JAX's order.
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
        # The global generator would go on in every step.
        return jnp.uint32([default_seed(), 0]) if is_traced() else seed(self)

    jax_layer.jax_utils = types.SimpleNamespace(is_in_jax_tracing_scope=is_refused)
    layer._create_variables, layer._get_init_seed = create_named, init_seed


def around_assignment(
    fitting: Callable[[keras.Variable, Any], Any],
) -> None:
    """Lets `fitting` see each value that a variable is assigned from now on.

    Keras cuts integers of 64 bits to 32. `fitting` receives the variable and
    the value, and returns what is assigned.
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
    """Lets `wrap` run the construction of every `keras.Variable` from now on.

    Keras refuses a variable made from an array while values are traced, and
    tells nobody that a variable was made. `wrap` receives the constructor, the
    new object, the initializer and the other arguments.
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
