"""Activation checkpointing: the modules that reach the wanted bytes at the least recomputation.

A checkpointed module keeps its input alone, and makes its activations again for its own backward.
No chosen module is inside another, so the choice is a knapsack on the tree of modules; it is exact,
with the cost in thousandths of the forward. A replay then gives the peak; while that is above the
goal, more bytes are wanted, and the modules are chosen again.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from snapconv.answers.advice.evidence import LEAST_SHARE_OF_TRADE, Detected, Evidence
from snapconv.classification.categories import Category
from snapconv.classification.categories import Evidence as NameEvidence
from snapconv.columns import Int64Column, distinct, grouped, is_among, last_before, rows_of
from snapconv.hypotheses.changes import NO_CHANGE, Change, Demand, freed_from, joined
from snapconv.hypotheses.line_calls import CallPath
from snapconv.torch_knowledge.frame_patterns import Role
from snapconv.units import format_bytes

# The cost of the whole forward.
_PARTS = 1000
_MOST_MODULES, _MOST_REPLAYS, _MOST_NAMES = 2000, 8, 12
# A module with a larger part of all activations has them all again in its own backward.
_MOST_OF_MODULE = 0.3
# A tensor is large if it is at most so many times smaller than a module's largest. Small ones may
# be of another forward of its parts, as an embedding that all read.
_LARGE = 8
# What checkpoints every layer of a library's model.
_CALLS = {
    "transformers": "model.gradient_checkpointing_enable()",
    "diffusers": "model.enable_gradient_checkpointing()",
    "timm": "model.set_grad_checkpointing()",
}
_CHECKPOINT_FILE = "torch/utils/checkpoint.py"
_MORE_SEGMENTS = "Or pass more segments, if the last has several layers: it gets smaller."
_EACH = "Call each under torch.utils.checkpoint.checkpoint(module, x, use_reentrant=False)."


@dataclass(frozen=True, slots=True)
class Module:
    """A module: its activations but its input, their bytes at the moment, and its cost.

    The cost is its part of the forward, in thousandths.
    """

    path: tuple[str, ...]
    change: Change
    held_bytes: int
    cost: int


def checkpointed_modules(evidence: Evidence) -> Iterator[Detected]:
    """Choose the modules that reach the goal at the least recomputation.

    Without a goal, choose those that save most.
    """
    saved = _saved_activations(evidence)
    modules = list(_modules(evidence, saved))
    most_bytes = _MOST_OF_MODULE * evidence.bytes_of(evidence.live_of(saved))
    candidates = [module for module in modules if 0 < module.held_bytes <= most_bytes]
    goal = evidence.goal_bytes or 0
    chosen = _choose(evidence, candidates, goal)
    if not chosen:
        return
    change = _joined_change(chosen)
    held_bytes = evidence.demand.bytes_at(change, evidence.moment.event)
    if evidence.is_worth(held_bytes, LEAST_SHARE_OF_TRADE):
        library = evidence.library_of(change.rows)
        layers = whole_layers(modules, library) if goal else []
        yield _detected(evidence, chosen, layers, _CALLS.get(library, ""))


def last_segments(evidence: Evidence) -> Iterator[Detected]:
    """Find what the last segment of checkpoint_sequential keeps, which torch does not checkpoint.

    Nothing is gained at its end, only where what comes after it needs more.
    """
    rows = evidence.saved[
        ~evidence.features.made_through(Role.CHECKPOINTED)[evidence.saved]
    ]
    stacks = [
        stack
        for stack in distinct(evidence.stack_id[rows]).tolist()
        if _segment_frames(evidence, stack)
    ]
    rows = rows[is_among(evidence.stack_id[rows], stacks)]
    if not evidence.is_large(evidence.live_of(rows), LEAST_SHARE_OF_TRADE):
        return
    steps = list(grouped(rows, evidence.features.next_backward))
    change = _segments_made_again(evidence, steps)
    demand = evidence.demand
    if evidence.is_worth(demand.peak.n_bytes - demand.without([change]).n_bytes):
        live_rows = evidence.live_of(rows)
        line = evidence.calls.model_line(evidence.analysis.main_stack(live_rows))
        has_several = any(_may_have_several_layers(evidence, step) for step in steps)
        remedy = _MORE_SEGMENTS if has_several else ""
        yield evidence.finding(change, live_rows, line, or_how=remedy)


def _segments_made_again(evidence: Evidence, steps: list[Int64Column]) -> Change:
    """Return the change where backward makes all of each step's segment again but its output.

    The node that frees the first tensor makes its gradients once it has the segment again: all
    allocations since the free before may be its own.
    """
    frees = np.sort(evidence.end)
    parts = [NO_CHANGE]
    for rows in steps:
        ends = evidence.alloc[rows].max(keepdims=True)
        first_free = evidence.end[rows].min(keepdims=True)
        again = np.maximum(last_before(frees, first_free) + 1, ends)
        parts.append(freed_from(evidence.analysis, np.sort(rows)[:-1], ends, again))
    return joined(parts)


def _segment_frames(evidence: Evidence, stack: int) -> CallPath:
    """Return the frames of a stack that checkpoint_sequential calls; empty for none."""
    names = evidence.analysis.snapshot.stacks.frames.names
    path = evidence.calls.path(stack)
    for depth, frame in enumerate(path, 1):
        is_torchs = evidence.calls.file(frame).endswith(_CHECKPOINT_FILE)
        if is_torchs and names[frame] == "checkpoint_sequential":
            return path[depth:]
    return ()


def _may_have_several_layers(evidence: Evidence, rows: Int64Column) -> bool:
    """Return whether tensors of a segment may be of several layers.

    Paths of modules say so; without them, two functions, or a series of stacks that comes again.
    """
    modules = evidence.analysis.modules
    stacks = evidence.stack_id[rows].tolist()
    numbers = modules.module_id[rows].tolist()
    names = [
        modules.names[number]
        for number in numbers
        if number >= 0 and modules.evidence[number] is NameEvidence.METADATA
    ]
    if len(names) == len(rows):
        paths = zip(names, stacks, strict=True)
        return len({_layer_path(evidence, name, stack) for name, stack in paths}) > 1
    if len({_layer_function(evidence, stack) for stack in stacks}) > 1:
        return True
    n_half = len(stacks) // 2
    return any(stacks[n:] == stacks[:-n] for n in range(1, n_half + 1))


def _layer_path(evidence: Evidence, name: str, stack: int) -> tuple[str, ...]:
    """Return the path of the layer of a segment that a module is in."""
    names = evidence.analysis.snapshot.stacks.frames.names
    calls = [names[frame] for frame in _segment_frames(evidence, stack)]
    path = name.split(".")
    return tuple(path[: len(path) - calls.count("_call_impl") + 1])


def _layer_function(evidence: Evidence, stack: int) -> tuple[str, str]:
    """Return the file and the name of a layer's function, which a segment calls."""
    names = evidence.analysis.snapshot.stacks.frames.names
    for frame in _segment_frames(evidence, stack):
        file = evidence.calls.file(frame)
        if not evidence.calls.is_module_call(frame) and not file.endswith(_CHECKPOINT_FILE):
            return file, names[frame]
    return "", ""


