"""Detection of checkpoints that are not listed in the `checkpoint` file.

If a `model_dir` is copied without that file, training would start from the
beginning, beside the copied checkpoints.
"""

import os
import re

from keras_tpu_estimator.base.storage import paths
from keras_tpu_estimator.files.directory import location, stale_files, state_file
from keras_tpu_estimator.files.directory.save_names import SaveName

_PREFIX = re.compile(re.escape(location.BASENAME) + "-([0-9]+)")
# A message names at most this many of them.
_NAMED = 5


def check_listed(model_dir: str) -> None:
    """Checks that a directory without a latest checkpoint contains none.

    Raises:
        ValueError: It contains checkpoints of an estimator.

    Example:

    >>> import tempfile
    >>> from keras_tpu_estimator import checkpoints
    >>> directory = tempfile.mkdtemp()
    >>> check_listed(directory)
    >>> prefix = checkpoints.save(directory, 20, {})
    >>> os.remove(os.path.join(directory, "checkpoint"))
    >>> check_listed(directory)
    Traceback (most recent call last):
    ...
    ValueError: `model_dir` must have a file 'checkpoint' that names one of its
    checkpoints. Received: ... with 'model.ckpt-20' ...
    """
    names = _names_in(model_dir)
    # Another process may list its first checkpoint meanwhile.
    if not names or location.latest(model_dir) is not None:
        return
    shown = ", ".join(map(repr, names[:_NAMED]))
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    raise ValueError(
        f"`model_dir` must have a file {state_file.FILE_NAME!r} that names one "
        f"of its checkpoints. Received: {model_dir!r}, with {shown}{more} and "
        "without that file, or with one that names others. To continue from "
        f"{names[0]!r}, write the line 'model_checkpoint_path: "
        f'"{names[0]}"\' into {os.path.join(model_dir, state_file.FILE_NAME)}. '
        "To evaluate or predict only, pass `checkpoint_path`. To train from "
        "the beginning, use another directory, or delete these checkpoints."
    )


def _names_in(directory: str) -> list[str]:
    """Returns the names of the checkpoints in a directory, newest first."""
    try:
        files = paths.names_in(directory)
    except FileNotFoundError:
        return []
    names = {prefix for file in files if (prefix := location.prefix_of(file)) != file}
    matches = filter(None, map(_PREFIX.fullmatch, names))
    steps = sorted((int(match[1]), match[0]) for match in matches)[::-1]
    if not steps:
        return []
    # The next training removes the files of a killed save.
    saves: dict[str, list[tuple[str, SaveName]]] = {}
    for path, named in stale_files.files_in(directory):
        saves.setdefault(named.prefix, []).append((path, named))
    return [
        name
        for _, name in steps
        if stale_files.mark_of(os.path.join(directory, name), saves.get(name, []))
        is None
    ]
