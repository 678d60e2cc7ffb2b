"""A front end for plain functions of a dict of NumPy parameters."""

import contextlib
import contextvars
import functools

import jax

import keras_tpu_estimator as kte
from keras_tpu_estimator import front_ends

# The program and the values of the parameters in the call of `model_fn` that runs.
_call = contextvars.ContextVar("call")


@contextlib.contextmanager
def calling(program, values):
    """Makes `parameters` return values of a program in a `with` block."""
    token = _call.set((program, values))
    try:
        yield
    finally:
        _call.reset(token)


def parameters(initial):
    """Returns the current values of a `model_fn`'s parameters, a dict of arrays."""
    program, values = _call.get()
    if values is None:
        program.store.add_arrays(initial)
        return initial
    return {path: values[path] for path in initial}


class NumpyFrontEnd(front_ends.FrontEnd):
    """Gradient descent on the `train_op` of a `model_fn`, which is its loss."""

    def __init__(self, learning_rate):
        self.learning_rate = learning_rate

    def make_program(self, call_model_fn, seed=None, options=None, cores=None):
        if options is not None:
            options.refuse("this front end does not support it")
        return NumpyProgram(call_model_fn, self.learning_rate)


class NumpyProgram:
    """The parameters and steps of one `model_fn`."""

    def __init__(self, call_model_fn, learning_rate):
        self.store = front_ends.VariableStore()
        self.call_model_fn = call_model_fn
        self.learning_rate = learning_rate
        self.steps = {}

    def step(self, mode, example):
        key = mode, example.key
        if key not in self.steps:
            self.steps[key] = self.make_step(mode, example)
        return self.steps[key]

    def make_step(self, mode, example):
        cores, specs = example.cores, []

        def forward(values, features, labels):
            """Returns the loss, and all tensors that leave the devices."""
            features, labels = example.arranged(features, labels)
            if mode == kte.ModeKeys.PREDICT:
                labels = None  # Here they mark padding rows.
            with calling(self, values):
                spec = self.call_model_fn(features, labels, mode, example.additional)
            specs.append(spec)
            outputs = front_ends.outputs_of(spec, mode, lambda host: host.fed)
            return outputs.get("loss"), outputs

        # A first call without values enters the parameters into the store.
        call = functools.partial(forward, None)
        _, outputs = jax.eval_shape(call, *example.of_one_call())
        paths = [p for p, v in self.store.variables.items() if v.trainable]
        is_training = mode == kte.ModeKeys.TRAIN

        def per_core(values, features, labels):
            """Returns changed values and outputs, for one core's part of a batch."""
            weights = {path: values[path] for path in paths}
            if not is_training:
                changed, (_, outputs) = {}, forward(weights, features, labels)
            else:
                gradient = jax.grad(forward, has_aux=True)
                gradients, outputs = gradient(weights, features, labels)
                changed = {
                    path: weights[path] - self.learning_rate * cores.mean(each)
                    for path, each in gradients.items()
                }
                changed["global_step"] = values["global_step"] + 1
            if "loss" in outputs:
                outputs["loss"] = cores.mean(outputs["loss"])
            return changed, outputs

        split = front_ends.splits(outputs, example.is_split)
        spec = specs[0]
        return front_ends.Step(
            mode=mode,
            function=example.on_cores(per_core, split),
            reads=("global_step", *paths),
            assigned=("global_step", *paths) if is_training else (),
            metric_fn=front_ends.metrics_of(spec, mode),
            host_call=spec.host_call,
            hooks=spec.hooks,
            scaffold=spec.make_scaffold(),
            named=frozenset(),
            records=False,
        )