def _choose(evidence: Evidence, modules: Sequence[Module], goal: int) -> list[Module]:
    """Choose modules until a replay reaches the goal."""
    n_needed = evidence.moment.n_bytes - goal
    chosen: list[Module] = []
    for _ in range(_MOST_REPLAYS):
        previous = chosen
        chosen = cheapest(modules, n_needed)
        if not chosen or chosen == previous:
            break
        n_missing = evidence.demand.without([_joined_change(chosen)]).n_bytes - goal
        if n_missing <= 0 or not goal:
            break
        n_needed += n_missing
    return chosen


def _detected(
    evidence: Evidence, chosen: list[Module], layers: list[Module], call: str
) -> Detected:
    """Return the finding about the layers, where a library's one call checkpoints them.

    Else it is about the chosen modules. The other of the two is named beside it, with its own peak
    and cost.
    """
    demand = evidence.demand
    goal = evidence.goal_bytes or 0
    hint = ""
    if not layers:
        if call:
            hint = f"{call}, where the model has it, does so for whole blocks."
        return _finding(evidence, chosen, hint)
    least_peak = demand.without([_joined_change(chosen)]).n_bytes
    layers_peak = demand.without([_joined_change(layers)]).n_bytes
    are_same = _module_names(chosen) == _module_names(layers)
    if call and layers_peak <= max(goal, least_peak):
        if least_peak <= goal and not are_same:
            hint = f"Enough for the goal: only {_alternative(demand, chosen)}"
        detected = _finding(evidence, layers, hint)
        modules = f"All {len(layers)} layers ({detected.values['modules']})"
        detected.values.update(modules=modules, how=f"Call {call}.")
        return detected
    if not are_same:
        hint = f"Or all layers: {_alternative(demand, layers)}"
    return _finding(evidence, chosen, hint)


