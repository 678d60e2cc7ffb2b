"""Calls whose counterparts depend on more than their arguments."""

import ast
from collections.abc import Callable, Sequence

import libcst as cst

from keras_tpu_estimator.tf1_tools.port import choices, hooks, premade, randomness
from keras_tpu_estimator.tf1_tools.port.arg_scopes import ArgScope
from keras_tpu_estimator.tf1_tools.port.kinds import Kind
from keras_tpu_estimator.tf1_tools.port.program import Site, entry_of
from keras_tpu_estimator.tf1_tools.port.rules import Rule, expand
from keras_tpu_estimator.tf1_tools.port.values import (
    UnportableError,
    embedded,
    literal,
    source_of,
)

# Stands for what Keras needs no counterpart of, until the code around it is known.
NOTHING = cst.Name("__nothing__")


def is_nothing(node: cst.CSTNode) -> bool:
    """Returns whether an expression has no counterpart."""
    return isinstance(node, cst.Name) and node.value == NOTHING.value


def code(source: str, **parts: cst.BaseExpression) -> cst.BaseExpression:
    """Returns code with expressions in the place of names in braces."""
    texts = {name: source_of(part) for name, part in parts.items()}
    return cst.parse_expression(source.format(**texts))


# Variables.

_VARIABLE = Rule.from_source(
    "(name, shape, dtype: 'float32'|None|tf.float32, initializer='glorot_uniform',"
    " regularizer: None, trainable: True|None, collections-, caching_device-,"
    " partitioner: None, validate_shape-, use_resource-, custom_getter: None)"
    " -> nothing"
)


def get_variable(site: Site, arguments: Sequence[cst.Arg]) -> cst.BaseExpression:
    """Returns a Keras variable, which takes its initializer first."""
    bound = _VARIABLE.bound(arguments)
    for parameter in _VARIABLE.parameters:
        argument = bound.get(parameter.name)
        if parameter.name in ("regularizer", "partitioner", "custom_getter"):
            if argument and source_of(argument.value) != "None":
                raise UnportableError(f"`{parameter.name}=` has no counterpart")
    name = bound["name"].value
    try:
        is_plain = "/" not in str(literal(name))
    except ValueError:
        is_plain = False
    if "shape" not in bound:
        template = "keras.Variable(initializer, dtype=..., trainable=..., name=name)"
    elif is_plain:
        template = (
            "keras.Variable(initializer, shape, dtype=..., trainable=..., name=name)"
        )
    else:
        template = (
            "kte.get_variable(name, shape, dtype=..., initializer=..., trainable=...)"
        )
    default = "='glorot_uniform'" if is_plain else ""
    parameters = f"name, shape, dtype, initializer{default}, trainable"
    rule = Rule.from_source(f"({parameters}) -> {template}".replace("'", '"'))
    passed = [
        argument.with_changes(keyword=cst.Name(name))
        for name, argument in bound.items()
        if name in ("name", "shape", "initializer")
        or (name == "dtype" and not _is_float32(argument.value))
        or (name == "trainable" and source_of(argument.value) != "True")
    ]
    return expand(rule, passed)


def _is_float32(node: cst.BaseExpression) -> bool:
    return source_of(node).strip("\"'") in ("float32", "tf.float32", "None")


def variable_scope(site: Site, arguments: Sequence[cst.Arg]) -> cst.BaseExpression:
    """Returns a block of variables."""
    name = site.argument(0, "name_or_scope")
    if isinstance(name, ast.Constant) and name.value == "":
        raise UnportableError(
            "TensorFlow gives these variables paths with an empty part; leave the "
            "scope out, and map the paths if you load an old checkpoint"
        )
    entry = entry_of("tf.variable_scope")
    return expand(Rule.from_source(entry.rule if entry else ""), arguments)


# Updates.


def moving_average(site: Site, arguments: Sequence[cst.Arg]) -> cst.BaseExpression:
    """Returns moving averages, whose decay does not depend on the step."""
    if site.argument(1, "num_updates") is not None:
        raise UnportableError(
            "`kte.ExponentialMovingAverage` has the same arguments, but reads "
            "`num_updates` before the step: if `apply` follows `train_op`, pass "
            "`global_step + 1`"
        )
    name = cst.parse_expression("kte.ExponentialMovingAverage")
    return cst.Call(name, [*arguments])


def group(site: Site, arguments: Sequence[cst.Arg]) -> cst.BaseExpression:
    """Returns the list of the operations, or the only one."""
    operations = [
        argument
        for argument in arguments
        if argument.keyword is None and not is_nothing(argument.value)
    ]
    if not operations:
        return NOTHING
    if len(operations) == 1 and not operations[0].star:
        return operations[0].value
    if len(operations) == 1 and isinstance(operations[0].value, cst.Name):
        return operations[0].value
    starred = (f"{a.star}{source_of(embedded(a.value))}" for a in operations)
    return cst.parse_expression(f"[{', '.join(starred)}]")


