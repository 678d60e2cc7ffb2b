"""What hosts tell each other, in the store of JAX's coordination service.

Whoever reaches the service can write there, so what is read is only ever
numbers and text: bytes that are looked at, or JSON.
"""

import json
from typing import Any

import jax

_ROOT = "kte"


class Store:
    """A store of values by key, which all hosts see.

    Args:
        client: What has the methods of JAX's client.
    """

    def __init__(self, client: Any):
        self.client = client

    def say(self, key: str, value: bytes) -> None:
        """Says something, once."""
        self.client.key_value_set_bytes(f"{_ROOT}/{key}", value)

    def heard(self, key: str, within_msecs: int) -> bytes | None:
        """What is said under a key, if it is said in time."""
        try:
            said: bytes = self.client.blocking_key_value_get_bytes(
                f"{_ROOT}/{key}", within_msecs
            )
        except jax.errors.JaxRuntimeError as error:
            if "DEADLINE_EXCEEDED" not in str(error):
                raise
            return None
        return said

    def unsay(self, key: str) -> None:
        """Removes what was said under a key, and below it."""
        self.client.key_value_delete(f"{_ROOT}/{key}")

    def tell(self, folder: str, name: object, value: Any = None) -> None:
        """Tells all something, in place of what was told before.

        Args:
            name: Who tells it, or more.
            value: Anything that JSON can write. Defaults to `None`.
        """
        self.client.key_value_set(
            f"{_ROOT}/{folder}/{name}", json.dumps(value), allow_overwrite=True
        )

    def told(self, folder: str) -> dict[str, Any]:
        """What all have told in a folder, by name."""
        before = f"{_ROOT}/{folder}/"
        return {
            key.removeprefix(before): json.loads(value)
            for key, value in self.client.key_value_dir_get(before[:-1])
        }

    def told_by_host(self, folder: str) -> dict[int, Any]:
        """The same where each name is a host's number."""
        return {int(name): each for name, each in self.told(folder).items()}
