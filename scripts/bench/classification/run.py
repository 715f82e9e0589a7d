"""Measure how well memory is classified without metadata, on programs recorded with it.

    python scripts/bench/classification/run.py                  all cases, as a table
    python scripts/bench/classification/run.py --write          the same, into results.json beside this file
    python scripts/bench/classification/run.py --check          ends with 1 where results.json is better
    python scripts/bench/classification/run.py --entry cnn --entry vae --faults
    python scripts/bench/classification/run.py --recordings FOLDER   keeps what was recorded for the next time
    python scripts/bench/classification/run.py --ablate         also what every rule is worth: ablation.json

Needs torch; a GPU is simulated. Most scripts need the libraries of tests/ecosystem besides, those of the last
four groups those of libraries.txt: run it once in each environment.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import torch
from ablation import Ablation
from cases import bare_snapshots
from comparison import analysed, compare
from entries import ENTRIES, GROUPS, needed_libraries, needs_more_libraries
from faults import faults_of
from figures import as_text, figures, merged, worse_than
from tables import markdown

RESULTS = Path(__file__).with_name("results.json")


def main(argv: Sequence[str] | None = None) -> int:
    """Measure the chosen entries and return the exit code."""
    options = _options(argv)
    torch.set_num_threads(1)
    results, ablation = [], Ablation()
    for bare in bare_snapshots(_entries(options), is_quick=options.quick, recordings=options.recordings):
        bare_analysed = analysed(bare.path)
        results.append(compare(bare, bare_analysed))
        if options.ablate:
            ablation.add(bare, bare_analysed.found)
    found = figures(results)
    print(faults_of(results) if options.faults else markdown(found))
    if options.ablate:
        ablation.write()
    before = json.loads(RESULTS.read_text(encoding="utf-8"))
    worse = worse_than(before, found) if options.check else []
    if options.check:
        print("\n".join(worse) or "nothing is worse than before", file=sys.stderr)
    if options.write:
        RESULTS.write_text(as_text(merged(before, found, _measurable())), encoding="utf-8")
    return int(bool(worse))


def _options(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--entry", action="append", choices=ENTRIES, metavar="NAME", help="only this one; may be repeated"
    )
    parser.add_argument(
        "--group",
        action="append",
        choices=GROUPS,
        metavar="NAME",
        help=f"only this group; may be repeated: {', '.join(GROUPS)}",
    )
    parser.add_argument("--write", action="store_true", help=f"write {RESULTS.name}")
    parser.add_argument("--check", action="store_true", help=f"compare with {RESULTS.name}")
    parser.add_argument("--faults", action="store_true", help="list what is wrong or unknown instead")
    parser.add_argument(
        "--quick", action="store_true", help="one optimizer and zero_grad, four histories, no names"
    )
    parser.add_argument("--ablate", action="store_true", help="measure what every rule is worth, too")
    parser.add_argument("--recordings", type=Path, help="keep what was recorded in this folder, and use it")
    return parser.parse_args(argv)


def _entries(options: argparse.Namespace) -> list[str]:
    """The chosen entries; without a choice, those of this environment."""
    chosen = [*(options.entry or ()), *(entry for group in options.group or () for entry in GROUPS[group])]
    if chosen:
        return chosen
    here = _measurable()
    # Where the libraries of those are, the others have their figures of the other environment.
    found = [entry for entry in here if needs_more_libraries(entry)] or here
    print(f"without {len(ENTRIES) - len(found)} scripts of the other environment", file=sys.stderr)
    return found


def _measurable() -> list[str]:
    """All entries that have their libraries here."""
    is_here = cache(lambda name: find_spec(name) is not None)
    return [entry for entry in ENTRIES if all(map(is_here, needed_libraries(entry)))]


if __name__ == "__main__":
    sys.exit(main())
