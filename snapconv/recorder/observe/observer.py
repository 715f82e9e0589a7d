"""Observation of what memory is for while a job trains, without changing a single allocation.

It uses only hooks that leave the sequence of allocations as it is: registration hooks, global
module hooks, optimizer hooks, saved-tensor hooks that hand back the memory they got. None waits for
the device or keeps a tensor alive.

A program goes through phases: forward, which begins where a model is called from outside of all
modules, backward, and the optimizer's steps. Each is written into the trace too, as
``snapconv:forward`` and so on.
"""

import os
import threading
import weakref
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, TypeVar

from snapconv.guest.guard import Guards
from snapconv.guest.own_frames import program_frames
from snapconv.guest.torch_surface import Feature, Module, Tensor
from snapconv.recorder.interception import Event, Interception, Listeners
from snapconv.recorder.observe.flat_parameters import flat_shardings
from snapconv.recorder.observe.memory_records import MemoryRecords
from snapconv.recorder.observe.models import Models, Registrations
from snapconv.recorder.observe.saved_tensors import SavedTensors
from snapconv.recorder.observe.tensors import named_tensors
from snapconv.recorder.spans import SpanLog

_Result = TypeVar("_Result")

# The keys in the metadata of what is noted at events.
_MEMORY_OF_SHARDING = {
    Event.WEIGHTS_GATHERED: "gathered_weights",
    Event.GRADIENTS_TO_REDUCE: "unreduced_gradients",
    Event.GRADIENTS_REDUCED: "gradients",
    Event.BUFFERS_IN_USE: "communication_buffers",
}
FORWARD, BACKWARD, OPTIMIZER = "forward", "backward", "optimizer"
_MAX_PHASES = 100_000


