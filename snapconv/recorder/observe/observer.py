"""Observation of what memory is for while a job trains, without changing a single allocation.

Only hooks that leave the sequence of allocations as it is: registration hooks, global module hooks,
optimizer hooks, saved-tensor hooks that hand back the memory they got. Nothing here waits for the device
or keeps a tensor alive.
"""

import os
import threading
import weakref
from collections.abc import Callable, Mapping
from dataclasses import asdict
from functools import partial
from typing import Any, TypeVar

from snapconv.notes import Note
from snapconv.recorder.captured.clock import ClockMarks
from snapconv.recorder.guard import Guards
from snapconv.recorder.observe.built_objects import Registrations, copies, new_optimizers
from snapconv.recorder.observe.loose_tensors import Leaves
from snapconv.recorder.observe.memory_records import MemoryRecords
from snapconv.recorder.observe.models import Elsewhere, Models
from snapconv.recorder.observe.phases import BACKWARD, FORWARD, OPTIMIZER, Interception, ModelCalls, PhaseLog
from snapconv.recorder.observe.saved_tensors import SavedTensors
from snapconv.recorder.observe.tensors import named_tensors
from snapconv.recorder.torch_surface import Feature, Module, Tensor

_Result = TypeVar("_Result")


class Observer:
    """Watches one program from ``start`` to ``stop``; ``facts`` is what it learned.

    Without a ``model`` the models are found among the modules that are built after ``start``. It works in
    the thread that made it, whichever imports torch, and in no forked child. After a failure of its own it
    records no more. Without ``leaves`` it does not search graphs for tensors that no module and no optimizer
    holds.
    """

    def __init__(
        self,
        *,
        model: "Module | None" = None,
        optimizer: Any = None,
        leaves: bool = True,
        guards: Guards | None = None,
    ) -> None:
        self._guards = guards or Guards()
        self._guard = self._guards.of(Feature.NOTES)
        self._owner = (os.getpid(), threading.get_ident())
        # An iteration may be ended on another thread, while this one trains on.
        self._turn = threading.RLock()
        self._is_on = False
        self._iteration = 0
        self._registrations = Registrations(self._is_owner_thread, self._guards.of(Feature.MODULES))
        self._optimizers: list[weakref.ref[Any]] = []
        remember = self._here(self._remember)
        self._new_optimizers = new_optimizers(remember, self._guards.of(Feature.BUILT_OPTIMIZERS))
        self._leaves = Leaves()
        self._models = Models(
            self._registrations, model, optimizers=self._living_optimizers, leaves=self._leaves
        )
        self._notes = MemoryRecords(self._models)
        self._copies = copies(
            self._here(self._notes.copy), self._here(self._registrations.add), self._guards.of(Feature.COPIES)
        )
        self._elsewhere = Elsewhere(self._models)
        self._has_leaves = leaves
        self._clock = ClockMarks()
        self._phases = PhaseLog(self._clock)
        self._interception, self._calls = self._hooks()
        self._saved_tensors = SavedTensors(self._saved, self._guards.of(Feature.SAVED_TENSORS))
        if optimizer is not None:
            self._remember(optimizer)
        self._n_backwards = self._n_calls = 0
        # The iterations in which parameters, and states by optimizer, were recorded last.
        self._parameters_of = -1
        self._states_of: dict[int, int] = {}
        # What continues after a backward pass: the step whose closure ran it, or the forward of a penalty.
        self._after_backward: str | None = None
        self._is_in_step = self._has_gradients = False
        # Of the forward that goes on, and of the call that does.
        self._has_graph = self._may_have_graph = False

    def _hooks(self) -> tuple[Interception, ModelCalls]:
        """Make what calls back where backward, a step or a model's forward begins and ends."""
        interception = Interception(
            self._around_backward,
            self._here(self._begin_step),
            self._here(self._end_step),
            self._guards.of(Feature.PHASES),
        )
        calls = ModelCalls(
            partial(self._run, self._begin_call),
            partial(self._run, self._end_call),
            self._is_owner_thread,
            self._guards.of(Feature.MODEL_CALLS),
        )
        return interception, calls

    @property
    def failure(self) -> Exception | None:
        """The failure that ended the notes, if any: the program never learns of it."""
        return self._guard.failure

    def start(self) -> None:
        """Put every hook in place."""
        if self._is_on:
            return
        self._is_on = True
        for feature, start in (
            (Feature.MODULES, self._registrations.start),
            (Feature.BUILT_OPTIMIZERS, self._new_optimizers.start),
            (Feature.COPIES, self._copies.start),
            (Feature.SAVED_TENSORS, self._saved_tensors.start),
            (Feature.PHASES, self._interception.start),
            (Feature.MODEL_CALLS, self._calls.start),
        ):
            self._guards.of(feature).run(start)

    def stop(self, *, in_last_hook: bool = False) -> None:
        """Take every hook away; ``facts`` and ``module_path`` still answer.

        From within an optimizer's step, ``in_last_hook``: no other hook of it follows.
        Otherwise there is something left for another ``stop``.
        """
        # Always: it may have something left from the last time.
        finish = self._guard.finish
        finish(lambda: self._interception.stop(in_last_hook=in_last_hook))
        finish(self._new_optimizers.stop)
        finish(self._copies.stop)
        if not self._is_on:
            return
        self._is_on = False
        finish(self._calls.stop)
        finish(self._saved_tensors.stop)
        finish(self._registrations.stop)
        self._run(self._phases.end)

    def iteration_began(self, iteration: int) -> None:
        """Begin an iteration: between two, no module runs."""
        self._iteration = iteration
        self._calls.forget()

    def iteration_ended(self, iteration: int) -> None:
        """End an iteration: no phase lasts beyond it."""
        self._run(self._end_iteration)

    def note_now(self) -> None:
        """Record parameters, buffers, gradients and optimizer states as they are; from any thread."""
        self._run(self._note_all)

    def facts(self, snapshot: Mapping[str, Any]) -> dict[str, Any]:
        """Return the keys ``parameters`` to ``phases`` of a capture's metadata.

        Times are brought to the clock of ``snapshot``, as far as its annotations show it. Nothing is left
        out of the keys after a failure, but of what they hold.
        """
        convert = self._clock.to_trace(snapshot.get("external_annotations"))
        return {
            **self._notes.facts(convert),
            "phases": [_on_clock(asdict(row), convert) for row in list(self._phases.rows)],
        }

    def notes(self) -> tuple[Note, ...]:
        """Return what the user should know of the program's models."""
        return self._elsewhere.notes()

    def module_path(self, module: "Module") -> str | None:
        """Return a module's dotted name, empty for the model itself; None if unknown."""
        return self._run(self._models.path, module)

    def _here(self, work: Callable[..., object]) -> Callable[..., None]:
        """Return a listener that does a piece of work in the owner's thread alone."""

        def listener(*arguments: Any) -> None:
            if self._is_owner_thread():
                self._run(work, *arguments)

        return listener

    def _around_backward(self, call: Callable[[], Any], roots: Any, is_grad: bool) -> Any:  # noqa: FBT001  # a callback
        """Observe a backward pass; one inside a pass (reentrant checkpointing) is part of it."""
        if not self._is_owner_thread():
            return call()
        self._n_backwards += 1
        if self._n_backwards == 1:
            self._run(self._begin_backward, roots, is_grad)
        try:
            return call()
        finally:
            self._n_backwards -= 1
            if self._n_backwards == 0:
                self._run(self._end_backward, is_grad)

    def _run(self, work: Callable[..., _Result], /, *arguments: Any) -> _Result | None:
        """Do a piece of work, one thread at a time."""
        if self._guard.is_off:  # in a forked child, whoever held the lock is not there
            return None
        with self._turn:
            return self._guard.run(work, *arguments)

    def _is_owner_thread(self) -> bool:
        return self._owner == (os.getpid(), threading.get_ident())

    def _begin_call(self, module: "Module", arguments: tuple[Any, Mapping[str, Any]]) -> None:
        import torch

        self._registrations.add(module)
        if self._phases.current == BACKWARD:
            return  # a checkpointed forward that runs again
        self._notes.inputs(self._iteration, arguments)
        if next(module.parameters(), None) is not None:  # a loss is no model
            self._leaves.passed(tensor for _, tensor in named_tensors(arguments))
        if self._phases.current != FORWARD:
            self._note_parameters_once()
            self._phases.begin(FORWARD, self._iteration)
            self._has_graph = False
        self._may_have_graph = torch.is_grad_enabled()
        if self._may_have_graph:
            self._saved_tensors.open()

    def _end_call(self, result: Any) -> None:
        """End a call: a forward may switch gradients off itself, and its result shows it."""
        if self._phases.current != FORWARD:
            return
        of_result = [tensor.requires_grad for _, tensor in named_tensors(result)]
        self._has_graph |= self._may_have_graph and (any(of_result) or not of_result)
        if not self._has_graph:
            self._phases.end()
        # A program that only infers has no iterations: now and then is enough, and costs it nothing.
        self._n_calls += 1
        if self._n_calls & (self._n_calls - 1) == 0:
            self._notes.attributes(self._registrations.modules())

    def _note_parameters_once(self) -> None:
        """At the first forward of an iteration, and whenever modules were built since."""
        if self._registrations.is_changed or self._parameters_of != self._iteration:
            self._notes.parameters()
            self._elsewhere.look()
            self._parameters_of = self._iteration

    def _begin_backward(self, roots: Any, is_grad: bool) -> None:  # noqa: FBT001  # through the guard only
        if not is_grad:
            self._saved_tensors.close()
            self._look_for_leaves(roots)
        goes_on = OPTIMIZER if self._is_in_step else FORWARD if is_grad else None
        self._after_backward = goes_on if self._phases.current in (goes_on, FORWARD) else None
        self._phases.begin(BACKWARD, self._iteration)

    def _end_backward(self, is_grad: bool) -> None:  # noqa: FBT001  # as above
        if not is_grad:
            self._notes.gradients(self._iteration)
            self._notes.gradients_of_leaves(self._iteration, self._leaves.all())
            self._has_gradients = True
        self._phases.end()
        if self._after_backward:
            self._phases.begin(self._after_backward, self._iteration)

    def _look_for_leaves(self, roots: Any) -> None:
        """Look at what gets gradients beside parameters: some of it may be parameters of the program's."""
        if self._has_leaves and self._leaves.is_searched(self._iteration):
            known = {id(place.tensor()) for place in self._models.places()}
            roots = roots if isinstance(roots, list | tuple) else [roots]
            self._leaves.search(roots, self._iteration, known)
        if self._leaves.has_new():
            self._models.survey()
            self._notes.parameters()

    def _begin_step(self, optimizer: Any) -> None:
        self._saved_tensors.close()
        self._remember(optimizer)
        # Gradients of tensors of no module may be copies, made of the others since backward.
        self._notes.gradients(self._iteration, only_loose=self._has_gradients)
        self._is_in_step = True
        self._phases.begin(OPTIMIZER, self._iteration)

    def _end_step(self, optimizer: Any) -> None:
        self._is_in_step = False
        self._note_states_once(optimizer)
        self._phases.end()

    def _end_iteration(self) -> None:
        self._saved_tensors.close()
        self._is_in_step = False
        self._phases.end()
        self._note_parameters_once()
        self._notes.attributes(self._registrations.modules())
        self._note_gradients_once()
        for optimizer in self._living_optimizers():
            self._note_states_once(optimizer)
        self._has_gradients = False

    def _note_gradients_once(self) -> None:
        """Unless they were recorded after the last backward pass: looking at all of them takes time."""
        if not self._has_gradients:
            self._notes.gradients(self._iteration)

    def _note_all(self) -> None:
        self._models.survey()
        self._notes.parameters()
        self._elsewhere.look()
        self._notes.attributes(self._registrations.modules())
        self._notes.gradients(self._iteration)
        for optimizer in self._living_optimizers():
            self._notes.states(optimizer)

    def _note_states_once(self, optimizer: Any) -> None:
        """Once in an iteration, for the same reason."""
        if self._states_of.get(id(optimizer)) != self._iteration:
            self._states_of[id(optimizer)] = self._iteration
            self._notes.states(optimizer)

    def _living_optimizers(self) -> list[Any]:
        found = (reference() for reference in self._optimizers)
        return [optimizer for optimizer in found if optimizer is not None]

    def _remember(self, optimizer: Any) -> None:
        if not any(reference() is optimizer for reference in self._optimizers):
            self._optimizers = [known for known in self._optimizers if known() is not None]
            self._optimizers.append(weakref.ref(optimizer))
            self._registrations.is_changed = True

    def _saved(self, tensor: "Tensor") -> None:
        self._run(self._note_saved, tensor)

    def _note_saved(self, tensor: "Tensor") -> None:
        module = self._calls.innermost
        self._notes.saved(self._iteration, tensor, None if module is None else self._models.path(module))


def _on_clock(row: dict[str, Any], convert: Callable[[int], int]) -> dict[str, Any]:
    ended = row["ended_us"]
    return {
        **row,
        "began_us": convert(row["began_us"]),
        "ended_us": None if ended is None else convert(ended),
    }
