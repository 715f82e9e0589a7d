"""Which rule decides: for every allocation of a device, and, as a plugin of pytest, in any test."""

import json
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from snapconv.classification.features import Features
from snapconv.classification.rule import Decided, PipelineRule, Proposal, RoleRule, Rule
from snapconv.classification.rules.by_record import UserRulesFirst
from snapconv.columns import Int64Column
from snapconv.torch_knowledge.frame_patterns import FRAME_RULES

# Where the plugin writes the names of the rules that decided something.
PATH_VARIABLE = "SNAPCONV_DECIDING_RULES"

Proposals = Callable[[Any, Features, Decided], Iterator[Proposal]]


def decider_of(features: Features, pipeline: Sequence[PipelineRule]) -> Int64Column:
    """For every allocation the number of the rule that decides it; -1 where none does."""
    decided, found = Decided(len(features.alloc)), np.full(len(features.alloc), -1, np.int64)
    for number, rule in enumerate(pipeline):
        for proposal in rule.proposals(features, decided):
            found[proposal.where & decided.is_open] = number
            decided.add(proposal)
    return found


def named_rules(rule: PipelineRule) -> tuple[str, ...]:
    """The names under which a rule's decisions stand in outputs."""
    if isinstance(rule, Rule):
        return (rule.reason.slug,)
    if isinstance(rule, RoleRule):
        return tuple(frame.slug for frame in FRAME_RULES if frame.role == rule.role)
    return ()


def pytest_configure() -> None:
    """Let every rule note that it has decided something."""
    for kind in (Rule, RoleRule, UserRulesFirst):
        kind.proposals = _noting(kind.proposals)  # type: ignore[method-assign, assignment]


_noted: set[str] = set()


def _noting(proposals: Proposals) -> Proposals:
    def noted(rule: Any, features: Features, decided: Decided) -> Iterator[Proposal]:
        for proposal in proposals(rule, features, decided):
            if np.any(proposal.where & decided.is_open):
                _noted.add(rule.name)
            yield proposal

    return noted


def pytest_unconfigure() -> None:
    """Write the names when the last test has run."""
    if PATH_VARIABLE in os.environ:
        Path(os.environ[PATH_VARIABLE]).write_text(json.dumps(sorted(_noted)), encoding="utf-8")
