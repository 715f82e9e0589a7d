"""From a file that was read to its analysed devices: the one way that every command and the library take.

What the user gives beside the file is read first (``read_options``), since a mistake in it should be reported
before a long reading; then the file; then one device after the other, since each may be large.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from snapconv.classification.user_rules import UserRule
from snapconv.classification.user_rules_file import read_rules
from snapconv.findings.device_analysis import DeviceAnalysis, analyze_device
from snapconv.naming.operations.source_files import source_lines
from snapconv.naming.operations.source_lines import SourceLines
from snapconv.snapshot.load import DeviceSnapshot, Snapshot
from snapconv.snapshot.recorded.metadata import RecordedProject
from snapconv.snapshot.recorded.params_file import ParamList, load_params
from snapconv.snapshot.stack_table import StackTable
from snapconv.stacks.paths import PathMap
from snapconv.stacks.project_frames import Project, find_project


@dataclass(frozen=True, slots=True)
class AnalysisOptions:
    """What a user says of a file; ``snapconv to-sqlite --help`` has the meaning of each.

    ``rules`` and ``params`` are files or what was read from them; ``read_options`` reads the files.
    """

    project_root: str | None = None
    includes: tuple[str, ...] = ()
    path_maps: tuple[PathMap, ...] = ()
    rules: Path | Sequence[UserRule] = ()
    params: Path | ParamList | None = None
    sources: tuple[str | Path, ...] = ()


@dataclass(frozen=True, slots=True)
class Analyzer:
    """All that the analysis of a device needs beside the device."""

    snapshot: Snapshot
    project: Project
    rules: Sequence[UserRule]
    params: ParamList | None
    sources: SourceLines | None

    def analyze(self, device: DeviceSnapshot) -> DeviceAnalysis:
        """Analyse one device of the snapshot."""
        return analyze_device(
            self.snapshot,
            device,
            self.project,
            rules=self.rules,
            params=self.params,
            sources=self.sources,
        )


def read_options(options: AnalysisOptions) -> AnalysisOptions:
    """Read the files among the options; raises InputError where one is damaged or something else."""
    return replace(options, rules=_rules(options), params=_params(options))


def analyzer_of(snapshot: Snapshot, options: AnalysisOptions) -> Analyzer:
    """Prepare the analysis of a snapshot's devices: what they share is found once."""
    project = project_of(snapshot.stacks, snapshot.recorded_project, options)
    sources = source_lines(options.sources, snapshot.stacks, project)
    return Analyzer(snapshot, project, _rules(options), _params(options), sources)


def project_of(stacks: StackTable, recorded: RecordedProject, options: AnalysisOptions) -> Project:
    """Find the frames of the user's project, by what was said, recorded, or else inferred."""
    return find_project(
        stacks,
        root=options.project_root,
        recorded=recorded,
        includes=options.includes,
        path_maps=options.path_maps,
    )


def _rules(options: AnalysisOptions) -> Sequence[UserRule]:
    return read_rules(options.rules) if isinstance(options.rules, Path) else options.rules


def _params(options: AnalysisOptions) -> ParamList | None:
    return load_params(options.params) if isinstance(options.params, Path) else options.params
