"""The checkpoint that is at a prefix, and which files belong to it."""

import dataclasses
from typing import Self

from keras_tpu_estimator.files.atomic.stamp import token_of
from keras_tpu_estimator.files.directory import location
from keras_tpu_estimator.files.directory import tensorflow_index
from keras_tpu_estimator.files.directory.save_names import SaveName


@dataclasses.dataclass(frozen=True)
class There:
    """The checkpoint that is at a prefix.

    Example:

    >>> There.at("/nowhere/model.ckpt-20")
    There(main=None, data=(), token=None)

    Attributes:
        main: Its main file; `None` if there is none.
        data: The data of the bundle at the prefix, which may be another one.
        token: That of the save that has made it; `None` for another program.
    """

    main: str | None
    data: tuple[str, ...]
    token: str | None

    @classmethod
    def at(cls, prefix: str) -> Self:
        """What is there."""
        main = location.main_file(prefix)
        data = tuple(tensorflow_index.data_files(prefix))
        is_bundle = main == prefix + location.INDEX
        marked = next(iter(data), None) if is_bundle else main
        return cls(main, data, marked and token_of(marked))

    @property
    def is_bundle(self) -> bool:
        """Whether it is one of TensorFlow."""
        return self.main is not None and self.main.endswith(location.INDEX)

    def may_have(self, path: str, named: SaveName) -> bool:
        """Whether a file belongs to it, as far as anybody can tell.

        Args:
            path: The file.
            named: What its name says.
        """
        if named.kind in ("data", "meta"):
            is_own = named.kind == "meta" or path in self.data
            return self.is_bundle and (is_own or not self.data)
        if self.token is not None:
            return named.token == self.token
        # A main file that is damaged, or still being copied, does not tell. A
        # bundle that another program has made has no such files.
        return self.main is not None and not (self.is_bundle and self.data)
