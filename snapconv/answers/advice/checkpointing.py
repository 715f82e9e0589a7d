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

from snapconv.answers.advice.changes import Change, joined
from snapconv.answers.advice.evidence import LEAST_SHARE_OF_TRADE, Detected, Evidence
from snapconv.classification.categories import Category
from snapconv.classification.categories import Evidence as Known
from snapconv.columns import Int64Column, grouped, rows_of
from snapconv.units import format_bytes

_PARTS, _MOST_MODULES, _MOST_REPLAYS, _MOST_NAMES = 1000, 2000, 8, 12
# Of all activations at the moment: a module with more has them all again in its own backward.
_MOST_OF_MODULE = 0.3
# Of a module's largest. Small tensors may be of another forward of its parts, as an embedding that
# all read.
_LARGE = 8
# What checkpoints every layer of a library's model.
_CALLS = {
    "transformers": "model.gradient_checkpointing_enable()",
    "diffusers": "model.enable_gradient_checkpointing()",
    "timm": "model.set_grad_checkpointing()",
}
_EACH = "Call each under torch.utils.checkpoint.checkpoint(module, x, use_reentrant=False)."


@dataclass(frozen=True, slots=True)
class Module:
    """A module: its activations but its input, their bytes at the moment, and its part of the forward."""

    path: tuple[str, ...]
    change: Change
    held_bytes: int
    cost: int


def checkpointed_modules(evidence: Evidence) -> Iterator[Detected]:
    """Choose the modules that reach the goal at the least recomputation; without one, that save most."""
    every, most = _modules(evidence)
    modules = [one for one in every if 0 < one.held_bytes <= most]
    goal = evidence.goal_bytes or 0
    wanted = evidence.moment.n_bytes - goal
    change = None
    chosen: list[Module] = []
    for _ in range(_MOST_REPLAYS):
        before = chosen
        chosen = cheapest(modules, wanted)
        if not chosen or chosen == before:
            break
        change = _together(chosen)
        missing = evidence.demand.without([change]).n_bytes - goal
        if missing <= 0 or not goal:
            break
        wanted += missing
    if change is None:
        return
    if evidence.is_worth(
        evidence.demand.bytes_at(change, evidence.moment.event), LEAST_SHARE_OF_TRADE
    ):
        library = evidence.library_of(change.rows)
        yield _found(
            evidence, chosen, whole_layers(every, library) if goal else [], _CALLS.get(library, "")
        )


def _found(evidence: Evidence, chosen: list[Module], layers: list[Module], call: str) -> Detected:
    """Return the finding: the layers, where a library's one call checkpoints these, else the chosen modules.

    The other of the two is named beside it, with its own peak and cost.
    """
    demand = evidence.demand
    goal = evidence.goal_bytes or 0
    changes = [_together(one) for one in (chosen, layers or chosen)]
    least, peak = (demand.without([change]).n_bytes for change in changes)
    are_layers = bool(call and layers) and peak <= max(goal, least)
    first, other = (layers, chosen) if are_layers else (chosen, layers)
    names, other_names = (_named([one.path for one in modules]) for modules in (first, other))
    beside = (
        f"{call}, where the model has it, does so for whole blocks." if call and not layers else ""
    )
    if other and names != other_names and (least <= goal or not are_layers):
        role = "Enough for the goal: only" if are_layers else "Or all layers:"
        n_bytes = format_bytes(demand.replayed([changes[not are_layers]]).n_bytes)
        beside = f"{role} {other_names} (→ {n_bytes}, recomputes {_share(other)})."
    values = {
        "modules": f"All {len(layers)} layers ({names})" if are_layers else names,
        "share": _share(first),
        "measure": "time" if evidence.forward_ms else "operations",
        "how": f"Call {call}." if are_layers else _EACH,
        "beside": beside,
    }
    return Detected(changes[are_layers], None, None, values)


def _together(modules: Sequence[Module]) -> Change:
    return joined([one.change for one in modules])


def _share(modules: Sequence[Module]) -> str:
    return f"{max(round(100 * sum(one.cost for one in modules) / _PARTS), 1)} %"


def whole_layers(modules: Sequence[Module], library: str) -> list[Module]:
    """Return the outermost numbered modules; none where one is missing, or may be a stage of many layers."""
    place = {one.path: _place_of_number(one.path) for one in modules}
    number_of = Counter(path[:-1] for path in place if place[path] == len(path) - 1)
    layers = [
        one
        for one in modules
        if number_of[one.path[:-1]] > 1 and place[one.path] == len(one.path) - 1
    ]
    inside = [
        (path[: place[path] + 1], path[place[path] + 1 :])
        for path in place
        if place[path] < len(path)
    ]
    is_missing = any(layer not in place for layer, _ in inside)
    # A stage has a list of layers: blocks, resnets. A layer may have a sequence: mlp, layer.
    are_stages = library and any(
        "".join(parts[1:2]).isdigit() and parts[0][-1] == "s" for _, parts in inside
    )
    return [] if is_missing or are_stages else layers


