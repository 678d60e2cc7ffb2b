"""Executables in a folder: compiled on one machine, and run on another.

A file has a line of JSON, which says what it is for, and what JAX has pickled.
It is unpickled if nobody else can have written it, it is whole, and it is for
this program, these devices and this compiler.
"""

import dataclasses
import hashlib
import json
import logging
import os
from collections.abc import Iterator
from typing import Self

import jax
from jax.experimental import serialize_executable

from keras_tpu_estimator.engine.device.executable_key import ExecutableKey
from keras_tpu_estimator.files.atomic import commit
from keras_tpu_estimator.ground.storage import shared_files, trusted

_END = ".executable"
_FORMAT = "keras_tpu_estimator executable 1"

_logger = logging.getLogger("keras_tpu_estimator")


@dataclasses.dataclass(frozen=True)
class Executables:
    """A folder of executables.

    Attributes:
        folder: The folder, on this machine. It need not be there.

    Example:

    >>> import jax, tempfile
    >>> from keras_tpu_estimator.engine.device.executable_key import (
    ...     ExecutableKey)
    >>> from keras_tpu_estimator.engine.device.executables import Executables
    >>> from keras_tpu_estimator.planning.compiling import without_cache
    >>> lowered = jax.jit(lambda x: x + 1).lower(jax.ShapeDtypeStruct((), "f4"))
    >>> key = ExecutableKey.of("add", lowered, jax.devices()[:1])
    >>> executables = Executables(tempfile.mkdtemp())
    >>> print(executables.load(key, lowered, jax.devices()[:1]))
    None
    >>> with without_cache():
    ...     path = executables.save(key, lowered.compile())
    >>> float(executables.load(key, lowered, jax.devices()[:1])(2.0))
    3.0
    """

    folder: str

    def prepare(self) -> None:
        """Makes the folder, if it is not there, for files to be saved.

        Raises:
            PermissionError: Others may write there.
        """
        os.makedirs(self.folder, mode=0o755, exist_ok=True)
        trusted.check_folder(self.folder)
        commit.remove_abandoned(self.folder)

    def save(self, key: ExecutableKey, compiled: jax.stages.Compiled) -> str:
        """Stores an executable, in place of one of the same key.

        Args:
            compiled: The executable. It may be for devices that are elsewhere.
                It has to be new: of what was in its cache, JAX cannot store
                that of a CPU.

        Returns:
            The path of its file.

        Raises:
            PermissionError: Others may write there.
        """
        self.prepare()
        # What the arguments and results are, a lowered program knows as well.
        payload, _, _ = serialize_executable.serialize(compiled)
        path = self._path(key)
        with commit.partial_file(path) as partial:
            with open(partial, "wb") as file:
                file.write(_Header.of(key, payload).as_line() + payload)
            # Nobody else may write it, whatever new files are like here.
            os.chmod(partial, 0o644)
            shared_files.replace(partial, path)
        return path

    def load(
        self,
        key: ExecutableKey,
        lowered: jax.stages.Lowered,
        devices: tuple[jax.Device, ...],
    ) -> jax.stages.Compiled | None:
        """Loads an executable, if there is one.

        Args:
            key: What it has to be for.
            lowered: The program that it was compiled of.
            devices: Those that are to run it, in their order.

        Returns:
            It, or `None` if there is none, or none that works; why is logged.

        Raises:
            PermissionError: Somebody else can have written it.
        """
        try:
            stored = trusted.read(self._path(key))
        except FileNotFoundError:
            _logger.info(
                "There is no executable for mode %r in %s%s: compiling.",
                key.name,
                self.folder,
                self._instead(key),
            )
            return None
        try:
            payload = _checked(stored, key)
            loaded = serialize_executable.deserialize_and_load(
                payload,
                lowered.in_tree,
                lowered.out_tree,
                devices[0].client,
                devices,
            )
        except Exception as error:  # noqa: BLE001 - what PJRT raises, and pickle
            _logger.warning(
                "The executable in %s cannot be loaded (%s: %s): compiling.",
                self._path(key),
                type(error).__name__,
                error,
            )
            return None
        _logger.info("Running the executable in %s.", self._path(key))
        return loaded

    def _path(self, key: ExecutableKey) -> str:
        return os.path.join(self.folder, f"{key.name}-{key.digest}{_END}")

    def _instead(self, key: ExecutableKey) -> str:
        """What there is under the same name, and how it is different."""
        if not os.path.isdir(self.folder):
            return ", which is no folder"
        found = [key.unlike(other) for other in self._keys(key.name)]
        if not found:
            return ""
        nearest = ", ".join(sorted(found, key=len)[0])
        return f" ({len(found)} there: the nearest has another {nearest})"

    def _keys(self, name: str) -> Iterator[ExecutableKey]:
        """Those of files of a name."""
        for file in sorted(os.listdir(self.folder)):
            if file.startswith(f"{name}-") and file.endswith(_END):
                with open(os.path.join(self.folder, file), "rb") as stored:
                    header = _Header.parse(stored.readline())
                if header is not None:
                    yield header.key


@dataclasses.dataclass(frozen=True)
class _Header:
    """The first line of a file.

    Attributes:
        checksum: The SHA-256 of the rest.
    """

    key: ExecutableKey
    checksum: str

    @classmethod
    def of(cls, key: ExecutableKey, payload: bytes) -> Self:
        return cls(key, hashlib.sha256(payload).hexdigest())

    @classmethod
    def parse(cls, line: bytes) -> Self | None:
        """The header of a line, or `None` if it is none of this format."""
        try:
            fields = json.loads(line)
            if fields.pop("format") != _FORMAT:
                return None
            return cls(ExecutableKey(**fields["key"]), fields["checksum"])
        except (ValueError, TypeError, KeyError, AttributeError):
            return None

    def as_line(self) -> bytes:
        fields = {"format": _FORMAT, **dataclasses.asdict(self)}
        return json.dumps(fields, sort_keys=True).encode() + b"\n"


def _checked(stored: bytes, key: ExecutableKey) -> bytes:
    """The payload of a file.

    Raises:
        ValueError: The file is not whole, or not what its name says.
    """
    line, _, payload = stored.partition(b"\n")
    if _Header.parse(line) != _Header.of(key, payload):
        raise ValueError("it is not what was stored")
    return payload
