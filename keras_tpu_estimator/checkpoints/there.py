"""The checkpoint that is at a prefix, and which files belong to it."""

import dataclasses
from typing import Self

from keras_tpu_estimator.checkpoints import location
from keras_tpu_estimator.checkpoints import tensorflow_index
from keras_tpu_estimator.checkpoints.save_names import SaveName
from keras_tpu_estimator.checkpoints.stamp import token_of


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

    @property
    def is_known(self) -> bool:
        """Whether its files can be told from others."""
        if self.main is None:
            return True
        return bool(self.data) if self.is_bundle else self.token is not None

    def has(self, path: str, named: SaveName) -> bool:
        """Whether a file belongs to it."""
        if named.token is not None:
            return named.token == self.token
        return self.is_bundle and (named.kind == "meta" or path in self.data)
