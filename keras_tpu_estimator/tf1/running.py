"""Running a TF1 script unchanged."""

import os
import pathlib
from collections.abc import Sequence

from keras_tpu_estimator.ground.base import scripts
from keras_tpu_estimator.ground.base.logs import join_tensorflow
from keras_tpu_estimator.tf1 import deprecations, library_logs
from keras_tpu_estimator.tf1.shims.giving_back import give_back
from keras_tpu_estimator.tf1.shims.importing import BUILTINS, tf1_for


def run(script: str, arguments: Sequence[str] = (), is_module: bool = False) -> None:
    """Runs a script as `python SCRIPT ARGUMENTS` did with TensorFlow 1.

    In the script, and in modules in its folder, in folders of PYTHONPATH and in those
    that it adds to `sys.path`, `tensorflow` is `tf.compat.v1` with the names that
    TensorFlow has removed. Afterwards the process behaves as with TF1, without eager
    execution.

    Args:
        script: The path of a script, or the name of a module.
        arguments: Its arguments in `sys.argv`. Defaults to none.
        is_module: Whether it is a module, as for `python -m`. Defaults to `False`.
    """
    folder = scripts.folder_of(script, is_module)
    others = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    folders = [folder, *map(pathlib.Path, filter(None, others))]
    _behave_as_tf1()
    with tf1_for(folders):
        names = {"__builtins__": BUILTINS}
        scripts.run(script, arguments, is_module, names)


def _behave_as_tf1() -> None:
    """Sets TF1's global settings: graphs, and shapes of `Dimension`s."""
    import tensorflow as tf

    v1 = tf.compat.v1
    v1.disable_eager_execution()
    v1.disable_v2_tensorshape()
    v1.disable_tensor_equality()
    give_back()
    deprecations.silence()
    library_logs.silence()
    # Joins at the verbosity of tf.logging.
    join_tensorflow()
