"""The key-value store of JAX's coordination service.

Every process that reaches the service can write to it, so values are only ever
decoded as numbers and text: raw bytes or JSON.
"""

import json
from typing import Any

import jax

_ROOT = "kte"


class Store:
    """Values by key that all processes read and write through JAX's client."""

    def __init__(self, client: Any):
        self.client = client

    def write(self, key: str, value: bytes) -> None:
        """Writes a value under a key that is not in use."""
        self.client.key_value_set_bytes(f"{_ROOT}/{key}", value)

    def read(self, key: str, within_msecs: int) -> bytes | None:
        """Returns the value of a key, or `None` if it comes too late."""
        try:
            value: bytes = self.client.blocking_key_value_get_bytes(
                f"{_ROOT}/{key}", within_msecs
            )
        except jax.errors.JaxRuntimeError as error:
            if "DEADLINE_EXCEEDED" not in str(error):
                raise
            return None
        return value

    def increment(self, key: str) -> int:
        """Adds 1 to a number, which is 0 at first, and returns the sum."""
        total: int = self.client.key_value_increment(f"{_ROOT}/{key}", 1)
        return total

    def delete(self, key: str) -> None:
        """Deletes a key and all keys below it."""
        self.client.key_value_delete(f"{_ROOT}/{key}")

    def read_folder(self, folder: str) -> dict[int, bytes]:
        """Returns the values of a folder whose names are process numbers."""
        before = f"{_ROOT}/{folder}/"
        return {
            int(key.removeprefix(before)): value
            for key, value in self.client.key_value_dir_get_bytes(before[:-1])
        }

    def publish(self, folder: str, name: object, value: Any = None) -> None:
        """Writes or replaces a JSON value under a name, such as a process number."""
        self.client.key_value_set(
            f"{_ROOT}/{folder}/{name}", json.dumps(value), allow_overwrite=True
        )

    def published(self, folder: str) -> dict[str, Any]:
        """Returns the published values of a folder by name."""
        before = f"{_ROOT}/{folder}/"
        return {
            key.removeprefix(before): json.loads(value)
            for key, value in self.client.key_value_dir_get(before[:-1])
        }

    def published_value(self, folder: str, name: object) -> Any:
        """Returns one published value, or `None` if it does not exist."""
        try:
            value = self.client.key_value_try_get(f"{_ROOT}/{folder}/{name}")
        except jax.errors.JaxRuntimeError as error:
            if "NOT_FOUND" not in str(error):
                raise
            return None
        return json.loads(value)

    def published_by_process(self, folder: str) -> dict[int, Any]:
        """Returns the same for a folder whose names are process numbers."""
        return {int(name): v for name, v in self.published(folder).items()}
