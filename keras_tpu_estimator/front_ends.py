"""Which front end a `model_fn` is written for, and what depends on it."""

import functools
from collections.abc import Callable
from typing import Any

from keras_tpu_estimator.checkpoints import formats
from keras_tpu_estimator.embeddings.program import TablesProgram
from keras_tpu_estimator.inputs.form import Form
from keras_tpu_estimator.inputs.forms import form_of_call
from keras_tpu_estimator.keras_program.model_call import CallModelFn
from keras_tpu_estimator.keras_program.program import KerasProgram
from keras_tpu_estimator.mesh.cores import ONE_CORE
from keras_tpu_estimator.mesh.cores import Cores
from keras_tpu_estimator.program.options import TraceOptions
from keras_tpu_estimator.program.program import Program
from keras_tpu_estimator.tf1.marking import TF1ModelFn


def is_tf1(model_fn: object) -> bool:
    """Whether what the user wrote builds graphs of TF1."""
    return isinstance(model_fn, TF1ModelFn)


def written_like(
    model_fn: object, other: Callable[..., Any]
) -> Callable[..., Any]:
    """Another function that calls what the user wrote, where it may.

    Args:
        model_fn: What the user wrote.
        other: The other function.
    """
    return TF1ModelFn(other) if is_tf1(model_fn) else other


def make_program(
    call_model_fn: CallModelFn,
    seed: int | None = None,
    options: TraceOptions | None = None,
    cores: Cores = ONE_CORE,
) -> Program:
    """Makes the program of a `model_fn`, by the front end it is written for.

    Args:
        call_model_fn: Called with features, labels, mode and the additional
            `params`; returns a spec. Its attribute `function`, if it has one,
            is what the user wrote, its `embeddings` are the tables, and its
            `features_inside` says where the features are, as in
            `TablesProgram`.
        seed: Makes initial values and random layers repeatable. Defaults to
            `None`.
        options: How it is traced. Defaults to `TraceOptions()`.
        cores: The cores that tables lie over. Defaults to one core.

    Returns:
        A `Program`.

    Example:

    >>> import keras_tpu_estimator as kte
    >>> def call_model_fn(features, labels, mode, params):
    ...     return kte.TPUEstimatorSpec(mode, predictions={"x": features})
    >>> list(make_program(call_model_fn).store.variables)
    ['global_step']
    """
    if is_tf1(getattr(call_model_fn, "function", None)):
        # Only then is what lifts graphs imported.
        from keras_tpu_estimator.tf1.program import TF1Program

        return TF1Program(call_model_fn, seed, options)
    program = KerasProgram(call_model_fn, seed, options)
    tables = getattr(call_model_fn, "embeddings", None)
    if tables is None:
        return program
    inside = getattr(call_model_fn, "features_inside", None)
    return TablesProgram(program, tables, cores, seed, inside)


def input_form(
    model_fn: Callable[..., Any], seed: int | None
) -> Callable[[Callable[[], Any], int], Form]:
    """How the forms of input are told: where a call belongs into a graph.

    Args:
        model_fn: What the user wrote.
        seed: The seed of its program, or `None`.

    Returns:
        What `InputRequest` has as `form_of`.
    """
    if is_tf1(model_fn):
        from keras_tpu_estimator.tf1.input_graph import form_in_graph

        return functools.partial(form_in_graph, seed=seed)
    return form_of_call


def own_checkpoint_format(model_fn: Callable[..., Any]) -> str:
    """The name of the format of a program's checkpoints, unless it is set.

    Args:
        model_fn: What the user wrote.
    """
    return formats.TENSORFLOW if is_tf1(model_fn) else formats.HDF5
