"""Measure how well memory is classified without metadata, on programs recorded with it.

    python scripts/bench/classification/run.py                  all cases, as a table
    python scripts/bench/classification/run.py --write          the same, into results.json beside this file
    python scripts/bench/classification/run.py --check          ends with 1 where results.json is better
    python scripts/bench/classification/run.py --entry cnn --entry vae --faults
    python scripts/bench/classification/run.py --recordings FOLDER   keeps what was recorded for the next time
    python scripts/bench/classification/run.py --ablate         also what every rule is worth: ablation.json

Needs torch; a GPU is simulated. The group "libraries" needs those of tests/ecosystem besides.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

import torch
from ablation import Ablation
from cases import bare_snapshots
from comparison import analysed, compare
from entries import ENTRIES, GROUPS, NEEDED_LIBRARIES
from faults import faults_of
from figures import as_text, figures, merged, worse_than
from programs import Script
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
        RESULTS.write_text(as_text(merged(before, found)), encoding="utf-8")
    return int(bool(worse))


def _options(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--entry", action="append", choices=ENTRIES, help="only this one; may be repeated")
    parser.add_argument("--group", action="append", choices=GROUPS, help="only this group; may be repeated")
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
    """The chosen entries; without a choice, all that have their libraries here."""
    chosen = [*(options.entry or ()), *(entry for group in options.group or () for entry in GROUPS[group])]
    if chosen:
        return chosen
    missing = [name for name in NEEDED_LIBRARIES if find_spec(name) is None]
    if missing:
        print(f"without the scripts: {', '.join(missing)} cannot be imported", file=sys.stderr)
    return [name for name, entry in ENTRIES.items() if not (missing and isinstance(entry, Script))]


if __name__ == "__main__":
    sys.exit(main())
