"""Failures injected into our own work: into whatever a guard is given to run, piece by piece."""

from functools import partial

from snapconv.guest.guard import Guard
from snapconv.guest.torch_surface import Feature
from snapconv.simulation import patches

ERROR = "injected: it was meant to fail"


class InjectedError(Exception):
    """Nothing that any code of ours expects."""


class Injection:
    """Gives every piece of work a name, and lets some of them fail: before they do anything, or after.

    ``features`` has the feature of every piece that was run, ``failed`` those that did fail.
    """

    def __init__(self, monkeypatch):
        self.features: dict[str, Feature] = {}
        self.failing: dict[str, bool] = {}
        self.failed: set[str] = set()
        for name in ("run", "hook", "hook_with_result", "finish"):
            monkeypatch.setattr(Guard, name, self._with_first(getattr(Guard, name)))
        wrap_call = Guard.wrap_call
        monkeypatch.setattr(
            Guard,
            "wrap_call",
            lambda guard, original, work, **named: wrap_call(
                guard, original, self._of(guard, work), **named
            ),
        )

        guarded = patches.Patches.guarded

        monkeypatch.setattr(
            patches.Patches,
            "guarded",
            lambda pile, work, real: guarded(pile, self._of(pile._guard, work), real),
        )

    def fail(self, names):
        """Let these fail from here on, every time; the value says whether after their work."""
        self.failing, self.failed = dict(names), set()

    def _with_first(self, method):
        return lambda guard, work, *rest, **named: method(
            guard, self._of(guard, work), *rest, **named
        )

    def _of(self, guard, work):
        if hasattr(work, "is_injected"):
            return work
        inner = work.func if isinstance(work, partial) else work
        name = (
            f"{guard.feature.name} {str(inner.__module__).rpartition('.')[2]}.{inner.__qualname__}"
        )

        def injected(*arguments, **named):
            self.features[name] = guard.feature
            if self.failing.get(name) is False:
                self._raise(name)
            result = work(*arguments, **named)
            if name in self.failing:
                self._raise(name)
            return result

        injected.is_injected = True
        for attribute in ("__module__", "__name__", "__qualname__", "__doc__", "__dict__"):
            if attribute == "__dict__":
                vars(injected).update(vars(inner) if hasattr(inner, "__dict__") else {})
            else:
                setattr(injected, attribute, getattr(inner, attribute, None))
        return injected

    def _raise(self, name):
        self.failed.add(name)
        raise InjectedError(ERROR)