def _finding(evidence: Evidence, modules: list[Module], hint: str) -> Detected:
    """Return the finding about modules, where each of them is called by itself."""
    return Detected(
        _joined_change(modules),
        line=None,
        where=None,
        values={
            "modules": _module_names(modules),
            "share": _share(modules),
            "measure": "time" if evidence.forward_ms else "operations",
            "how": _EACH,
            "beside": hint,
        },
    )


def _alternative(demand: Demand, modules: list[Module]) -> str:
    size = format_bytes(demand.replayed([_joined_change(modules)]).n_bytes)
    return f"{_module_names(modules)} (→ {size}, recomputes {_share(modules)})."


def _joined_change(modules: Sequence[Module]) -> Change:
    return joined([module.change for module in modules])


def _share(modules: Sequence[Module]) -> str:
    cost = sum(module.cost for module in modules)
    return f"{max(round(100 * cost / _PARTS), 1)} %"


def whole_layers(modules: Sequence[Module], library: str) -> list[Module]:
    """Return the outermost numbered modules.

    There are none where one is missing, or may be a stage of many layers.
    """
    paths = {module.path for module in modules}
    numbered = [
        module for module in modules if _number_depth(module.path) == len(module.path) - 1
    ]
    n_siblings = Counter(module.path[:-1] for module in numbered)
    for path in paths:
        end = _number_depth(path) + 1
        if end > len(path):
            continue
        if path[:end] not in paths:
            return []
        # A stage has a list of layers: blocks, resnets. A layer may have a sequence: mlp, layer.
        parts = path[end : end + 2]
        if library and len(parts) == 2 and parts[0].endswith("s") and parts[1].isdigit():
            return []
    return [module for module in numbered if n_siblings[module.path[:-1]] > 1]


def _number_depth(path: tuple[str, ...]) -> int:
    """Return the position of the first number in a path; its length where there is none."""
    return next((depth for depth, part in enumerate(path) if part.isdigit()), len(path))


def _saved_activations(evidence: Evidence) -> Int64Column:
    """Return the activations that backward frees, of modules with a path."""
    modules = evidence.analysis.modules
    is_path = [kind is NameEvidence.METADATA for kind in modules.evidence]
    is_path.append(False)  # without a module the number is -1
    is_saved = evidence.is_a(Category.ACTIVATION) & np.array(is_path)[modules.module_id]
    is_freed = evidence.features.is_freed_by_engine & evidence.features.is_traced
    return rows_of(is_saved & is_freed)


def _modules(evidence: Evidence, saved: Int64Column) -> Iterator[Module]:
    """Yield the modules that saved activations, each before the modules inside it."""
    modules = evidence.analysis.modules
    ids = modules.module_id
    inner_rows: dict[tuple[str, ...], list[Int64Column]] = {}
    for rows in grouped(saved, ids):
        path = tuple(modules.names[ids[rows[0]]].split("."))
        for depth in range(1, len(path) + 1):
            inner_rows.setdefault(path[:depth], []).append(rows)
    times = {tuple(name.split(".")): ms for name, ms in evidence.forward_ms.items()}
    forward_cost = sum(times.values()) or max(int(evidence.features.in_forward.sum()), 1)
    for path in sorted(inner_rows)[:_MOST_MODULES]:
        change, n_operations = _recomputed(evidence, np.concatenate(inner_rows[path]))
        held_bytes = evidence.demand.bytes_at(change, evidence.moment.event)
        cost: float = n_operations
        if times:
            cost = sum(ms for name, ms in times.items() if name[: len(path)] == path)
        parts = max(round(_PARTS * cost / forward_cost), 1)
        yield Module(path, change, held_bytes, parts)


