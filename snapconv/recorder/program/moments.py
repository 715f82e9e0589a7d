"""Work of ours that waits until the program imports a module.

The recorder needs torch, which reads settings when it is imported (``OMP_NUM_THREADS``, the allocator's
backend) that a program makes before: so nothing here imports it.
"""

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from snapconv.recorder.program.own_frames import stands_in


@contextmanager
def when_imported(name: str, work: Callable[[], object]) -> Iterator[None]:
    """Do a piece of work as soon as a module has been imported, or now where it has been already.

    Once, and not after the context. Whoever imports the module waits for the work, which must not raise.
    """
    if name in sys.modules:
        work()
        yield
        return
    finder = _Finder(name, work)
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        finder.leave()


class _Finder(MetaPathFinder):
    """Finds one module as the others do, and has its import seen. To look for it is no import."""

    def __init__(self, name: str, work: Callable[[], object]) -> None:
        self._name, self._work = name, work

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the spec that the other finders have."""
        if fullname != self._name:
            return None
        for finder in sys.meta_path:
            find_spec = getattr(finder, "find_spec", None)  # Python 3.11 still has finders without
            spec = find_spec(fullname, path, target) if find_spec and finder is not self else None
            if spec is not None:
                if spec.loader is not None:
                    spec.loader = _Loader(spec.loader, self._imported)
                return spec  # type: ignore[no-any-return]
        return None

    def leave(self) -> None:
        """Find nothing any more."""
        with suppress(ValueError):
            sys.meta_path.remove(self)

    def _imported(self) -> None:
        if self in sys.meta_path:
            self.leave()
            self._work()


class _Loader(Loader):
    """Loads the module as its own loader does, in whose place it is only until then."""

    def __init__(self, loader: Any, then: Callable[[], None]) -> None:
        self._loader, self._then = loader, then

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        """Leave it to the loader."""
        return self._loader.create_module(spec)  # type: ignore[no-any-return]

    @stands_in
    def exec_module(self, module: ModuleType) -> None:
        """Run the module, which has its own loader and not this one."""
        module.__loader__ = self._loader
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        self._loader.exec_module(module)
        self._then()

    def __getattr__(self, name: str) -> Any:
        """Answer as the loader does, to whoever has looked for the module without importing it."""
        if name.startswith("__"):  # of a copy that has no loader yet
            raise AttributeError(name)
        return getattr(self._loader, name)
