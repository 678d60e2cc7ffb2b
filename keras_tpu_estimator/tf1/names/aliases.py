"""The aliases under which scripts import the same TensorFlow 1 modules."""

# The estimator library had the names that TensorFlow had.
ROOTS = ("tensorflow", "tensorflow_core", "tensorflow_estimator")
# Names below the left path are also below the right path.
ALIASES = {
    "_api.v1": "",
    "_api.v2": "compat.v2",
    "compat.v1": "",
    "compat.v2.compat": "compat",
    "compat.v2.estimator": "estimator",
    "python.estimator.api._v1": "",
    "python.estimator.api._v2": "compat.v2",
    "python.keras.api._v1": "",
    "python.keras.api._v2": "compat.v2",
}


def canonical(path: str) -> str:
    """Returns the one canonical path of all aliases of a name.

    Args:
        path: A name without 'tf.'.

    Example:

    >>> canonical("compat.v1.compat.v1.layers.dense")
    'layers.dense'
    >>> canonical("compat.v2.estimator.Estimator")
    'estimator.Estimator'
    """
    for alias, same in ALIASES.items():
        if path == alias or path.startswith(f"{alias}."):
            rest = path.removeprefix(alias)
            return canonical(f"{same}{rest}" if same else rest[1:])
    return path


def path_of(name: str) -> str | None:
    """Returns the path of a module or of a name in it, without 'tf.'.

    Args:
        name: A full name, beginning with the name of a library.

    Returns:
        The canonical path, empty for TensorFlow itself, or `None` if the name
        is not TensorFlow's.

    Example:

    >>> path_of("tensorflow_estimator.python.estimator.training")
    'python.estimator.training'
    >>> path_of("tensorflow.compat.v1"), path_of("numpy.float32")
    ('', None)
    """
    root, _, path = name.partition(".")
    return canonical(path) if root in ROOTS else None
