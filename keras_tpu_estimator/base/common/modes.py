"""The names of an estimator's modes."""


class ModeKeys:
    """The modes in which a `model_fn` is called.

    The counterpart of `tf.estimator.ModeKeys`, with the same values.

    Example:

    >>> import keras_tpu_estimator as kte
    >>> kte.ModeKeys.PREDICT
    'infer'
    """

    TRAIN = "train"
    EVAL = "eval"
    PREDICT = "infer"