class Observer:
    """Watches one program from ``start`` to ``stop``; ``facts`` is what it learned.

    Without a ``model`` the models are found among the modules that are built after ``start``. It
    works in the thread that made it, whichever imports torch, and in no forked child. After a
    failure of its own it records no more.
    """

    _is_on = False
    _iteration = _n_backwards = _n_calls = 0
    # The iteration in which parameters were recorded last.
    _parameters_of = -1
    # The phase that continues after a backward pass: the step whose closure ran it, or the forward
    # of a penalty.
    _next_phase: str | None = None
    _is_in_step = _has_gradients = False
    # Whether the forward that runs has a graph, and whether its present call may have one.
    _has_graph = _may_have_graph = False

    def __init__(
        self,
        *,
        model: Module | None = None,
        optimizer: Any = None,
        guards: Guards | None = None,
        interception: Interception | None = None,
    ) -> None:
        self._guards = guards or Guards()
        self._guard = self._guards.of(Feature.NOTES)
        self._interception = interception or Interception(self._guards)
        self._owner = (os.getpid(), threading.get_ident())
        # An iteration may be ended on another thread, while this one trains on.
        self._turn = threading.RLock()
        self._registrations = Registrations()
        self._optimizers: list[weakref.ref[Any]] = []
        self._models = Models(
            self._registrations, model, optimizers=self._living_optimizers
        )
        places_guard = self._guards.of(Feature.FLAT_PLACES)
        self._records = MemoryRecords(
            self._models,
            lambda: places_guard.run(flat_shardings, self._registrations.modules()),
        )
        self._phases = SpanLog(_MAX_PHASES)
        # The modules whose forward runs, the innermost last.
        self._running: list[Module] = []
        self._saved_tensors = SavedTensors(
            lambda tensor: self._run(self._note_saved, tensor),
            self._guards.of(Feature.SAVED_TENSORS),
        )
        self._listeners = self._events()
        if optimizer is not None:
            self._remember(optimizer)
        # The iteration in which the states of an optimizer were recorded last, by its identity.
        self._states_of: dict[int, int] = {}

    def _events(self) -> Listeners:
        works: Listeners = {
            Event.TENSOR_REGISTERED: self._registrations.add_tensor,
            Event.MODULE_REGISTERED: self._registrations.add_module,
            Event.MODULE_RESTORED: self._registrations.add,
            Event.TENSOR_COPIED: self._records.copy,
            Event.OPTIMIZER_BUILT: self._remember,
            Event.CALL_BEGINS: self._call_begins,
            Event.CALL_ENDS: self._call_ends,
            Event.BACKWARD_BEGINS: self._begin_backward,
            Event.BACKWARD_ENDS: self._end_backward,
            Event.STEP_BEGINS: self._begin_step,
            Event.STEP_ENDS: self._end_step,
        }
        listeners = {event: self._listener(work) for event, work in works.items()}
        # Backward passes run on threads of torch's own.
        for event, kind in _MEMORY_OF_SHARDING.items():
            listeners[event] = partial(self._run, self._note_memory, kind)
        return listeners

    @property
    def failure(self) -> Exception | None:
        """The failure that ended the notes, if any: the program never learns of it."""
        return self._guard.failure

    def start(self) -> None:
        """Put every hook in place."""
        if not self._is_on:
            self._is_on = True
            self._n_backwards = 0  # it may have been stopped within one
            self._interception.listen(self._listeners, is_first=True)
            self._guards.of(Feature.SAVED_TENSORS).run(self._saved_tensors.start)

    def stop(self) -> None:
        """Take every hook away; ``facts`` and ``module_path`` still answer."""
        if not self._is_on:
            return
        self._is_on = False
        self._guard.finish(self._interception.leave, self._listeners)
        self._guard.finish(self._saved_tensors.stop)
        self._running.clear()
        self._run(self._phases.end)

    def iteration_began(self, iteration: int) -> None:
        """Begin an iteration: between two, no module runs."""
        self._iteration = iteration
        self._running.clear()

    def iteration_ended(self, iteration: int) -> None:
        """End an iteration: no phase lasts beyond it."""
        self._run(self._end_iteration)

    def note_now(self) -> None:
        """Record parameters, buffers, gradients and optimizer states now; from any thread."""
        self._run(self._note_all)

    def facts(self, snapshot: Mapping[str, Any]) -> dict[str, Any]:
        """Return the keys ``parameters`` to ``phases`` of a capture's metadata.

        Times are on the clock of ``snapshot``, as far as its annotations show it.
        """
        convert = self._phases.trace_clock(snapshot.get("external_annotations"))
        return {**self._records.facts(convert), "phases": self._phases.facts(convert)}

    def module_path(self, module: Module) -> str | None:
        """Return a module's dotted name, empty for the model itself; None if unknown."""
        return self._run(self._models.path, module)

    def _listener(self, work: Callable[..., object]) -> Callable[..., None]:
        """Return a listener that does a piece of work in the owner's thread alone."""

        def listener(*arguments: Any) -> None:
            if self._owner == (os.getpid(), threading.get_ident()):
                self._run(work, *arguments)

        return listener

    def _run(self, work: Callable[..., _Result], /, *arguments: Any) -> _Result | None:
        if self._guard.is_off:  # in a forked child, whoever held the lock is not there
            return None
        with self._turn:
            return self._guard.run(work, *arguments)

    # --- phases

    def _phase(self) -> str | None:
        return self._phases.current["phase"] if self._phases.current else None

    def _begin(self, phase: str) -> None:
        self._phases.begin(
            f"snapconv:{phase}", is_range=True, phase=phase, iteration=self._iteration
        )

    def _call_begins(self, module: Module, args: Any) -> None:
        self._running.append(module)
        if len(self._running) == 1:
            # Global hooks get no keyword arguments: take those of torch's _call_impl, alive during
            # the call.
            frame = next(program_frames(), None)
            self._begin_forward(module, (args, frame and frame.f_locals.get("kwargs")))

    def _call_ends(self, module: Module, _args: Any, result: Any) -> None:
        if not any(running is module for running in self._running):
            return
        while self._running.pop() is not module:
            pass
        if not self._running:
            self._end_forward(result)

    def _begin_forward(self, module: Module, arguments: tuple[Any, Any]) -> None:
        import torch

        self._registrations.add(module)
        if self._phase() == BACKWARD:
            return  # a checkpointed forward that runs again
        self._records.inputs(self._iteration, arguments)
        if self._phase() != FORWARD:
            self._note_parameters_once()
            self._begin(FORWARD)
            self._has_graph = False
        self._may_have_graph = torch.is_grad_enabled()
        if self._may_have_graph:
            self._saved_tensors.open()

    def _end_forward(self, result: Any) -> None:
        """End a call: a forward may switch gradients off itself, and its result shows it."""
        if self._phase() != FORWARD:
            return
        require_grad = [tensor.requires_grad for _, tensor in named_tensors(result)]
        self._has_graph |= self._may_have_graph and (any(require_grad) or not require_grad)
        if not self._has_graph:
            self._phases.end()
        # A program that only infers has no iterations: now and then is enough, and costs it
        # nothing.
        self._n_calls += 1
        if self._n_calls & (self._n_calls - 1) == 0:
            self._records.attributes(self._registrations.modules())

    def _begin_backward(self, roots: Any, is_grad: bool) -> None:  # noqa: FBT001  # an event's
        """Begin a pass; one inside a pass (reentrant checkpointing) is part of it."""
        self._n_backwards += 1
        if self._n_backwards > 1:
            return
        if not is_grad:
            self._saved_tensors.close()
            self._records.search_leaves(roots, self._iteration)
        next_phase = None
        if self._is_in_step:
            next_phase = OPTIMIZER
        elif is_grad:
            next_phase = FORWARD
        self._next_phase = next_phase if self._phase() in (next_phase, FORWARD) else None
        self._begin(BACKWARD)

    def _end_backward(self, is_grad: bool, _is_complete: bool) -> None:  # noqa: FBT001  # as above
        self._n_backwards = max(self._n_backwards - 1, 0)
        if self._n_backwards:
            return
        if not is_grad:
            self._records.gradients(self._iteration)
            self._records.gradients_of_leaves(self._iteration)
            self._has_gradients = True
        self._phases.end()
        if self._next_phase:
            self._begin(self._next_phase)

    def _begin_step(self, optimizer: Any) -> None:
        self._saved_tensors.close()
        self._remember(optimizer)
        # Some have their tensors for the time of a step alone.
        self._note_parameters_once()
        # Gradients of tensors of no module may be copies, made of the others since backward.
        self._records.gradients(self._iteration, only_loose=self._has_gradients)
        self._is_in_step = True
        self._begin(OPTIMIZER)

    def _end_step(self, optimizer: Any) -> None:
        self._is_in_step = False
        self._note_states_once(optimizer)
        self._phases.end()

    def _end_iteration(self) -> None:
        self._saved_tensors.close()
        self._is_in_step = False
        self._phases.end()
        self._note_parameters_once()
        self._records.attributes(self._registrations.modules())
        if not self._has_gradients:  # looking at all of them again takes time
            self._records.gradients(self._iteration)
        for optimizer in self._living_optimizers():
            self._note_states_once(optimizer)
        self._has_gradients = False

    # --- records

    def _note_parameters_once(self) -> None:
        """At the first forward of an iteration, and whenever there are other parameters since."""
        if self._models.is_changed or self._parameters_of != self._iteration:
            self._records.parameters()
            self._parameters_of = self._iteration

    def _note_all(self) -> None:
        self._models.survey()
        self._records.parameters()
        self._records.attributes(self._registrations.modules())
        self._records.gradients(self._iteration)
        for optimizer in self._living_optimizers():
            self._records.states(optimizer)

    def _note_states_once(self, optimizer: Any) -> None:
        """Once in an iteration, for the same reason."""
        if self._states_of.get(id(optimizer)) != self._iteration:
            self._states_of[id(optimizer)] = self._iteration
            self._records.states(optimizer)

    def _living_optimizers(self) -> list[Any]:
        optimizers = (reference() for reference in self._optimizers)
        return [optimizer for optimizer in optimizers if optimizer is not None]

    def _remember(self, optimizer: Any) -> None:
        references = self._optimizers
        if not any(reference() is optimizer for reference in references):
            self._optimizers = [
                reference for reference in references if reference() is not None
            ]
            self._optimizers.append(weakref.ref(optimizer))
            self._registrations.is_changed = True

    def _note_memory(self, kind: str, tensors: Iterable[Tensor | None]) -> None:
        self._records.memory(kind, self._iteration, tensors)

    def _note_saved(self, tensor: Tensor) -> None:
        running = self._running[-1] if self._running else None
        self._records.saved(self._iteration, tensor, running)
