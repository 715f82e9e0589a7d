"""What every distinct stack of a file shows by itself: one pass, before anything is known of allocations.

Many million events share a few thousand stacks, and all devices of a file share them too.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from snapconv.snapshot.stack_table import StackTable
from snapconv.stacks.module_calls import find_module_calls
from snapconv.stacks.operations.operation_of_stack import StackOperation, find_sources, infer_operations
from snapconv.stacks.project_frames import Project
from snapconv.stacks.stack_roles import StackRoles, assign_roles
from snapconv.torch_knowledge.frame_patterns import FRAME_RULES, FrameRule

if TYPE_CHECKING:  # what reads sources is imported where there are some
    from snapconv.stacks.operations.source_lines import SourceLines


@dataclass(frozen=True, slots=True)
class StackFacts:
    """The facts about stacks, by stack id: their roles, calls of modules, and operations.

    ``project`` has those about frames. ``sources`` are the lines of source that operations were named by.
    """

    stacks: StackTable
    project: Project
    roles: StackRoles
    module_calls: tuple[str, ...]
    operations: tuple[StackOperation, ...]
    sources: "SourceLines | None"


def find_stack_facts(
    stacks: StackTable,
    project: Project,
    *,
    rules: tuple[FrameRule, ...] = FRAME_RULES,
    sources: "SourceLines | None" = None,
) -> StackFacts:
    """Find what the stacks of a file show; ``rules`` give roles, the first that matches goes on record."""
    lines = sources.lines if sources else None
    return StackFacts(
        stacks=stacks,
        project=project,
        roles=assign_roles(stacks, rules),
        module_calls=find_module_calls(stacks, project),
        operations=infer_operations(stacks, find_sources(stacks.frames, lines)),
        sources=sources,
    )
