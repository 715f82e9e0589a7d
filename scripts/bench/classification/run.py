"""Measure how well memory is classified without metadata, on programs recorded with it.

    python scripts/bench/classification/run.py                  all cases, as a table
    python scripts/bench/classification/run.py --write          the same, into results.json beside this file
    python scripts/bench/classification/run.py --check          ends with 1 where results.json is better
    python scripts/bench/classification/run.py --entry cnn --entry vae --faults

Needs torch; a GPU is simulated.
"""

import argparse
import json
import pickle
import sys
import tempfile
from collections.abc import Iterator, Sequence
from itertools import product
from pathlib import Path

import torch
from comparison import Case, Result, compare
from cutting import HISTORIES, STACKS, SWEPT_STEPS, TENTHS, Cut, cut, cut_at
from entries import ENTRIES
from faults import faults_of
from figures import as_text, figures, worse_than
from naming import names_of_allocs
from recording import Recording, record
from setups import OPTIMIZERS, Setup
from tables import markdown
from truth import Truth, truth_of

RESULTS = Path(__file__).with_name("results.json")
VARIED = ("cnn", "transformer", "vae")
# A step of these is one word: a few are more like a step of the others.
N_STEPS = {"cached-inference": 12}


def main(argv: Sequence[str] | None = None) -> int:
    """Run what was asked for and return the exit code."""
    options = _options(argv)
    torch.set_num_threads(1)
    results = list(_results(options.entry or list(ENTRIES), is_quick=options.quick))
    found = figures(results)
    print(faults_of(results) if options.faults else markdown(found))
    worse = []
    if options.check:
        worse = worse_than(json.loads(RESULTS.read_text(encoding="utf-8")), found)
        print("\n".join(worse) or "nothing is worse than before", file=sys.stderr)
    if options.write:
        RESULTS.write_text(as_text(found), encoding="utf-8")
    return int(bool(worse))


def _options(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--entry", action="append", choices=ENTRIES, help="only this one; may be repeated")
    parser.add_argument("--write", action="store_true", help=f"write {RESULTS.name}")
    parser.add_argument("--check", action="store_true", help=f"compare with {RESULTS.name}")
    parser.add_argument("--faults", action="store_true", help="list what is wrong or unknown instead")
    parser.add_argument("--quick", action="store_true", help="no other optimizers, one kind of zero_grad")
    return parser.parse_args(argv)


def _setups(entry: str) -> Iterator[tuple[Setup, Sequence[str]]]:
    """Every way to train an entry, with the histories to look at; the first is the entry's own."""
    n_steps = N_STEPS.get(entry, 3)
    yield Setup(n_steps=n_steps), HISTORIES
    if entry in VARIED:
        for optimizer in OPTIMIZERS:
            if optimizer != Setup().optimizer:
                yield Setup(optimizer, n_steps=n_steps), ("complete", "late")
        yield Setup(set_to_none=False, n_steps=n_steps), ("complete", "late")
        yield Setup("sgd", set_to_none=False, n_steps=n_steps), ("complete", "late")
        yield Setup(n_steps=1), ("complete",)


def _results(entries: Sequence[str], *, is_quick: bool) -> Iterator[Result]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for entry in entries:
            for setup, histories in list(_setups(entry))[: 1 if is_quick else None]:
                yield from _cases(entry, setup, histories, folder)


def _cases(entry: str, setup: Setup, histories: Sequence[str], folder: Path) -> Iterator[Result]:
    """Record once; compare every cut of it."""
    recorded = record(entry, setup)
    truth = truth_of(recorded, folder)
    names = _names(entry, setup, recorded, truth)
    path = folder / "bare.pickle"
    for history in histories:
        for stacks in STACKS:
            bare = cut(recorded, history, stacks)
            yield from _compared(Case(entry, setup, stacks, history), bare, truth, names, path)
    if setup != Setup(n_steps=setup.n_steps):
        return
    for step, tenth, stacks in product(SWEPT_STEPS, TENTHS, STACKS):
        case = Case(entry, setup, stacks, f"{step} {tenth}")
        unnamed = [""] * len(truth.allocations)
        yield from _compared(case, cut_at(recorded, step, tenth, stacks), truth, unnamed, path)


def _compared(case: Case, bare: Cut | None, truth: Truth, names: list[str], path: Path) -> Iterator[Result]:
    if bare is not None:
        path.write_bytes(pickle.dumps(bare.raw))
        yield compare(case, bare, truth, names, path)


def _names(entry: str, setup: Setup, recorded: Recording, truth: Truth) -> list[str]:
    """The operation that made each allocation, of the entry's own setup: others are no different."""
    nothing = [""] * len(truth.allocations)
    if setup != Setup(n_steps=setup.n_steps):
        return nothing
    (trace,) = recorded.raw["device_traces"]
    allocs = [(number, event["size"]) for number, event in enumerate(trace) if event["action"] == "alloc"]
    names = names_of_allocs(entry, setup, [size for _, size in allocs])
    if names is None:
        return nothing
    by_event = {number: name for (number, _), name in zip(allocs, names, strict=True)}
    return [by_event.get(event, "") for event in truth.allocations.alloc_event.tolist()]


if __name__ == "__main__":
    sys.exit(main())
