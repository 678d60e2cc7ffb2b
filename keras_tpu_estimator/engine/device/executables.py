"""Executables in a folder: compiled on one machine, and run on another.

A file has a line of JSON with its key, and the bytes that JAX has pickled. They
are unpickled only if no other user can have written the file, the checksum
matches, and the key has this program, these devices and this compiler.
"""

import contextlib
import dataclasses
import functools
import hashlib
import json
import logging
import os
import platform
import shlex
from collections.abc import Callable, Iterator, Sequence
from importlib import metadata
from typing import Any, Self

import jax
from jax.experimental import serialize_executable

from keras_tpu_estimator.base.common.ledger import compiling
from keras_tpu_estimator.base.common.shown import shortened
from keras_tpu_estimator.base.common.types import PyTree
from keras_tpu_estimator.base.storage import shared_files, trusted
from keras_tpu_estimator.base.tracing import jaxprs
from keras_tpu_estimator.engine.device.nan_search import Compiled
from keras_tpu_estimator.engine.program.steps import Step
from keras_tpu_estimator.files.atomic import commit

_PACKAGES = ("jax", "jaxlib")
# The packages of JAX's compilers for GPUs. A TPU's client has its version.
_PLUGINS = ("jax-cuda12-plugin", "jax-cuda13-plugin")
# The settings of JAX that compilers use.
_SETTINGS = (
    "jax_compiler_enable_remat_pass",
    "jax_exec_time_optimization_effort",
    "jax_memory_fitting_effort",
    "jax_memory_fitting_level",
    "jax_optimization_level",
)
_INSTRUCTIONS = ("flags", "Features")
_HASHED = ("program", "topology")
_VARIABLES = ("XLA_FLAGS", "LIBTPU_INIT_ARGS")
# The flags of XLA that change no program, and those that change only a CPU's.
_OF_NONE = ("--xla_force_host_platform_device_count", "--xla_dump_")
_OF_CPUS = ("--xla_cpu_",)


@dataclasses.dataclass(frozen=True)
class ExecutableKey:
    """The program, devices and compiler of an executable.

    `program` and `topology` are SHA-256 hashes: of the lowered program, and of the
    positions and order of the devices. The other fields are readable texts; `name`
    begins the file's name.
    """

    name: str
    program: str
    devices: str
    topology: str
    compiler: str
    settings: str

    @classmethod
    def from_lowered(
        cls,
        name: str,
        lowered: jax.stages.Lowered,
        devices: Sequence[jax.Device],
    ) -> Self:
        """Returns the key of a program for devices in their order, even absent ones."""
        topology = devices[0].client.devices()
        hosts = len({device.process_index for device in devices})
        return cls(
            name,
            _digest(lowered.as_text()),
            f"{len(devices)} of {len(topology)} {devices[0].device_kind} on "
            f"{hosts} host{'' if hosts == 1 else 's'}",
            _digest([[*map(_identity, group)] for group in (devices, topology)]),
            _compiler(devices[0]),
            _settings(devices[0]),
        )

    @property
    def digest(self) -> str:
        """A text that is different for each key."""
        return _digest(dataclasses.asdict(self))[:32]

    def unlike(self, other: Self) -> list[str]:
        """Returns the other key's fields that differ, such as "compiler (...)"."""
        return [
            name if name in _HASHED else f"{name} ({value})"
            for name, value in dataclasses.asdict(other).items()
            if getattr(self, name) != value
        ]


def _digest(value: object) -> str:
    text = value if isinstance(value, str) else json.dumps(value)
    return hashlib.sha256(text.encode()).hexdigest()


def _identity(device: jax.Device) -> list[object]:
    return [
        device.id,
        device.process_index,
        device.device_kind,
        [*getattr(device, "coords", ())],
        getattr(device, "core_on_chip", 0),
    ]


def _compiler(device: jax.Device) -> str:
    versions = {name: metadata.version(name) for name in _PACKAGES}
    if device.platform == "tpu":
        # "Built on ...", which is the same with and without a TPU.
        versions["libtpu"] = device.client.platform_version.splitlines()[-1]
    elif device.platform == "cpu":
        versions["processor"] = _processor()
    else:
        for name in _PLUGINS:
            with contextlib.suppress(metadata.PackageNotFoundError):
                versions[name] = metadata.version(name)
    return ", ".join(f"{name} {version}" for name, version in versions.items())


