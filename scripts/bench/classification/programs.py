"""Entries that are scripts: a library may own the loop, and the script says when a step ends.

A script calls ``end_of_step`` of this module, and ``tell`` within a step; those of tests/ecosystem
call ``print_count`` of their own module, which stands for it here.
"""

import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from setups import Known

OnEnd = Callable[[Known], None]
# What the scripts of tests/ecosystem call the tensors that they hold besides a model and its
# optimizer.
_KNOWN_AS = {
    "kv_cache": "caches",
    "masters": "weights",
    "master_gradients": "gradients",
    "replay": "inputs",
    "copies": "weights",
}
_listener: list[OnEnd] = []
_on_told: list[OnEnd] = []


@dataclass(frozen=True, slots=True)
class Script:
    """A file that is run as it is, from its first line."""

    path: Path

    def run(
        self,
        n_steps: int,
        on_end: OnEnd,
        *,
        call: Callable[..., Any],
        on_told: OnEnd | None = None,
    ) -> None:
        """Run it up to the end of a step; ``call`` calls it."""
        done: list[int] = []

        def ended(known: Known) -> None:
            on_end(known)
            done.append(1)
            if len(done) == n_steps:
                raise _EnoughSteps

        code = compile(self.path.read_text(encoding="utf-8"), str(self.path), "exec")
        namespace = {"__name__": "__main__", "__file__": str(self.path)}
        _listener[:], _on_told[:] = [ended], [on_told] if on_told else []
        arguments, sys.argv = sys.argv, [str(self.path)]
        sys.path.insert(0, str(self.path.parent))
        sys.modules["own_count"], sys.modules["programs"] = _own_count(), sys.modules[__name__]
        try:
            call(exec, code, namespace)
        except _EnoughSteps:
            return
        finally:
            _listener.clear()
            _on_told.clear()
            sys.argv = arguments
            sys.path.remove(str(self.path.parent))
            del sys.modules["own_count"]


class _EnoughSteps(BaseException):
    """Ends a script after the last step that is wanted; no library catches it."""


def end_of_step(**known: Any) -> None:
    """End a step: a script calls this, with tensors that no hook of torch shows."""
    if _listener:
        _listener[0](Known(**{key: tuple(tensors_in(value)) for key, value in known.items()}))


def tell(**known: Any) -> None:
    """Note tensors within a step: a script calls this with those that will not be there when it ends."""
    if _on_told:
        _on_told[0](Known(**{key: tuple(tensors_in(value)) for key, value in known.items()}))


def _own_count() -> ModuleType:
    module = ModuleType("own_count")

    def print_count(modules: Any, optimizers: Any = (), **extra: Any) -> None:
        end_of_step(**{_KNOWN_AS[key]: value for key, value in extra.items()})

    vars(module)["print_count"] = print_count
    return module


def tensors_in(held: Any) -> Iterator[torch.Tensor]:
    """All tensors within lists, tuples and dictionaries."""
    if isinstance(held, torch.Tensor):
        yield held
    elif isinstance(held, dict):
        yield from tensors_in(list(held.values()))
    elif isinstance(held, Iterable) and not isinstance(held, str):
        for each in held:
            yield from tensors_in(each)
