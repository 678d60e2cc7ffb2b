"""Looking up whether a TF1 name exists, and advice if it does not."""

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
    """The origin of a name.

    Attributes:
        SUPPLIED: TensorFlow has removed it, and this package supplies it.
        TENSORFLOW: TensorFlow still has it.
        MISSING: Neither has it.
    """

    SUPPLIED = "supplied"
    TENSORFLOW = "tensorflow"
    MISSING = "missing"


@dataclasses.dataclass(frozen=True)
class Name:
    """The result of looking up a name.

    Attributes:
        path: The name, with 'tf.' at its start.
        status: The origin of the name.
        advice: The code to write instead if the name is missing, or "".
    """

    path: str
    status: Status
    advice: str = ""


def lookup(dotted_name: str) -> Name:
    """Looks up a TF1 name, as `python -m keras_tpu_estimator tf1` does.

    Attributes of objects other than modules and classes are ignored:
    'tf.flags.FLAGS.anything' has the result of 'tf.flags.FLAGS'.

    Args:
        dotted_name: A name such as 'tf.contrib.layers.layer_norm', or with 'tensorflow'
            or 'tensorflow.compat.v1' instead of 'tf'.

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
