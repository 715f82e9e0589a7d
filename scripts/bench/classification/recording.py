"""Record an entry on a simulated device: the snapshot, and everything that is known of its memory.

Names and purposes come from the recorder's observer; what it cannot see, the entry names itself.
Ranges in which a forward runs inside of backward are recorded by hooks of our own: of modules, of
checkpoints, and of whatever else enables gradients there. So are the derivatives that a program
asks for with respect to parameters, and the keys and values in caches of transformers.
"""

import functools
import hashlib
import inspect
import multiprocessing
import os
import pickle
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from entries import ENTRIES, run_entry
from gpu_stacks import add_surroundings
from programs import Script, tensors_in
from setups import Known, Setup
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.utils import checkpoint

from snapconv.guest import own_frames
from snapconv.guest.symbols import name_every_function
from snapconv.recorder import memory_history
from snapconv.recorder.observe.observer import Observer
from snapconv.recorder.observe.tensors import Row, memory_rows, shape_and_type
from snapconv.recorder.options import RecordingOptions
from snapconv.recorder.spans import now_us
from snapconv.simulation import Simulation, SimulationOptions, simulated

Range = tuple[int, int]
# A script has no hub to ask, and one thread as every other entry.
OFFLINE = {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
_MAX_ENTRIES = 1_000_000
# Compiled functions run as they are written; this entry is recorded without values all the same.
WITHOUT_VALUES = frozenset(("compiled",))
# Of some entries only: next to models as small as these, the workspace of a GPU would be most of
# the memory.
WITH_WORKSPACE = frozenset(("cnn", "transformer", "amp"))
# A step of these is one word: where other entries have a step, a recording is cut between some of
# them.
STEPS_OF_A_PART = {"cached-inference": 4}
# torch's default before Hopper; no tensor of an entry has that size.
_VARIABLE = "CUBLAS_WORKSPACE_CONFIG"
_WORKSPACE_CONFIG = ":4096:2:16:8"
_COPY_FRAME = {"name": "at::_ops::_to_copy::call(at::Tensor const&)", "filename": "??", "line": 0}


@dataclass(slots=True)
class Recording:
    """One run: torch's snapshot with the metadata in it, and times (us) on the clock of its trace.

    ``step_ends`` are the ends of steps at which it may be cut, ``recomputed`` the ranges of forward
    within backward. ``workspaces`` are the addresses of those that the simulation made, ``told``
    where memory of a category lies by the entry's own word: no capture has a key for these.
    """

    raw: dict[str, Any]
    step_ends: list[int] = field(default_factory=list)
    recomputed: list[Range] = field(default_factory=list)
    workspaces: list[int] = field(default_factory=list)
    told: dict[str, list[Row]] = field(default_factory=dict)


def recorded_once(entry: str, setup: Setup, folder: Path | None) -> Recording:
    """Record an entry, or take the recording that the folder has of it from an earlier run.

    They are kept by the setup and by the entry's own file: after any other change, of the
    simulation or of this file, empty the folder.
    """
    if folder is None:
        return _apart(entry, setup)
    about = f"{entry} {asdict(setup)} {_source(entry)}"
    path = folder / f"{entry}-{hashlib.sha256(about.encode()).hexdigest()[:12]}.pickle"
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        made = path.with_suffix(".part")
        made.write_bytes(pickle.dumps(_apart(entry, setup), protocol=5))
        made.replace(path)
    found: Recording = pickle.loads(path.read_bytes())
    return found


def _source(entry: str) -> str:
    program = ENTRIES[entry]
    if isinstance(program, Script):
        return program.path.read_text(encoding="utf-8")
    function = program.func if isinstance(program, partial) else program
    return Path(inspect.getfile(function)).read_text(encoding="utf-8")


def _apart(entry: str, setup: Setup) -> Recording:
    """Record a script in a process and a folder of its own: what it imports patches torch for good."""
    if not isinstance(ENTRIES[entry], Script):
        return record(entry, setup)
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_send, args=(sender, entry, setup))
    process.start()
    sender.close()
    try:
        found: Recording = receiver.recv()
    except EOFError:
        raise RuntimeError(f"{entry} was not recorded; its output says why") from None
    finally:
        process.join()
    return found


