"""The command `tf1`, which runs a TensorFlow 1 script unchanged."""

import argparse
import logging
import os
import sys
from collections.abc import Sequence

from keras_tpu_estimator.base.common import sources
from keras_tpu_estimator.base.common.logs import join_tensorflow
from keras_tpu_estimator.tf1.graph.file_searches import required_folders
from keras_tpu_estimator.tf1.graph.internals import python_of_old_variables
from keras_tpu_estimator.tf1.shims.importing import BUILTINS, tf1_for
from keras_tpu_estimator.tf1.shims.installing import give_back

_OF_A_FUNCTION, _OF_A_NAME = "(from %s)", "From %s: The name %s is deprecated."
# The arguments of such a message are the line, the function and its module.
_MODULE = 2
_QUIET_PACKAGES = {"keras", "tensorflow", "tf_keras", "tf_slim"}


def main(name: str, arguments: Sequence[str]) -> int:
    """Runs the script of the command line, and returns 0 unless the script exits."""
    parser = argparse.ArgumentParser(
        f"python -m keras_tpu_estimator {name}",
        description="Runs a TensorFlow 1 script. All arguments after the script "
        "are passed to it. Use -m to run a module, as with python -m.",
    )
    parser.add_argument(
        "-m", action="store_true", help="SCRIPT is the name of a module"
    )
    parser.add_argument("script", metavar="SCRIPT")
    parser.add_argument("arguments", metavar="ARGUMENTS", nargs=argparse.REMAINDER)
    options = parser.parse_args(arguments)
    if not options.m and not os.path.isfile(options.script):
        parser.error(
            f"SCRIPT must be the path of a script. Received: {options.script!r}, which "
            "is not a file. Use -m for a module."
        )
    run(options.script, options.arguments, options.m)
    return 0


def run(script: str, arguments: Sequence[str] = (), is_module: bool = False) -> None:
    """Runs a script, or a module, as `python SCRIPT ARGUMENTS` did with TensorFlow 1.

    In the script, and in modules in its folder, in folders of PYTHONPATH, in those that
    it adds to `sys.path`, and in the current one if Python searches it, `tensorflow` is
    `tf.compat.v1` with the names that TensorFlow has removed. Afterwards the process
    behaves as with TF1, without eager execution.
    """
    folder = sources.folder_of(script, is_module)
    folders = [folder, *sources.folders_on_path()]
    _behave_as_tf1()
    with tf1_for(folders), python_of_old_variables(), required_folders():
        names = {"__builtins__": BUILTINS}
        sources.run(script, arguments, is_module, names)


def _behave_as_tf1() -> None:
    """Sets TF1's global settings: graphs, their loops, and shapes of `Dimension`s."""
    import tensorflow as tf

    v1 = tf.compat.v1
    v1.disable_eager_execution()
    v1.disable_v2_tensorshape()
    v1.disable_tensor_equality()
    # A loop that has run in a session can then still get gradients.
    v1.disable_control_flow_v2()
    give_back()
    hide_deprecations()
    hide_library_lines()
    # This package's log lines then follow the verbosity of tf.logging.
    join_tensorflow()


def hide_library_lines() -> None:
    """Hides INFO lines of JAX, unless the script has set its level, and of TensorFlow.

    `tf.app.run` shows the INFO lines of all loggers, also those of libraries that
    TensorFlow 1 did not have.
    """
    jax = logging.getLogger("jax")
    if jax.level == logging.NOTSET:
        jax.setLevel(logging.WARNING)
    logging.getLogger("absl").addFilter(_is_shown)


def _is_shown(record: logging.LogRecord) -> bool:
    """Returns whether a line is a warning, or was logged outside of TensorFlow."""
    folder = os.path.dirname(sys.modules["tensorflow"].__file__ or "")
    is_internal = record.pathname.startswith(os.path.join(folder, ""))
    return record.levelno >= logging.WARNING or not is_internal


def hide_deprecations() -> None:
    """Hides TensorFlow's own deprecation messages, but keeps those of the script.

    They recommend TensorFlow 2 code, which a TensorFlow 1 script cannot use.
    """
    logging.getLogger("tensorflow").addFilter(_is_not_deprecation)


def _is_not_deprecation(record: logging.LogRecord) -> bool:
    """Returns whether a message is not about a deprecated TensorFlow function."""
    message, values = str(record.msg), record.args
    if message.startswith(_OF_A_NAME):
        return False
    if (
        not message.startswith("From %s: ")
        or _OF_A_FUNCTION not in message
        or not isinstance(values, tuple)
    ):
        return True
    return str(values[_MODULE]).partition(".")[0] not in _QUIET_PACKAGES
