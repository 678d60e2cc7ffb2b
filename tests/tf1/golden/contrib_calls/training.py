"""Calls of `tf.contrib.training`, `.slim`, `.opt` and `.estimator`."""

import tempfile

import tensorflow.compat.v1 as tf

from contrib_calls.calling import floats, x


def _loss():
    inputs = x(3, 4)
    made = tf.layers.dense(inputs, 2, name="inner")
    return tf.reduce_mean(made * made)


def _trained(make):
    """Returns a call that trains two steps."""

    def call(contrib):
        step = tf.train.create_global_step()
        update = make(contrib, _loss(), tf.train.MomentumOptimizer(0.3, 0.9))
        return {"update": update, "then": [step, tf.trainable_variables()]}

    return call


def _by_hand(make):
    """Returns a call that trains with changed gradients."""

    def train(contrib, loss, optimizer):
        pairs = make(contrib, optimizer.compute_gradients(loss))
        return optimizer.apply_gradients(pairs, tf.train.get_global_step())

    return _trained(train)


def _of_rows(change):
    """Returns a call that trains with a gradient of some rows."""

    def call(contrib):
        table = tf.get_variable("table", [4, 3])
        rows = tf.gather(table, [0, 2])
        optimizer = tf.train.GradientDescentOptimizer(1.0)
        pairs = optimizer.compute_gradients(tf.reduce_sum(rows * rows))
        update = optimizer.apply_gradients(change(contrib, pairs))
        return {"update": update, "then": table}

    return call


def _in_session(train):
    """Returns the result of a custom loop."""

    def call(contrib):
        with tf.Graph().as_default(), tempfile.TemporaryDirectory() as folder:
            tf.train.create_global_step()
            # An initialized variable is not read while it is written.
            variable = tf.get_variable("v", initializer=1.0, use_resource=True)
            optimizer = tf.train.GradientDescentOptimizer(0.1)
            update = contrib.training.create_train_op(variable * variable, optimizer)
            return train(contrib, update, folder)

    return call


def _training(contrib, update, folder):
    """Returns a variable after three steps."""
    contrib.training.train(update, folder, hooks=[tf.train.StopAtStepHook(last_step=3)])
    return tf.train.load_variable(folder, "v")


def _learning(contrib, update, folder):
    """Returns the loss of the third step."""
    del folder
    return contrib.slim.learning.train(
        update, None, number_of_steps=3, log_every_n_steps=0
    )


def _evaluated(evaluate):
    """Evaluates a checkpoint, with two means."""

    def call(contrib):
        with tempfile.TemporaryDirectory() as folder:
            with tf.Graph().as_default(), tf.Session() as session:
                step = tf.train.create_global_step()
                session.run(step.initializer)
                path = tf.train.Saver().save(session, folder + "/model.ckpt")
            with tf.Graph().as_default():
                tf.train.create_global_step()
                value, update = tf.metrics.mean(x(3))
                return evaluate(contrib, folder, path, value, update)

    return call


def _once(contrib, folder, path, value, update):
    return contrib.slim.evaluation.evaluate_once(
        "", path, folder, num_evals=2, eval_op=update, final_op=value
    )


def _repeatedly(contrib, folder, path, value, update):
    del path
    evaluation = contrib.training
    return evaluation.evaluate_repeatedly(
        folder,
        eval_ops=update,
        final_ops={"value": value},
        hooks=[
            evaluation.StopAfterNEvalsHook(2),
            evaluation.SummaryAtEndHook(folder),
        ],
        max_number_of_evaluations=1,
    )


def _in_loop(contrib, folder, path, value, update):
    del path
    return contrib.slim.evaluation.evaluation_loop(
        "",
        folder,
        folder,
        eval_op=update,
        final_op=value,
        max_number_of_evaluations=1,
        timeout=0,
    )


def _waited(contrib, folder, path, value, update):
    del value, update
    found = contrib.training.wait_for_new_checkpoint(folder, timeout=1)
    listed = list(contrib.training.checkpoints_iterator(folder, timeout=0))
    counted = contrib.training.get_or_create_eval_step().op.name
    return [found == path, listed == [path], counted]