def _send(sender: Any, entry: str, setup: Setup) -> None:
    os.environ.update(OFFLINE)
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        sender.send(record(entry, setup))
        sender.close()
        os.chdir("/")


def record(entry: str, setup: Setup) -> Recording:
    """Run an entry from its first line on, with every event and all its stacks recorded.

    The snapshot is taken at the end of the last step, when everything is still in its place.
    """
    torch.manual_seed(0)
    recorded = Recording({})
    observer = Observer()
    with device_of(entry) as simulation, _recomputation(recorded.recomputed):
        memory_history.start(RecordingOptions(max_entries=_MAX_ENTRIES))
        observer.start()
        try:
            _run(entry, setup, observer, recorded)
        finally:
            observer.stop()
            memory_history.stop()
        made = simulation.tracker.workspaces
        recorded.workspaces = [*made.addrs.values()] if made else []
    if observer.failure:
        raise observer.failure
    return recorded


@contextmanager
def device_of(entry: str) -> Iterator[Simulation]:
    """Simulate an entry's device, with cuBLAS's workspaces as large as in the real snapshots."""
    before = os.environ.get(_VARIABLE)
    os.environ[_VARIABLE] = _WORKSPACE_CONFIG
    options = SimulationOptions(
        cublas_workspace=entry in WITH_WORKSPACE, compute=entry not in WITHOUT_VALUES
    )
    try:
        with simulated(options) as simulation:
            yield simulation
    finally:
        os.environ.pop(_VARIABLE, None)  # a program may have done so itself
        if before is not None:
            os.environ[_VARIABLE] = before


class _Steps:
    """What is done when a step of an entry ends; the last one's snapshot is the recording."""

    def __init__(self, entry: str, setup: Setup, observer: Observer, recorded: Recording) -> None:
        self._steps_of_a_part, self._n_steps = STEPS_OF_A_PART.get(entry, 1), setup.n_steps
        self._observer, self._recorded = observer, recorded
        self._told: dict[str, list[Row]] = {key: [] for key in _KEYS}
        self._step = 0
        observer.iteration_began(0)

    def ended(self, known: Known) -> None:
        """Note what is known at the end of a step; take the snapshot if it is the last one."""
        self._observer.iteration_ended(self._step)
        _note(self._told, known, self._step)
        self._step += 1
        if self._step % self._steps_of_a_part == 0:
            self._recorded.step_ends.append(now_us())
        if self._step < self._n_steps:
            self._observer.iteration_began(self._step)
        else:
            self._finish()

    def told(self, known: Known) -> None:
        """Note what is known within a step."""
        _note(self._told, known, self._step)

    def _finish(self) -> None:
        self._observer.stop()
        name_every_function()
        raw: dict[str, Any] = torch.cuda.memory._snapshot()
        metadata = self._observer.facts(raw)
        own_frames.clean_snapshot(raw)
        _complete_stacks(raw)
        self._recorded.told = {key: self._told.pop(key) for key in _WITHOUT_A_KEY}
        for key, rows in self._told.items():
            metadata[key] = [*metadata[key], *rows]
        self._recorded.raw = {**raw, "snapconv": {"version": 1, **metadata}}


def _run(entry: str, setup: Setup, observer: Observer, recorded: Recording) -> None:
    steps = _Steps(entry, setup, observer, recorded)
    with _derivatives_by_parameters(observer, steps.told), _caches_of_transformers(steps.told):
        run_entry(entry, setup, steps.ended, call=own_frames.call_user, on_told=steps.told)
    if not recorded.raw:
        raise RuntimeError(f"{entry} ended before its step {setup.n_steps}")


