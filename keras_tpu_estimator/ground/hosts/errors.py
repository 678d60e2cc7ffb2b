"""What goes wrong with other processes."""


class HostError(RuntimeError):
    """Another process of the program has failed, is gone, or is stuck.

    This one cannot go on without it: start all of them again, and training
    goes on from the latest checkpoint.

    Example:

    >>> import keras_tpu_estimator as kte
    >>> issubclass(kte.HostError, RuntimeError)
    True
    """