def _summarized(contrib):
    """Returns the names of summaries."""
    summaries = contrib.slim.summaries
    tensor, images = tf.nn.relu(x(3), name="tensor"), x(1, 2, 2, 3)
    made = [
        summaries.add_histogram_summary(tensor, "a"),
        summaries.add_image_summary(images, "b"),
        summaries.add_scalar_summary(tensor[0], "c", "prefix"),
        summaries.add_zero_fraction_summary(tensor, "d"),
    ]
    made += summaries.add_histogram_summaries([tensor])
    made += summaries.add_image_summaries([images])
    made += summaries.add_scalar_summaries([tensor[0]])
    made += summaries.add_zero_fraction_summaries([tensor])
    optimizer = tf.train.GradientDescentOptimizer(1.0)
    pairs = optimizer.compute_gradients(_loss())
    made += contrib.training.add_gradients_summaries(pairs)
    return [each.op.name for each in made]


def _analyzed(contrib):
    analyzer = contrib.slim.model_analyzer
    size = analyzer.analyze_ops(tf.get_default_graph())
    description = analyzer.tensor_description(x(2, 3))
    tf.get_variable("variable", [2, 3])
    return [*analyzer.analyze_vars(tf.global_variables()), size, description]


def _optimized(make):
    """Returns a call that trains three steps, dense or with other rows in each."""

    def call(contrib):
        step = tf.train.create_global_step()
        table = tf.get_variable("table", [4, 3], use_resource=True)
        dense = tf.get_variable("dense", [3], use_resource=True)
        rows = tf.gather(table, tf.stack([2, tf.cast(step, tf.int32)]))
        # No gradient depends on a changed variable, because the order is undefined.
        loss = tf.reduce_sum(rows * x(2, 3)) + tf.reduce_sum(dense * x(3))
        update = make(contrib).minimize(loss, step)
        return {"update": update, "then": [table, dense]}

    return call


def _decayed(contrib):
    base = tf.train.AdamOptimizer
    with_decay = contrib.opt.extend_with_decoupled_weight_decay(base)
    return with_decay(0.01, learning_rate=0.1)


def _lars(contrib):
    return contrib.opt.LARSOptimizer(0.5, weight_decay=0.01, eeta=0.1)


def _only_dense(make):
    def call(contrib):
        dense = tf.get_variable("dense", [2, 3], use_resource=True)
        loss = tf.reduce_sum(dense * dense * x(2, 3))
        return {"update": make(contrib).minimize(loss), "then": dense}

    return call


def _averaged(contrib):
    variable = tf.get_variable(
        "variable", initializer=floats(3) + 0.1, use_resource=True
    )
    optimizer = contrib.opt.MovingAverageOptimizer(
        tf.train.GradientDescentOptimizer(0.1), 0.75
    )
    update = optimizer.minimize(tf.reduce_sum(variable * variable))
    optimizer.swapping_saver()
    return {"update": update, "then": tf.global_variables()}


def _hyperparameters(contrib):
    made = contrib.training.HParams(rate=0.1, layers=[64, 64], name="small")
    made.parse("rate=0.01,layers=[32,16]")
    made.add_hparam("flag", True)
    made.set_hparam("flag", False)
    parsed = contrib.training.parse_values("a=1,b[2]=0.5", {"a": int, "b": float})
    return [
        made.to_json(sort_keys=True),
        sorted(made.values()),
        "rate" in made,
        parsed["a"],
        parsed["b"][2],
        str(made.parse("rate=2, name=large, layers=[4 5]")),
        made.get("rate", 3.0),
        made.parse(str(made)).values() == made.values(),
        str(made.to_proto().hparam["layers"]),
        str(made.to_proto().hparam["name"]),
        str(made.to_proto().hparam["flag"]),
        sorted(map(str, made.from_proto(made.to_proto()).values().items())),
        len(made.to_proto().SerializeToString()),
    ]


