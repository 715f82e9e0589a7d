"""Records of the purpose of memory, by address and time, for a capture's metadata."""

import weakref
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Hashable, Iterable
from itertools import count
from typing import Any

from snapconv.recorder.observe.models import Frame, Key, Models
from snapconv.recorder.observe.tensors import (
    Row,
    bytes_on_cpu,
    graph_nodes,
    named_tensors,
    shape_and_type,
    where_memory_lies,
)
from snapconv.recorder.torch_surface import Module, Tensor

# Of each kind; a step of a large model has some ten thousand. A row takes about half a KiB of the
# host.
_MAX_ROWS = 200_000
# What torch itself keeps in a module's dictionary, and from what depth on containers are looked
# into.
_OF_TORCH = tuple(
    "_parameters _buffers _modules _forward _backward _state_dict _load_state_dict".split()
)
_AT_DEPTH = 4
_MAX_LEAVES = 10_000
# How many iterations' graphs are searched for leaves: a walk through a large one takes a while.
_N_SEARCHED = 2


class MemoryRecords:
    """The parameters, gradients, optimizer states, inputs and saved tensors seen so far."""

    def __init__(self, models: Models) -> None:
        self._models = models
        # By the key of the metadata, but for ``former_states``, which stand before
        # ``optimizer_states``.
        self._rows: defaultdict[str, OrderedDict[Hashable, Row]] = defaultdict(OrderedDict)
        self._numbers = count()
        self._n_on_cpu = 0
        # Tensors that get gradients and are no parameters, by identity, and the iterations
        # searched.
        self._leaves: dict[int, weakref.ref[Tensor]] = {}
        self._searched: set[int] = set()

    def _put(self, kind: str, row: Row, key: Hashable = None) -> None:
        """Note a row in place of one with its key; beyond the limit the oldest row goes."""
        rows = self._rows[kind]
        rows[next(self._numbers) if key is None else key] = row
        if len(rows) > _MAX_ROWS:
            rows.popitem(last=False)

    def parameters(self) -> None:
        """Note every parameter and buffer on the device.

        A loose tensor that is a view of a module's is left out. The bytes of those on the CPU are
        counted: a model that is being moved still needs them.
        """
        of_modules: set[tuple[int, int]] = set()
        self._n_on_cpu = 0
        for place in self._models.places():
            tensor = place.tensor()
            if tensor is None:
                continue
            pieces = list(where_memory_lies(tensor))
            if not pieces:
                self._n_on_cpu += bytes_on_cpu(tensor)
            where = {(row["device"], row["addr"]) for row in pieces}
            if place.is_loose and where & of_modules:
                continue
            of_modules |= where
            if len(pieces) == 1:
                self._note_move(place.key, pieces[0])
            about = {
                "name": place.name,
                "kind": place.kind,
                "module": place.module,
                "frames": place.frames,
            }
            for row in pieces:
                self._put("parameters", about | shape_and_type(tensor) | row, place.key)

    def _note_move(self, key: Key, row: Row) -> None:
        """Keep where a parameter was before, if its memory is another now: `p.data = p.data * m`."""
        before = self._rows["parameters"].get(key)
        if before is not None and (before["device"], before["addr"]) != (
            row["device"],
            row["addr"],
        ):
            self._put(
                "earlier_parameters", {"parameter": key} | {name: before[name] for name in row}
            )

    def gradients(self, iteration: int, *, only_loose: bool = False) -> None:
        """Note the gradient of every parameter, or only of those that no module has."""
        for place in self._models.places():
            if place.is_loose or not only_loose:
                tensor = place.tensor() if place.kind == "parameter" else None
                self._gradient(iteration, place.key, tensor)

    def search_leaves(self, roots: Any, iteration: int) -> None:
        """Find the leaves of a graph that are no parameters: inputs, and tensors made by hand."""
        if len(self._searched) < _N_SEARCHED:
            self._searched.add(iteration)
        if iteration not in self._searched:
            return
        known = {id(place.tensor()) for place in self._models.places()}
        for node in graph_nodes(roots):
            if type(node).__name__ == "AccumulateGrad" and id(node.variable) not in known:
                self._add_leaf(node.variable)

    def _add_leaf(self, tensor: "Tensor") -> None:
        if len(self._leaves) < _MAX_LEAVES and not tensor.is_inference():
            self._leaves[id(tensor)] = weakref.ref(tensor)

    def gradients_of_leaves(self, iteration: int) -> None:
        """Note the gradients of what is no parameter."""
        self._leaves = {i: leaf for i, leaf in self._leaves.items() if leaf() is not None}
        for i, leaf in self._leaves.items():
            self._gradient(iteration, (-i, ""), leaf())

    def _gradient(self, iteration: int, key: Key, tensor: "Tensor | None") -> None:
        if tensor is None or not tensor.is_leaf or tensor.grad is None:
            return
        for row in where_memory_lies(tensor.grad):
            about = {"parameter": key, "iteration": iteration}
            self._put("gradients", about | row, (key, iteration, row["addr"]))

    def states(self, optimizer: Any) -> None:
        """Note every tensor of an optimizer's state that is on the device."""
        keys = {id(place.tensor()): place.key for place in self._models.places()}
        for parameter, state in optimizer.state.items():
            owner = keys.get(id(parameter))
            for name, tensor in named_tensors(state):
                for number, row in enumerate(where_memory_lies(tensor)):
                    key = (id(parameter), owner, name, number)
                    before = self._rows["optimizer_states"].get(key)
                    if before is not None and before["addr"] != row["addr"]:
                        self._put(
                            "former_states", before
                        )  # made anew: the peak may have been before
                    self._put("optimizer_states", {"parameter": owner, "state": name} | row, key)

    def inputs(self, iteration: int, arguments: Any) -> None:
        """Note the tensors that a model is called with; one with a history is a result, no input."""
        for _, tensor in named_tensors(arguments):
            if tensor.grad_fn is None:
                if tensor.requires_grad:
                    self._add_leaf(tensor)
                for row in where_memory_lies(tensor):
                    self._put("inputs", {"iteration": iteration} | shape_and_type(tensor) | row)

    def saved(self, iteration: int, tensor: "Tensor", module: str | None) -> None:
        """Note a tensor that autograd saves for backward, and whether it has a history."""
        about = {
            "iteration": iteration,
            "module": module,
            "without_history": tensor.grad_fn is None and not tensor.requires_grad,
            "dtype": str(tensor.dtype).removeprefix("torch."),
        }
        for row in where_memory_lies(tensor):
            self._put("saved", about | row)

    def copy(self, original: "Tensor", copy: "Tensor") -> None:
        """Note a copy and the address of its original, on the same device."""
        for before, row in zip(where_memory_lies(original), where_memory_lies(copy), strict=False):
            if before["device"] == row["device"]:
                self._put("copies", {"original": before["addr"]} | row)

    def attributes(self, modules: "Iterable[Module]") -> None:
        """Note tensors that modules hold as plain attributes, and whether anything wrote to them."""
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
                        about = {
                            "module": self._models.path(module),
                            "name": path,
                            "written": is_written,
                        }
                        self._put("attributes", about | row, (id(module), path, row["addr"]))

    def facts(self, convert: Callable[[int], int]) -> dict[str, list[Row] | int]:
        """Return everything as plain values; ``convert`` brings times to the trace's clock."""
        order = {place.key: number for number, place in enumerate(self._models.places())}
        parameters = sorted(
            self._rows["parameters"].items(),
            key=lambda item: order.get(item[0], len(order)),  # type: ignore[call-overload]
        )
        index = {key: number for number, (key, _) in enumerate(parameters)}
        shared: dict[tuple[Frame, ...], list[Row]] = {}

        def plain(row: Row) -> Row:
            changed: Row = {"noted_us": convert(row["noted_us"])}
            if "parameter" in row:
                changed["parameter"] = index.get(row["parameter"])
            if "frames" in row:
                changed["frames"] = shared.setdefault(row["frames"], _frames(row["frames"]))
            return {**row, **changed}

        def rows(*kinds: str) -> list[Row]:
            return [plain(row) for kind in kinds for row in list(self._rows[kind].values())]

        return {
            "parameters_on_cpu_bytes": self._n_on_cpu,
            "parameters": [plain(row) for _, row in parameters],
            "earlier_parameters": rows("earlier_parameters"),
            "gradients": rows("gradients"),
            "optimizer_states": rows("former_states", "optimizer_states"),
            **{kind: rows(kind) for kind in ("inputs", "saved", "attributes", "copies")},
        }


def _frames(frames: Iterable[Frame]) -> list[Row]:
    return [{"filename": filename, "line": line, "name": name} for filename, line, name in frames]