def _place_of_number(path: tuple[str, ...]) -> int:
    """Return the position of the first number in a path; its length where there is none."""
    return next((place for place, part in enumerate(path) if part.isdigit()), len(path))


def _modules(evidence: Evidence) -> tuple[list[Module], float]:
    """Return what saved activations, each before what is inside it, and the most bytes of one to choose."""
    analysis = evidence.analysis
    features = evidence.features
    names = analysis.modules.names
    ids = analysis.modules.module_id
    is_path = np.array([*(one is Known.METADATA for one in analysis.modules.evidence), False])
    is_saved = evidence.is_a(Category.ACTIVATION) & is_path[ids]
    rows = rows_of(is_saved & features.is_freed_by_engine & features.is_traced)
    inside: dict[tuple[str, ...], list[Int64Column]] = {}
    for mine in grouped(rows, ids):
        path = tuple(names[ids[mine[0]]].split("."))
        for depth in range(1, len(path) + 1):
            inside.setdefault(path[:depth], []).append(mine)
    times = {tuple(name.split(".")): ms for name, ms in evidence.forward_ms.items()}
    whole = sum(times.values()) or max(int(features.in_forward.sum()), 1)
    modules: list[Module] = []
    for path in sorted(inside)[:_MOST_MODULES]:
        change, n_operations = _again(evidence, np.concatenate(inside[path]))
        held = evidence.demand.bytes_at(change, evidence.moment.event)
        ms = sum(ms for name, ms in times.items() if name[: len(path)] == path)
        cost = max(round(_PARTS * (ms if times else n_operations) / whole), 1)
        modules.append(Module(path, change, held, cost))
    return modules, _MOST_OF_MODULE * evidence.bytes_of(rows[evidence.live[rows]])


def _again(evidence: Evidence, rows: Int64Column) -> tuple[Change, int]:
    """Return the change where a module recomputes its activations, and the operations of its forward.

    Its first large tensor stands for its input, which stays. The others are live until the last of
    them is allocated, and again from where backward frees the first.
    """
    table = evidence.table
    n_operations = 0
    parts: list[Change] = []
    for mine in grouped(rows, evidence.features.next_backward):
        mine = np.sort(mine)  # in the order of their allocs
        n_bytes = table.block_bytes[mine]
        is_large = n_bytes >= n_bytes.max() // _LARGE
        large = mine[is_large]
        inner = np.delete(mine, np.argmax(is_large))
        ends = table.alloc_event[large].max()
        again = table.freed_event[large].min()
        n_operations += int(
            np.diff(evidence.calls.n_allocs[[table.alloc_event[large[0]], ends]])[0]
        )
        first, last = (np.full(len(inner), event, np.int64) for event in (ends, again))
        parts.append(Change(inner, first, last, table.block_bytes[inner]))
    return joined(parts), n_operations


def cheapest(modules: Sequence[Module], wanted: int) -> list[Module]:
    """Choose modules, none inside another, with the bytes that are wanted, or most, at the least cost.

    ``best[number, cost]`` are the most bytes of the modules from a number on, at most at that cost:
    without the module that of the next, with it that of the next outside it.
    """
    n = len(modules)
    after = [
        next(
            (
                other
                for other in range(number, n)
                if modules[other].path[: len(one.path)] != one.path
            ),
            n,
        )
        for number, one in enumerate(modules)
    ]
    best = np.zeros((n + 1, _PARTS + 1), np.int64)
    for number in range(n - 1, -1, -1):
        one = modules[number]
        best[number] = best[number + 1]
        with_it = one.held_bytes + best[after[number], : max(_PARTS + 1 - one.cost, 0)]
        best[number, one.cost :] = np.maximum(best[number, one.cost :], with_it)
    number = 0
    chosen: list[Module] = []
    cost = int(np.searchsorted(best[0], min(wanted, best[0, -1])))
    while number < n:
        is_taken = best[number, cost] > best[number + 1, cost]
        if is_taken:
            chosen.append(modules[number])
            cost -= modules[number].cost
        number = after[number] if is_taken else number + 1
    return chosen


def _named(paths: Sequence[tuple[str, ...]]) -> str:
    """Return modules as people write them: equal ones by their range, as blocks.0-5.mlp."""
    groups: dict[tuple[str, str], list[int]] = {}
    for path in paths:
        place = _place_of_number(path)
        key = ".".join(path[:place]), ".".join(path[place + 1 :])
        groups.setdefault(key, []).extend(map(int, path[place : place + 1]))
    texts = []
    for (before, after), numbers in groups.items():
        numbers.sort()
        runs = np.split(numbers, rows_of(np.diff(numbers) != 1) + 1) if numbers else []
        spans = [f"{run[0]}-{run[-1]}" if len(run) > 1 else f"{run[0]}" for run in runs]
        texts.append(".".join(filter(None, (before, ",".join(spans), after))))
    more = len(texts) - _MOST_NAMES
    return ", ".join(texts[:_MOST_NAMES]) + (f" and {more} more" if more > 0 else "")
