"""One optimizer on the simulated device -> its states, and what a step needs besides.

Runs in the environment that scripts/measure_optimizers makes, inside
``snapconv.simulation.simulated``.
"""

import gc
import importlib
import inspect
import os
import signal
import threading
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import torch

from scripts.measured.optimizer_cases import SHAPES, Case

# A step that is slower on the CPU is measured by its shapes alone.
SECONDS_PER_CASE = 25
N_STEPS = 5
# What no optimizer's own frame is: torch's wrappers around step, and the functions that step calls.
_NOT_THE_OPTIMIZERS = ("torch/optim/optimizer.py",)
_LONGEST_REASON = 110


@dataclass(frozen=True, slots=True)
class Allocation:
    """A block of the simulated device: when it was made, and the frames of that, innermost first."""

    moment: str
    n_bytes: int
    frames: tuple[tuple[str, str], ...]


@dataclass(slots=True)
class State:
    """A tensor that the optimizer holds: of which weight (by role), and where it lies."""

    name: str
    role: str
    shape: tuple[int, ...]
    dtype: str
    device: str
    moment: str
    n_bytes: int
    address: int
    is_replaced: bool = False
    frame: str = ""


@dataclass(slots=True)
class Measurement:
    """What was seen of one optimizer with weights of one type."""

    roles: tuple[str, ...]
    states: list[State] = field(default_factory=list)
    temporaries: dict[int, float] = field(default_factory=dict)
    step: str = ""
    notes: list[str] = field(default_factory=list)


class TimedOut(Exception):
    """The case took more than its time."""


class NotMeasured(Exception):
    """The optimizer fails with any weights; the text is why it does with all of them."""


def measured(case: Case, dtype_name: str, *, has_limit: bool) -> Measurement:
    """Measure a case with all weights that it takes: those that make it fail are left out one by one."""
    reasons: list[str] = []
    for roles in subsets(case.roles):
        try:
            measurement = _within_time(case, roles, dtype_name, has_limit=has_limit)
        except TimedOut:
            raise
        except Exception as error:  # noqa: BLE001  # whatever other people's code raises
            reasons.append(reason(error))
            error.__traceback__ = None
            gc.collect()
            continue
        if reasons:
            left_out = [role for role in case.roles if role not in roles]
            measurement.notes.append(f"without {', '.join(left_out)}: {reasons[-1]}")
        return measurement
    raise NotMeasured(reasons[0])


