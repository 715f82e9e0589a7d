"""Measure how well memory is classified without metadata, on programs recorded with it.

    python scripts/bench/classification/run.py                  all programs of corpus/, as tables
    python scripts/bench/classification/run.py --write          the same, into corpus/results.json
    python scripts/bench/classification/run.py --check          ends with 1 where results.json is
    better python scripts/bench/classification/run.py --entry cnn --entry vae --faults
    python scripts/bench/classification/run.py --corpus COMMIT  the programs that a commit of the
    history has
    python scripts/bench/classification/run.py --recordings FOLDER   keeps what was recorded for the
    next time

Needs torch; a GPU is simulated. Without a choice, the programs are measured whose libraries are
installed.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import entries
import torch
from cases import bare_snapshots
from comparison import analysed, compare
from entries import ENTRIES, GROUP_OF, needed_libraries, results_file
from figures import as_text, figures, merged, worse_than
from past_programs import ALL_PROGRAMS, NoSuchCorpusError, programs_at
from tables import faults_of, markdown


def main(argv: Sequence[str] | None = None) -> int:
    """Measure the chosen entries and return the exit code."""
    parser = _parser()
    options = parser.parse_args(argv)
    try:
        if options.corpus:
            entries.use(programs_at(options.corpus))
        chosen = _chosen(options)
    except (NoSuchCorpusError, NoSuchEntryError) as error:
        parser.error(str(error))
    torch.set_num_threads(1)
    bare_ones = bare_snapshots(chosen, is_quick=options.quick, recordings=options.recordings)
    results = [compare(bare, analysed(bare.path)) for bare in bare_ones]
    found = figures(results)
    print(faults_of(results) if options.faults else markdown(found))
    before = json.loads(results_file().read_text(encoding="utf-8"))
    worse = worse_than(before, found) if options.check else []
    if options.check:
        print("\n".join(worse) or "nothing is worse than before", file=sys.stderr)
    if options.write:
        results_file().write_text(as_text(merged(before, found)), encoding="utf-8")
        print(f"wrote {results_file()}", file=sys.stderr)
    return int(bool(worse))


class NoSuchEntryError(Exception):
    """A program or a group that there is not."""


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    commit = (
        f"measure the programs of a commit; {ALL_PROGRAMS[:12]} has all 385 scripts and 54 others"
    )
    parser.add_argument("--corpus", metavar="COMMIT", help=commit)
    parser.add_argument(
        "--entry",
        action="append",
        default=[],
        metavar="NAME",
        help="only this one; may be repeated",
    )
    parser.add_argument(
        "--group",
        action="append",
        default=[],
        metavar="NAME",
        help="only this group; may be repeated",
    )
    parser.add_argument(
        "--write", action="store_true", help="write results.json beside the programs"
    )
    parser.add_argument("--check", action="store_true", help="compare with results.json")
    parser.add_argument(
        "--faults", action="store_true", help="list what is wrong or unknown instead"
    )
    parser.add_argument(
        "--quick", action="store_true", help="one optimizer and zero_grad, four histories, no names"
    )
    parser.add_argument(
        "--recordings", type=Path, help="keep what was recorded in this folder, and use it"
    )
    return parser


def _chosen(options: argparse.Namespace) -> list[str]:
    """Return the chosen entries; without a choice, those whose libraries are here."""
    for what, names, known in (
        ("entry", options.entry, ENTRIES),
        ("group", options.group, entries.groups()),
    ):
        if missing := [name for name in names if name not in known]:
            raise NoSuchEntryError(f"no {what} is named {missing[0]}; there are {', '.join(known)}")
    if options.entry or options.group:
        return [*options.entry, *(entry for entry in ENTRIES if GROUP_OF[entry] in options.group)]
    here = _measurable()
    print(
        f"without {len(ENTRIES) - len(here)} programs whose libraries are not here", file=sys.stderr
    )
    return here


def _measurable() -> list[str]:
    """Return all entries that have their libraries here."""
    is_here = cache(lambda name: find_spec(name) is not None)
    return [entry for entry in ENTRIES if all(map(is_here, needed_libraries(entry)))]


if __name__ == "__main__":
    sys.exit(main())