def _recomputed(evidence: Evidence, rows: Int64Column) -> tuple[Change, int]:
    """Return the change where a module recomputes its activations, and its forward's operations.

    Its first large tensor stands for its input, which stays. The others are live until the last of
    them is allocated, and again from where backward frees the first.
    """
    n_operations = 0
    parts: list[Change] = []
    n_allocs = evidence.calls.n_allocs
    for step_rows in grouped(rows, evidence.features.next_backward):
        step_rows = np.sort(step_rows)  # in the order of their allocs
        n_bytes = evidence.table.block_bytes[step_rows]
        is_large = n_bytes >= n_bytes.max() // _LARGE
        large = step_rows[is_large]
        inner = np.delete(step_rows, is_large.argmax())
        ends = evidence.alloc[large].max()
        again = evidence.end[large].min()
        n_operations += int(n_allocs[ends] - n_allocs[evidence.alloc[large[0]]])
        parts.append(freed_from(evidence.analysis, inner, ends, again))
    return joined(parts), n_operations


def cheapest(modules: Sequence[Module], n_bytes: int) -> list[Module]:
    """Choose modules, none inside another, with so many bytes, or most, at the least cost.

    ``best[number, cost]`` are the most bytes of the modules from a number on, at most at that cost:
    without the module that of the next, with it that of the next outside it.
    """
    n = len(modules)
    after = [_next_outside(modules, number) for number in range(n)]
    best = np.zeros((n + 1, _PARTS + 1), np.int64)
    for number in reversed(range(n)):
        module = modules[number]
        best[number] = best[number + 1]
        n_costs = max(_PARTS + 1 - module.cost, 0)
        chosen_bytes = module.held_bytes + best[after[number], :n_costs]
        affordable = best[number, module.cost :]
        np.maximum(affordable, chosen_bytes, out=affordable)
    number = 0
    chosen: list[Module] = []
    cost = int(np.searchsorted(best[0], min(n_bytes, best[0, -1])))
    while number < n:
        if best[number, cost] > best[number + 1, cost]:
            chosen.append(modules[number])
            cost -= modules[number].cost
            number = after[number]
        else:
            number += 1
    return chosen


def _next_outside(modules: Sequence[Module], number: int) -> int:
    """Return the number of the next module that is outside of a module; after all if none is."""
    path = modules[number].path
    later = number
    while later < len(modules) and modules[later].path[: len(path)] == path:
        later += 1
    return later


def _module_names(modules: Sequence[Module]) -> str:
    """Return modules as people write them: equal ones by their range, as blocks.0-5.mlp."""
    groups: dict[tuple[str, str], list[int]] = {}
    for module in modules:
        depth = _number_depth(module.path)
        key = ".".join(module.path[:depth]), ".".join(module.path[depth + 1 :])
        groups.setdefault(key, []).extend(map(int, module.path[depth : depth + 1]))
    names = []
    for (prefix, suffix), numbers in groups.items():
        names.append(".".join(filter(None, (prefix, _ranges(sorted(numbers)), suffix))))
    n_more = len(names) - _MOST_NAMES
    return ", ".join(names[:_MOST_NAMES]) + (f" and {n_more} more" if n_more > 0 else "")


def _ranges(numbers: Sequence[int]) -> str:
    """Return ordered numbers as ranges: 0-5,7."""
    ranges = []
    for run in np.split(numbers, rows_of(np.diff(numbers) != 1) + 1) if numbers else ():
        ranges.append(f"{run[0]}-{run[-1]}" if len(run) > 1 else f"{run[0]}")
    return ",".join(ranges)
