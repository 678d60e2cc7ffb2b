"""The error that a failure of another process causes."""


class HostError(RuntimeError):
    """Another process of a training with several processes has failed.

    It raised an error, ended, or stopped responding. Restart all processes, and
    training resumes from the latest checkpoint.

    Example:

    >>> import keras_tpu_estimator as kte
    >>> issubclass(kte.HostError, RuntimeError)
    True
    """
