"""Functions called with a module right after the program has imported it, to replace what it defines."""

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from snapconv.recorder.program.own_frames import stands_in

Hook = Callable[[ModuleType], None]


@contextmanager
def after_import(hooks: Mapping[str, Hook]) -> Iterator[None]:
    """Call each hook when the module of its name is imported, or now if it is already."""
    finder = _Finder({name: hook for name, hook in hooks.items() if name not in sys.modules})
    for name, hook in hooks.items():
        if name in sys.modules:
            hook(sys.modules[name])
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)


class _Finder(MetaPathFinder):
    """Finds nothing itself: lets the others find, and calls the hook when they have loaded."""

    def __init__(self, hooks: dict[str, Hook]) -> None:
        self._hooks = hooks

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        """Return what the next finder of the module returns, with the hook behind its loading."""
        hook = self._hooks.pop(name, None)
        if hook is None:
            return None
        others = (finder for finder in sys.meta_path if finder is not self)
        found = (finder.find_spec(name, path, target) for finder in others if hasattr(finder, "find_spec"))
        spec = next((spec for spec in found if spec is not None), None)
        if spec is not None and spec.loader is not None:
            _call_after(spec.loader, hook)
        return spec


def _call_after(loader: Any, hook: Hook) -> None:
    load = loader.exec_module

    @stands_in
    def exec_module(module: ModuleType) -> None:
        load(module)
        hook(module)

    loader.exec_module = exec_module
