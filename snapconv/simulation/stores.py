"""The store of a simulated job, in the place of TCPStore: this process has it alone."""

from functools import cache
from typing import Any

import torch

# Keeps the stores of simulated jobs: a process group has only the part of a store that is C++, and
# calls methods of Python.
_stores: list[Any] = []
forget_stores = _stores.clear


@cache
def store_class() -> Any:
    """Return the class, which takes TCPStore's arguments and waits for nobody."""

    class TCPStore(torch.distributed.Store):  # type: ignore[misc]
        def __init__(
            self, host_name: str = "127.0.0.1", port: int = 29500, *_: Any, **__: Any
        ) -> None:
            super().__init__()
            self.host, self.port = host_name, port
            self._values: dict[str, bytes] = {}
            _stores.append(self)

        def set(self, key: str, value: Any) -> None:
            self._values[key] = _encoded(value)

        def get(self, key: str) -> bytes:
            return self._values.get(key, b"")

        def add(self, key: str, n: int) -> int:
            total = int(self._values.get(key, b"0")) + n
            self._values[key] = str(total).encode()
            return total

        def compare_set(self, key: str, expected: Any, desired: Any) -> bytes:
            if self._values.get(key, b"") == _encoded(expected):
                self.set(key, desired)
            return self._values.get(key, _encoded(expected))

        def check(self, _keys: Any) -> bool:
            return True

        def wait(self, *_: Any) -> None:
            pass

        def delete_key(self, key: str) -> bool:
            return self._values.pop(key, None) is not None

        def num_keys(self) -> int:
            return len(self._values)

        def set_timeout(self, _timeout: Any) -> None:
            pass

        # The names by which C++ code calls these two.
        getNumKeys, deleteKey = num_keys, delete_key

    return TCPStore


def _encoded(value: Any) -> bytes:
    return value.encode() if isinstance(value, str) else bytes(value)