# Collections to which TensorFlow adds, besides those of `get_collection`.
_FILLED = (
    "activations",
    "biases",
    "losses",
    "metric_variables",
    "model_variables",
    "moving_average_variables",
    "regularization_losses",
    "summaries",
    "trainable_variables",
    "update_ops",
    "variables",
    "weights",
)


def get_collection(site: Site, arguments: Sequence[cst.Arg]) -> cst.BaseExpression:
    """Returns nothing for updates of layers, which Keras makes by itself."""
    argument = site.argument(0, "key")
    key = ast.unparse(argument) if argument else ""
    if key.endswith("UPDATE_OPS") or "update_ops" in key:
        return NOTHING
    if key.endswith("TRAINABLE_VARIABLES") and len(arguments) == 1:
        return cst.parse_expression("kte.trainable_variables()")
    is_filled = key.strip("'") in _FILLED
    if isinstance(argument, ast.Constant) and not is_filled:
        if site.program.is_unique(argument):
            return cst.parse_expression("[]")  # Nothing adds to it.
    raise UnportableError("collections have no counterpart; pass on the values")


def gradients(site: Site, arguments: Sequence[cst.Arg]) -> cst.BaseExpression:
    """Returns gradients by variables."""
    rule = Rule.from_source(
        "(ys, xs, grad_ys: None, name-, colocate_gradients_with_ops-, gate_gradients-,"
        " aggregation_method-, stop_gradients: None) -> kte.gradients(ys, xs)"
    )
    by = site.argument(1, "xs")
    if by and site.program.kinds.kind(site.scope, by) is Kind.TENSOR:
        raise UnportableError("use `jax.grad` for gradients by a tensor")
    return expand(rule, arguments)


# Losses.

_SPARSE = Rule.from_source(
    "(labels, logits, weights: 1.0, scope-, loss_collection-, reduction: None)"
    " -> keras.losses.SparseCategoricalCrossentropy(from_logits=True)(labels, logits)"
)
# The sum over the number of labels whose weight is not zero.
_WEIGHTED = Rule.from_source(
    "(labels, logits, weights, scope-, loss_collection-, reduction: None)"
    " -> keras.ops.divide_no_nan("
    'keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="sum")'
    "(labels, logits, sample_weight=weights), "
    "keras.ops.count_nonzero("
    "keras.ops.broadcast_to(weights, keras.ops.shape(simple(labels)))))"
)


def sparse_softmax_cross_entropy(
    site: Site, arguments: Sequence[cst.Arg]
) -> cst.BaseExpression:
    """Returns the mean, or the sum of losses over the number of weights."""
    weights = _SPARSE.bound(arguments).get("weights")
    is_one = weights is None or source_of(weights.value) in ("1", "1.0")
    return expand(_SPARSE if is_one else _WEIGHTED, arguments)


# Operations.


def identity(site: Site, arguments: Sequence[cst.Arg]) -> cst.BaseExpression:
    """Returns the tensor, under its name if it has one."""
    bound = Rule.from_source("(input, name) -> nothing").bound(arguments)
    if "name" not in bound:
        return bound["input"].value
    return code(
        "kte.identity({x}, name={name})",
        x=bound["input"].value,
        name=bound["name"].value,
    )


def constant(site: Site, arguments: Sequence[cst.Arg]) -> cst.BaseExpression:
    """Returns a tensor, with its shape if that is not the value's."""
    rule = Rule.from_source(
        "(value, dtype, shape, name-, verify_shape-)"
        " -> keras.ops.convert_to_tensor(value, dtype=...)"
    )
    bound = rule.bound(arguments)
    shape = bound.pop("shape", None)
    passed = [a.with_changes(keyword=cst.Name(name)) for name, a in bound.items()]
    if shape is None or source_of(shape.value) in ("None", "[]", "()"):
        return expand(rule, passed)
    value = site.argument(0, "value")
    if value and isinstance(site.scope.value(value)[0], ast.Constant):
        rule = Rule.from_source(
            "(value, dtype, shape, name-) -> keras.ops.full(shape, value, dtype=...)"
        )
        return expand(rule, [*passed, shape.with_changes(keyword=cst.Name("shape"))])
    # Lists of another length are an error.
    return code("keras.ops.reshape({t}, {s})", t=expand(rule, passed), s=shape.value)


_FLOATS = ("float16", "bfloat16", "float32", "float64", "half", "double")


