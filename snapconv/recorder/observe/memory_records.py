"""Records of what each piece of memory is for, by address and time: they stand in a capture's metadata."""

from collections.abc import Callable, Iterable
from typing import Any

from snapconv.recorder.observe.built_objects import Frame
from snapconv.recorder.observe.models import Key, Models, Place
from snapconv.recorder.observe.tensors import (
    Notes,
    Row,
    named_tensors,
    on_clock,
    shape_and_type,
    where_memory_lies,
)
from snapconv.recorder.torch_surface import Module, Tensor

# Of each kind; a step of a large model has some ten thousand. A row takes about half a KiB of the host.
_MAX_NOTES = 200_000
# What torch itself keeps in a module's dictionary, and from what depth on containers are looked into.
_OF_TORCH = (
    "_parameters",
    "_buffers",
    "_modules",
    "_forward",
    "_backward",
    "_state_dict",
    "_load_state_dict",
)
_AT_DEPTH = 4


class MemoryRecords:
    """The parameters, gradients, optimizer states, inputs and saved tensors seen so far."""

    def __init__(self, models: Models) -> None:
        self._models = models
        self._parameters: Notes[Key] = Notes(_MAX_NOTES)
        self._gradients: Notes[tuple[Key, int, int]] = Notes(_MAX_NOTES)
        self._states: Notes[tuple[int, Key | None, str, int]] = Notes(_MAX_NOTES)
        self._former_states: Notes[int] = Notes(_MAX_NOTES)
        self._inputs: Notes[int] = Notes(_MAX_NOTES)
        self._saved: Notes[int] = Notes(_MAX_NOTES)
        self._moved: Notes[int] = Notes(_MAX_NOTES)
        self._copies: Notes[int] = Notes(_MAX_NOTES)
        self._attributes: Notes[tuple[int, str, int]] = Notes(_MAX_NOTES)
        self._n_noted = 0

    def parameters(self) -> None:
        """Note every parameter and buffer that is on the device.

        What no module has is not recorded if that of a module is at its address: it is a view of that.
        """
        of_modules: set[tuple[int, int]] = set()
        for place in self._models.places():
            tensor = place.tensor()
            if tensor is None:
                continue
            pieces = list(where_memory_lies(tensor))
            where = {(row["device"], row["addr"]) for row in pieces}
            if place.is_loose and where & of_modules:
                continue
            of_modules |= where
            if len(pieces) == 1:
                self._note_move(place.key, pieces[0])
            for row in pieces:
                self._parameters.put(place.key, _about(place, tensor) | row)

    def _note_move(self, key: Key, row: Row) -> None:
        """Keep where a parameter was before, if its memory is another now: `p.data = p.data * m`."""
        before = self._parameters.get(key)
        if before is not None and (before["device"], before["addr"]) != (row["device"], row["addr"]):
            self._append(self._moved, {"parameter": key} | {name: before[name] for name in row})

    def gradients(self, iteration: int, *, only_loose: bool = False) -> None:
        """Note the gradient of every parameter that has one, or only of those that no module has."""
        for place in self._models.places():
            if place.is_loose or not only_loose:
                tensor = place.tensor() if place.kind == "parameter" else None
                self._gradient(iteration, place.key, tensor)

    def gradients_of_leaves(self, iteration: int, leaves: "Iterable[Tensor]") -> None:
        """Note the gradients of what is no parameter: of an input, or of a tensor that is stepped by hand."""
        for tensor in leaves:
            self._gradient(iteration, (-id(tensor), ""), tensor)

    def _gradient(self, iteration: int, key: Key, tensor: "Tensor | None") -> None:
        if tensor is None or not tensor.is_leaf or tensor.grad is None:
            return
        for row in where_memory_lies(tensor.grad):
            about = {"parameter": key, "iteration": iteration}
            self._gradients.put((key, iteration, row["addr"]), about | row)

    def states(self, optimizer: Any) -> None:
        """Note every tensor of an optimizer's state that is on the device."""
        keys = {id(place.tensor()): place.key for place in self._models.places()}
        for parameter, state in optimizer.state.items():
            owner = keys.get(id(parameter))
            for name, tensor in named_tensors(state):
                for number, row in enumerate(where_memory_lies(tensor)):
                    key = (id(parameter), owner, name, number)
                    before = self._states.get(key)
                    if before is not None and before["addr"] != row["addr"]:
                        self._append(self._former_states, before)  # made anew: the peak may have been before
                    self._states.put(key, {"parameter": owner, "state": name} | row)

    def inputs(self, iteration: int, arguments: Any) -> None:
        """Note the tensors that a model is called with; what has a history is no input but a result."""
        for _, tensor in named_tensors(arguments):
            if tensor.grad_fn is None:
                for row in where_memory_lies(tensor):
                    self._append(self._inputs, {"iteration": iteration} | shape_and_type(tensor) | row)

    def saved(self, iteration: int, tensor: "Tensor", module: str | None) -> None:
        """Note a tensor that autograd saves for backward, and whether something with a gradient made it."""
        is_given = tensor.grad_fn is None and not tensor.requires_grad
        for row in where_memory_lies(tensor):
            about = {
                "iteration": iteration,
                "module": module,
                "without_history": is_given,
                "dtype": str(tensor.dtype).removeprefix("torch."),
            }
            self._append(self._saved, about | row)

    def copy(self, original: "Tensor", copy: "Tensor") -> None:
        """Note a copy and the address of its original, on the same device."""
        pieces = zip(where_memory_lies(original), where_memory_lies(copy), strict=False)
        for before, row in pieces:
            if before["device"] == row["device"]:
                self._append(self._copies, {"original": before["addr"]} | row)

    def attributes(self, modules: "Iterable[Module]") -> None:
        """Note tensors that modules hold as plain attributes, and whether they were written since made."""
        import torch

        holders = (torch.Tensor, list, tuple, dict)
        for module in modules:
            for name, value in list(vars(module).items()):
                if name.startswith(_OF_TORCH) or not isinstance(value, holders):
                    continue
                for path, tensor in named_tensors(value, name, _AT_DEPTH):
                    # What was made in inference mode counts no versions.
                    is_written = not tensor.is_inference() and tensor._version > 0
                    for row in where_memory_lies(tensor):
                        about = {"module": self._models.path(module), "name": path, "written": is_written}
                        self._attributes.put((id(module), path, row["addr"]), about | row)

    def facts(self, convert: Callable[[int], int]) -> dict[str, list[Row]]:
        """Return everything as plain values, its times brought to the trace's clock by ``convert``."""
        order = {place.key: number for number, place in enumerate(self._models.places())}
        parameters = sorted(self._parameters.items(), key=lambda item: order.get(item[0], len(order)))
        index = {key: number for number, (key, _) in enumerate(parameters)}
        shared: dict[tuple[Frame, ...], list[Row]] = {}
        rows = [
            {**row, "frames": shared.setdefault(row["frames"], _frames(row["frames"]))}
            for _, row in parameters
        ]
        states = [*self._former_states.rows(), *self._states.rows()]
        return {
            "parameters": on_clock(rows, convert),
            "earlier_parameters": on_clock(_with_index(self._moved.rows(), index), convert),
            "gradients": on_clock(_with_index(self._gradients.rows(), index), convert),
            "optimizer_states": on_clock(_with_index(states, index), convert),
            "inputs": on_clock(self._inputs.rows(), convert),
            "saved": on_clock(self._saved.rows(), convert),
            "attributes": on_clock(self._attributes.rows(), convert),
            "copies": on_clock(self._copies.rows(), convert),
        }

    def _append(self, notes: Notes[int], row: Row) -> None:
        self._n_noted += 1
        notes.put(self._n_noted, row)


def _about(place: Place, tensor: "Tensor") -> Row:
    return {
        "name": place.names[0],
        "names": list(place.names),
        "kind": place.kind,
        "module": place.module,
        "module_class": place.module_class,
        **shape_and_type(tensor),
        "requires_grad": tensor.requires_grad,
        "frames": place.frames,
    }


def _frames(frames: Iterable[Frame]) -> list[Row]:
    return [{"filename": filename, "line": line, "name": name} for filename, line, name in frames]


def _with_index(rows: list[Row], index: dict[Key, int]) -> list[Row]:
    return [{**row, "parameter": index.get(row["parameter"])} for row in rows]
