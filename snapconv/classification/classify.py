"""The order of the classification: facts first, then the inventory of the job, then what is like others.

The first stage that marks an allocation decides. An allocation that none marks stays ``unknown``.
"""

from dataclasses import dataclass

from snapconv.classification import inventory, propagation
from snapconv.classification.categories import NO_RULE, Category, Evidence
from snapconv.classification.decisions import LIKELY_ONLY, Classification, Condition, Decided, Fact, Stage
from snapconv.classification.facts import FACTS, HOST_FACTS, LATER, LIKELY
from snapconv.classification.features import Features
from snapconv.classification.recorded import ATTRIBUTES, RECORDED, user_rules
from snapconv.columns import Int64Column
from snapconv.stop_signals import stage
from snapconv.torch_knowledge.frame_patterns import FRAME_RULES

PERSISTENT = "persistent-since-before-the-recording"


# What the program kept all the time may be weights, states or data: any purpose would be a guess.
_KEPT = Fact(
    Category.UNKNOWN,
    PERSISTENT,
    "there before the first event and at the dump; only its line, if it has one, may show what it is for",
    Evidence.NONE,
    Condition(lambda decided: decided.is_open & decided.features.lasts_throughout),
    by_phases=False,
)
ORDER: tuple[Stage, ...] = (
    user_rules,
    *RECORDED,
    *FACTS,
    *ATTRIBUTES,
    inventory.explain_by_job,
    *LATER,
    propagation.propagate,
    *LIKELY,
    _KEPT,
)
HOST_ORDER: tuple[Stage, ...] = (user_rules, *HOST_FACTS)

# Every reason by its slug: of facts, of stages, and of frame rules.
REASONS: dict[str, str] = {
    NO_RULE: "nothing was decided",
    LIKELY_ONLY: "it is likely only, and --certain counts that as unknown",
    **{fact.slug: fact.reason for fact in ORDER if isinstance(fact, Fact)},
    **inventory.REASONS,
    **propagation.REASONS,
}
_OF_FRAMES = {rule.slug: (rule.reason, rule.seen) for rule in FRAME_RULES}


def reason_of(slug: str) -> tuple[str, str]:
    """Return one of our reasons, and the releases of torch it was seen in (empty: of any).

    Raises KeyError for a rule that is not ours.
    """
    return _OF_FRAMES[slug] if slug in _OF_FRAMES else (REASONS[slug], "")


def order_of(*, is_host: bool) -> tuple[Stage, ...]:
    """Return the stages for a device, or for pinned host memory."""
    return HOST_ORDER if is_host else ORDER


@stage
def classify(features: Features, order: tuple[Stage, ...] = ORDER) -> Classification:
    """Classify every allocation of one device."""
    decided = Decided(features)
    for one in order:
        for proposal in one(decided):
            decided.add(proposal)
    return decided.result()


@dataclass(frozen=True, slots=True)
class Opinion:
    """What one stage has evidence for about one allocation, whether it decided or came too late."""

    row: int
    category: Category
    evidence: Evidence
    reason: str


def opinions(features: Features, rows: Int64Column, order: tuple[Stage, ...] = ORDER) -> tuple[Opinion, ...]:
    """Yield what every stage has evidence for about some allocations, in their order.

    The first opinion on a row is the one that ``classify`` follows.
    """
    decided, found = Decided(features), []
    for one in order:
        for proposal in one(decided):
            decided.add(proposal)
            for row in rows[proposal.where[rows]].tolist():
                found.append(Opinion(row, proposal.category, proposal.evidence, proposal.slug))
    return tuple(found)