def div(site: Site, arguments: Sequence[cst.Arg]) -> cst.BaseExpression:
    """Returns a quotient of floats; that of integers is rounded."""
    rule = Rule.from_source("(x, y, name-) -> keras.ops.divide(x, y)")
    operands = site.argument(0, "x"), site.argument(1, "y")
    if not any(operand and _is_float(site, operand) for operand in operands):
        raise UnportableError(
            "write `keras.ops.divide` for floats, and `keras.ops.floor_divide` for "
            "integers"
        )
    return expand(rule, arguments)


def _is_float(site: Site, node: ast.expr) -> bool:
    """Returns whether an expression is certainly a float, or a tensor of them."""
    node, scope = site.scope.value(node)
    if not isinstance(node, ast.Call):
        return isinstance(node, ast.Constant) and isinstance(node.value, float)
    call = Site(node, scope, site.program)
    if call.value.name == "tf.to_float":
        return True
    dtype = call.argument(1, "dtype")
    if call.value.name != "tf.cast" or dtype is None:
        return False
    return ast.unparse(dtype).strip("'").rpartition(".")[2] in _FLOATS


def sequence_mask(site: Site, arguments: Sequence[cst.Arg]) -> cst.BaseExpression:
    """Returns a comparison of positions with lengths."""
    rule = Rule.from_source(
        "(lengths, maxlen, dtype, name-)"
        " -> keras.ops.arange(maxlen) < keras.ops.expand_dims(lengths, -1)"
    )
    bound = rule.bound(arguments)
    dtype = bound.pop("dtype", None)
    if "maxlen" not in bound:
        raise UnportableError("pass `maxlen`, the size of the mask")
    passed = [a.with_changes(keyword=cst.Name(name)) for name, a in bound.items()]
    mask = expand(rule, passed)
    if dtype is None or source_of(dtype.value).strip("\"'") == "bool":
        return mask
    return code("keras.ops.cast({mask}, {dtype})", mask=mask, dtype=dtype.value)


def band_part(site: Site, arguments: Sequence[cst.Arg]) -> cst.BaseExpression:
    """Returns a triangle of a matrix."""
    rule = Rule.from_source("(input, num_lower, num_upper, name-) -> nothing")
    bound = rule.bound(arguments)
    widths = tuple(source_of(bound[n].value) for n in ("num_lower", "num_upper"))
    triangles = {("-1", "0"): "tril", ("0", "-1"): "triu"}
    if widths not in triangles:
        raise UnportableError("combine `keras.ops.tril` and `keras.ops.triu`")
    return code(f"keras.ops.{triangles[widths]}({{x}})", x=bound["input"].value)


_DROPOUT = Rule.from_source(
    "(x, keep_prob, noise_shape: None, seed: None, name-)"
    " -> keras.layers.Dropout(complement(keep_prob))(x, training=True)"
)
_DROPOUT_BY_RATE = Rule.from_source(
    "(x, keep_prob: None, noise_shape: None, seed: None, name-, rate)"
    " -> keras.layers.Dropout(rate)(x, training=True)"
)


def dropout(site: Site, arguments: Sequence[cst.Arg]) -> cst.BaseExpression:
    """Returns a layer that always drops units."""
    by_rate = "rate" in _DROPOUT_BY_RATE.bound(arguments)
    return expand(_DROPOUT_BY_RATE if by_rate else _DROPOUT, arguments)


_LAYER_NORM = Rule.from_source(
    "(inputs, center, scale, activation_fn: None, reuse: None, variables_collections-,"
    " outputs_collections-, trainable, begin_norm_axis: -1, begin_params_axis: -1,"
    " scope=kte.unique_name('LayerNorm')) -> keras.layers.LayerNormalization("
    "center=..., scale=..., epsilon=1e-12, trainable=..., name=scope)(inputs)".replace(
        "'", '"'
    )
)


def layer_norm(site: Site, arguments: Sequence[cst.Arg]) -> cst.BaseExpression:
    """Returns a normalization of the last axis."""
    bound = _LAYER_NORM.bound(arguments)
    axis = bound.get("begin_norm_axis")
    if axis is None:
        raise UnportableError(
            "it normalizes all axes but the first; pass `axis=` with these to "
            "`keras.layers.LayerNormalization`"
        )
    scope = bound.get("scope")
    if scope is not None and not isinstance(scope.value, cst.SimpleString):
        name = code(
            '{scope} or kte.unique_name("LayerNorm")', scope=embedded(scope.value)
        )
        bound["scope"] = scope.with_changes(value=name)
    passed = [a.with_changes(keyword=cst.Name(name)) for name, a in bound.items()]
    return expand(_LAYER_NORM, passed)


# Scopes of arguments.


