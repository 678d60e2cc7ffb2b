"""TensorFlow's log messages that its own functions are deprecated.

They advise new TensorFlow code, which a program that stays on TensorFlow 1
cannot use. The program's own deprecations keep their messages.
"""

import logging

_OF_A_FUNCTION, _OF_A_NAME = "(from %s)", "From %s: The name %s is deprecated."
# The arguments of a message are the line, the function and its module.
_MODULE = 2
_PACKAGES = {"keras", "tensorflow", "tf_keras", "tf_slim"}


def silence() -> None:
    """Leaves them out of TensorFlow's log from now on."""
    logging.getLogger("tensorflow").addFilter(_is_for_users)


def _is_for_users(record: logging.LogRecord) -> bool:
    """Whether a message is none of them."""
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
