"""Calls of `tf.contrib.framework`, with checkpoints that they write."""

import os
import tempfile

import tensorflow.compat.v1 as tf

from contrib_calls.calling import floats, x


def _names(variables):
    return sorted(variable.op.name for variable in variables)


def _made(contrib):
    """Makes some variables of each kind."""
    f = contrib.framework
    with tf.variable_scope("scope"):
        f.model_variable("model", [2], initializer=tf.zeros_initializer())
        f.variable("plain", [2], initializer=tf.ones_initializer())
        f.variable("still", [2], trainable=False)
        f.local_variable(1.0, name="local")
        f.global_variable(2.0, name="global")
    f.add_model_variable(tf.get_variable("own", [1]))
    return f


def _found(get):
    return lambda contrib: _names(get(_made(contrib)))


def _step(contrib):
    f = contrib.framework
    made = f.create_global_step()
    f.assert_global_step(made)
    f.assert_or_get_global_step(None, made)
    assert f.get_global_step() is made
    assert f.get_or_create_global_step() is made
    return [made, made.op.name]


def _assigned(contrib):
    f = _made(contrib)
    op, fed = f.assign_from_values({"scope/plain": floats(2)})
    restore = f.assign_from_values_fn({"scope/global": floats()})
    variables = {v.op.name: v for v in tf.global_variables()}
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        session.run(op, fed)
        restore(session)
        return [
            session.run(variables[name]) for name in ("scope/global", "scope/plain")
        ]


def _restored(contrib):
    """Restores a checkpoint with other names, by both functions."""
    f = contrib.framework
    with tempfile.TemporaryDirectory() as folder, tf.Graph().as_default():
        saved = tf.get_variable("before", initializer=floats(2, 3))
        with tf.Session() as session:
            session.run(tf.global_variables_initializer())
            path = os.path.join(folder, "saved")
            path = tf.train.Saver([saved]).save(session, path)
        other = tf.get_variable("after", [2, 3])
        flat = tf.get_variable("flat", [3, 2])
        gone = tf.get_variable("gone", [1])
        op, fed = f.assign_from_checkpoint(path, {"before": other})
        restore = f.assign_from_checkpoint_fn(
            path, {"before": flat, "gone": gone}, True, True
        )
        listed = [name for name, _ in f.list_variables(path)]
        with tf.Session() as session:
            session.run(op, fed)
            restore(session)
            return [
                *session.run([other, flat]),
                *listed,
                f.load_variable(path, "before"),
                f.load_checkpoint(path).get_tensor("before"),
            ]


def _scoped(contrib):
    """Returns a call with the arguments of functions in scopes."""
    f = contrib.framework

    @f.add_arg_scope
    def called(a, b=2, c=3):
        return [a, b, c]

    with f.arg_scope([called], b=5) as scope:
        inner = called(1)
        with f.arg_scope([called], c=7):
            both = called(1)
    with f.arg_scope(scope):
        again = called(1, c=9)
    return [
        called(1),
        inner,
        both,
        again,
        sorted(f.arg_scoped_arguments(called)),
        f.has_arg_scope(called),
        len(f.current_arg_scope()),
    ]


def _devices(contrib):
    choose = contrib.framework.VariableDeviceChooser(num_tasks=2)
    with tf.Graph().as_default():
        with tf.device(choose):
            made = [tf.Variable(0.0, use_resource=True) for _ in range(3)]
        return [each.device for each in made]


def _smart(contrib):
    smart_cond = contrib.framework.smart_cond
    return [
        smart_cond(True, lambda: x(1), lambda: x(2)),
        smart_cond(tf.constant(False), lambda: x(1), lambda: x(2)),
        smart_cond(x(1)[0] > 2.0, lambda: x(1), lambda: -x(1)),
    ]