def opened(arg_scope: ArgScope) -> cst.BaseExpression:
    """Returns nothing in place of a scope whose arguments each call passes."""
    if arg_scope.problem:
        raise UnportableError(arg_scope.problem)
    return NOTHING


def completed(
    name: str, call: cst.Call, arg_scope: ArgScope, arguments: Sequence[cst.Arg]
) -> cst.Call:
    """Returns a call with the arguments of a scope that it does not pass itself."""
    entry = entry_of(name)
    parameters = Rule.from_source(entry.rule).parameters if entry and entry.rule else ()
    count = sum(argument.keyword is None for argument in call.args)
    passed = {parameter.name for parameter in parameters[:count]}
    passed |= {a.keyword.value for a in call.args if a.keyword is not None}
    added = [
        cst.Arg(argument.value, argument.keyword)
        for argument in arguments
        if argument.keyword is not None
        and argument.keyword.value in {*arg_scope.keywords} - passed
    ]
    return call.with_changes(args=[*call.args, *added])


# Sizes.


def slice_(site: Site, arguments: Sequence[cst.Arg]) -> cst.BaseExpression:
    """Returns an index with a part of each axis."""
    bound = Rule.from_source("(input_, begin, size, name-) -> nothing").bound(arguments)
    begin, size = bound["begin"].value, bound["size"].value
    lists = cst.List | cst.Tuple
    if not isinstance(begin, lists) or not isinstance(size, lists):
        raise UnportableError("write `x[begin : begin + size]` for each axis")
    parts = []
    for first, count in zip(begin.elements, size.elements, strict=True):
        start, length = source_of(first.value), source_of(count.value)
        if length == "-1":
            parts.append(f"{start}:" if start != "0" else ":")
        elif start == "0":
            parts.append(f":{length}")
        else:
            parts.append(f"{start} : {start} + {length}")
    owner = source_of(embedded(bound["input_"].value))
    return cst.parse_expression(f"{owner}[{', '.join(parts)}]")


def shape(site: Site, arguments: Sequence[cst.Arg]) -> cst.BaseExpression:
    """Returns the shape, which is made of Python's numbers."""
    first = Rule.from_source("(input, name-, out_type-) -> nothing").bound(arguments)
    return cst.Attribute(embedded(first["input"].value), cst.Name("shape"))


# Optimizers.


def minimize(
    site: Site, call: cst.Call, owner: cst.BaseExpression
) -> cst.BaseExpression:
    """Returns a call of `kte.minimize`, which takes any optimizer."""
    rule = Rule.from_source(
        "(loss, global_step-, var_list, gate_gradients-, aggregation_method-,"
        " colocate_gradients_with_ops-, name-, grad_loss: None)"
        f" -> kte.minimize({source_of(owner)}, loss, var_list=...)"
    )
    return expand(rule, call.args)


def apply_gradients(
    site: Site, call: cst.Call, owner: cst.BaseExpression
) -> cst.BaseExpression:
    """Returns a call of `kte.apply_gradients`, which takes any optimizer."""
    rule = Rule.from_source(
        "(grads_and_vars, global_step-, name-)"
        f" -> kte.apply_gradients({source_of(owner)}, grads_and_vars)"
    )
    return expand(rule, call.args)


# Makes a replacement, or says why there is none.
Replace = Callable[[], cst.BaseExpression]
Special = Callable[[Site, Sequence[cst.Arg]], cst.BaseExpression]
# The calls by name.
CALLS: dict[str, Special] = {
    "tf.cond": choices.cond,
    "tf.constant": constant,
    "tf.contrib.layers.layer_norm": layer_norm,
    "tf.div": div,
    "tf.get_collection": get_collection,
    "tf.get_variable": get_variable,
    "tf.gradients": gradients,
    "tf.group": group,
    "tf.identity": identity,
    "tf.losses.sparse_softmax_cross_entropy": sparse_softmax_cross_entropy,
    "tf.matrix_band_part": band_part,
    "tf.nn.dropout": dropout,
    "tf.sequence_mask": sequence_mask,
    "tf.shape": shape,
    "tf.slice": slice_,
    "tf.train.ExponentialMovingAverage": moving_average,
    "tf.variable_scope": variable_scope,
    **{
        f"tf.{module}.{name}": hooks.hook
        for module in ("estimator", "train")
        for name in hooks.TENSORS
    },
    **dict.fromkeys(randomness.NAMES, randomness.drawn),
    **{f"tf.estimator.{name}": premade.premade for name in premade.PARTS},
}
Method = Callable[[Site, cst.Call, cst.BaseExpression], cst.BaseExpression]
# The methods of optimizers by name.
METHODS: dict[str, Method] = {
    "apply_gradients": apply_gradients,
    "minimize": minimize,
}
