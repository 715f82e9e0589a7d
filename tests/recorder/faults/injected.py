"""Failures injected into our own work, one piece at a time: into whatever a guard is given to run."""

from functools import partial

from snapconv.recorder.guard import Guard

ERROR = "injected: it was meant to fail"


class InjectedError(Exception):
    """Nothing that any code of ours expects."""


class Injection:
    """Gives every piece of work a name, and lets one of them fail: before it does anything, or after."""

    def __init__(self, monkeypatch):
        self.seen: set[str] = set()
        self.failing = ""
        self.is_after = False
        self.n_failed = 0
        for name in ("run", "answer", "notice", "finish"):
            monkeypatch.setattr(Guard, name, self._with_first(getattr(Guard, name)))
        stand_in = Guard.stand_in
        monkeypatch.setattr(
            Guard,
            "stand_in",
            lambda guard, original, work, **named: stand_in(guard, original, self._of(work), **named),
        )

    def fail(self, name, *, is_after=False):
        """Let one piece of work fail from here on, every time."""
        self.failing, self.is_after, self.n_failed = name, is_after, 0

    def _with_first(self, method):
        return lambda guard, work, *rest, **named: method(guard, self._of(work), *rest, **named)

    def _of(self, work):
        if hasattr(work, "is_injected"):
            return work
        inner = work.func if isinstance(work, partial) else work
        name = f"{inner.__module__.rpartition('.')[2]}:{inner.__qualname__}"

        def injected(*arguments, **named):
            self.seen.add(name)
            if name == self.failing and not self.is_after:
                self._raise()
            result = work(*arguments, **named)
            if name == self.failing:
                self._raise()
            return result

        injected.is_injected = True
        return injected

    def _raise(self):
        self.n_failed += 1
        raise InjectedError(ERROR)
