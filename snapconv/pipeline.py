"""From a file that was read to its analysed devices: the one way that every command and the library take.

What the user gives beside the file is read first (``read_options``), since a mistake in it should be reported
before a long reading; then the file; then one device after the other, since each may be large.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from snapconv.classification.user_rules import UserRule, UserRules, frame_rules, match_rules
from snapconv.columns import Int64Column, has_code, sums_by
from snapconv.findings.device_analysis import DeviceAnalysis, analyze_device
from snapconv.snapshot.event_table import Action
from snapconv.snapshot.load import DeviceSnapshot, Snapshot
from snapconv.snapshot.recorded.metadata import RecordedProject
from snapconv.snapshot.stack_table import StackTable
from snapconv.stacks.paths import PathMap
from snapconv.stacks.project_frames import Project, find_project
from snapconv.stacks.stack_facts import StackFacts, find_stack_facts
from snapconv.stop_signals import stage

if TYPE_CHECKING:  # it reads JSON, which few files need
    from snapconv.snapshot.recorded.params_file import ParamList


@dataclass(frozen=True, slots=True)
class AnalysisOptions:
    """The options for one file; ``snapconv to-sqlite --help`` has the meaning of each.

    ``rules`` and ``params`` are files or what was read from them; ``read_options`` reads the files.
    """

    project_root: str | None = None
    includes: tuple[str, ...] = ()
    path_maps: tuple[PathMap, ...] = ()
    rules: Path | Sequence[UserRule] = ()
    params: "Path | ParamList | None" = None
    sources: tuple[str | Path, ...] = ()


@dataclass(frozen=True, slots=True)
class Analyzer:
    """All that the analysis of a device needs beside the device."""

    snapshot: Snapshot
    facts: StackFacts
    user_rules: UserRules
    params: "ParamList | None"

    @property
    def project(self) -> Project:
        """Which frames are the project's."""
        return self.facts.project

    def analyze(self, device: DeviceSnapshot) -> DeviceAnalysis:
        """Analyse one device of the snapshot."""
        return analyze_device(
            self.snapshot, device, self.facts, user_rules=self.user_rules, params=self.params
        )


def read_options(options: AnalysisOptions) -> AnalysisOptions:
    """Read the files among the options; raises InputError where one is damaged or something else."""
    return replace(options, rules=_rules(options), params=_params(options))


@stage
def analyzer_of(snapshot: Snapshot, options: AnalysisOptions) -> Analyzer:
    """Prepare the analysis of a snapshot's devices: what they share, their stacks, is looked at once."""
    rules, stacks = _rules(options), snapshot.stacks
    if rules:
        from snapconv.classification.pattern_trial import try_patterns  # with all that starts a process

        try_patterns(rules, stacks.frames)
    project = project_of(
        stacks, snapshot.recorded_project, options, bytes_of_stack=_requested_by_stack(snapshot)
    )
    sources = None
    if options.sources:
        from snapconv.stacks.operations.source_files import source_lines

        sources = source_lines(options.sources, stacks, project)
    facts = find_stack_facts(stacks, project, rules=frame_rules(rules), sources=sources)
    return Analyzer(snapshot, facts, match_rules(rules, stacks), _params(options))


def project_of(
    stacks: StackTable,
    recorded: RecordedProject,
    options: AnalysisOptions,
    *,
    bytes_of_stack: Int64Column | None = None,
) -> Project:
    """Find the frames of the user's project, as given, as recorded, or else inferred."""
    return find_project(
        stacks,
        bytes_of_stack=bytes_of_stack,
        root=options.project_root,
        recorded=recorded,
        includes=options.includes,
        path_maps=options.path_maps,
    )


def _requested_by_stack(snapshot: Snapshot) -> Int64Column:
    """The bytes of all allocations of the trace, and of the blocks in the segments, by their stack."""
    totals = np.zeros(len(snapshot.stacks), np.int64)
    for device in snapshot.devices:
        events, blocks = device.events, device.blocks
        is_alloc = has_code(events.action, Action.ALLOC) & (events.stack_id >= 0)
        totals += sums_by(events.stack_id[is_alloc], events.size[is_alloc], len(totals))
        has_stack = blocks.stack_id >= 0
        totals += sums_by(blocks.stack_id[has_stack], blocks.block_bytes[has_stack], len(totals))
    return totals


def _rules(options: AnalysisOptions) -> Sequence[UserRule]:
    if not isinstance(options.rules, Path):
        return options.rules
    from snapconv.classification.user_rules_file import read_rules  # with the texts of all rules of ours

    return read_rules(options.rules)


def _params(options: AnalysisOptions) -> "ParamList | None":
    if not isinstance(options.params, Path):
        return options.params
    from snapconv.snapshot.recorded.params_file import load_params

    return load_params(options.params)
