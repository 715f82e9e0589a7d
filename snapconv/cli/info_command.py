"""``snapconv info``: what a file is, without converting it."""

import sys

from snapconv.cli.arguments import AsJson, Quiet, Snapshot
from snapconv.cli.terminal import print_json, print_lines, progress_bar


def info(snapshot: Snapshot, as_json: AsJson = False, quiet: Quiet = False) -> None:
    """Show what a snapshot file is: torch version, devices, events, settings, history."""
    from snapconv.answers.info import describe
    from snapconv.writers.text.info import info_lines
    from snapconv.writers.text.notes import note_lines

    with progress_bar(shown=not quiet) as progress:
        facts = describe(snapshot, progress=progress)
    if quiet:
        return
    print_lines(note_lines(facts.notes), sys.stderr)
    if as_json:
        print_json(facts.to_json(), n_bytes=facts.n_bytes)
    else:
        print_lines(info_lines(facts), sys.stdout)