@functools.cache
def _processor() -> str:
    """Returns a name of the processor that depends on its instruction sets."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            lines = [line.partition(":") for line in file]
    except OSError:  # Not on Linux.
        return f"{platform.machine()} {platform.processor()}"
    # The names on x86 and on ARM.
    instructions = {n.strip(): v for n, _, v in lines if n.strip() in _INSTRUCTIONS}
    return f"{platform.machine()} {_digest(sorted(instructions.items()))[:8]}"


def _settings(device: jax.Device) -> str:
    is_cpu = device.platform == "cpu"
    skipped = _OF_NONE if is_cpu else _OF_NONE + _OF_CPUS
    values = jax.config.values
    flags = [f"{n}={values[n]}" for n in _SETTINGS if n in values]
    for name in _VARIABLES:
        flags += [
            flag
            for flag in shlex.split(os.environ.get(name, ""))
            if not flag.startswith(skipped)
        ]
    return " ".join(flags)


_END = ".executable"
_FORMAT = "keras_tpu_estimator executable 1"

_logger = logging.getLogger("keras_tpu_estimator")


@dataclasses.dataclass(frozen=True)
class Executables:
    """A folder of executables, which is local and need not exist."""

    folder: str

    def prepare(self) -> None:
        """Makes the folder if it is missing, and checks who may write there."""
        os.makedirs(self.folder, mode=0o755, exist_ok=True)
        trusted.check_folder(self.folder)
        commit.remove_abandoned(self.folder)

    def save(self, key: ExecutableKey, compiled: jax.stages.Compiled) -> str:
        """Stores an executable in place of one with the same key, and returns its path.

        It must be compiled, not loaded from JAX's cache, because JAX cannot store a
        cached executable for a CPU. Raises `PermissionError` if other users may write
        there.
        """
        self.prepare()
        # The lowered program also has the trees of arguments and results.
        payload, _, _ = serialize_executable.serialize(compiled)
        path = self._path(key)
        with commit.partial_file(path) as partial:
            with open(partial, "wb") as file:
                file.write(_Header.from_payload(key, payload).as_line() + payload)
            # No other user may write it, whatever the umask is.
            os.chmod(partial, 0o644)
            shared_files.replace(partial, path)
        return path

    def load(
        self,
        key: ExecutableKey,
        lowered: jax.stages.Lowered,
        devices: tuple[jax.Device, ...],
    ) -> jax.stages.Compiled | None:
        """Loads an executable for devices in their order, or logs why it cannot.

        Raises `PermissionError` if another user can have written the file.
        """
        try:
            stored = trusted.read(self._path(key))
        except FileNotFoundError:
            _logger.info(
                "No executable for mode %r exists in %s%s: compiling.",
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
                shortened(str(error)),
            )
            return None
        _logger.info("Running the executable in %s.", self._path(key))
        return loaded

    def _path(self, key: ExecutableKey) -> str:
        return os.path.join(self.folder, f"{key.name}-{key.digest}{_END}")

    def _instead(self, key: ExecutableKey) -> str:
        """Returns a note about files with the same name and another key."""
        if not os.path.isdir(self.folder):
            return ", which is not a folder"
        differences = [key.unlike(other) for other in self._keys(key.name)]
        if not differences:
            return ""
        nearest = shortened(", ".join(sorted(differences, key=len)[0]))
        return (
            f" ({len(differences)} with other keys: the nearest has another {nearest})"
        )

    def _keys(self, name: str) -> Iterator[ExecutableKey]:
        """Yields the keys of the files with a name."""
        for file in sorted(os.listdir(self.folder)):
            if file.startswith(f"{name}-") and file.endswith(_END):
                with shared_files.opened(os.path.join(self.folder, file)) as stored:
                    header = _Header.parse(stored.readline())
                if header is not None:
                    yield header.key


@dataclasses.dataclass(frozen=True)
class _Header:
    """The first line of a file: its key, and the SHA-256 of its payload."""

    key: ExecutableKey
    checksum: str

    @classmethod
    def from_payload(cls, key: ExecutableKey, payload: bytes) -> Self:
        return cls(key, hashlib.sha256(payload).hexdigest())

    @classmethod
    def parse(cls, line: bytes) -> Self | None:
        """Returns the header in a line, or `None` for another format."""
        try:
            fields = json.loads(line)
            if fields.pop("format") != _FORMAT:
                return None
            return cls(ExecutableKey(**fields["key"]), fields["checksum"])
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            return None

    def as_line(self) -> bytes:
        fields = {"format": _FORMAT, **dataclasses.asdict(self)}
        return json.dumps(fields, sort_keys=True).encode() + b"\n"


def _checked(stored: bytes, key: ExecutableKey) -> bytes:
    """Returns a file's payload, or raises if it does not match its header and name."""
    line, _, payload = stored.partition(b"\n")
    if _Header.parse(line) != _Header.from_payload(key, payload):
        raise ValueError("it is not what was stored")
    return payload


class StoredLoop:
    """A jitted function that runs stored executables instead of compiling.

    It has the arguments and results of the function: arrays, the last of which are the
    batches, and `step` and `fetch`. It is lowered from shapes, as stored executables
    are, because JAX lowers arrays to another program.
    """

    def __init__(
        self,
        function: Compiled,
        shapes_of: Callable[[Step, PyTree], tuple[PyTree, ...]],
        devices_of: Callable[[Step], tuple[jax.Device, ...]],
        executables: Executables,
    ):
        self._function = function
        self._shapes_of = shapes_of
        self._devices_of = devices_of
        self._executables = executables
        self._loaded: dict[Any, Callable[..., Any]] = {}

    def __call__(self, *args: PyTree, step: Step, fetch: tuple[str, ...]) -> Any:
        """Runs the stored executable for these shapes, or else compiles one."""
        leaves, structure = jax.tree.flatten(args[-1])
        sizes = tuple((leaf.shape, leaf.dtype) for leaf in leaves)
        key = step, fetch, structure, sizes
        if key not in self._loaded:
            with compiling:
                self._loaded[key] = self._executable(args[-1], step, fetch)
        return self._loaded[key](*args)

    def trace(self, *args: PyTree, **static: Any) -> jax.stages.Traced:
        """Traces the function without stored executables."""
        return self._function.trace(*args, **static)

    def _executable(
        self, batches: PyTree, step: Step, fetch: tuple[str, ...]
    ) -> Callable[..., Any]:
        static = {"step": step, "fetch": fetch}
        traced = self.trace(*self._shapes_of(step, batches), **static)
        if not is_storable(traced):
            return functools.partial(self._function, **static)
        lowered, devices = traced.lower(), self._devices_of(step)
        key = ExecutableKey.from_lowered(step.mode, lowered, devices)
        stored = self._executables.load(key, lowered, devices)
        return stored or lowered.compile()


def is_storable(traced: jax.stages.Traced) -> bool:
    """Returns whether a program has the same text in another process."""
    # Its text has the address of each Python function that it calls.
    return not jaxprs.callbacks(traced.jaxpr)
