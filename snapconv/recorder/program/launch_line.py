"""A launcher's line -> the job to simulate: its ranks, its program, and the environment it sets."""

import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from snapconv.errors import MOST_OF_REASON, EntryPointError
from snapconv.json_text import dataclass_from, read_json
from snapconv.recorder.program import launch_reading
from snapconv.recorder.program.launch_reading import LAUNCHERS, LOCAL_RANK, NODE_RANK

if TYPE_CHECKING:
    from snapconv.simulation import RankOfJob


@dataclass(frozen=True, slots=True)
class LaunchedJob:
    """The job that a launcher's line starts; ``n_ranks`` is None for one process without a job.

    The launcher puts ``added_args`` before the program's own ``args``. ``args_for`` and
    ``environment_for`` put the numbers of a rank into them.
    """

    n_ranks: int | None
    n_ranks_per_node: int | None
    program: str
    added_args: tuple[str, ...]
    args: tuple[str, ...]
    is_module: bool
    environment: dict[str, str]

    def args_for(self, rank: "RankOfJob | None") -> list[str]:
        """Return the arguments of the program in a rank."""
        local_rank = "0" if rank is None else str(rank.local_rank)
        added = [text.replace(LOCAL_RANK, local_rank) for text in self.added_args]
        return [*added, *self.args]

    def environment_for(self, rank: "RankOfJob | None") -> dict[str, str]:
        """Return the variables that the launcher itself sets for a rank, beside those of a job."""
        node_rank = "0" if rank is None else str(rank.node_rank)
        return {
            name: node_rank if value == NODE_RANK else value
            for name, value in self.environment.items()
        }


def is_launch(entry: str, args: Sequence[str], *, is_module: bool) -> bool:
    """Return whether a line starts a job whose ranks can be read; ``accelerate test`` does not."""
    name = entry if is_module else Path(entry).name
    is_script = name.endswith(".py") or name not in LAUNCHERS
    return not is_script and (name != "accelerate" or args[:1] == ["launch"])


def read_launch(entry: str, args: Sequence[str], *, is_module: bool) -> LaunchedJob:
    """Read a line by the launcher's own parser, in a process of its own.

    Raises EntryPointError for a line that the launcher refuses, or that leaves the job open.
    """
    name = entry if is_module else Path(entry).name
    words = args[1:] if name == "accelerate" else args
    with tempfile.TemporaryDirectory(prefix="snapconv-launch-") as folder:
        file = Path(folder, "job.json")
        process = subprocess.run(
            [sys.executable, "-m", launch_reading.__name__, str(file), name, *words],
            capture_output=True,
            stdin=subprocess.DEVNULL,
            text=True,
            errors="replace",
            env=os.environ | {"PYTHONSAFEPATH": "1"},
            check=False,
        )
        if not file.exists() and process.returncode == 0:
            raise EntryPointError(f"{name} starts no job with this line, as with --help")
        if not file.exists():
            lines = (process.stderr.strip() or process.stdout.strip()).splitlines()
            reason = lines[-1] if lines else f"exit code {process.returncode}"
            raise EntryPointError(f"{name} refuses its line: {reason[:MOST_OF_REASON]}")
        values = read_json(file.read_bytes())
    if "refused" in values:
        reason = " ".join(values["refused"].split())[:MOST_OF_REASON]
        raise EntryPointError(f"{name}: {reason}")
    return dataclass_from(LaunchedJob, values)
