"""TensorFlow's private names that imports of its graphs use or replace."""

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any

from keras_tpu_estimator.base.upstream.private_names import (
    PrivateAttribute,
    PrivateName,
)


class GraphName(PrivateName):
    """A private function that is replaced in blocks around the building of a graph.

    Blocks nest: the innermost one calls the function of the block around it.
    """

    @contextlib.contextmanager
    def adapted(self, adapt: Callable[[Any], Any]) -> Iterator[None]:
        """Replaces the function by `adapt(function)` in a `with` block."""
        with attribute_adapted(self.owner, self.name, adapt):
            yield

    @contextlib.contextmanager
    def replaced(self, function: Callable[..., Any]) -> Iterator[None]:
        """Calls `function(original, ...)` instead of the function in a `with` block."""

        def adapt(original: Any) -> Any:
            def call(*args: Any, **kwargs: Any) -> Any:
                return function(original, *args, **kwargs)

            return functools.update_wrapper(call, original)

        with self.adapted(adapt):
            yield


@contextlib.contextmanager
def attribute_adapted(
    owner: Any, name: str, adapt: Callable[[Any], Any]
) -> Iterator[None]:
    """Replaces an attribute by a function of its value in a `with` block."""
    original = getattr(owner, name)
    setattr(owner, name, adapt(original))
    try:
        yield
    finally:
        setattr(owner, name, original)


