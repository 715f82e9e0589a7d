"""``snapconv info``: what a file is, without converting it."""

import sys

from snapconv.cli.arguments import AsJson, Quiet, Snapshot
from snapconv.cli.terminal import print_json, print_lines, progress_bar


def info(snapshot: Snapshot, as_json: AsJson = False, quiet: Quiet = False) -> None:
    """Show what a snapshot file is: torch version, devices, events, settings, history."""
    from snapconv.describe import describe
    from snapconv.writers.text.note_text import note_lines

    with progress_bar(shown=not quiet) as progress:
        facts = describe(snapshot, progress=progress)
    if quiet:
        return
    print_lines(note_lines(facts.notes), sys.stderr)
    if as_json:
        print_json(facts.values(), n_bytes=facts.n_bytes)
    else:
        print_lines(facts.lines(), sys.stdout)
