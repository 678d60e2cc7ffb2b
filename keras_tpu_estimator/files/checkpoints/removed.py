"""What is said of a checkpoint that went while it was read."""

from keras_tpu_estimator.files.checkpoints import location


def removed(path: str) -> ValueError:
    """An error to raise.

    Args:
        path: The checkpoint, or its main file.

    Example:

    >>> raise removed("/nowhere/model.ckpt-20")
    Traceback (most recent call last):
    ...
    ValueError: The checkpoint '/nowhere/model.ckpt-20' was there, and was
    removed or saved anew before all of it was read...
    """
    return ValueError(
        f"The checkpoint {path!r} was there, and was removed or saved anew "
        "before all of it was read. A training keeps as many as "
        "`RunConfig(keep_checkpoint_max=...)` says: read a newer one, or have "
        f"more of them kept. {location.alternatives(path)}"
    )
