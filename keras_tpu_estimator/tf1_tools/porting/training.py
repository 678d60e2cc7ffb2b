"""Counterparts of losses, optimizers, learning rates and gradients."""

from keras_tpu_estimator.tf1_tools.porting.records import Row
from keras_tpu_estimator.tf1_tools.porting.records import Section


def _losses(names: str) -> dict[str, str]:
    pairs = (pair.split("=") for pair in names.split())
    return {f"tf.losses.{name}": f"`keras.losses.{now}`" for name, now in pairs}


def _schedules(names: str) -> dict[str, str]:
    pairs = (pair.split("=") for pair in names.split())
    return {
        f"tf.train.{name}": f"`keras.optimizers.schedules.{now}`"
        for name, now in pairs
    }


LOSSES = Section(
    "5-losses",
    (
        Row(
            {
                "tf.nn.sparse_softmax_cross_entropy_with_logits": "`keras.ops."
                "sparse_categorical_crossentropy`"
            },
            before="`tf.nn.sparse_softmax_cross_entropy_with_logits("
            "labels=labels, logits=logits)`",
            now="`keras.ops.sparse_categorical_crossentropy(labels, logits, "
            "from_logits=True)`",
        ),
        Row(
            {
                "tf.nn.softmax_cross_entropy_with_logits": "`keras.ops."
                "categorical_crossentropy`",
                "tf.nn.softmax_cross_entropy_with_logits_v2": "`keras.ops."
                "categorical_crossentropy`",
                "tf.nn.sigmoid_cross_entropy_with_logits": "`keras.ops."
                "binary_crossentropy`",
            },
            before="`softmax_cross_entropy_with_logits`, "
            "`sigmoid_cross_entropy_with_logits`",
            now="`keras.ops.categorical_crossentropy`, "
            "`keras.ops.binary_crossentropy`",
            note="with `from_logits=True`, each on the last axis or element "
            "by element, as before",
        ),
        Row(
            _losses(
                "sparse_softmax_cross_entropy=SparseCategoricalCrossentropy "
                "softmax_cross_entropy=CategoricalCrossentropy "
                "sigmoid_cross_entropy=BinaryCrossentropy"
            ),
            before="`tf.losses.softmax_cross_entropy(labels, logits)`",
            now="`keras.losses.CategoricalCrossentropy(from_logits=True)("
            "labels, logits)`",
            note="likewise `SparseCategoricalCrossentropy`, "
            "`BinaryCrossentropy`",
        ),
        Row(
            _losses(
                "mean_squared_error=MeanSquaredError "
                "absolute_difference=MeanAbsoluteError huber_loss=Huber "
                "hinge_loss=Hinge log_loss=BinaryCrossentropy "
                "cosine_distance=CosineSimilarity"
            ),
            before="`tf.losses.mean_squared_error(labels, y)`, "
            "`absolute_difference`, `huber_loss`, ...",
            now="`keras.losses.MeanSquaredError()(labels, y)`, "
            "`MeanAbsoluteError`, `Huber`, ...",
        ),
        Row(
            {
                "tf.losses.compute_weighted_loss": "`keras.ops.sum`",
                "tf.losses.*": "`keras.losses`",
            },
            before="`weights=` of `tf.losses`",
            now="`keras.ops.sum(losses * weights) / "
            "keras.ops.sum(weights != 0)`",
            note="Keras's `sample_weight` divides by the number of examples",
        ),
    ),
)

