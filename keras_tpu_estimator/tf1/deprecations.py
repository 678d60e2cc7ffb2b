"""A filter for TensorFlow's deprecation messages about its own functions.

They recommend TensorFlow 2 code, which a TensorFlow 1 script cannot use. The script's
own deprecation messages are kept.
"""

import logging

_OF_A_FUNCTION, _OF_A_NAME = "(from %s)", "From %s: The name %s is deprecated."
# The arguments of a message are the line, the function and its module.
_MODULE = 2
_PACKAGES = {"keras", "tensorflow", "tf_keras", "tf_slim"}


def silence() -> None:
    """Hides these messages in TensorFlow's log from now on."""
    logging.getLogger("tensorflow").addFilter(_is_for_users)


def _is_for_users(record: logging.LogRecord) -> bool:
    """Returns whether a message is not one of these."""
    message, values = str(record.msg), record.args
    if message.startswith(_OF_A_NAME):
        return False
    if (
        not message.startswith("From %s: ")
        or _OF_A_FUNCTION not in message
        or not isinstance(values, tuple)
    ):
        return True
    return str(values[_MODULE]).partition(".")[0] not in _PACKAGES