def _shaped(contrib):
    """Checks the shapes of tensors with known and with unknown shapes."""
    f = contrib.framework
    unknown = tf.placeholder_with_default(floats(2, 3), [None, None])
    checked = f.with_shape([2, 3], unknown)
    found = [
        checked,
        checked.shape.as_list(),
        f.with_shape(tf.constant([2, -1]), unknown),
        f.with_shape([2, 3], x(2, 3)),
        f.with_shape([], x(1)),
        f.with_shape(tf.shape(unknown), x(2, 3)),
        f.with_same_shape(unknown, x(2, 3)),
        f.with_same_shape(x(2, 3), unknown),
        f.assert_scalar_int(tf.constant(3)),
    ]
    for expected, given in (([3, 2], x(2, 3)), ([2, 2], unknown)):
        try:
            with tf.Session() as session:
                session.run(f.with_shape(expected, given))
        except (ValueError, tf.errors.InvalidArgumentError) as error:
            found.append(type(error).__name__)
    for given in (x(2), tf.constant([1, 2])):
        try:
            f.assert_scalar_int(given)
        except ValueError:
            found.append("refused")
    return found


def _squeezed(contrib):
    """Squeezes predictions and labels with known and with unknown shapes."""
    f = contrib.framework
    given = floats(3, 1), floats(3), floats(3, 2), floats(3, 2, 1)
    pairs = [(0, 1), (1, 0), (0, 0), (3, 2), (2, 3)]
    found = []
    for first, second in pairs:
        pair = given[first], given[second]
        hidden = [tf.placeholder_with_default(each, None) for each in pair]
        for one, other in (pair, hidden, (pair[0], hidden[1])):
            made = f.remove_squeezable_dimensions(one, other)
            found += [*made, *map(tf.shape, made)]
    return found


CALLS = {
    "VariableDeviceChooser": _devices,
    "arg_scope": _scoped,
    "arg_scope_func_key": lambda c: c.framework.arg_scope_func_key(x),
    "argsort": lambda c: c.framework.argsort(x(5), direction="DESCENDING"),
    "assign_from_checkpoint": _restored,
    "assign_from_values": _assigned,
    "create_global_step": _step,
    "filter_variables": _found(
        lambda f: f.filter_variables(tf.global_variables(), ["scope"], ["st"])
    ),
    "get_local_variables": _found(lambda f: f.get_local_variables()),
    "get_model_variables": _found(lambda f: f.get_model_variables("scope")),
    "get_trainable_variables": _found(lambda f: f.get_trainable_variables()),
    "get_unique_variable": _found(lambda f: [f.get_unique_variable("scope/plain")]),
    "get_variable_full_name": lambda c: c.framework.get_variable_full_name(
        tf.get_variable("name", [1])
    ),
    "get_variables": _found(lambda f: f.get_variables("scope", "l")),
    "get_variables_by_name": _found(lambda f: f.get_variables_by_name("own")),
    "get_variables_by_suffix": _found(
        lambda f: f.get_variables_by_suffix("l", "scope")
    ),
    "get_variables_to_restore": _found(
        lambda f: f.get_variables_to_restore(["scope"], ["scope/model"])
    ),
    "nest": lambda c: c.framework.nest.flatten({"b": 1, "a": [2, 3]}),
    "reduce_sum_n": lambda c: [
        c.framework.reduce_sum_n([x(2, 3), x(4)]),
        c.framework.reduce_sum_n([x(2)]),
    ],
    "remove_squeezable_dimensions": _squeezed,
    "smart_cond": _smart,
    "sort": lambda c: c.framework.sort(x(5)),
    "with_shape": _shaped,
}
# Other entries also call these functions.
ALIASES = {
    "add_arg_scope": "arg_scope",
    "add_model_variable": "get_model_variables",
    "arg_scoped_arguments": "arg_scope",
    "assert_global_step": "create_global_step",
    "assert_or_get_global_step": "create_global_step",
    "assert_scalar_int": "with_shape",
    "assign_from_checkpoint_fn": "assign_from_checkpoint",
    "assign_from_values_fn": "assign_from_values",
    "current_arg_scope": "arg_scope",
    "get_global_step": "create_global_step",
    "get_or_create_global_step": "create_global_step",
    "global_variable": "get_variables",
    "has_arg_scope": "arg_scope",
    "list_variables": "assign_from_checkpoint",
    "load_checkpoint": "assign_from_checkpoint",
    "load_variable": "assign_from_checkpoint",
    "local_variable": "get_local_variables",
    "model_variable": "get_model_variables",
    "variable": "get_variables",
    "with_same_shape": "with_shape",
}