CALLS = {
    "estimator.clip_gradients_by_norm": _trained(
        lambda c, loss, optimizer: c.estimator.clip_gradients_by_norm(
            optimizer, 0.1
        ).minimize(loss, tf.train.get_global_step())
    ),
    "opt.AdaMaxOptimizer": _optimized(lambda c: c.opt.AdaMaxOptimizer(0.1)),
    "opt.AdamWOptimizer": _optimized(lambda c: c.opt.AdamWOptimizer(0.01, 0.1)),
    "opt.LARSOptimizer": _only_dense(_lars),
    "opt.LazyAdamOptimizer": _optimized(lambda c: c.opt.LazyAdamOptimizer(0.1)),
    "opt.MomentumWOptimizer": _optimized(
        lambda c: c.opt.MomentumWOptimizer(0.01, 0.1, 0.9)
    ),
    "opt.MovingAverageOptimizer": _averaged,
    "opt.NadamOptimizer": _optimized(lambda c: c.opt.NadamOptimizer(0.1)),
    "opt.extend_with_decoupled_weight_decay": _optimized(_decayed),
    "slim.evaluation.evaluate_once": _evaluated(_once),
    "slim.evaluation.evaluation_loop": _evaluated(_in_loop),
    "slim.learning.clip_gradient_norms": _by_hand(
        lambda c, pairs: c.slim.learning.clip_gradient_norms(pairs, 0.1)
    ),
    "slim.learning.create_train_op": _trained(
        lambda c, loss, optimizer: c.slim.learning.create_train_op(
            loss,
            optimizer,
            clip_gradient_norm=0.1,
            gradient_multipliers={"inner/kernel": 2.0},
            summarize_gradients=True,
        )
    ),
    "slim.learning.train": _in_session(_learning),
    "slim.model_analyzer": _analyzed,
    "slim.summaries": _summarized,
    "training.HParams": _hyperparameters,
    "training.clip_gradient_norms": _by_hand(
        lambda c, pairs: c.training.clip_gradient_norms(pairs, 0.1)
    ),
    "training.clip_gradient_norms of rows": _of_rows(
        lambda c, pairs: c.training.clip_gradient_norms(pairs, 0.1)
    ),
    "training.clip_gradient_norms_fn": _by_hand(
        lambda c, pairs: c.training.clip_gradient_norms_fn(0.1)(pairs)
    ),
    "training.create_train_op": _trained(
        lambda c, loss, optimizer: c.training.create_train_op(
            loss, optimizer, check_numerics=False
        )
    ),
    "training.evaluate_repeatedly": _evaluated(_repeatedly),
    "training.multiply_gradients": _by_hand(
        lambda c, pairs: c.training.multiply_gradients(pairs, {"inner/kernel": 2.0})
    ),
    "training.multiply_gradients of rows": _of_rows(
        lambda c, pairs: c.training.multiply_gradients(pairs, {pairs[0][1]: 0.5})
    ),
    "training.train": _in_session(_training),
    "training.wait_for_new_checkpoint": _evaluated(_waited),
}
# Other entries also call these functions.
ALIASES = {
    "slim.evaluation.StopAfterNEvalsHook": "training.evaluate_repeatedly",
    "slim.evaluation.SummaryAtEndHook": "training.evaluate_repeatedly",
    "slim.evaluation.checkpoints_iterator": "training.wait_for_new_checkpoint",
    "slim.evaluation.evaluate_repeatedly": "training.evaluate_repeatedly",
    "slim.evaluation.get_or_create_eval_step": ("training.wait_for_new_checkpoint"),
    "slim.evaluation.wait_for_new_checkpoint": ("training.wait_for_new_checkpoint"),
    "slim.learning.add_gradients_summaries": "slim.learning.create_train_op",
    "slim.learning.multiply_gradients": "slim.learning.create_train_op",
    "slim.learning.train_step": "slim.learning.train",
    **{
        f"slim.model_analyzer.{name}": "slim.model_analyzer"
        for name in ("analyze_ops", "analyze_vars", "tensor_description")
    },
    **{
        f"slim.summaries.add_{kind}_{plural}": "slim.summaries"
        for kind in ("histogram", "image", "scalar", "zero_fraction")
        for plural in ("summary", "summaries")
    },
    "training.StopAfterNEvalsHook": "training.evaluate_repeatedly",
    "training.SummaryAtEndHook": "training.evaluate_repeatedly",
    "training.add_gradients_summaries": "slim.summaries",
    "training.checkpoints_iterator": "training.wait_for_new_checkpoint",
    "training.get_or_create_eval_step": "training.wait_for_new_checkpoint",
    "training.parse_values": "training.HParams",
}
