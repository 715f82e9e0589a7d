"""Work of ours that waits until the program imports a module.

A program makes settings (``OMP_NUM_THREADS``, the allocator's backend) that torch reads when it is
imported. So nothing of ours may import torch first: what needs it waits.
"""

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from snapconv.guest.own_frames import stands_in


@contextmanager
def when_imported(name: str, work: Callable[[], object]) -> Iterator[None]:
    """Do work as soon as a module has been imported, or now where it has been already.

    Once, and not after the context. Whoever imports the module waits for the work, which must not
    raise.
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


@dataclass(eq=False)
class _Finder(MetaPathFinder):
    """Finds one module as other finders do, and does the work after its import.

    A program that looks for the module, and does not import it, starts no work.
    """

    name: str
    work: Callable[[], object]

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != self.name:
            return None
        for finder in sys.meta_path:
            # Python 3.11 still has finders without this method.
            find_spec = getattr(finder, "find_spec", None)
            if find_spec is None or finder is self:
                continue
            spec: ModuleSpec | None = find_spec(fullname, path, target)
            if spec is not None:
                if spec.loader is not None:
                    self._watch(spec.loader)
                return spec
        return None

    def _watch(self, loader: Any) -> None:
        """Do the work when this loader, which is of this module alone, has run the module."""

        @stands_in
        def exec_module(module: ModuleType) -> None:
            del loader.exec_module
            loader.exec_module(module)
            if self in sys.meta_path:
                self.leave()
                self.work()

        loader.exec_module = exec_module

    def leave(self) -> None:
        with suppress(ValueError):
            sys.meta_path.remove(self)
