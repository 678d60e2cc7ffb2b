"""Asking whether a name of TF1 is there, and what to do if it is not."""

import dataclasses
import enum
import inspect

from keras_tpu_estimator.tf1.names.aliases import canonical, path_of
from keras_tpu_estimator.tf1.shims.resolving import (
    MissingNameError,
    is_supplied,
    resolve,
)


class Status(enum.Enum):
    """Whose a name is.

    Attributes:
        SUPPLIED: TensorFlow has it no more, and it is supplied here.
        TENSORFLOW: It is in TensorFlow as it was.
        MISSING: It is in neither.
    """

    SUPPLIED = "supplied"
    TENSORFLOW = "tensorflow"
    MISSING = "missing"


@dataclasses.dataclass(frozen=True)
class Name:
    """What is known of a name.

    Attributes:
        path: The name, as 'tf.' and what follows.
        status: Whose it is.
        advice: What to do without it, if it is missing; else empty.
    """

    path: str
    status: Status
    advice: str = ""


def lookup(dotted_name: str) -> Name:
    """Looks up a name of TF1, as `python -m keras_tpu_estimator tf1` has it.

    Attributes of objects other than modules and classes are not looked at:
    'tf.flags.FLAGS.anything' is what 'tf.flags.FLAGS' is.

    Args:
        dotted_name: Such as 'tf.contrib.layers.layer_norm', or with
            'tensorflow' or 'tensorflow.compat.v1' in place of 'tf'.

    Returns:
        A `Name`.

    Example:

    >>> lookup("tf.train.Saver").status.value
    'tensorflow'
    >>> lookup("tensorflow.compat.v1.estimator.ModeKeys").status.value
    'supplied'
    >>> lookup("tf.contrib.cloud.BigtableClient").advice
    'Read the data with tf.data.TFRecordDataset, or with a generator.'
    """
    path = path_of(dotted_name)
    if path is None:
        path = canonical(f"{dotted_name}.".removeprefix("tf.").strip("."))
    if not path:
        return Name("tf", Status.SUPPLIED)
    shown = f"tf.{path}"
    parts = path.split(".")
    for number in range(1, len(parts) + 1):
        part = ".".join(parts[:number])
        try:
            found = resolve(part)
        except MissingNameError as error:
            return Name(shown, Status.MISSING, error.advice)
        except ImportError as error:
            if not is_supplied(part):
                raise
            return Name(shown, Status.SUPPLIED, str(error))
        if not (inspect.ismodule(found) or inspect.isclass(found)):
            break
    own = is_supplied(path)
    return Name(shown, Status.SUPPLIED if own else Status.TENSORFLOW)