SHARD_CONTEXT = PrivateName(
    "tells graphs the number of devices that run them",
    ("tensorflow.python.tpu.tpu_function.tpu_shard_context",),
)
XLA_CONTEXT = PrivateName(
    "is the context by which libraries recognize graphs for TPUs",
    ("tensorflow.python.ops.control_flow_ops.XLAControlFlowContext",),
)
CONTEXT_OF_FUNCTION = GraphName(
    "returns the context of a function's graph",
    ("tensorflow.python.framework.func_graph.FuncGraph._get_control_flow_context",),
)
IS_FOR_XLA = GraphName(
    "reports whether XLA compiles a graph",
    ("tensorflow.python.ops.control_flow_util.GraphOrParentsInXlaContext",),
)
PLACEHOLDER = GraphName(
    "makes placeholders that may have no rank",
    ("tensorflow.python.ops.gen_array_ops.placeholder_with_default",),
)
WHILE = GraphName(
    "makes loops, whose number of rounds XLA must know",
    ("tensorflow.python.ops.while_v2._build_while_op",),
)
EVALUATE = PrivateName(
    "evaluates constant tensors",
    ("tensorflow.python.framework.tensor_util.try_evaluate_constant",),
)
TABLE_LOOKUP = GraphName(
    "looks up keys on the host",
    ("tensorflow.python.ops.lookup_ops.InitializableLookupTableBase.lookup",),
)
GRADIENTS = PrivateName(
    "holds the gradients of operations",
    ("tensorflow.python.framework.ops.gradient_registry._registry",),
)
SPARSE_COLUMN = GraphName(
    "makes the sparse inputs of feature columns",
    (
        "tensorflow.python.feature_column.feature_column_v2"
        "._to_sparse_input_and_drop_ignore_values",
    ),
)
IDENTITY_COLUMN = GraphName(
    "makes sparse ids",
    (
        "tensorflow.python.feature_column.feature_column_v2.IdentityCategoricalColumn"
        "._transform_input_tensor",
    ),
)
VOCABULARY_COLUMN = GraphName(
    "makes sparse ids",
    (
        "tensorflow.python.feature_column.feature_column_v2.VocabularyListCategoricalColumn"
        "._transform_input_tensor",
    ),
)
HASHED_COLUMN = GraphName(
    "makes sparse ids",
    (
        "tensorflow.python.feature_column.feature_column_v2.HashedCategoricalColumn"
        "._transform_input_tensor",
    ),
)
SPARSE_CROSS = GraphName(
    "makes sparse crosses",
    ("tensorflow.python.ops.sparse_ops.sparse_cross_hashed",),
)
SPARSE_RESHAPE = GraphName(
    "reshapes sparse tensors",
    ("tensorflow.python.ops.sparse_ops.sparse_reshape",),
)
SAFE_LOOKUP = GraphName(
    "looks up sparse ids",
    ("tensorflow.python.ops.embedding_ops.safe_embedding_lookup_sparse",),
)
PUBLIC_SAFE_LOOKUP = GraphName(
    "looks up sparse ids",
    ("tensorflow.compat.v1.nn.safe_embedding_lookup_sparse",),
)
SPARSE_LOOKUP = GraphName(
    "looks up sparse ids",
    ("tensorflow.python.ops.embedding_ops.embedding_lookup_sparse_impl",),
)
EAGER_MODE = PrivateName(
    "runs operations eagerly",
    ("tensorflow.python.eager.context.eager_mode",),
)
EAGER_CONTEXT = PrivateName(
    "holds the functions that the bridge to XLA finds",
    ("tensorflow.python.eager.context.context",),
)
GET_VARIABLE = GraphName(
    "makes the variables of scopes, in partitions",
    ("tensorflow.python.ops.variable_scope._VariableStore.get_variable",),
)
PARTITIONED_LOOKUP = GraphName(
    "looks up ids in partitions",
    ("tensorflow.python.ops.embedding_ops._embedding_lookup_and_transform",),
)
CREATE_SLOT = GraphName(
    "names slots of partitions",
    ("tensorflow.python.training.slot_creator.create_slot",),
)
CREATE_INITIALIZED_SLOT = GraphName(
    "names slots of partitions",
    ("tensorflow.python.training.slot_creator.create_slot_with_initializer",),
)
NAME_SCOPE = GraphName(
    "rejects values of several graphs",
    ("tensorflow.python.framework.ops.internal_name_scope_v1.__init__",),
)
COND = GraphName(
    "makes conditions, also of constants",
    ("tensorflow.python.ops.cond_v2.cond_v2",),
)
GRAPH_OF_INPUTS = GraphName(
    "returns the graph of an operation's inputs",
    ("tensorflow.python.framework.ops._get_graph_from_inputs",),
)
RESOURCE_VARIABLE = PrivateName(
    "is the class of variables, whose operators have changed",
    ("tensorflow.python.ops.resource_variable_ops.BaseResourceVariable",),
)
INITIALIZED_VALUE = GraphName(
    "reads initialized variables",
    ("tensorflow.Variable.initialized_value",),
)
DEFUN = PrivateName(
    "makes functions of the variables of a graph",
    ("tensorflow.python.framework.function.Defun",),
)
EVAL_STEP = PrivateName(
    "makes the counter of evaluated batches",
    ("tensorflow.python.training.evaluation._get_or_create_eval_step",),
)
STEP_READ = PrivateName(
    "makes the tensor by which hooks read the step",
    ("tensorflow.python.training.training_util._get_or_create_global_step_read",),
)
DEFINITION = PrivateName(
    "returns the definition of a type of operations",
    ("tensorflow.python.framework.op_def_registry.get",),
)
FUNCTION_TO_GRAPH = PrivateName(
    "converts functions to graphs",
    ("tensorflow.python.framework.function_def_to_graph.function_def_to_graph_def",),
)
SET_CONTEXT_OF_GRAPH = PrivateAttribute(
    "sets the context of the operations that a graph will make",
    "tensorflow.Graph._set_control_flow_context",
)
SET_CONTEXT_OF_OPERATION = PrivateAttribute(
    "sets the context of an operation",
    "tensorflow.Operation._set_control_flow_context",
)
REMOVE_CONTROL_INPUTS = PrivateAttribute(
    "removes the control inputs of an operation",
    "tensorflow.Operation._remove_all_control_inputs",
)
ADD_CONTROL_INPUTS = PrivateAttribute(
    "adds control inputs to an operation",
    "tensorflow.Operation._add_control_inputs",
)
UPDATE_INPUT = PrivateAttribute(
    "replaces an input of an operation",
    "tensorflow.Operation._update_input",
)
SET_ATTRIBUTE = PrivateAttribute(
    "sets an attribute of an operation",
    "tensorflow.Operation._set_attr",
)
TABLE_INITIALIZER = PrivateAttribute(
    "holds the initializer of a lookup table",
    "tensorflow.lookup.StaticHashTable._initializer",
)
TABLE_KEYS = PrivateAttribute(
    "holds the keys of a table's initializer",
    "tensorflow.lookup.KeyValueTensorInitializer._keys",
)
TABLE_VALUES = PrivateAttribute(
    "holds the values of a table's initializer",
    "tensorflow.lookup.KeyValueTensorInitializer._values",
)
SAVED_VARIABLES = PrivateAttribute(
    "holds the variables of a saver",
    "tensorflow.compat.v1.train.Saver._var_list",
)