TRAINING = Section(
    "6-optimizer",
    (
        Row(
            {
                "tf.tpu.CrossShardOptimizer": "`kte.CrossShardOptimizer`",
                "tf.contrib.tpu.CrossShardOptimizer": "`kte."
                "CrossShardOptimizer`",
            },
            before="`tf.contrib.tpu.CrossShardOptimizer(optimizer)`",
            now="`kte.CrossShardOptimizer(optimizer)`",
            note="around a Keras optimizer; on one core, too: it has "
            "`minimize`",
        ),
        Row(
            {},
            before='`if params["use_tpu"]: optimizer = '
            "tf.contrib.tpu.CrossShardOptimizer(optimizer)`, then "
            "`optimizer.minimize(loss)`",
            now="the same, then `kte.minimize(optimizer, loss)`, which takes "
            "Keras's optimizers with and without it",
        ),
        Row(
            {
                "tf.train.AdamOptimizer": "`keras.optimizers.Adam`",
                "tf.contrib.opt.AdamWOptimizer": "`keras.optimizers.AdamW`",
                "tf.contrib.opt.LazyAdamOptimizer": "`keras.optimizers.Adam`",
            },
            before="`tf.train.AdamOptimizer(rate)`",
            now="`keras.optimizers.Adam(rate, epsilon=1e-8)`",
            note="Keras's `epsilon` is 1e-7",
        ),
        Row(
            {
                "tf.train.GradientDescentOptimizer": "`keras.optimizers.SGD`",
                "tf.train.MomentumOptimizer": "`keras.optimizers.SGD`",
            },
            before="`tf.train.MomentumOptimizer(rate, 0.9)`, "
            "`GradientDescentOptimizer(rate)`",
            now="`keras.optimizers.SGD(rate, momentum=0.9)`, "
            "`keras.optimizers.SGD(rate)`",
        ),
        Row(
            {"tf.train.RMSPropOptimizer": "`keras.optimizers.RMSprop`"},
            before="`tf.train.RMSPropOptimizer(rate)`",
            now="`keras.optimizers.RMSprop(rate, epsilon=1e-10)`",
            note="its average of squares starts at 0, and that of "
            "TensorFlow at 1",
        ),
        Row(
            {
                "tf.train.AdagradOptimizer": "`keras.optimizers.Adagrad`",
                "tf.train.AdadeltaOptimizer": "`keras.optimizers.Adadelta`",
                "tf.train.FtrlOptimizer": "`keras.optimizers.Ftrl`",
                "tf.contrib.opt.NadamOptimizer": "`keras.optimizers.Nadam`",
                "tf.contrib.opt.AdaMaxOptimizer": "`keras.optimizers.Adamax`",
            },
        ),
        Row(
            {"tf.contrib.opt.LARSOptimizer": "`kte.optimizers.LARS`"},
            before="`LARSOptimizer`, `AdamWeightDecayOptimizer`, "
            "`LAMBOptimizer`, `SM3Optimizer`",
            now="[`kte.optimizers`](optimizers.md): `LARS`, "
            "`AdamWeightDecay`, `LAMB`, `SM3`",
            note="with `LARS`, the loss has no weight decay",
        ),
        Row(
            {
                "tf.train.Optimizer": "`keras.optimizers.Optimizer`",
                "tf.contrib.opt.*": "`keras.optimizers`",
            },
            before="your own optimizer",
            now="a subclass of `keras.optimizers.Optimizer`",
            note="[how to write it](optimizers.md#one-of-your-own)",
        ),
        Row(
            _schedules(
                "exponential_decay=ExponentialDecay "
                "polynomial_decay=PolynomialDecay cosine_decay=CosineDecay "
                "cosine_decay_restarts=CosineDecayRestarts "
                "piecewise_constant=PiecewiseConstantDecay "
                "piecewise_constant_decay=PiecewiseConstantDecay "
                "inverse_time_decay=InverseTimeDecay "
                "natural_exp_decay=ExponentialDecay "
            ),
            before="`tf.train.polynomial_decay(rate, step, 1000, 0.0)`, ...",
            now="`keras.optimizers.schedules.PolynomialDecay(rate, 1000, "
            "0.0)`, ...",
            note="or "
            "[any tensor](troubleshooting.md#a-learning-rate-that-is-computed)"
            " of `kte.get_global_step()`",
        ),
        Row(
            {"tf.gradients": "`kte.gradients`"},
            before="`tf.gradients(loss, variables)`",
            now="`kte.gradients(loss, variables)`",
        ),
        Row(
            {
                "tf.clip_by_global_norm": "`kte.clip_by_global_norm`",
                "tf.clip_by_norm": "`keras.ops.norm`",
                "tf.global_norm": "`kte.clip_by_global_norm`",
            },
            before="`tf.clip_by_global_norm(gradients, 1.0)`",
            now="`kte.clip_by_global_norm(gradients, 1.0)`",
            note="gradients of lookups are summed by row, which TensorFlow's "
            "norm counted one by one where ids repeat",
        ),
        Row(
            {},
            before="`optimizer.apply_gradients(zip(grads, tvars), "
            "global_step)`",
            now="`kte.CrossShardOptimizer(optimizer).apply_gradients("
            "zip(grads, tvars))`",
            note="on one core, too: Keras's own method takes no step, and "
            "reports no learning rate",
        ),
        Row(
            {
                "tf.contrib.layers.optimize_loss": "`kte."
                "CrossShardOptimizer.minimize`",
                "tf.contrib.training.create_train_op": "`kte."
                "CrossShardOptimizer.minimize`",
            },
            now="`kte.CrossShardOptimizer(optimizer).minimize(loss)`",
        ),
        Row(
            {
                "tf.train.ExponentialMovingAverage": "`kte."
                "ExponentialMovingAverage`"
            },
            note="see [moving averages]"
            "(checkpoints.md#evaluating-moving-averages)",
        ),
        Row(
            {
                "tf.train.SyncReplicasOptimizer": "`kte.CrossShardOptimizer`",
                "tf.contrib.distribute.*": "`kte.TPUEstimator(use_tpu=True)`",
                "tf.distribute.*": "`kte.TPUEstimator(use_tpu=True)`",
            },
            before="`tf.contrib.distribute`, `SyncReplicasOptimizer`",
            now="`use_tpu=True`: [data parallel](cores.md) over all devices",
        ),
        Row(
            {"tf.train.*": "`keras.optimizers` or `kte.hooks`"},
            before="others of `tf.train`",
            now="`keras.optimizers`, `kte.hooks`, or `kte` itself",
        ),
    ),
)
