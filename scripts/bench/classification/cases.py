"""Programs -> the bare snapshots that are made of their recordings, one by one, each beside its truth."""

import pickle
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path

from cutting import HISTORIES, STACKS, SWEPT_STEPS, TENTHS, Cut, cut, cut_at
from naming import names_of_allocs
from recording import Recording, recorded_once
from setups import OPTIMIZERS, Setup
from truth import Truth, truth_of

VARIED = ("cnn", "transformer", "vae")
# A step of these is one word: a few are more like a step of the others.
N_STEPS = {"cached-inference": 12}


@dataclass(frozen=True, slots=True)
class Case:
    """What was recorded, and how."""

    entry: str
    setup: Setup
    stacks: str
    history: str


@dataclass(frozen=True, slots=True)
class Bare:
    """A bare snapshot on disk, what it was cut from, and the name of the operation of every allocation."""

    case: Case
    cut: Cut
    truth: Truth
    names: list[str]
    path: Path


def bare_snapshots(
    entries: Sequence[str], *, is_quick: bool = False, recordings: Path | None = None
) -> Iterator[Bare]:
    """Make every bare snapshot of the entries; the file is there until the next one is made.

    ``is_quick``: only the four histories of an entry's own setup, and no names of operations.
    ``recordings``: the folder in which what was recorded is kept from run to run.
    """
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for entry in entries:
            for setup, histories in list(_setups(entry))[: 1 if is_quick else None]:
                recorded = recorded_once(entry, setup, recordings)
                truth = truth_of(recorded, folder)
                names = [""] * len(truth.allocations)
                if not is_quick:
                    names = _names(entry, setup, recorded, truth)
                for case, bare, of_case in _cuts(
                    entry, setup, histories, recorded, names, is_quick=is_quick
                ):
                    path = folder / "bare.pickle"
                    path.write_bytes(pickle.dumps(bare.raw))
                    yield Bare(case, bare, truth, of_case, path)


def _setups(entry: str) -> Iterator[tuple[Setup, Sequence[str]]]:
    """Every way to train an entry, with the histories to look at; the first is the entry's own."""
    n_steps = N_STEPS.get(entry, 3)
    yield Setup(n_steps=n_steps), HISTORIES
    if entry in VARIED:
        for optimizer in OPTIMIZERS:
            if optimizer != Setup().optimizer:
                yield Setup(optimizer, n_steps=n_steps), ("complete", "late")
        yield Setup(set_to_none=False, n_steps=n_steps), ("complete", "late")
        for optimizer in ("sgd", "momentum"):
            yield Setup(optimizer, set_to_none=False, n_steps=n_steps), ("complete", "late")
        yield Setup(n_steps=1), ("complete",)


def _cuts(
    entry: str,
    setup: Setup,
    histories: Sequence[str],
    recorded: Recording,
    names: list[str],
    *,
    is_quick: bool,
) -> Iterator[tuple[Case, Cut, list[str]]]:
    """Every cut of a recording that the run has the moments for."""
    for history, stacks in product(histories, STACKS):
        bare = cut(recorded, history, stacks)
        if bare is not None:
            yield Case(entry, setup, stacks, history), bare, names
    if is_quick or setup != Setup(n_steps=setup.n_steps):
        return
    for step, tenth, stacks in product(SWEPT_STEPS, TENTHS, STACKS):
        bare = cut_at(recorded, step, tenth, stacks)
        if bare is not None:
            yield Case(entry, setup, stacks, f"{step} {tenth}"), bare, [""] * len(names)


def _names(entry: str, setup: Setup, recorded: Recording, truth: Truth) -> list[str]:
    """Return the operation that made each allocation, of the entry's own setup: others are no different."""
    nothing = [""] * len(truth.allocations)
    if setup != Setup(n_steps=setup.n_steps):
        return nothing
    (trace,) = recorded.raw["device_traces"]
    allocs = [
        (number, event["size"]) for number, event in enumerate(trace) if event["action"] == "alloc"
    ]
    names = names_of_allocs(entry, setup, [size for _, size in allocs])
    if names is None:
        return nothing
    by_event = {number: name for (number, _), name in zip(allocs, names, strict=True)}
    return [by_event.get(event, "") for event in truth.allocations.alloc_event.tolist()]