def _complete_stacks(raw: dict[str, Any]) -> None:
    """Add the functions that a GPU's stacks have, as of torch 2.5 to 2.7, and simulated ones have not."""
    blocks = [block for segment in raw["segments"] for block in segment["blocks"]]
    for holder in (*raw["device_traces"][0], *blocks):
        if holder.get("frames") and holder.get("action", "alloc") == "alloc":
            holder["frames"] = _with_call_of_copy(holder["frames"])
    add_surroundings(raw)


def _with_call_of_copy(frames: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Have a copy to the device called by at::native::to, where the simulation dispatches it itself."""
    names = [frame["name"] for frame in frames]
    if any(name.startswith("at::_ops::_to_copy::call") for name in names):
        return frames
    place = next(
        (i for i, name in enumerate(names) if "VariableType" in name and "::_to_copy(" in name),
        None,
    )
    return frames if place is None else [*frames[: place + 1], _COPY_FRAME, *frames[place + 1 :]]


class _Recomputation:
    """Notes when a forward runs while the engine does: the ranges in which it computes again.

    A graph can only come about in backward where something enables gradients: a checkpoint, a
    custom function, a hook. A backward that begins in such a range, outside of modules, ends it:
    what it finds is what that forward has kept.
    """

    def __init__(self, ranges: list[Range]) -> None:
        self._ranges = ranges
        self._start = 0
        self._n_open = self._n_modules = 0

    def enter(self, *_: object) -> None:
        """Begin a range, or a part of the one that runs."""
        if not torch.compiler.is_compiling() and torch._C._current_graph_task_id() != -1:
            self._n_open += 1
            if self._n_open == 1:
                self._start = now_us()

    def leave(self, *_: object) -> None:
        """End the innermost part."""
        if self._n_open:
            self._n_open -= 1
            if not self._n_open:
                self._ranges.append((self._start, now_us()))

    def module_begins(self, *_: object) -> None:
        """Count a module that runs in a range."""
        self.enter()
        self._n_modules += self._n_open > 0

    def module_ends(self, *_: object) -> None:
        """End the module's part."""
        self._n_modules = max(0, self._n_modules - 1)
        self.leave()

    @contextmanager
    def paused(self, *, is_part_of_forward: bool) -> Iterator[None]:
        """Interrupt the range for a backward, unless that is a part of the forward."""
        n_open = 0 if is_part_of_forward or self._n_modules else self._n_open
        if not n_open:
            yield
            return
        self._ranges.append((self._start, now_us()))
        self._n_open = 0
        try:
            yield
        finally:
            self._n_open, self._start = n_open, now_us()


@contextmanager
def _recomputation(ranges: list[Range]) -> Iterator[None]:
    """Note the ranges of forward within backward while the context lasts."""
    again = _Recomputation(ranges)

    class Hook(checkpoint._recomputation_hook):  # type: ignore[misc]  # torch counts as Any
        def __enter__(self) -> None:
            again.enter()
            super().__enter__()

        def __exit__(self, *raised: object) -> None:
            super().__exit__(*raised)
            again.leave()

    run_backward = torch.autograd._engine_run_backward

    def engine(*arguments: Any, **keywords: Any) -> Any:
        creates_graph = bool(arguments[3])  # of roots, gradients, retain_graph, create_graph
        with again.paused(is_part_of_forward=creates_graph):
            return run_backward(*arguments, **keywords)

    handles = (
        register_module_forward_pre_hook(again.module_begins),
        register_module_forward_hook(again.module_ends, always_call=True),
    )
    try:
        with (
            patch.object(checkpoint, "_recomputation_hook", Hook),
            patch.object(torch.autograd, "_engine_run_backward", engine),
            _around_enabled_gradients(again),
        ):
            yield
    finally:
        for handle in handles:
            handle.remove()


@contextmanager
def _around_enabled_gradients(again: _Recomputation) -> Iterator[None]:
    """Report when a program enables gradients, in either way that torch has."""
    with ExitStack() as parts:
        for kind in (torch.enable_grad, torch.set_grad_enabled):
            for name, work in (("__enter__", again.enter), ("__exit__", again.leave)):
                original = getattr(kind, name)

                def around(
                    context: Any,
                    *raised: Any,
                    original: Callable[..., Any] = original,
                    work: Callable[[], None] = work,
                ) -> Any:
                    result = original(context, *raised)
                    if getattr(context, "mode", True):
                        work()
                    return result

                parts.enter_context(patch.object(kind, name, around))
        yield


@contextmanager
def _derivatives_by_parameters(observer: Observer, tell: Callable[[Known], None]) -> Iterator[None]:
    """Report what a program derives by parameters for itself, and no ``.grad`` ever is.

    With a graph of its own, such a derivative is a part of forward, which autograd saves if at all.
    But a transform of torch.func always asks for a graph, and drops it.
    """
    derive = torch.autograd.grad
    signature = inspect.signature(derive)

    def grad(*arguments: Any, **keywords: Any) -> Any:
        results = derive(*arguments, **keywords)
        given = signature.bind(*arguments, **keywords).arguments
        inputs = given["inputs"]
        inputs = [inputs] if isinstance(inputs, torch.Tensor) else list(inputs)
        parameters = {row["addr"] for row in observer.facts({})["parameters"]}
        gradients = []
        for result, tensor in zip(results, inputs, strict=True):
            if result is None or (given.get("create_graph") and _plain(tensor) is tensor):
                continue
            if any(row["addr"] in parameters for row in memory_rows(_plain(tensor))):
                gradients.append(_plain(result))
        tell(Known(gradients=gradients))
        return results

    with patch.object(torch.autograd, "grad", grad):
        yield


def _plain(tensor: torch.Tensor) -> torch.Tensor:
    """Return the tensor with memory that transforms of torch.func have wrapped."""
    functorch = torch._C._functorch
    while functorch.is_functorch_wrapped_tensor(tensor):
        tensor = functorch.get_unwrapped(tensor)
    return tensor


@contextmanager
def _caches_of_transformers(tell: Callable[[Known], None]) -> Iterator[None]:
    """Report what every cache of transformers holds after an update without gradients.

    The library is looked for whenever a module is called: a program may import it at any time.
    """
    with ExitStack() as parts:

        def look(*_: object) -> None:
            library = sys.modules.get("transformers.cache_utils")
            if library is None or parts_of_library:
                return
            for kind in list(vars(library).values()):
                if isinstance(kind, type) and "update" in vars(kind):
                    parts_of_library.append(patch.object(kind, "update", _telling(kind, tell)))
            for part in parts_of_library:
                parts.enter_context(part)

        parts_of_library: list[Any] = []
        hook = register_module_forward_pre_hook(look)
        parts.callback(hook.remove)
        yield


def _telling(kind: type, tell: Callable[[Known], None]) -> Callable[..., Any]:
    update = kind.__dict__["update"]

    @functools.wraps(update)
    def telling(cache: Any, *arguments: Any, **keywords: Any) -> Any:
        result = update(cache, *arguments, **keywords)
        if not torch.is_grad_enabled():
            tell(Known(caches=[*tensors_in(vars(cache))]))
        return result

    return telling


# The name of what the entry itself named, in the rows of a capture's metadata.
NAMED_BY_ENTRY = "told"
# The tensors that an entry names, by key of a capture's metadata, or else by category.
_WITHOUT_A_KEY = ("gradient", "kv_cache")
_KEYS = {
    "inputs": "inputs",
    "optimizer_states": "states",
    "saved": "activations",
    "parameters": "weights",
    "gradient": "gradients",
    "kv_cache": "caches",
}


def _note(told: dict[str, list[Row]], known: Known, step: int) -> None:
    """Note where the tensors lie that an entry names."""
    for key, name in _KEYS.items():
        for tensor in getattr(known, name):
            about = {"iteration": step, "name": NAMED_BY_ENTRY, **shape_and_type(tensor)}
            told[key] += [about | row for row in memory_rows(tensor)]