def subsets(roles: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    """Return sets of weights to try, fewer each time."""
    yield roles
    for left_out in (("scalar",), ("convolution", "scalar"), ("convolution", "scalar", "vector")):
        rest = tuple(role for role in roles if role not in left_out)
        if rest and rest != roles:
            yield rest
    if "matrix" in roles and len(roles) > 1:
        yield ("matrix",)


def reason(error: BaseException) -> str:
    """Return an exception as one short line."""
    text = " ".join(f"{type(error).__name__}: {error}".split())
    return text if len(text) <= _LONGEST_REASON else text[: _LONGEST_REASON - 1] + "…"


def _within_time(
    case: Case, roles: tuple[str, ...], dtype_name: str, *, has_limit: bool
) -> Measurement:
    def stop(*_: object) -> None:
        raise TimedOut

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(SECONDS_PER_CASE if has_limit else 0)
    # A decomposition in C++ hears no signal: it ends with the process, which starts again without
    # the case.
    watchdog = threading.Timer(2 * SECONDS_PER_CASE, os._exit, (1,))
    watchdog.daemon = True
    watchdog.start()
    try:
        return Run(case, roles, dtype_name).measurement()
    finally:
        watchdog.cancel()
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
        torch.cuda.memory._record_memory_history(None)
        gc.collect()


def build_optimizer(case: Case, model: torch.nn.Module, matrices: list[torch.nn.Parameter]) -> Any:
    """Build an optimizer of a model's weights as its case says, with a learning rate where it demands one.

    Frozen weights are left out. ``matrices`` are those of a case with groups.
    """
    optimizer_class = getattr(importlib.import_module(case.module), case.name)
    named = [(name, weight) for name, weight in model.named_parameters() if weight.requires_grad]
    weights = [weight for _, weight in named]
    if case.takes == "named":
        return optimizer_class(named, **case.arguments)
    if case.takes == "model":
        return optimizer_class(model, **case.arguments)
    if case.takes == "optimizer":
        return optimizer_class(torch.optim.AdamW(weights), **case.arguments)
    if case.takes == "groups":
        identities = set(map(id, matrices))
        others = [weight for weight in weights if id(weight) not in identities]
        groups = [{"params": matrices, **case.of_matrices}, {"params": others, **case.of_others}]
        return optimizer_class(groups if others else groups[:1], **case.arguments)
    try:
        return optimizer_class(weights, **case.arguments)
    except (TypeError, ValueError) as error:
        if "lr" not in str(error):
            raise
    return optimizer_class(weights, lr=1e-3, **case.arguments)


class Run:
    """The weights, the optimizer and what is known of the device's blocks."""

    def __init__(self, case: Case, roles: tuple[str, ...], dtype_name: str) -> None:
        torch.manual_seed(0)
        self.case = case
        self.roles = roles
        dtype = getattr(torch, dtype_name)
        self.model = torch.nn.Module()
        for role in roles:
            values = torch.randn(SHAPES[role], device="cuda").mul_(0.1).to(dtype)
            self.model.register_parameter(role, torch.nn.Parameter(values))
        self.weights = dict(self.model.named_parameters())
        self.weight_bytes = sum(
            weight.numel() * weight.element_size() for weight in self.weights.values()
        )
        self.loss = torch.ones((), device="cuda", dtype=dtype)
        self.live: dict[int, Allocation] = {}
        self.step_frames: dict[str, None] = {}
        self.states: dict[tuple[str, str], State] = {}
        self.notes: dict[str, None] = {}

    def measurement(self) -> Measurement:
        """Build the optimizer and take its steps."""
        result = Measurement(self.roles)
        self._record()
        optimizer = self._optimizer()
        with suppress(AttributeError):
            optimizer.train()  # as schedulefree demands; others have no modes
        self._look(optimizer, "construction")
        for number in range(1, N_STEPS + 1):
            self._set_gradients()
            self._record()
            n_before = requested("current")
            n_states = sum(
                state.n_bytes for state in self.states.values() if state.device == "cuda"
            )
            torch.cuda.reset_peak_memory_stats()
            self._step(optimizer)
            n_peak = requested("peak")
            self._look(optimizer, f"step {number}")
            n_states_after = sum(
                state.n_bytes for state in self.states.values() if state.device == "cuda"
            )
            n_more = n_peak - n_before - max(0, n_states_after - n_states)
            result.temporaries[number] = max(0, n_more) / self.weight_bytes
            self._look_at_gradients()
        result.states = list(self.states.values())
        result.step = next(iter(self.step_frames), "") or code_of_step(optimizer)
        result.notes = list(self.notes)
        return result

    def _optimizer(self) -> Any:
        """Build the optimizer as its case says; a matrix is a weight with two sides."""
        matrices = [weight for weight in self.weights.values() if weight.ndim == 2]
        return build_optimizer(self.case, self.model, matrices)

    def _set_gradients(self) -> None:
        if self.case.call == "graph":
            for weight in self.weights.values():
                weight.grad = None
            loss = torch.stack([(weight**3).sum() for weight in self.weights.values()]).sum()
            loss.backward(create_graph=True)
            return
        for weight in self.weights.values():
            if weight.grad is None or weight.grad.device != weight.device:
                weight.grad = torch.empty_like(weight)
            weight.grad.normal_().mul_(0.01)

    def _step(self, optimizer: Any) -> None:
        if self.case.call == "closure":

            def closure() -> Any:
                for weight in self.weights.values():
                    if weight.grad is None:
                        weight.grad = torch.empty_like(weight)
                    weight.grad.normal_().mul_(0.01)
                return self.loss

            optimizer.step(closure)
        else:
            optimizer.step()

    def _record(self) -> None:
        """Start the history anew; what lived before is known."""
        torch.cuda.memory._record_memory_history(None)
        torch.cuda.memory._record_memory_history("all", stacks="python", max_entries=1_000_000)

    def _look(self, optimizer: Any, moment: str) -> None:
        """Find the states after construction or a step."""
        gc.collect()
        for event in torch.cuda.memory._snapshot()["device_traces"][0]:
            frames = tuple(python_frames(event.get("frames", ())))
            if event["action"] == "alloc":
                self.live[event["addr"]] = Allocation(moment, event["size"], frames)
                if moment != "construction" and (step := frame_of_step(frames)):
                    self.step_frames[step] = None
            elif event["action"] == "free_completed":
                self.live.pop(event["addr"], None)
        known = self.states
        self.states = {}
        for state in self._held(optimizer):
            allocation = self.live.get(state.address) if state.device == "cuda" else None
            key = (state.role, state.name)
            before = known.get(key)
            state.moment = before.moment if before else moment
            state.frame = before.frame if before else ""
            state.is_replaced = before is not None and (
                allocation.moment == moment if allocation else before.address != state.address
            )
            if allocation and not state.frame:
                state.frame = own_frame(allocation.frames)
            self.states[key] = state

    def _held(self, optimizer: Any) -> Iterator[State]:
        """Return the tensors that can be reached from the optimizer, and blocks that live on elsewhere."""
        by_identity = {id(weight): role for role, weight in self.weights.items()}
        skipped = set(map(storage_of, self.weights.values())) | {storage_of(self.loss)}
        for weight in self.weights.values():
            if weight.grad is not None:
                skipped.add(storage_of(weight.grad))
        walker = Walker(by_identity, skipped)
        walker.walk_state(optimizer)
        yield from walker.states
        if self.case.call == "graph":
            return
        unreached = [
            (address, allocation)
            for address, allocation in self.live.items()
            if ("cuda", address) not in walker.seen and frame_of_step(allocation.frames)
        ]
        for index, (address, allocation) in enumerate(unreached):
            n_bytes = allocation.n_bytes
            name = f"(not reached from the optimizer)[{index}]"
            yield State(name, "all", (n_bytes,), "bytes", "cuda", "", n_bytes, address)

    def _look_at_gradients(self) -> None:
        if self.case.call == "graph":
            return
        gone = [role for role, weight in self.weights.items() if weight.grad is None]
        if gone:
            self.notes["step drops the gradients"] = None


class Walker:
    """The tensors below an optimizer, each storage once."""

    def __init__(self, by_identity: Mapping[int, str], skipped: set[tuple[str, int]]) -> None:
        self.by_identity = by_identity
        self.seen = set(skipped)
        self.states: list[State] = []
        self._objects: set[int] = set()

    def walk_state(self, optimizer: Any) -> None:
        """Walk the states by weight first, then every attribute."""
        state = getattr(optimizer, "state", {})
        for key, value in list(state.items()):
            role = self.by_identity.get(id(key))
            self._walk(value, "" if role else str(key), role or "all", 0)
        attributes = {name: value for name, value in vars(optimizer).items() if name != "state"}
        self._walk(attributes, "", "all", 0)

    def _walk(self, value: Any, path: str, role: str, depth: int) -> None:
        if depth > 8 or isinstance(
            value, (str, bytes, int, float, type, torch.dtype, torch.device)
        ):
            return
        if isinstance(value, torch.Tensor):
            self._tensor(value, path, role, depth)
            return
        if id(value) in self._objects or isinstance(value, torch.nn.Module) or callable(value):
            return
        self._objects.add(id(value))
        if isinstance(value, Mapping):
            for key, item in list(value.items()):
                name = self.by_identity.get(key if isinstance(key, int) else id(key))
                below = path if name else joined(path, str(key))
                self._walk(item, below, name or role, depth + 1)
        elif isinstance(value, (list, tuple, set, frozenset)) or type(value).__name__ == "deque":
            for index, item in enumerate(value):
                self._walk(item, f"{path}[{index}]", role, depth + 1)
        elif hasattr(value, "__dict__"):
            self._walk(vars(value), path, role, depth + 1)

    def _tensor(self, tensor: Any, path: str, role: str, depth: int) -> None:
        if id(tensor) in self.by_identity:
            return
        if hasattr(tensor, "__tensor_flatten__") and type(tensor) is not torch.Tensor:
            for name in tensor.__tensor_flatten__()[0]:
                self._walk(getattr(tensor, name), joined(path, name), role, depth + 1)
            return
        if tensor.is_sparse or tensor.device.type == "meta":
            return
        storage = storage_of(tensor)
        if storage in self.seen:
            self._share(storage, role)
            return
        self.seen.add(storage)
        n_bytes = tensor.untyped_storage().nbytes()
        n_stored = n_bytes // tensor.element_size()
        shape = tuple(tensor.shape) if n_stored == tensor.numel() else (n_stored,)
        if role == "all":
            same = [
                name
                for name in self.by_identity.values()
                if SHAPES[name] == shape and len(shape) > 1
            ]
            role = same[0] if same else role
            path = path.rstrip("0123456789[]") if same else path
        dtype = str(tensor.dtype).removeprefix("torch.")
        self.states.append(
            State(
                path or "(itself)", role, shape, dtype, tensor.device.type, "", n_bytes, storage[1]
            )
        )

    def _share(self, storage: tuple[str, int], role: str) -> None:
        """Note that a storage belongs to more than one weight."""
        for state in self.states:
            if (state.device, state.address) == storage and role not in ("all", state.role):
                state.role = "all"


def joined(path: str, name: str) -> str:
    """Return the path of something below another."""
    return f"{path}.{name}" if path else name


def storage_of(tensor: Any) -> tuple[str, int]:
    """Return what tells one storage from another."""
    return tensor.device.type, tensor.untyped_storage().data_ptr()


def requested(which: str) -> int:
    """Return the bytes that tensors take, before the allocator rounds them: "current" or "peak"."""
    return int(torch.cuda.memory_stats()[f"requested_bytes.all.{which}"])


def python_frames(frames: Any) -> Iterator[tuple[str, str]]:
    """Return the frames of installed packages, and of this file, innermost first: file and function."""
    for frame in frames:
        file = frame["filename"]
        if "site-packages/" in file:
            yield file.rpartition("site-packages/")[2], frame["name"]
        elif file == __file__:
            yield "", frame["name"]


def is_own(file: str) -> bool:
    """Tell whether a frame is an optimizer's: torch's are in torch/optim, its wrappers apart."""
    return bool(file) and (
        not file.startswith("torch/")
        or (file.startswith("torch/optim/") and file not in _NOT_THE_OPTIMIZERS)
    )


def own_frame(frames: tuple[tuple[str, str], ...]) -> str:
    """Return the innermost frame that is an optimizer's."""
    return next((f"{file}:{name}" for file, name in frames if is_own(file)), "")


def frame_of_step(frames: tuple[tuple[str, str], ...]) -> str:
    """Return the outermost frame of the optimizer's below our call of step."""
    within = next((index for index, frame in enumerate(frames) if frame == ("", "_step")), None)
    if within is None:
        return ""
    outer_first = reversed(frames[:within])
    return next((f"{file}:{name}" for file, name in outer_first if is_own(file)), "")


def code_of_step(optimizer: Any) -> str:
    """Return the file and name of the function that is the optimizer's step, beneath its wrappers."""
    function: Any = inspect.unwrap(type(optimizer).step)
    code = getattr(function, "__code__", None)
    if code is None:
        return ""
    return f"{code.co_filename.rpartition('site-packages/')[2]}:{code.co_name}"
