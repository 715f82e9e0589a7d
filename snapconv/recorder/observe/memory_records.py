"""Records of the purpose of memory, by address and time, for a capture's metadata."""

import weakref
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Hashable, Iterable
from itertools import count
from typing import Any

from snapconv.guest.torch_surface import Module, Tensor
from snapconv.json_text import picked
from snapconv.recorder.observe.flat_parameters import Shardings
from snapconv.recorder.observe.models import Frame, Key, Models, Slot
from snapconv.recorder.observe.tensors import (
    Row,
    bytes_on_cpu,
    graph_nodes,
    memory_rows,
    named_tensors,
    shape_and_type,
    shard_values,
)
from snapconv.recorder.observe.zero_parameters import shard_of, shard_sharding

# What the metadata has besides parameters, in this order.
_KINDS = (
    "earlier_parameters",
    "gradients",
    "optimizer_states",
    "inputs",
    "saved",
    "attributes",
    "copies",
    "gathered_weights",
    "unreduced_gradients",
    "communication_buffers",
)
# A buffer that is filled once, or loaded, is not written to again and again.
_LEAST_WRITTEN = 2
# The bound holds for each kind; a step of a large model has some ten thousand. A row takes about
# half a KiB of the host.
_MAX_ROWS = 200_000
# The attributes of a module that are torch's own begin with one of these.
_TORCH_PREFIXES = tuple(
    "_parameters _buffers _modules _forward _backward _state_dict _load_state_dict".split()
)
# An attribute's containers are searched from this depth on, as if so many levels lay above them.
_ATTRIBUTE_DEPTH = 4
_MAX_LEAVES = 10_000
# How many iterations' graphs are searched for leaves: a walk through a large one takes a while.
_N_SEARCHED = 2


