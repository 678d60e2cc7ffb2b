"""Functions of TensorFlow's private names, in `base/upstream`, for TF1.

`tests/tf1/test_tf1_internals.py` fails when TensorFlow changes any of them.
"""

import contextlib
import functools
import operator
import traceback
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from keras_tpu_estimator.base.upstream import tensorflow_graph_names as names
from keras_tpu_estimator.tf1.graph import (
    feature_columns,
    lookups,
    loop_bounds,
    partitions,
)
from keras_tpu_estimator.tf1.graph.gradients import GRADIENTS

# The operators of which Python has a form that assigns, such as `+=`.
_IN_PLACE = ("add", "sub", "mul", "truediv", "pow")


@contextlib.contextmanager
def shards(number: int) -> Iterator[None]:
    """Tells graphs built in a `with` block the number of devices that run them."""
    with names.SHARD_CONTEXT.value(number):
        yield


@contextlib.contextmanager
def xla_context(graph: Any) -> Iterator[None]:
    """Gives a graph and its functions an XLA context in a `with` block.

    Libraries such as tensor2tensor recognize a graph for TPUs by this context.
    """
    kind: Any = names.XLA_CONTEXT.value

    class Context(kind):
        """A context without operations: variables reject initial values in it."""

        def AddOp(self, op: Any) -> None:  # noqa: N802
            names.SET_CONTEXT_OF_OPERATION.get(op)(None)

    context = Context()

    def context_of(original: Any, inner: Any) -> Any:
        inner_context = original(inner)
        return (
            context
            if inner_context is None and _is_within(graph, inner)
            else inner_context
        )

    set_context = names.SET_CONTEXT_OF_GRAPH.get(graph)
    set_context(context)
    try:
        with names.CONTEXT_OF_FUNCTION.replaced(context_of):
            yield
    finally:
        set_context(None)


def _is_within(graph: Any, inner: Any) -> bool:
    """Returns whether a graph is another one or that of a function in it."""
    while inner is not graph and hasattr(inner, "outer_graph"):
        inner = inner.outer_graph
    return inner is graph


@contextlib.contextmanager
def for_xla(graph: Any) -> Iterator[None]:
    """Makes TensorFlow build graphs that XLA can compile in a `with` block.

    Otherwise gradients of loops use lists of lists and lists without a fixed size,
    gradients of conditions use optional values, and some gradients need an operation on
    the host. Feature columns are sparse, and metrics of tensors of an unknown rank have
    a condition on the rank, of which XLA compiles both branches.
    """

    def is_within(is_for_xla: Any, inner: Any) -> bool:
        return _is_within(graph, inner) or is_for_xla(inner)

    with (
        names.IS_FOR_XLA.replaced(is_within),
        _bounded_loops(),
        _dense_columns(),
        _known_ranks(),
        _own_gradients(),
        _tables_of_numbers(),
    ):
        yield


@contextlib.contextmanager
def _known_ranks() -> Iterator[None]:
    """Gives placeholders without a rank the shape of their default, which they have."""
    import tensorflow as tf

    def make(original: Any, input: Any, shape: Any, name: str | None = None) -> Any:
        if tf.TensorShape(shape).rank is None:
            shape = tf.convert_to_tensor(input).shape
        return original(input, shape, name)

    with names.PLACEHOLDER.replaced(make):
        yield


