"""What weights are called: as a list of parameters has them, or by the line of the project that made them."""

from collections import Counter
from collections.abc import Iterator, Sequence

import numpy as np

from snapconv.columns import Int32Column
from snapconv.snapshot.stack_table import StackTable
from snapconv.stacks.project_lines import ProjectLines
from snapconv.stacks.stack_roles import frames_of_function

# Module.to, cuda, half and to_empty all go through _apply (torch 2.0 to 2.13).
_APPLY, _MODULE_FILE = "_apply", "nn/modules/module.py"


def were_placed(stacks: StackTable, stack_ids: Int32Column) -> bool | None:
    """Whether most of these allocations were made by Module.to; None where no frame shows it."""
    is_apply = frames_of_function(stacks.frames, _APPLY, _MODULE_FILE)
    found, counts = np.unique(stack_ids, return_counts=True)
    n_placed = n_known = 0
    for stack_id, count in zip(found.tolist(), counts.tolist(), strict=True):
        there = stacks.frames_of(stack_id)
        if len(there):
            n_known += count
            n_placed += count * bool(is_apply[there].any())
    return 2 * n_placed >= n_known if n_known else None


def weight_names(given: Sequence[str], stack_ids: Int32Column, lines: ProjectLines) -> tuple[str, ...]:
    """Name every weight: as given, or else by its line, ``train.py:48#3``, or else by its number."""
    by_line = _names_by_line(stack_ids, lines)
    return tuple(
        name or line or f"weight_{number}"
        for number, (name, line) in enumerate(zip(given, by_line, strict=True), 1)
    )


def _names_by_line(stack_ids: Int32Column, lines: ProjectLines) -> Iterator[str]:
    """The innermost line of the project that each was allocated from, and its number among those."""
    numbers: Counter[str] = Counter()
    for stack_id in stack_ids.tolist():
        line = lines.innermost(stack_id)
        if line:
            numbers[line.place] += 1
        yield f"{line.place}#{numbers[line.place]}" if line else ""