class MemoryRecords:
    """The parameters, gradients, optimizer states, inputs and saved tensors seen so far."""

    def __init__(
        self, models: Models, flat_shardings: Callable[[], Shardings | None]
    ) -> None:
        self._models = models
        self._flat_shardings = flat_shardings
        # The rows by their key in the metadata, where ``former_states`` stand before
        # ``optimizer_states``.
        self._rows: defaultdict[str, OrderedDict[Hashable, Row]] = defaultdict(OrderedDict)
        self._numbers = count()
        self._n_on_cpu = 0
        self._meshes: list[Row] = []
        # The versions of buffers when their memory was first noted, by key and place.
        self._versions: dict[tuple[Key, int, int], int] = {}
        # Tensors that get gradients and are no parameters, by identity, and the iterations
        # searched.
        self._leaves: dict[int, weakref.ref[Tensor]] = {}
        self._searched: set[int] = set()

    def _add(self, kind: str, row: Row, key: Hashable = None) -> None:
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
        noted_addresses: set[tuple[int, int]] = set()
        self._n_on_cpu = 0
        shardings = self._flat_shardings() or {}
        for slot in self._models.slots():
            tensor = slot.tensor()
            if tensor is None:
                continue
            sharding = shardings.get(id(tensor)) or shard_values(tensor)
            shard = shard_of(tensor)
            if shard is not None:
                for row in memory_rows(tensor):  # it is gathered now
                    self._add("gathered_weights", row)
                sharding, tensor = shard_sharding(tensor), shard
            rows = list(memory_rows(tensor))
            if not rows:
                self._n_on_cpu += bytes_on_cpu(tensor)
                continue
            addresses = {(row["device"], row["addr"]) for row in rows}
            if slot.is_loose and addresses & noted_addresses:
                continue
            noted_addresses |= addresses
            former = self._rows["parameters"].get(slot.key, {})
            values = self._sharding(sharding)
            if len(values.get("placements", ())) < len(former.get("placements", ())):
                continue  # the whole weight, which stands in for its shard while it is gathered
            self._note_parameter(slot, tensor, rows, values)

    def _note_parameter(
        self, slot: Slot, tensor: Tensor, rows: list[Row], sharding: Row
    ) -> None:
        """Note a row for each of the tensors that a parameter or buffer is made of."""
        if len(rows) == 1:
            self._note_move(slot.key, rows[0])
        values = picked(slot, ("name", "kind", "module", "frames"))
        values |= shape_and_type(tensor) | sharding
        if slot.kind == "buffer":
            values["written"] = self._is_written_again(slot.key, tensor, rows[0])
        # The first of several has the parameter's own key: gradients and states refer to it.
        for number, row in enumerate(rows):
            key = (*slot.key, number) if number else slot.key
            self._add("parameters", values | row, key)

    def _sharding(self, sharding: tuple[Row, Row] | None) -> Row:
        """Return how a tensor is sharded, with the position of its mesh; empty if it is not."""
        if sharding is None:
            return {}
        mesh, shard = sharding
        if mesh not in self._meshes:
            self._meshes.append(mesh)
        return {"mesh": self._meshes.index(mesh)} | shard

    def _is_written_again(self, key: Key, tensor: Tensor, row: Row) -> bool:
        """Return whether a buffer was written to several times since its memory was first noted."""
        if tensor.is_inference():  # it counts no versions
            return False
        version = int(tensor._version)
        first = self._versions.setdefault((key, row["device"], row["addr"]), version)
        return bool(version - first >= _LEAST_WRITTEN)

    def _note_move(self, key: Key, row: Row) -> None:
        """Keep the former memory of a parameter that moved: `p.data = p.data * m`."""
        former = self._rows["parameters"].get(key)
        if former is None:
            return
        if former["device"] != row["device"] or former["addr"] != row["addr"]:
            memory = {name: former[name] for name in row}
            self._add("earlier_parameters", {"parameter": key} | memory)

    def gradients(self, iteration: int, *, only_loose: bool = False) -> None:
        """Note the gradient of every parameter, or only of those that no module has."""
        for slot in self._models.slots():
            if slot.kind == "parameter" and (slot.is_loose or not only_loose):
                self._gradient(iteration, slot.key, slot.tensor())

    def search_leaves(self, roots: Any, iteration: int) -> None:
        """Find the leaves of a graph that are no parameters: inputs, and tensors made by hand."""
        if len(self._searched) < _N_SEARCHED:
            self._searched.add(iteration)
        if iteration not in self._searched:
            return
        parameter_ids = {id(slot.tensor()) for slot in self._models.slots()}
        for node in graph_nodes(roots):
            if (
                type(node).__name__ == "AccumulateGrad"
                and id(node.variable) not in parameter_ids
            ):
                self._add_leaf(node.variable)

    def _add_leaf(self, tensor: Tensor) -> None:
        if len(self._leaves) < _MAX_LEAVES and not tensor.is_inference():
            self._leaves[id(tensor)] = weakref.ref(tensor)

    def gradients_of_leaves(self, iteration: int) -> None:
        """Note the gradients of tensors that are no parameters."""
        for tensor_id, reference in list(self._leaves.items()):
            tensor = reference()
            if tensor is None:
                del self._leaves[tensor_id]
            else:
                self._gradient(iteration, (-tensor_id, ""), tensor)

    def _gradient(self, iteration: int, key: Key, tensor: Tensor | None) -> None:
        if tensor is None or not tensor.is_leaf or tensor.grad is None:
            return
        for row in memory_rows(tensor.grad):
            values = {"parameter": key, "iteration": iteration}
            self._add("gradients", values | row, (key, iteration, row["addr"]))

    def states(self, optimizer: Any) -> None:
        """Note every tensor of an optimizer's state that is on the device."""
        keys = {id(slot.tensor()): slot.key for slot in self._models.slots()}
        for parameter, state in optimizer.state.items():
            owner = keys.get(id(parameter))
            for name, tensor in named_tensors(state):
                for number, row in enumerate(memory_rows(tensor)):
                    key = (id(parameter), owner, name, number)
                    former = self._rows["optimizer_states"].get(key)
                    if former is not None and former["addr"] != row["addr"]:
                        # The state was made anew, and the peak may have come before.
                        self._add("former_states", former)
                    self._add(
                        "optimizer_states", {"parameter": owner, "state": name} | row, key
                    )

    def inputs(self, iteration: int, arguments: Any) -> None:
        """Note the tensors that a model is called with; one with a history is no input."""
        for _, tensor in named_tensors(arguments):
            if tensor.grad_fn is None:
                if tensor.requires_grad:
                    self._add_leaf(tensor)
                for row in memory_rows(tensor):
                    self._add(
                        "inputs", {"iteration": iteration} | shape_and_type(tensor) | row
                    )

    def saved(self, iteration: int, tensor: Tensor, running: Module | None) -> None:
        """Note a tensor that autograd saves for backward, and whether it has a history."""
        values = {
            "iteration": iteration,
            "module": None if running is None else self._models.path(running),
            "layer": _layer_of(running),
            "without_history": tensor.grad_fn is None and not tensor.requires_grad,
        } | shape_and_type(tensor)
        for row in memory_rows(tensor):
            self._add("saved", values | row)

    def copy(self, original: Tensor, copy: Tensor) -> None:
        """Note a copy and the address of its original, on the same device."""
        for source, row in zip(memory_rows(original), memory_rows(copy), strict=False):
            if source["device"] == row["device"]:
                self._add("copies", {"original": source["addr"]} | row)

    def memory(self, kind: str, iteration: int, tensors: Iterable[Tensor | None]) -> None:
        """Note the memory of tensors under one of the keys of the metadata."""
        for tensor in tensors:
            rows = () if tensor is None else memory_rows(tensor)
            for row in rows:
                self._add(kind, {"iteration": iteration} | row)

    def attributes(self, modules: Iterable[Module]) -> None:
        """Note tensors that modules hold as plain attributes, and whether they were written to."""
        import torch

        holders = (torch.Tensor, list, tuple, dict)
        for module in modules:
            for name, value in list(vars(module).items()):
                if name.startswith(_TORCH_PREFIXES) or not isinstance(value, holders):
                    continue
                for path, tensor in named_tensors(value, name, _ATTRIBUTE_DEPTH):
                    # Tensors of inference mode count no versions.
                    is_written = not tensor.is_inference() and tensor._version > 0
                    for row in memory_rows(tensor):
                        owner = self._models.path(module)
                        values = {"module": owner, "name": path, "written": is_written}
                        self._add(
                            "attributes", values | row, (id(module), path, row["addr"])
                        )

    def facts(self, convert: Callable[[int], int]) -> dict[str, list[Row] | int]:
        """Return everything as plain values; ``convert`` brings times to the trace's clock."""
        order = {slot.key: number for number, slot in enumerate(self._models.slots())}

        def position(item: tuple[Any, Row]) -> int:
            (owner, name, *_), _ = item
            # Behind the others: the model has it no more.
            return order.get((owner, name), len(order))

        parameters = sorted(self._rows["parameters"].items(), key=position)
        numbers = {key: number for number, (key, _) in enumerate(parameters)}
        shared_frames: dict[tuple[Frame, ...], list[Row]] = {}

        def plain(row: Row) -> Row:
            values = {**row, "noted_us": convert(row["noted_us"])}
            if "parameter" in row:
                values["parameter"] = numbers.get(row["parameter"])
            if "frames" in row:
                frames = row["frames"]
                values["frames"] = shared_frames.setdefault(frames, _frames(frames))
            return values

        def rows(kind: str) -> list[Row]:
            return [plain(row) for row in list(self._rows[kind].values())]

        facts = {kind: rows(kind) for kind in _KINDS}
        facts["optimizer_states"] = rows("former_states") + facts["optimizer_states"]
        return {
            "parameters_on_cpu_bytes": self._n_on_cpu,
            "parameters": [plain(row) for _, row in parameters],
            "meshes": self._meshes,
            **facts,
        }


def _frames(frames: Iterable[Frame]) -> list[Row]:
    return [
        {"filename": filename, "line": line, "name": name}
        for filename, line, name in frames
    ]


def _layer_of(module: Module | None) -> str | None:
    """Return the class of torch.nn whose forward a module has; None for forwards of other code."""
    forward: Any = getattr(type(module), "forward", None)
    if not getattr(forward, "__module__", "").startswith("torch.nn.modules."):
        return None
    return str(forward.__qualname__).partition(".")[0]