@contextlib.contextmanager
def _bounded_loops() -> Iterator[None]:
    """Sets `maximum_iterations` of loops where it follows from their graphs.

    Their gradients can then keep the values of all rounds in a fixed size. The loops
    still end by their conditions.
    """
    import tensorflow as tf

    def build(
        original: Any,
        variables: Any,
        condition: Any,
        body: Any,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        if static_value(variables[1]) == -1:
            loop = loop_bounds.Loop(variables, condition, body, _evaluated_value)
            bound = loop.bound()
            if bound is not None:
                most = tf.constant(max(bound, 1), variables[1].dtype)
                variables = [variables[0], most, *variables[2:]]
        return original(variables, condition, body, *args, **kwargs)

    with names.WHILE.replaced(build):
        yield


def _evaluated_value(tensor: Any) -> Any:
    """Returns the value of a tensor, including values from static shapes."""
    value = static_value(tensor)
    if value is None:
        value = names.EVALUATE.value(tensor)
    return value


@contextlib.contextmanager
def _tables_of_numbers() -> Iterator[None]:
    """Replaces lookups in tables of constant numbers in a `with` block."""
    import tensorflow as tf

    def lookup(original: Any, table: Any, keys: Any, name: str | None = None) -> Any:
        initializer = names.TABLE_INITIALIZER.get(table)
        numbers, values = (
            static_value(attribute.get(initializer))
            if attribute.is_set(initializer)
            else None
            for attribute in (names.TABLE_KEYS, names.TABLE_VALUES)
        )
        default = static_value(table.default_value)
        pairs = lookups.pairs_of(numbers, values, default)
        is_dense = isinstance(keys, tf.Tensor) and keys.dtype == table.key_dtype
        if pairs is None or not is_dense:
            return original(table, keys, name)
        scope = name or f"{table.name}_Lookup"
        return lookups.found_in(pairs, keys, table.default_value, scope)

    with names.TABLE_LOOKUP.replaced(lookup):
        yield


@contextlib.contextmanager
def _own_gradients() -> Iterator[None]:
    """Replaces gradients that XLA lacks in a `with` block."""
    registered = names.GRADIENTS.value
    originals = {op: registered[op] for op in GRADIENTS}
    for op, adapt in GRADIENTS.items():
        original = originals[op]["type"]
        registered[op] = {**originals[op], "type": adapt(original)}
    try:
        yield
    finally:
        registered.update(originals)


@contextlib.contextmanager
def _dense_columns() -> Iterator[None]:
    """Replaces sparse tensors in feature columns in a `with` block."""
    combined = functools.partial(lookups.combined_lookup, _evaluated_value)
    with contextlib.ExitStack() as stack:
        for name, adapt in (
            (names.SPARSE_COLUMN, feature_columns.to_cells),
            (names.IDENTITY_COLUMN, feature_columns.with_default),
            (names.VOCABULARY_COLUMN, feature_columns.in_vocabulary),
            (names.HASHED_COLUMN, feature_columns.with_default),
            (names.SPARSE_CROSS, feature_columns.crossed),
            (names.SPARSE_RESHAPE, feature_columns.reshaped),
            (names.SAFE_LOOKUP, feature_columns.looked_up),
            # The public module contains the function itself, for calls by the user.
            (names.PUBLIC_SAFE_LOOKUP, feature_columns.looked_up),
            (names.SPARSE_LOOKUP, combined),
        ):
            stack.enter_context(name.adapted(adapt))
        yield


@contextlib.contextmanager
def eagerly() -> Iterator[None]:
    """Runs TensorFlow eagerly in a `with` block, even if that is disabled."""
    with names.EAGER_MODE.value():
        yield


@contextlib.contextmanager
def functions_known(functions: Sequence[Any]) -> Iterator[None]:
    """Makes functions visible to the bridge to XLA in a `with` block.

    Otherwise only an imported graph itself knows its functions.
    """
    eager = names.EAGER_CONTEXT.value()
    eager.ensure_initialized()
    for function in functions:
        eager.add_function_def(function)
    try:
        yield
    finally:
        for function in functions:
            eager.remove_function(function.signature.name)


@contextlib.contextmanager
def whole_variables() -> Iterator[None]:
    """Makes variables without partitions in a `with` block, whatever the partitioner.

    Checkpoints contain them without partitions under the same names. Lookups find the
    rows that they would find in the partitions.
    """

    def get_variable(
        original: Any, store: Any, *args: Any, partitioner: Any = None, **kwargs: Any
    ) -> Any:
        variable = original(store, *args, **kwargs)
        partitions.note_partitions(variable, partitioner)
        return variable

    with (
        names.GET_VARIABLE.replaced(get_variable),
        names.PARTITIONED_LOOKUP.adapted(partitions.looked_up_by_partition),
        names.CREATE_SLOT.adapted(partitions.with_slot_names),
        names.CREATE_INITIALIZED_SLOT.adapted(partitions.with_slot_names),
    ):
        yield


@contextlib.contextmanager
def scopes_of(select: Callable[[Any], Sequence[Any]]) -> Iterator[None]:
    """Makes name scopes check only the values that a function keeps.

    Name scopes reject values from several graphs, such as those of `tf.group`.
    """

    def init(
        original: Any,
        self: Any,
        name: Any,
        default_name: Any = None,
        values: Any = None,
    ) -> None:
        original(self, name, default_name, values and select(values))

    with names.NAME_SCOPE.replaced(init):
        yield


@contextlib.contextmanager
def known_conditions() -> Iterator[None]:
    """Builds branches whose conditions are constant in place in a `with` block.

    The operations of such a branch are then part of the graph around it, as in
    TensorFlow 1.15. The other branch only makes its variables. It may not suit the
    sizes of the batch, which TensorFlow 1.15 did not know when it built the branch.
    """
    import tensorflow as tf

    def cond(
        original: Any, pred: Any, true_fn: Any, false_fn: Any, name: str = "cond"
    ) -> Any:
        graph = tf.compat.v1.get_default_graph()
        value = _evaluated_value(pred) if isinstance(pred, tf.Tensor) else None

        def in_place(branch: Any) -> Any:
            def build() -> Any:
                with graph.as_default():
                    return branch()

            # The other branch may need the result first.
            return functools.cache(build)

        if value is not None and value:
            true_fn = in_place(true_fn)
            false_fn = _suiting(false_fn, true_fn)
        elif value is not None:
            false_fn = in_place(false_fn)
            true_fn = _suiting(true_fn, false_fn)
        return original(pred, true_fn, false_fn, name)

    with names.COND.replaced(cond):
        yield


def _suiting(branch: Any, active: Any) -> Any:
    """Returns a branch that never runs, for sizes that it may not suit.

    If TensorFlow rejects the sizes of an operation, the results are like those of the
    branch that runs.
    """
    import tensorflow as tf

    def like(result: Any) -> Any:
        if isinstance(result, tf.Operation):
            return tf.no_op()
        if not tf.is_tensor(result):
            return result
        tensor = tf.convert_to_tensor(result)
        return tf.raw_ops.FakeParam(dtype=tensor.dtype, shape=tensor.shape)

    def build() -> Any:
        try:
            return branch()
        except ValueError as error:
            *_, (frame, _) = traceback.walk_tb(error.__traceback__)
            if frame.f_globals["__name__"].partition(".")[0] != "tensorflow":
                raise
            return tf.nest.map_structure(like, active())

    return build


@contextlib.contextmanager
def inputs_checked(check: Callable[[Any, Any], None]) -> Iterator[None]:
    """Calls `check` with the default graph and each input from another graph."""
    import tensorflow as tf

    kinds = (tf.Operation, tf.Tensor)

    def graph_of(original: Any, inputs: Any, graph: Any = None) -> Any:
        default_graph, inputs = tf.compat.v1.get_default_graph(), [*inputs]
        if not default_graph.building_function:
            for element in inputs:
                if isinstance(element, kinds) and element.graph is not default_graph:
                    check(default_graph, element)
        return original(inputs, graph)

    with names.GRAPH_OF_INPUTS.replaced(graph_of):
        yield


@contextlib.contextmanager
def python_of_old_variables() -> Iterator[None]:
    """Makes variables in graphs behave in Python as in TensorFlow 1.15.

    In a `with` block they have the method `initialized_value`, which reads an
    initialized variable and otherwise returns the initial value. Each variable is true,
    and operators such as `+=` return a tensor. Resource variables raise errors for
    these, and TensorFlow 1.15 made no resource variables by default.
    """
    import tensorflow as tf

    def initialized_value(self: Any) -> Any:
        with tf.init_scope():
            return tf.cond(
                tf.compat.v1.is_variable_initialized(self),
                self.read_value,
                lambda: self.initial_value,
            )

    def in_place(name: str) -> Callable[[Any], Callable[..., Any]]:
        def adapt(original: Any) -> Callable[..., Any]:
            def change(self: Any, other: Any) -> Any:
                if tf.executing_eagerly():
                    return original(self, other)
                return getattr(operator, name)(self, other)

            return change

        return adapt

    def truth(is_true: Any) -> Callable[[Any], bool]:
        return lambda self: is_true(self) if tf.executing_eagerly() else True

    kind = names.RESOURCE_VARIABLE.value
    with contextlib.ExitStack() as stack:
        stack.enter_context(
            names.INITIALIZED_VALUE.adapted(lambda original: initialized_value)
        )
        stack.enter_context(names.attribute_adapted(kind, "__bool__", truth))
        for name in _IN_PLACE:
            stack.enter_context(
                names.attribute_adapted(kind, f"__i{name}__", in_place(name))
            )
        yield


def saved_names(saver: Any) -> dict[str, str]:
    """Returns the variable names of a `tf.train.Saver`, by the names in checkpoints."""
    variables = names.SAVED_VARIABLES.get(saver)
    if not isinstance(variables, dict):
        variables = {variable.op.name: variable for variable in variables or ()}
    return {
        name: variable.op.name
        for name, variable in variables.items()
        if hasattr(variable, "op")
    }


def function_of_graph(body: Callable[..., Any], inputs: Sequence[Any]) -> Any:
    """Returns a function of tensors like `inputs` that uses their graph's variables."""

    def of_shapes(*tensors: Any) -> Any:
        for tensor, like in zip(tensors, inputs, strict=True):
            tensor.set_shape(like.shape)
        return body(*tensors)

    dtypes = [tensor.dtype for tensor in inputs]
    define = names.DEFUN.value(*dtypes, capture_resource_var_by_value=False)
    return define(of_shapes)


def is_saver(value: Any) -> bool:
    """Returns whether a value is a `tf.train.Saver`."""
    import tensorflow as tf

    return isinstance(value, tf.compat.v1.train.Saver)


def make_eval_step() -> None:
    """Makes the counter of evaluated batches in the default graph, if it has none."""
    names.EVAL_STEP.value()


def make_step_read() -> None:
    """Makes the tensor by which TensorFlow's hooks read the global step."""
    names.STEP_READ.value()


def is_stateful(op: str) -> bool:
    """Returns whether an operation type has effects, or is not of TensorFlow."""
    definition = names.DEFINITION.value(op)
    return definition is None or bool(definition.is_stateful)


def static_value(tensor: Any) -> Any:
    """Returns the value of a graph tensor, or `None` if it varies.

    Unlike `tf.get_static_value`, it does not prevent users from feeding the tensor and
    those that it depends on.
    """
    import tensorflow as tf

    graph = tensor.graph
    graph.prevent_feeding = lambda tensor: None
    try:
        return tf.get_static_value(tensor)
    finally:
        del graph.prevent_feeding


def set_control_inputs(op: Any, controls: Sequence[Any]) -> None:
    """Replaces the control inputs of an operation."""
    names.REMOVE_CONTROL_INPUTS.get(op)()
    names.ADD_CONTROL_INPUTS.get(op)(controls)


def set_input(op: Any, number: int, tensor: Any) -> None:
    """Gives an operation of a graph another tensor as one of its inputs."""
    names.UPDATE_INPUT.get(op)(number, tensor)


def set_strings(op: Any, name: str, values: Sequence[str]) -> None:
    """Sets an attribute of an operation to a list of strings."""
    import tensorflow as tf

    value = tf.compat.v1.AttrValue()
    value.list.s.extend(string.encode() for string in values)
    names.SET_ATTRIBUTE.get(op)(name, value)


def definition_of_function(graph: Any, name: str) -> tuple[Any, list[str], list[str]]:
    """Returns a function as a `GraphDef`, with the names of arguments and results."""
    library = graph.as_graph_def().library.function
    (function,) = (entry for entry in library if entry.signature.name == name)
    with graph.as_default():
        graph_def, by_name = names.FUNCTION_TO_GRAPH.value(
            function, include_library_functions=True
        )
    signature = function.signature
    arguments = [by_name[argument.name] for argument in signature.input_arg]
    results = [by_name[function.ret[output.name]] for output in signature.output_arg]
    return graph_def, arguments, results
